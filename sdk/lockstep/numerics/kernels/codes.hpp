// Small integer codes of floats: the functions of codes.py, the same names and the same bits.
#pragma once

#include "f32.hpp"

namespace lockstep::codes {

using f32::Signed;
using f32::Word;

LOCKSTEP_CONSTANT Word TINY = 0x0d800000;  // 2^-100
LOCKSTEP_CONSTANT Word LARGEST = 0x42fe0000;  // 127.0

struct Scale {
    float scale, inverse;
};

// Of a group of greatest magnitude a, a word that may be infinite or NaN: the whole rule of the scale.
LOCKSTEP_INLINE Scale scale_of(Word a, bool power) {
    if (a >= f32::INFINITE) return {f32::value(f32::NOT_A_NUMBER), 0.0f};
    if (a < TINY) return {0.0f, 0.0f};
    const Word exponent = a >> 23;
    if (power) return {f32::value((exponent - 6) << 23), f32::value((260 - exponent) << 23)};
    return {f32::value(a) / f32::value(LARGEST), f32::value(LARGEST) / f32::value(a)};
}

// The integer nearest to x, ties to even; |x| < 2^23.
LOCKSTEP_INLINE Signed nearest(float x) {
    const float shift = f32::value((f32::word(x) & f32::SIGN) | 0x4b000000);
    return static_cast<Signed>((x + shift) - shift);
}

LOCKSTEP_INLINE Signed clamped(Signed code) { return code < -127 ? -127 : code > 127 ? 127 : code; }

// The code of a finite x, rounded to nearest, or with 16 random bits down or up.
LOCKSTEP_INLINE Signed code_of(float x, float inverse) { return clamped(nearest(x * inverse)); }
LOCKSTEP_INLINE Signed code_of(float x, float inverse, Word random) {
    return clamped((nearest(x * inverse * 65536.0f) + static_cast<Signed>(random)) >> 16);
}

// The sum of the products of the four signed bytes of two words.
LOCKSTEP_INLINE Signed product(Word a, Word b) {
    Signed sum = 0;
    for (int j = 0; j < 4; ++j)
        sum += (static_cast<Signed>(a << (24 - 8 * j)) >> 24) * (static_cast<Signed>(b << (24 - 8 * j)) >> 24);
    return sum;
}

}  // namespace lockstep::codes
