// Maps: an expression evaluated block by block, one vectorised loop per instruction, registers in L1.

// The part of a plan's axes that one block covers.
struct Box {
    int axes;
    Index start[kMaxAxes], size[kMaxAxes];
    Index elements;
};

template <class Plan>
Box box_of(const Plan& plan, Index block) {
    Box box;
    box.axes = plan.axes;
    box.elements = 1;
    for (int ax = plan.axes - 1; ax >= 0; --ax) {
        const Index count = (plan.extents[ax] + plan.box[ax] - 1) / plan.box[ax];
        box.start[ax] = block % count * plan.box[ax];
        block /= count;
        const Index left = plan.extents[ax] - box.start[ax];
        box.size[ax] = left < plan.box[ax] ? left : plan.box[ax];
        box.elements *= box.size[ax];
    }
    return box;
}

inline Index offset_of(const Box& box, const Index* strides) {
    Index offset = 0;
    for (int ax = 0; ax < box.axes; ++ax) offset += box.start[ax] * strides[ax];
    return offset;
}

// A box's strides on one operand with the trivial axes dropped and the others merged; dims is at least 1.
struct Window {
    int dims = 0;
    Index size[kMaxAxes], stride[kMaxAxes];

    Window(const Box& box, const Index* strides) {
        for (int ax = 0; ax < box.axes; ++ax) {
            if (box.size[ax] == 1) continue;
            if (dims && stride[dims - 1] == strides[ax] * box.size[ax]) {
                size[dims - 1] *= box.size[ax];
                stride[dims - 1] = strides[ax];
            } else {
                size[dims] = box.size[ax];
                stride[dims++] = strides[ax];
            }
        }
        if (!dims) size[0] = 1, stride[0] = 1, dims = 1;
    }
    bool contiguous() const { return dims == 1 && stride[0] == 1; }
};

LOCKSTEP_INLINE void fill(Word* out, Word x, Index n) {
    for (Index i = 0; i < n; ++i) out[i] = x;
}
LOCKSTEP_INLINE void copy(Word* out, const Word* in, Index n) {
    if (n > 4 * W) return void(__builtin_memcpy(out, in, static_cast<std::size_t>(n) * sizeof(Word)));
    for (Index i = 0; i < n; i += W) {
        const int left = static_cast<int>(n - i < W ? n - i : W);
        store_first(out + i, load_first(in + i, left), left);
    }
}

// out[i] = in[2 i]; reads nothing after the last of them.
inline void copy_every_second(Word* out, const Word* in, Index n) {
    for (Index i = 0; i < n; i += W) {
        const int count = static_cast<int>(n - i < W ? n - i : W), reach = 2 * count - 1;
        const Word* from = in + 2 * i;
        const Float low = reach >= W ? load(from) : load_first(from, reach);
        const Float high = reach > W ? load_first(from + W, reach - W) : zero();
        store_first(out + i, every_second(low, high), count);
    }
}

inline void copy_row(Word* out, const Word* in, Index stride, Index n) {
    if (stride == 1) return copy(out, in, n);
    if (stride == 0) return fill(out, *in, n);
    if (stride == 2) return copy_every_second(out, in, n);
    for (Index i = 0; i < n; ++i) out[i] = in[i * stride];
}

// out[r * cols + c] = in[r + c * stride]: squares of W x W through registers.
inline void copy_transposed(Word* out, const Word* in, Index stride, Index rows, Index cols) {
    for (Index r = 0; r < rows; r += W) {
        const int height = static_cast<int>(rows - r < W ? rows - r : W);
        for (Index c = 0; c < cols; c += W) {
            const int width = static_cast<int>(cols - c < W ? cols - c : W);
            Float square[W];
            if (height == W && width == W) {
                for (int i = 0; i < W; ++i) square[i] = load(in + r + (c + i) * stride);
                transpose(square);
                for (int i = 0; i < W; ++i) store(out + (r + i) * cols + c, square[i]);
                continue;
            }
            for (int i = 0; i < W; ++i) square[i] = i < width ? load_first(in + r + (c + i) * stride, height) : zero();
            transpose(square);
            for (int i = 0; i < height; ++i) store_first(out + (r + i) * cols + c, square[i], width);
        }
    }
}

// Calls row(offset, at) for every run of the window along its last `own` axes; `at` counts the elements before it.
template <class Row>
LOCKSTEP_INLINE void each_row(const Window& w, Row row, int own = 1) {
    Index coordinate[kMaxAxes] = {}, offset = 0, at = 0, inner = 1;
    for (int ax = w.dims - own; ax < w.dims; ++ax) inner *= w.size[ax];
    for (;;) {
        row(offset, at);
        at += inner;
        int ax = w.dims - own - 1;
        for (; ax >= 0; --ax) {
            offset += w.stride[ax];
            if (++coordinate[ax] < w.size[ax]) break;
            offset -= w.stride[ax] * w.size[ax];
            coordinate[ax] = 0;
        }
        if (ax < 0) return;
    }
}

// Rows of a few words each, which would be too short for a loop of their own.
template <Index INNER>
inline void copy_short_rows(Word* out, const Word* in, const Window& w) {
    const Index rows = w.size[w.dims - 2], row = w.stride[w.dims - 2], stride = w.stride[w.dims - 1];
    each_row(
        w,
        [&](Index offset, Index at) {
            const Word* from = in + offset;
            Word* to = out + at;
            if (stride == 0 && row == 1)
                for (Index i = 0; i < rows; ++i)
                    for (Index j = 0; j < INNER; ++j) to[i * INNER + j] = from[i];
            else
                for (Index i = 0; i < rows; ++i)
                    for (Index j = 0; j < INNER; ++j) to[i * INNER + j] = from[i * row + j * stride];
        },
        2);
}

