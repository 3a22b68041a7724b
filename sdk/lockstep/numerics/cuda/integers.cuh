// Products of codes: on tensor cores where there are, of integers or of floats that hold them exactly; else dot products of bytes.
//
// A sum of products of codes is an exact integer, so it has no order: which unit forms it, from which fragments and in which
// order of k, changes no bit. The order of floats begins where a group's sum becomes one (`promote`).
#pragma once

// The unit: 4 mma.m16n8k16 of halves (sm_103, whose integer units are few), 3 wgmma.m64k32 (sm_90a), 2 mma.m16n8k32 and cp.async
// (sm_80), 1 mma.m8n8k16 (sm_75), 0 dp4a (sm_61).
#if !defined(LOCKSTEP_UNIT)
#if defined(__HIP__)
#define LOCKSTEP_UNIT 0
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LOCKSTEP_UNIT 3
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1030
#define LOCKSTEP_UNIT 4
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define LOCKSTEP_UNIT 2
#elif __CUDA_ARCH__ >= 750
#define LOCKSTEP_UNIT 1
#else
#define LOCKSTEP_UNIT 0
#endif
#endif

namespace lockstep::cuda {

// --- the machine ------------------------------------------------------------------------------------------------------------

// What a unit does with the registers of a warp's 32 lanes, in the layouts of the PTX manual ("Matrix fragments for
// mma.m16n8k32", "mma.m16n8k16", "mma.m8n8k16", "ldmatrix", "wgmma"). emulation.hpp has the same functions for a C++ compiler. Shared memory is
// addressed by bytes from `pool` on.
namespace unit {

#if defined(LOCKSTEP_GPU)
alignas(1024) extern __shared__ Four pool[];  // wgmma's swizzle takes bits of the address

LOCKSTEP_MEMBER Four* place(Word at) { return pool + at / 16; }
LOCKSTEP_MEMBER Word word_at(Word at) { return reinterpret_cast<const Word*>(pool)[at / 4]; }
LOCKSTEP_MEMBER Word& cell(Word at) { return reinterpret_cast<Word*>(pool)[at / 4]; }
LOCKSTEP_MEMBER void store(Word at, const Four& four) { *place(at) = four; }

// The same word, of which the compiler does not know that it could be computed again: it stays in its register.
#if defined(__HIP__)
LOCKSTEP_MEMBER Word kept(Word x) { return x; }
#else
LOCKSTEP_MEMBER Word kept(Word x) { return __shfl_sync(0xffffffff, x, static_cast<int>(threadIdx.x % 32)); }
#endif

#if LOCKSTEP_UNIT >= 1
LOCKSTEP_MEMBER Word address(Word at) { return static_cast<Word>(__cvta_generic_to_shared(pool)) + at; }

// Four matrices of 8 rows of 16 bytes: lane l names row l % 8 of matrix l / 8, and gets word l % 4 of row l / 4 of each.
LOCKSTEP_MEMBER void load_matrices(Word (&to)[4], Word at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address(at)));
}
#endif

#if LOCKSTEP_UNIT == 2 || LOCKSTEP_UNIT == 3
// c = from + a b for 16 x 32 and 32 x 8 signed bytes.
LOCKSTEP_MEMBER void multiply_16_8_32(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}
#endif

#if LOCKSTEP_UNIT == 4
// c = from + a b for 16 x 16 and 16 x 8 halves; sums are floats.
LOCKSTEP_MEMBER void multiply_16_8_16(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) {
    float sums[4];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(value(from[0])), "f"(value(from[1])),
                   "f"(value(from[2])), "f"(value(from[3])));
#pragma unroll
    for (int v = 0; v < 4; ++v) c[v] = word(sums[v]);
}
// 0x00ff00ff in a register: the compiler does not know the lanes' vote, and writes no constant anew before each use.
LOCKSTEP_MEMBER Word even_bytes() { return __ballot_sync(0xffffffff, threadIdx.x % 16 < 8); }
// The sums of two halves each.
LOCKSTEP_MEMBER Word add_halves(Word a, Word b) {
    Word sums;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
    return sums;
}
#endif

