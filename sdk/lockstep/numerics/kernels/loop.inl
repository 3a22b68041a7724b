// Loops: blocks of rows handed to a compiled function, operands gathered into scratch where their rows are not contiguous.

// Blocks [begin, end) of a loop.
void run_loop(const LoopPlan& plan, LoopFunction function, const Word* const* bases, Word* const* outs, Index begin, Index end, Word* scratch) {
    const Word* in[kMaxLoopOperands];
    Word starts[kMaxLoopOperands];
    Index in_stride[kMaxLoopOperands], out_stride[kMaxLoopOutputs];
    Word* out[kMaxLoopOutputs];
    Box before{};
    Word filled[kMaxLoopOperands];  // where the copied iotas of the block before begin
    for (Index block = begin; block < end; ++block) {
        const Box box = box_of(plan, block);
        const bool alike = block > begin && __builtin_memcmp(box.size, before.size, static_cast<std::size_t>(box.axes) * sizeof(Index)) == 0;
        before = box;
        const Index rows = plan.row_axis < 0 ? 1 : box.size[plan.row_axis], columns = box.elements / rows;
        const auto along_rows = [&](const Index* strides) { return plan.row_axis < 0 ? Index{0} : strides[plan.row_axis]; };
        for (int v = 0; v < plan.operands; ++v) {
            const LoopOperand& operand = plan.operand[v];
            const Index offset = offset_of(box, operand.strides);
            in_stride[v] = along_rows(operand.strides);
            if (operand.iota) {
                starts[v] = operand.offset + static_cast<Word>(offset);
                in[v] = &starts[v];
            } else {
                in[v] = bases[v] + offset;
            }
            if (!operand.gathered) continue;
            const Window window(box, operand.strides);
            if (!operand.iota && window.contiguous()) {
                in_stride[v] = columns;
                continue;
            }
            Word* copied = scratch + v * (kBlock + 16);
            if (operand.iota && alike) {
                const Word ahead = starts[v] - filled[v];
                for (Index i = 0; i < box.elements; ++i) copied[i] += ahead;
            } else if (operand.iota) {
                fill_iota(copied, starts[v], window);
            } else {
                gather_window(copied, in[v], window);
            }
            filled[v] = starts[v];
            in[v] = copied;
            in_stride[v] = columns;
        }
        const Index at = offset_of(box, plan.out_strides);
        for (int j = 0; j < plan.outputs; ++j) {
            out[j] = outs[j] + at;
            out_stride[j] = along_rows(plan.out_strides);
        }
        function(in, in_stride, out, out_stride, rows, columns);
    }
}
