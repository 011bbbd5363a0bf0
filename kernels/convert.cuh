/*
 * Bits to numbers and back, for each element type. A type has: its storage (bits), the number type
 * that sums are formed in (wide), elements a line carries, and whether avg scales before summing.
 *
 * narrow() rounds once, to nearest even, and writes every NaN as the type's one canonical NaN:
 * otherwise ranks could end with different NaN bits. None of the canonical NaNs is all ones.
 */
#ifndef LLANE_KERNELS_CONVERT_CUH
#define LLANE_KERNELS_CONVERT_CUH

#include <string.h>

#include "device.cuh"

#ifndef LLANE_EMU
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

LLANE_DEVICE uint32_t llane_float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

LLANE_DEVICE float llane_float_from(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct llane_float32 {
    typedef uint32_t bits;
    typedef float wide;
    enum { LANES = LLANE_LINE_PAYLOAD / 4, AVG_SCALES_INPUT = 1 };

    LLANE_DEVICE float widen(uint32_t x)
    {
        return llane_float_from(x);
    }

    LLANE_DEVICE uint32_t narrow(float x)
    {
#ifdef LLANE_MUTATE_RAW_NAN
        return llane_float_bits(x);
#else
        return x != x ? 0x7fffffffu : llane_float_bits(x);
#endif
    }
};

struct llane_float16 {
    typedef uint16_t bits;
    typedef float wide;
    enum { LANES = LLANE_LINE_PAYLOAD / 2, AVG_SCALES_INPUT = 0 };

    LLANE_DEVICE float widen(uint16_t x)
    {
#ifdef LLANE_EMU
        const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
        const uint32_t exponent = (x >> 10) & 0x1fu;
        const uint32_t fraction = x & 0x3ffu;

        if (exponent == 0x1f)
            return llane_float_from(sign | 0x7f800000u | fraction << 13);
        if (exponent == 0) /* zero or subnormal: fraction * 2^-24, exact */
            return llane_float_from(sign | llane_float_bits((float)fraction * 0x1p-24f));
        return llane_float_from(sign | (exponent + 112) << 23 | fraction << 13);
#else
        return __half2float(__ushort_as_half(x));
#endif
    }

    LLANE_DEVICE uint16_t narrow(float x)
    {
        if (x != x)
            return 0x7fff;
#ifdef LLANE_EMU
        const uint32_t bits = llane_float_bits(x);
        const uint32_t sign = (bits >> 16) & 0x8000u;
        uint32_t magnitude = bits & 0x7fffffffu;

        if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
            return (uint16_t)(sign | 0x7c00u);
        if (magnitude < 0x38800000u) {
            /* Below 2^-14 the result counts units of 2^-24, which is what a float near 0.5 does. */
            const float counted = llane_float_from(magnitude) + 0.5f;
            return (uint16_t)(sign | (llane_float_bits(counted) - llane_float_bits(0.5f)));
        }
        magnitude += 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
#else
        return __half_as_ushort(__float2half_rn(x));
#endif
    }
};

struct llane_bfloat16 {
    typedef uint16_t bits;
    typedef float wide;
    enum { LANES = LLANE_LINE_PAYLOAD / 2, AVG_SCALES_INPUT = 1 };

    LLANE_DEVICE float widen(uint16_t x)
    {
        return llane_float_from((uint32_t)x << 16);
    }

    LLANE_DEVICE uint16_t narrow(float x)
    {
        if (x != x)
            return 0x7fff;
#ifdef LLANE_EMU
        const uint32_t bits = llane_float_bits(x);

        return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#else
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#endif
    }
};

#endif