#if LOCKSTEP_UNIT == 3
// Keeps the compiler from moving what reads or writes the sums across this place: it does not know that products are asynchronous.
template <int N>
LOCKSTEP_MEMBER void pin(Word (&sums)[1][N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int v = 0; v < 4; ++v) asm volatile("" : "+r"(sums[0][j][v])::"memory");
}
// Orders earlier accesses to the sums before the products that are started next.
template <int N>
LOCKSTEP_MEMBER void begin_products(Word (&sums)[1][N][4]) {
    pin(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Puts the products that this warp group has started since the last call into a group that can be waited for.
LOCKSTEP_MEMBER void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all committed products.
template <int N>
LOCKSTEP_MEMBER void await_products(Word (&sums)[1][N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(sums);
}
// Shows what this thread has written to shared memory to the asynchronous products of its block.
LOCKSTEP_MEMBER void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// An address in a matrix descriptor, in units of 16 bytes.
LOCKSTEP_MEMBER unsigned long long described(Word at) { return (address(at) & 0x3ffff) >> 4; }

#define LOCKSTEP_SUMS(j) "+r"(sums[0][j][0]), "+r"(sums[0][j][1]), "+r"(sums[0][j][2]), "+r"(sums[0][j][3])
// Starts sums (+)= a b for 64 x 32 and 32 x 8 N signed bytes, both in shared memory; the four warps of a group do this together.
LOCKSTEP_MEMBER void multiply_64(Word (&sums)[1][16][4], unsigned long long a, unsigned long long b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p;\n}"
        : LOCKSTEP_SUMS(0), LOCKSTEP_SUMS(1), LOCKSTEP_SUMS(2), LOCKSTEP_SUMS(3), LOCKSTEP_SUMS(4), LOCKSTEP_SUMS(5),
          LOCKSTEP_SUMS(6), LOCKSTEP_SUMS(7), LOCKSTEP_SUMS(8), LOCKSTEP_SUMS(9), LOCKSTEP_SUMS(10), LOCKSTEP_SUMS(11),
          LOCKSTEP_SUMS(12), LOCKSTEP_SUMS(13), LOCKSTEP_SUMS(14), LOCKSTEP_SUMS(15)
        : "l"(a), "l"(b), "r"(add ? 1 : 0)
        : "memory");
}
LOCKSTEP_MEMBER void multiply_64(Word (&sums)[1][4][4], unsigned long long a, unsigned long long b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p;\n}"
        : LOCKSTEP_SUMS(0), LOCKSTEP_SUMS(1), LOCKSTEP_SUMS(2), LOCKSTEP_SUMS(3)
        : "l"(a), "l"(b), "r"(add ? 1 : 0)
        : "memory");
}
#undef LOCKSTEP_SUMS
#endif

#if LOCKSTEP_UNIT >= 2
// Starts to copy 16 bytes from OFFSET bytes behind `from`, or zeros where they are not `inside`.
template <int OFFSET>
LOCKSTEP_MEMBER void copy_16(Word to, const Word* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1 + %3], 16, %2;" ::"r"(address(to)), "l"(from), "r"(inside ? 16 : 0), "n"(OFFSET)
                 : "memory");
}
LOCKSTEP_MEMBER void copy_4(Word to, const Word* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address(to)), "l"(from),
                 "r"(inside ? 4 : 0)
                 : "memory");
}
// Waits for this thread's copies.
LOCKSTEP_MEMBER void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#elif LOCKSTEP_UNIT == 1
// c = from + a b for 8 x 16 and 16 x 8 signed bytes.
LOCKSTEP_MEMBER void multiply_8_8_16(Word& c0, Word& c1, Word a, Word b, Word from0, Word from1) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
                 : "=r"(c0), "=r"(c1)
                 : "r"(a), "r"(b), "r"(from0), "r"(from1));
}
#elif defined(__HIP__)
LOCKSTEP_MEMBER Word dot_4(Word a, Word b, Word sum) { return sum + static_cast<Word>(codes::product(a, b)); }
#else
LOCKSTEP_MEMBER Word dot_4(Word a, Word b, Word sum) {
    return static_cast<Word>(__dp4a(static_cast<int>(a), static_cast<int>(b), static_cast<int>(sum)));
}
#endif
#else
using namespace emulation::unit;
#endif

