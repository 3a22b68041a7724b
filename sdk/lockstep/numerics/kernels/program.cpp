// Decoding of Programs, and the checks without which running one would touch foreign memory.
#include "program.hpp"

#include <algorithm>
#include <stdexcept>

#include "apply_op.hpp"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

constexpr Index kMost = 0x7fffffff;  // elements of a tensor

// Big-endian fields, one after the other.
class Reader {
public:
    explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
    std::uint64_t number(int bytes) {
        if (bytes_.size() - at_ < static_cast<std::size_t>(bytes)) refuse("the bytes end early");
        std::uint64_t x = 0;
        for (int i = 0; i < bytes; ++i) x = x << 8 | bytes_[at_++];
        return x;
    }
    int u8() { return static_cast<int>(number(1)); }
    int u16() { return static_cast<int>(number(2)); }
    Word u32() { return static_cast<Word>(number(4)); }
    Index i32() { return static_cast<std::int32_t>(u32()); }
    bool done() const { return at_ == bytes_.size(); }

private:
    std::span<const std::uint8_t> bytes_;
    std::size_t at_ = 0;
};

Descriptor decode_descriptor(std::span<const std::uint8_t> bytes) {
    Reader in(bytes);
    Descriptor op;
    op.kind = static_cast<Kind>(in.u8());
    op.mode = in.u8();
    op.dtype = in.u8();
    const int n_out = in.u8(), n_k = in.u8(), operands = in.u8(), instrs = in.u8();
    if (in.u8() != 0) refuse("a reserved byte is set");
    op.p0 = in.u32();
    op.p1 = in.u32();
    in.number(8);
    if (op.kind < Kind::kMap || op.kind > Kind::kQuant) refuse("unknown kind");
    if (op.dtype > 1) refuse("unknown dtype");
    if (n_out > kMaxAxes || n_out + n_k > kMaxAxes) refuse("more than 8 axes");
    if (n_k != (op.kind == Kind::kFold || op.kind == Kind::kQuant)) refuse("a fold or quant has one k axis, nothing else has any");
    for (int i = 0; i < n_out; ++i) {
        op.extents.push_back(in.u32());
        op.elements *= op.extents.back();
        if (op.extents.back() == 0 || op.elements > kMost) refuse("extents out of range");
    }
    if (n_k) op.k = in.u32();
    const Index most = op.kind == Kind::kQuant ? kMost : op.is_qdot() ? 1 << 16 : 1 << 24;
    if (n_k && (op.k == 0 || op.k > most)) refuse("K out of range");
    for (int i = 0; i < operands; ++i) {
        View view{static_cast<Tag>(in.u8()), in.u16(), in.i32(), {}};
        if (view.tag > Tag::kContext) refuse("unknown operand tag");
        for (int axis = 0; axis < n_out + n_k; ++axis) view.strides.push_back(in.i32());
        op.views.push_back(std::move(view));
    }
    if (op.kind == Kind::kConcat)
        for (int i = 0; i < operands; ++i) op.sizes.push_back(in.u32());
    for (int i = 0; i < instrs; ++i) {
        Instr instr{};
        instr.op = static_cast<std::uint8_t>(in.u8());
        instr.a = static_cast<std::uint8_t>(in.u8());
        instr.b = static_cast<std::uint8_t>(in.u8());
        instr.c = static_cast<std::uint8_t>(in.u8());
        instr.imm = in.u32();
        op.instrs.push_back(instr);
    }
    if (!in.done()) refuse("bytes after the end");
    return op;
}

void check_instrs(const Descriptor& op) {
    if (op.kind != Kind::kMap) {
        if (!op.instrs.empty()) refuse("only a map has instructions");
        return;
    }
    if (op.views.size() > kMaxOperands || op.instrs.size() > kMaxInstrs) refuse("too many operands or instructions");
    if (op.views.empty() && op.instrs.empty()) refuse("a map without operands and instructions has no result");
    for (std::size_t i = 0; i < op.instrs.size(); ++i) {
        const Instr& instr = op.instrs[i];
        if (instr.op >= OP_COUNT) refuse("unknown opcode");
        const int reads = arity(instr.op), registers = static_cast<int>(op.views.size() + i);
        if ((reads > 0 && instr.a >= registers) || (reads > 1 && instr.b >= registers) || (reads > 2 && instr.c >= registers))
            refuse("an instruction reads a register that is not written yet");
    }
}