inline void gather_window(Word* out, const Word* in, const Window& w) {
    const Index inner = w.size[w.dims - 1], stride = w.stride[w.dims - 1];
    if (w.dims == 1) return copy_row(out, in, stride, inner);
    if (inner == 2) return copy_short_rows<2>(out, in, w);
    if (inner == 3) return copy_short_rows<3>(out, in, w);
    if (inner == 4) return copy_short_rows<4>(out, in, w);
    if (w.dims == 2 && w.stride[0] == 1) return copy_transposed(out, in, stride, w.size[0], inner);
    each_row(w, [&](Index offset, Index at) { copy_row(out + at, in + offset, stride, inner); });
}

inline void scatter_window(Word* out, const Window& w, const Word* in) {
    const Index inner = w.size[w.dims - 1], stride = w.stride[w.dims - 1];
    if (w.dims > 1 && stride == 1 && inner <= 2 * W) {  // an image's rows, within its padding
        const Index rows = w.size[w.dims - 2], pitch = w.stride[w.dims - 2];
        const int low = static_cast<int>(inner < W ? inner : W), high = static_cast<int>(inner) - low;
        return each_row(
            w,
            [&](Index offset, Index at) {
                for (Index i = 0; i < rows; ++i) {
                    Word* to = out + offset + i * pitch;
                    const Word* from = in + at + i * inner;
                    store_first(to, load_first(from, low), low);
                    if (high) store_first(to + W, load_first(from + W, high), high);
                }
            },
            2);
    }
    each_row(w, [&](Index offset, Index at) {
        if (stride == 1) return copy(out + offset, in + at, inner);
        for (Index i = 0; i < inner; ++i) out[offset + i * stride] = in[at + i];
    });
}

inline void fill_iota(Word* out, Word start, const Window& w) {
    const Index inner = w.size[w.dims - 1];
    const Word stride = static_cast<Word>(w.stride[w.dims - 1]);
    if (inner == 2 && w.dims > 1) {
        const Index rows = w.size[w.dims - 2];
        const Word row = static_cast<Word>(w.stride[w.dims - 2]);
        return each_row(
            w,
            [&](Index offset, Index at) {
                const Word first = start + static_cast<Word>(offset);
                for (Index i = 0; i < rows; ++i) {
                    out[at + 2 * i] = first + row * static_cast<Word>(i);
                    out[at + 2 * i + 1] = first + row * static_cast<Word>(i) + stride;
                }
            },
            2);
    }
    each_row(w, [&](Index offset, Index at) {
        const Word first = start + static_cast<Word>(offset);
        for (Index i = 0; i < inner; ++i) out[at + i] = first + stride * static_cast<Word>(i);
    });
}

void run_map(const MapPlan& plan, const Word* const* bases, Word* out, Index begin, Index end, Word* scratch) {
    constexpr Index kPitch = kBlock + 16;  // registers start in different sets of a 4 KiB-aliased cache
    const Word* registers[kMaxOperands + kMaxInstrs] = {};
    const auto buffer = [&](int i) { return scratch + i * kPitch; };

    // What is one value for the whole op is written once, over a full block.
    for (int i = 0; i < plan.operands; ++i) {
        if (!plan.operand[i].uniform) continue;
        Word* filled = buffer(plan.operand_buffer[i]);
        fill(filled, plan.operand[i].iota ? plan.operand[i].offset : *bases[i], kBlock);
        registers[i] = filled;
    }
    const auto evaluate = [&](const MapInstr& instr, Word* result, Index n) {
        if (static_cast<Op>(instr.op) == Op::IMM) return fill(result, instr.imm, n);
        apply_op_inside(instr.op, registers[instr.a], registers[instr.b], registers[instr.c], result, static_cast<std::size_t>(n));
    };
    for (int i = 0; i < plan.instrs; ++i) {
        if (!plan.instr[i].uniform) continue;
        Word* result = buffer(plan.instr[i].buffer);
        evaluate(plan.instr[i], result, kBlock);
        registers[plan.operands + i] = result;
    }

    for (Index block = begin; block < end; ++block) {
        const Box box = box_of(plan, block);
        const Window out_window(box, plan.out_strides);
        Word* target = out + offset_of(box, plan.out_strides);
        Word* direct = out_window.contiguous() ? target : buffer(plan.buffers);
        for (int i = 0; i < plan.operands; ++i) {
            const MapOperand& operand = plan.operand[i];
            if (operand.uniform) continue;
            const Index offset = offset_of(box, operand.strides);
            const Window window(box, operand.strides);
            if (!operand.iota && window.contiguous()) {
                registers[i] = bases[i] + offset;
                continue;
            }
            Word* loaded = plan.instrs ? buffer(plan.operand_buffer[i]) : direct;
            if (operand.iota) fill_iota(loaded, operand.offset + static_cast<Word>(offset), window);
            else gather_window(loaded, bases[i] + offset, window);
            registers[i] = loaded;
        }
        for (int i = 0; i < plan.instrs; ++i) {
            const MapInstr& instr = plan.instr[i];
            if (instr.uniform) continue;
            Word* result = i == plan.instrs - 1 ? direct : buffer(instr.buffer);
            evaluate(instr, result, box.elements);
            registers[plan.operands + i] = result;
        }
        const Word* result = registers[plan.operands + plan.instrs - 1];
        if (result == target) continue;
        if (out_window.contiguous()) copy(target, result, box.elements);
        else scatter_window(target, out_window, result);
    }
}