#if LOCKSTEP_UNIT == 1
// Two rows of two: the registers of a 16 x 8 x 32 product are those of four 8 x 8 x 16 ones.
LOCKSTEP_MEMBER void multiply_16_8_32(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        multiply_8_8_16(c[2 * half], c[2 * half + 1], a[half], b[0], from[2 * half], from[2 * half + 1]);
        multiply_8_8_16(c[2 * half], c[2 * half + 1], a[half + 2], b[1], c[2 * half], c[2 * half + 1]);
    }
}
#endif
#if LOCKSTEP_UNIT == 4
// Codes 0 and 2 of a word, then 1 and 3, as halves. A half of 1,024 + 128 + code has the code's byte as its low one, but for the
// sign; what is subtracted leaves the code, exactly.
LOCKSTEP_MEMBER void halves_of(Word codes, Word mask, Word& even, Word& odd) {
    even = add_halves((codes & mask) ^ 0x64806480, 0xe480e480);
    odd = add_halves((codes >> 8 & mask) ^ 0x64806480, 0xe480e480);
}
// Both operands take their codes in the same order of k, which no sum has: a lane's words are its words of two fragments of halves.
LOCKSTEP_MEMBER void multiply_16_8_32(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4], Word mask = 0x00ff00ff) {
    Word left[2][4], right[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        halves_of(a[2 * half], mask, left[half][0], left[half][2]);
        halves_of(a[2 * half + 1], mask, left[half][1], left[half][3]);
        halves_of(b[half], mask, right[half][0], right[half][1]);
    }
    multiply_16_8_16(c, left[0], right[0], from);
    multiply_16_8_16(c, left[1], right[1], c);
}
#endif
#if LOCKSTEP_UNIT < 2
// The same copies where none goes on beside the threads' own work.
template <int OFFSET>
LOCKSTEP_MEMBER void copy_16(Word to, const Word* from, bool inside) {
    Four four{};
    if (inside) four = *reinterpret_cast<const Four*>(from + OFFSET / 4);
    *place(to) = four;
}
LOCKSTEP_MEMBER void copy_4(Word to, const Word* from, bool inside) { place(to / 16 * 16)->lane[to / 4 % 4] = inside ? *from : 0; }
LOCKSTEP_MEMBER void await_copies() {}
#endif

// Two floats, which the newest devices (sm_100) add and multiply at once, each rounded as by itself.
struct Pair {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    unsigned long long both;
    LOCKSTEP_MEMBER Pair(float low, float high) { asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "f"(low), "f"(high)); }
    LOCKSTEP_MEMBER Pair operator*(Pair other) const {
        asm("mul.rn.f32x2 %0, %1, %0;" : "+l"(other.both) : "l"(both));
        return other;
    }
    LOCKSTEP_MEMBER Pair operator+(Pair other) const {
        asm("add.rn.f32x2 %0, %1, %0;" : "+l"(other.both) : "l"(both));
        return other;
    }
    LOCKSTEP_MEMBER void get(float& low, float& high) const { asm("mov.b64 {%0, %1}, %2;" : "=f"(low), "=f"(high) : "l"(both)); }
#else
    float low, high;
    LOCKSTEP_MEMBER Pair(float a, float b) : low(a), high(b) {}
    LOCKSTEP_MEMBER Pair operator*(Pair other) const { return Pair(low * other.low, high * other.high); }
    LOCKSTEP_MEMBER Pair operator+(Pair other) const { return Pair(low + other.low, high + other.high); }
    LOCKSTEP_MEMBER void get(float& a, float& b) const { a = low, b = high; }
#endif
};

}  // namespace unit

// --- tiles ------------------------------------------------------------------------------------------------------------------