// Throws unless offset + sum(stride x coordinate) stays inside [0, elements) over the whole box.
void check_range(const View& view, const std::vector<Index>& extents, Index elements) {
    Index low = view.offset, high = view.offset;
    for (std::size_t axis = 0; axis < extents.size(); ++axis) {
        const Index reach = view.strides[axis] * (extents[axis] - 1);
        (reach < 0 ? low : high) += reach;
    }
    if (low < 0 || high >= elements) refuse("a view reaches outside of its source");
}

// Groups of codes: what keeps their words together, and inside of their tensors.
void check_groups(const Descriptor& op) {
    const Index words = op.p0;
    if (words < 1 || words > kMaxGroupWords || (words & (words - 1))) refuse("groups of an impossible number of words");
    if (op.kind == Kind::kFold) {
        for (std::size_t i = 0; i < op.views.size(); ++i) {
            const View& view = op.views[i];
            const Index along = view.strides.back();
            bool whole = i >= 2 || (along == words && view.offset % words == 0);
            for (const Index stride : view.strides) whole &= i >= 2 || stride % words == 0;
            if (view.tag >= Tag::kIota || !whole || (i >= 2 && along != 0 && along != 1)) refuse("an operand of a qdot that is not in groups");
        }
        return;
    }
    const Index groups = (op.k + 4 * words - 1) / (4 * words);
    if (op.mode > 3 || op.dtype != (op.wants_codes() ? 1 : 0) || (op.p1 && (op.p1 < 1u << 31 || !op.wants_codes())) ||
        op.views[0].tag >= Tag::kIota || op.extents.empty() || op.extents.back() != groups * (op.wants_codes() ? words : 1) ||
        op.views[0].strides.back() != 1 || op.views[0].strides[op.extents.size() - 1] != 0)
        refuse("a quant of another form");
}

void check_views(const Program& program, const Descriptor& op, std::size_t own) {
    const std::size_t due = op.kind == Kind::kFold     ? (op.mode == 0 ? 2 : op.is_qdot() ? 4 : 1)
                            : op.kind == Kind::kQuant  ? 1
                            : op.kind == Kind::kGather ? 2
                            : op.kind == Kind::kMap || op.kind == Kind::kConcat ? op.views.size()
                                                                                : 0;
    if (op.views.size() != due) refuse("the wrong number of operands");
    if (op.is_qdot() || op.kind == Kind::kQuant) check_groups(op);
    Index parts = 0;
    for (const Index size : op.sizes) {
        if (size == 0 || size > op.extents[op.p0]) refuse("a part of a concat that does not fit");
        parts += size;
    }
    if (op.kind == Kind::kConcat && parts != op.extents[op.p0]) refuse("the parts of a concat do not add up");
    for (std::size_t i = 0; i < op.views.size(); ++i) {
        const View& view = op.views[i];
        const auto index = static_cast<std::size_t>(view.index);
        if (view.tag == Tag::kIota) continue;
        if (view.tag == Tag::kOp && index >= own) refuse("an operand is not computed yet");
        if (view.tag == Tag::kState && (index >= program.inputs.size() || program.inputs[index].kind == 0))
            refuse("an operand names an empty state entry");
        if (view.tag == Tag::kConst && index >= program.const_elements.size()) refuse("an operand names no constant");
        std::vector<Index> extents = op.extents;
        View reach = view;
        if (op.kind == Kind::kFold || op.kind == Kind::kQuant) extents.push_back(op.k);
        if (op.is_qdot() && i < 2) {
            extents.push_back(op.p0);
            reach.strides.push_back(1);
        }
        if (op.kind == Kind::kConcat) extents.at(op.p0) = op.sizes[i];
        if (op.kind == Kind::kGather && i == 1) {
            // Bounded like extents and strides, so that no sum of reaches overflows 64 bits.
            if (op.p0 == 0 || op.p0 > kMost || op.p1 > kMost) refuse("a gather from a table of impossible rows");
            extents.push_back(op.p0);
            reach.strides.push_back(op.p1);
        }
        check_range(reach, extents, program.source_elements(view));
    }
    if (op.kind == Kind::kDraw && op.extents.size() != 2) refuse("a draw has two axes");
    if (op.kind == Kind::kFold && op.mode > 5) refuse("unknown fold mode");
}

}  // namespace