constexpr int kCodeThreads = 256;
constexpr Word kRow = 128;   // bytes of a row of a stage: eight pieces of 16, or two slices
constexpr Word kSlice = 16;  // words of a slice, the k of two products of 32 codes; a group is padded to whole slices

// A sum of integers begins here. Up to 2^22 either way it is as a float 3 x 2^22 more than the integer: one exact subtraction converts
// it. A sum of floats begins at +0 and is converted.
#if LOCKSTEP_UNIT == 4
constexpr Word kExact = 0;
#else
constexpr Word kExact = 0x4b400000;
#endif

// The first byte of a piece of a row. Eight rows' pieces of one number lie in the 32 banks once each.
LOCKSTEP_MEMBER Word piece_at(Word row, Word piece) { return row * kRow + ((piece ^ (row & 7)) << 4); }

// The shared memory of a block: two stages of SIDE rows of both operands, then for each of them the scales of the
// groups that end in it.
template <class Product>
struct Plan {
    static constexpr int SIDE = Product::SIDE;
#if LOCKSTEP_UNIT == 3
    static constexpr int HIGH = 64, WIDE = SIDE * SIDE / 128;  // two groups of four warps: HIGH x WIDE outputs
    static constexpr int M = 1, N = WIDE / 8;                  // of each warp, in fragments of 16 x 8
#else
    static constexpr int HIGH = SIDE / 2, WIDE = SIDE / 4;  // eight warps of HIGH x WIDE outputs
    static constexpr int M = HIGH / 16, N = WIDE / 8;       // in fragments of 16 x 8
#endif
    static constexpr Word WORDS = Product::WORDS, SLICES = WORDS < kSlice ? 1 : WORDS / kSlice;  // of a group
    static constexpr Word STAGES = (Product::GROUPS * SLICES + 1) / 2, ENDS = SLICES == 1 ? 2 : 1;
    static constexpr Word TILE = SIDE * kRow, SCALES = 4 * TILE, STAGE_SCALES = ENDS * 2 * SIDE * 4;
    static constexpr Word BYTES = SCALES + 2 * STAGE_SCALES;
    static constexpr bool RAGGED = Product::GROUPS * SLICES % 2 != 0;  // the last stage has one slice

    LOCKSTEP_MEMBER static Word scales(Word buffer, Word end) { return SCALES + buffer * STAGE_SCALES + end * 2 * SIDE * 4; }
};

// A thread's part in bringing an operand's codes, a stage at a time, from device memory to shared memory: a piece of each 32nd row.
template <class Product, class Operand>
struct Codes {
    using P = Plan<Product>;
    static constexpr bool PADDED = P::WORDS < kSlice;
    const Word* next;
    Word row, slice, place;
    bool filled;  // the piece has codes, not only padding

    LOCKSTEP_MEMBER Codes(const Word* codes, Word first_row, Word to) {
        const Word own = threadIdx.x / 8, piece = threadIdx.x % 8;
        row = first_row + own;
        slice = piece / 4;
        place = unit::kept(to + piece_at(own, piece));
        filled = !PADDED || piece % 4 * 4 < P::WORDS;
        next = codes + static_cast<int>(row * Operand::ROW_STRIDE + (PADDED ? slice * P::WORDS : slice * kSlice) + piece % 4 * 4);
    }
    LOCKSTEP_MEMBER void bring(Word buffer) const {
        bring_rows<0>(place + buffer * 2 * P::TILE, filled && (!P::RAGGED || slice < Product::GROUPS * P::SLICES));
    }
    LOCKSTEP_MEMBER void advance() {
        next += PADDED ? 2 * P::WORDS : 2 * kSlice;
        slice += 2;
    }

private:
    template <int R>
    LOCKSTEP_MEMBER void bring_rows(Word at, bool there) const {
        constexpr int STEP = static_cast<int>(32 * R * Operand::ROW_STRIDE);
        const bool inside = there && (Operand::ROWS % P::SIDE == 0 || row + 32 * R < Operand::ROWS);
        if constexpr (P::WORDS >= 4) {
            unit::copy_16<4 * STEP>(at + 32 * R * kRow, next, inside);
        } else {
            Four four{};
#pragma unroll
            for (Word j = 0; j < P::WORDS; ++j)
                if (inside) four.lane[j] = next[STEP + static_cast<int>(j)];
            unit::store(at + 32 * R * kRow, four);
        }
        if constexpr (R + 1 < P::SIDE / 32) bring_rows<R + 1>(at, there);
    }
};

// Outputs 8 i + g of a lane's rows and 8 j + 2 t + e of its columns find their scales one behind the other.
template <class Product>
LOCKSTEP_MEMBER Word scale_at(Word row, bool right) {
    using P = Plan<Product>;
    const Word in_warp = row % (right ? P::WIDE : P::HIGH), eighth = in_warp / 8, lane = in_warp % 8;
#if LOCKSTEP_UNIT == 3
    // A lane's columns by fours; the fours of the four lanes t side by side, in different banks. Its two rows are as they are.
    return 4 * (right ? P::SIDE + row - in_warp + eighth / 2 * 16 + lane / 2 * 4 + eighth % 2 * 2 + lane % 2 : row);
#else
    const Word own = right ? lane / 2 * (2 * P::N) + 2 * eighth + lane % 2 : lane * (2 * P::M) + eighth;
    return 4 * ((right ? P::SIDE : 0) + row - in_warp + own);
#endif
}

// A thread's part in bringing the scales of the groups that end in a stage: those of one row of one operand.
template <class Product>
struct Scales {
    using P = Plan<Product>;
    using L = typename Product::Left;
    using R = typename Product::Right;
    const Word* next;
    Word place, group = 0;
    bool right, inside, idle;

    LOCKSTEP_MEMBER Scales(const Word* lefts, const Word* rights, Word m0, Word n0) {
        right = threadIdx.x >= P::SIDE;
        idle = 2 * P::SIDE < kCodeThreads && threadIdx.x >= 2 * P::SIDE;
        const Word own = threadIdx.x % P::SIDE, row = (right ? n0 : m0) + own;
        inside = row < (right ? R::ROWS : L::ROWS);
        next = (right ? rights : lefts) + static_cast<int>(row * (right ? R::SCALE_STRIDE : L::SCALE_STRIDE));
        place = scale_at<Product>(own, right);
    }
    LOCKSTEP_MEMBER void bring(Word buffer) const {
        if (idle || (P::SLICES == 4 && buffer == 0)) return;
#pragma unroll
        for (Word end = 0; end < P::ENDS; ++end) {
            unit::copy_4(P::scales(buffer, end) + place, next + end * step(), inside && (!P::RAGGED || group + end < Product::GROUPS));
        }
    }
    LOCKSTEP_MEMBER void advance(Word buffer) {
        if (P::SLICES == 4 && buffer == 0) return;
        next += P::ENDS * step();
        group += P::ENDS;
    }

private:
    LOCKSTEP_MEMBER Word step() const { return L::SCALE_STEP == R::SCALE_STEP || right ? R::SCALE_STEP : L::SCALE_STEP; }
};

// A lane's view of a warp's HIGH x WIDE outputs: register v of fragment (i, j) is the sum of row 16 i + 8 (v / 2) + g and column
// 8 j + 2 t + v % 2, for lane 4 g + t.
template <class Product>
struct Warp {
    using P = Plan<Product>;
    Word row, column, left_scales, right_scales;
#if LOCKSTEP_UNIT == 3
    unsigned long long left, right;  // matrix descriptors
#else
    Word left, right;
#endif
#if LOCKSTEP_UNIT == 4
    const Word even = unit::even_bytes();
#endif