int arity(int op) {
    switch (static_cast<Op>(op)) {
    case Op::IMM: return 0;
    case Op::FFMA:
    case Op::SELECT: return 3;
    case Op::MOV: case Op::FSQRT: case Op::FNEG: case Op::FABS: case Op::FEXP: case Op::FLOG: case Op::FTANH:
    case Op::I2F: case Op::F2I: case Op::FCANON: return 1;
    default: return 2;
    }
}

bool is_dear(int op) {
    switch (static_cast<Op>(op)) {
    case Op::FDIV: case Op::FSQRT: case Op::FEXP: case Op::FLOG: case Op::FTANH: case Op::IDIV: case Op::IREM: return true;
    default: return false;
    }
}

bool Descriptor::is_qdot() const { return kind == Kind::kFold && mode == kQdotMode; }

std::vector<int> ops_read(const std::vector<View>& views) {
    std::vector<int> ops;
    for (const View& view : views)
        if (view.tag == Tag::kOp && std::find(ops.begin(), ops.end(), view.index) == ops.end()) ops.push_back(view.index);
    return ops;
}

Source source_of(const View& view) { return Source{view.tag, view.index, view.offset}; }

bool View::uniform() const {
    return std::all_of(strides.begin(), strides.end(), [](Index s) { return s == 0; });
}

Index Program::source_elements(const View& view) const {
    const auto index = static_cast<std::size_t>(view.index);
    switch (view.tag) {
    case Tag::kOp: return ops[index].elements;
    case Tag::kState: return inputs[index].elements;
    case Tag::kConst: return const_elements[index];
    case Tag::kContext: return 3;
    case Tag::kIota: break;
    }
    return 0;
}

Program decode_program(std::span<const std::uint8_t> header, const std::vector<std::span<const std::uint8_t>>& descriptors,
                       std::vector<Index> const_elements) {
    Program program;
    program.const_elements = std::move(const_elements);
    Reader in(header);
    if (in.u32() != 0x4c535031) refuse("not a Program: the header does not begin with LSP1");
    if (in.u16() != 1) refuse("another profile than F32-C256");
    if (const int opset = in.u16(); opset < 1 || opset > 2) refuse("another op-set than 1 and 2");
    if (static_cast<std::size_t>(in.u16()) != descriptors.size()) refuse("the header names another number of ops");
    in.u8();
    const int s_in = in.u8(), s_out = in.u8();
    if (s_in > 16 || s_out > 16) refuse("a state of more than 2^16 entries");
    if (static_cast<std::size_t>(in.u16()) != program.const_elements.size()) refuse("the header names another number of constants");
    for (int i = 0; i < 1 << s_in; ++i) {
        const int kind = in.u8(), dtype = in.u8();
        const Index dim = in.u32();
        if (kind > 2 || dtype > 1 || (kind == 2 && dim == 0)) refuse("a state entry does not parse");
        program.inputs.push_back(Entry{kind, dtype, kind == 1 ? 1 : kind == 2 ? dim : 0});
    }
    for (int i = 0; i < 1 << s_out; ++i) {
        const int kind = in.u8(), index = in.u16();
        program.outputs.push_back(Alias{kind, index});
    }
    if (!in.done()) refuse("bytes after the end of the header");
    program.ops.reserve(descriptors.size());
    for (std::size_t i = 0; i < descriptors.size(); ++i) try {
            Descriptor op = decode_descriptor(descriptors[i]);
            check_instrs(op);
            if (op.kind == Kind::kConcat && (op.p0 >= op.extents.size() || op.views.empty())) refuse("a concat along no axis");
            check_views(program, op, i);
            program.ops.push_back(std::move(op));
        } catch (const std::invalid_argument& error) {
            refuse("op " + std::to_string(i) + ": " + error.what());
        }
    for (const Alias& alias : program.outputs) {
        const auto index = static_cast<std::size_t>(alias.index);
        if (alias.kind > 2 || (alias.kind == 1 && index >= program.ops.size()) || (alias.kind == 2 && index >= program.inputs.size()))
            refuse("an output names nothing that exists");
        if (alias.kind == 2 && program.inputs[index].kind == 0) refuse("an output names an empty state entry");
    }
    return program;
}

}  // namespace lockstep