    LOCKSTEP_MEMBER Warp() {
        const Word warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if LOCKSTEP_UNIT == 3
        const Word group = warp / 4, above = P::SIDE == 128 ? group * P::HIGH : 0, before = P::SIDE == 128 ? 0 : group * P::WIDE;
        row = above + warp % 4 * 16 + lane / 4;
        column = before + lane % 4 * 2;
        // Rows of 128 bytes whose pieces are exchanged as by piece_at (layout 1); eight rows begin 1,024 bytes behind the last eight.
        constexpr unsigned long long LAYOUT = 1ull << 62 | static_cast<unsigned long long>(8 * kRow / 16) << 32;
        left = LAYOUT | unit::described(above * kRow);
        right = LAYOUT | unit::described(P::TILE + before * kRow);
#else
        row = warp / 4 * P::HIGH + lane / 4;
        column = warp % 4 * P::WIDE + lane % 4 * 2;
#endif
        left_scales = unit::kept(scale_at<Product>(row, false));
        right_scales = unit::kept(scale_at<Product>(column, true));
#if LOCKSTEP_UNIT >= 1 && LOCKSTEP_UNIT != 3
        // The rows that this lane names: of the upper and lower half of a fragment, first and second 16 bytes of k.
        left = unit::kept(piece_at(warp / 4 * P::HIGH + lane % 16, lane / 16));
        right = unit::kept(P::TILE + piece_at(warp % 4 * P::WIDE + lane / 16 * 8 + lane % 8, lane / 8 % 2));
#endif
    }

    // Adds the products of a slice of the stage at `stage`, or begins with them.
    LOCKSTEP_MEMBER void multiply(Word (&sums)[P::M][P::N][4], Word stage, int slice, bool begin) const {
#if LOCKSTEP_UNIT == 3
        unit::begin_products(sums);
#pragma unroll
        for (int step = 2 * slice; step < 2 * slice + 2; ++step) {
            const Word further = (stage + static_cast<Word>(step) * 32) / 16;
            unit::multiply_64(sums, left + further, right + further, !(begin && step % 2 == 0));
        }
        unit::commit_products();
#elif LOCKSTEP_UNIT >= 1
        const Word zero[4] = {kExact, kExact, kExact, kExact};
#pragma unroll
        for (int step = 2 * slice; step < 2 * slice + 2; ++step) {
            Word a[P::M][4], b[P::N / 2][4];
#pragma unroll
            for (int i = 0; i < P::M; ++i) unit::load_matrices(a[i], (left ^ static_cast<Word>(step) << 5) + stage + i * 16 * kRow);
#pragma unroll
            for (int j = 0; j < P::N / 2; ++j) unit::load_matrices(b[j], (right ^ static_cast<Word>(step) << 5) + stage + j * 16 * kRow);
#pragma unroll
            for (int i = 0; i < P::M; ++i)
#pragma unroll
                for (int j = 0; j < P::N; ++j) {
                    const Word own[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                    if (begin && step % 2 == 0) multiply_fragments(sums[i][j], a[i], own, zero);
                    else multiply_fragments(sums[i][j], a[i], own, sums[i][j]);
                }
        }
#else
#pragma unroll
        for (Word piece = 4 * static_cast<Word>(slice); piece < 4 * static_cast<Word>(slice) + 4; ++piece) {
            Four b[2 * P::N];
#pragma unroll
            for (int n = 0; n < 2 * P::N; ++n)
                b[n] = *unit::place(stage + P::TILE + piece_at(column + static_cast<Word>(n / 2 * 8 + n % 2), piece));
#pragma unroll
            for (int m = 0; m < 2 * P::M; ++m) {
                const Four a = *unit::place(stage + piece_at(row + static_cast<Word>(8 * m), piece));
#pragma unroll
                for (int n = 0; n < 2 * P::N; ++n) {
                    Word& sum = sums[m / 2][n / 2][m % 2 * 2 + n % 2];
                    if (begin && piece % 4 == 0) sum = kExact;
#pragma unroll
                    for (int k = 0; k < 4; ++k) sum = unit::dot_4(a.lane[k], b[n].lane[k], sum);
                }
            }
        }
#endif
    }

#if LOCKSTEP_UNIT == 4
    LOCKSTEP_MEMBER void multiply_fragments(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) const {
        unit::multiply_16_8_32(c, a, b, from, even);
    }
#elif LOCKSTEP_UNIT == 1 || LOCKSTEP_UNIT == 2
    LOCKSTEP_MEMBER void multiply_fragments(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) const {
        unit::multiply_16_8_32(c, a, b, from);
    }
#endif

    // Waits for asynchronous products; without any, does nothing.
    LOCKSTEP_MEMBER void finish([[maybe_unused]] Word (&sums)[P::M][P::N][4]) const {
#if LOCKSTEP_UNIT == 3
        unit::await_products(sums);
#endif
    }

    LOCKSTEP_MEMBER static float integer(Word sum) { return static_cast<float>(static_cast<int>(sum)); }

    // A group ends: its sums become floats, times both scales, and join the chains.
    LOCKSTEP_MEMBER void promote(float (&chains)[P::M][P::N][4], const Word (&sums)[P::M][P::N][4], Word scales) const {
        using unit::Pair;
#if LOCKSTEP_UNIT == 3
        Word a[2];
        Four b[P::N / 2];
#pragma unroll
        for (Word i = 0; i < 2; ++i) a[i] = unit::word_at(scales + left_scales + i * 32);
#pragma unroll
        for (int j = 0; j < P::N / 2; ++j) b[j] = unit::place(scales + right_scales)[4 * j];
#else
        Four a[P::M / 2], b[P::N / 2];
#pragma unroll
        for (int i = 0; i < P::M / 2; ++i) a[i] = unit::place(scales + left_scales)[i];
#pragma unroll
        for (int j = 0; j < P::N / 2; ++j) b[j] = unit::place(scales + right_scales)[j];
#endif
#pragma unroll
        for (int i = 0; i < P::M; ++i)
#pragma unroll
            for (int j = 0; j < P::N; ++j)
#pragma unroll
                for (int v = 0; v < 4; v += 2) {
                    const int m = 2 * i + v / 2, n = 2 * j;
#if LOCKSTEP_UNIT == 3
                    const float row_scale = value(a[m]);
#else
                    const float row_scale = value(a[m / 4].lane[m % 4]);
#endif
                    const Pair rows(row_scale, row_scale), columns(value(b[n / 4].lane[n % 4]), value(b[n / 4].lane[n % 4 + 1]));
#if LOCKSTEP_UNIT == 3
                    const Pair exact(integer(sums[i][j][v]), integer(sums[i][j][v + 1]));
#elif LOCKSTEP_UNIT == 4
                    const Pair exact(value(sums[i][j][v]), value(sums[i][j][v + 1]));
#else
                    const Pair exact = Pair(value(sums[i][j][v]), value(sums[i][j][v + 1])) + Pair(-value(kExact), -value(kExact));
#endif
                    const Pair chain = Pair(chains[i][j][v], chains[i][j][v + 1]) + exact * (rows * columns);
                    chain.get(chains[i][j][v], chains[i][j][v + 1]);
                }
    }
};

// out[batch, m, n] = the sum over groups c of (the exact sum of the products of group c's codes) x (the scale of left x that of
// right). A block owns a tile of SIDE x SIDE outputs, and copies a stage of codes while it multiplies the one before. Blocks are
// numbered batch, tile of m, tile of n, innermost last; Product::SPLIT puts the group before all of them, of which the block then
// has one alone, and leaves the groups' terms, `ELEMENTS` words apart, to a fold that adds them up in order.
template <class Product>
LOCKSTEP_INLINE void multiply_codes(const Word* left, const Word* right, const Word* left_scales, const Word* right_scales, Word* out) {
    using P = Plan<Product>;
    using L = typename Product::Left;
    using R = typename Product::Right;
    constexpr Word TILES_M = (L::ROWS + P::SIDE - 1) / P::SIDE, TILES_N = (R::ROWS + P::SIDE - 1) / P::SIDE;
    constexpr bool LEVELS = Product::GROUPS > kChunk;

    Word block = blockIdx.x;
    const Word n0 = block % TILES_N * P::SIDE;
    block /= TILES_N;
    const Word m0 = block % TILES_M * P::SIDE;
    block /= TILES_M;
    const Word batch = Product::SPLIT ? block % Product::BATCHES : block;
    if constexpr (Product::SPLIT) {
        const Word group = block / Product::BATCHES;
        left += group * P::WORDS;
        right += group * P::WORDS;
        left_scales += group * L::SCALE_STEP;
        right_scales += group * R::SCALE_STEP;
        out += static_cast<long long>(group) * Product::ELEMENTS;
    }
    left += static_cast<int>(L::batch(batch));
    right += static_cast<int>(R::batch(batch));
    left_scales += static_cast<int>(L::scale_batch(batch));
    right_scales += static_cast<int>(R::scale_batch(batch));
    out += static_cast<int>(Product::batch(batch));

    const Warp<Product> warp;
    // A warp without outputs loads codes for the others.
    const bool computes = (L::ROWS % P::SIDE == 0 || m0 + warp.row / P::HIGH * P::HIGH < L::ROWS) &&
                          (R::ROWS % P::SIDE == 0 || n0 + warp.column / P::WIDE * P::WIDE < R::ROWS);
    float chains[P::M][P::N][4] = {};
    Word sums[P::M][P::N][4] = {};

    Codes<Product, L> next_left(left, m0, 0);
    Codes<Product, R> next_right(right, n0, P::TILE);
    Scales<Product> next_scales(left_scales, right_scales, m0, n0);
    const auto bring = [&](Word buffer) {
        next_left.bring(buffer);
        next_right.bring(buffer);
        next_scales.bring(buffer);
    };
    const auto advance = [&](Word buffer) {
        next_left.advance();
        next_right.advance();
        next_scales.advance(buffer);
    };
    const auto write = [&](bool first, bool last) {
#pragma unroll
        for (int i = 0; i < P::M * P::N * 4; ++i) {
            const int v = i % 4;
            const Word m = m0 + warp.row + static_cast<Word>(i / (P::N * 4) * 16 + v / 2 * 8);
            const Word n = n0 + warp.column + static_cast<Word>(i / 4 % P::N * 8 + v % 2);
            if (m >= L::ROWS || n >= R::ROWS) continue;
            float& chain = chains[i / (P::N * 4)][i / 4 % P::N][v];
            Word& to = out[static_cast<int>(m * Product::ROW_STRIDE + n)];
            const float sum = (first ? 0.0f : value(to)) + chain;
            to = word(last ? f32::canonical(sum) : sum);
            chain = 0.0f;
        }
    };

    bring(0);
    advance(0);
    for (Word first = 0; first < P::STAGES; first += 2) {
#pragma unroll
        for (Word buffer = 0; buffer < 2; ++buffer) {
            const Word stage = first + buffer;
            if (P::STAGES % 2 != 0 && stage >= P::STAGES) break;
            unit::await_copies();
#if LOCKSTEP_UNIT == 3
            unit::show_to_products();
#endif
            __syncthreads();
            if (stage + 1 < P::STAGES) bring(buffer ^ 1);
            advance(buffer ^ 1);
            if (!computes) continue;
#pragma unroll
            for (Word half = 0; half < 2; ++half) {
                const Word slice = 2 * buffer + half;  // of the four of two stages
                if (P::RAGGED && 2 * first + slice >= Product::GROUPS * P::SLICES) break;
                warp.multiply(sums, buffer * 2 * P::TILE, static_cast<int>(half), slice % P::SLICES == 0);
                if ((slice + 1) % P::SLICES != 0) continue;
                warp.finish(sums);
                warp.promote(chains, sums, P::scales(buffer, P::ENDS == 2 ? half : 0));
                if constexpr (LEVELS) {
                    const Word done = (2 * first + slice + 1) / P::SLICES;
                    if (done % kChunk == 0 || done == Product::GROUPS) write(done <= kChunk, done == Product::GROUPS);
                }
            }
            if (P::SLICES == 4 && buffer == 0) warp.finish(sums);  // the next barrier gives the buffer away
        }
    }
    if (!LEVELS && computes) write(true, true);
}

}  // namespace lockstep::cuda
