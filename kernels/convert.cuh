/*
 * Bits to numbers and back, for each of NCCL's datatypes. A type T has
 *   bits                its storage
 *   wide                the number type that results are formed in: float32 for the 8- and 16-bit
 *                       floats, the type itself for float32 and float64, an unsigned integer that
 *                       wraps for the integers
 *   LANES               elements in 8 bytes
 *   IS_FLOAT            a word of all ones is a NaN, so the type may travel in sentinel packets
 *   AVG_SCALES_INPUT    avg scales each input before summing, not the sum
 *   IS_COMMON           worth variants of its kernels for 2, 4 and 8 ranks
 *   widen, narrow       narrow rounds once, to nearest even, and writes every NaN as the type's one
 *                       canonical NaN, which is not all ones: otherwise ranks could end with
 *                       different NaN bits. float8 saturates: what is too large, infinity included,
 *                       becomes the largest finite number.
 *   least, greatest     of two; a number beats a NaN, and -0 is less than +0
 *   factor, average     what avg over n ranks scales or divides by, and the last step of avg
 */
#ifndef LLANE_KERNELS_CONVERT_CUH
#define LLANE_KERNELS_CONVERT_CUH

#include <string.h>

#include "device.cuh"

#ifndef LLANE_EMU
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
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

/* ---- arithmetic: steps are rounded one by one, never fused, so that compilers agree ---- */

LLANE_DEVICE uint32_t llane_add(uint32_t a, uint32_t b)
{
    return a + b;
}

LLANE_DEVICE uint64_t llane_add(uint64_t a, uint64_t b)
{
    return a + b;
}

LLANE_DEVICE uint32_t llane_multiply(uint32_t a, uint32_t b)
{
    return a * b;
}

LLANE_DEVICE uint64_t llane_multiply(uint64_t a, uint64_t b)
{
    return a * b;
}

#ifdef LLANE_EMU

LLANE_DEVICE float llane_add(float a, float b)
{
    return a + b;
}

LLANE_DEVICE double llane_add(double a, double b)
{
    return a + b;
}

LLANE_DEVICE float llane_multiply(float a, float b)
{
    volatile float product = a * b; /* keeps the compiler from fusing it with an addition */

    return product;
}

LLANE_DEVICE double llane_multiply(double a, double b)
{
    volatile double product = a * b; /* as above */

    return product;
}

#else

LLANE_DEVICE float llane_add(float a, float b)
{
    return __fadd_rn(a, b);
}

LLANE_DEVICE double llane_add(double a, double b)
{
    return __dadd_rn(a, b);
}

LLANE_DEVICE float llane_multiply(float a, float b)
{
    return __fmul_rn(a, b);
}

LLANE_DEVICE double llane_multiply(double a, double b)
{
    return __dmul_rn(a, b);
}

#endif

/* ---- integers ---- */

/* ELEMENT and NUMBER are signed or not as the type is, of the element's and of the running value's
 * width; BITS and WIDE are unsigned, of the same widths. */
template <class ELEMENT, class BITS, class NUMBER, class WIDE> struct llane_integer {
    typedef BITS bits;
    typedef WIDE wide;
    enum {
        LANES = LLANE_LL_PAYLOAD / (int)sizeof(BITS),
        IS_FLOAT = 0,
        AVG_SCALES_INPUT = 0,
        IS_COMMON = 0
    };

    LLANE_DEVICE WIDE widen(BITS x)
    {
        return (WIDE)(NUMBER)(ELEMENT)x;
    }

    LLANE_DEVICE BITS narrow(WIDE x)
    {
        return (BITS)x;
    }

    LLANE_DEVICE WIDE least(WIDE a, WIDE b)
    {
        return (NUMBER)b < (NUMBER)a ? b : a;
    }

    LLANE_DEVICE WIDE greatest(WIDE a, WIDE b)
    {
        return (NUMBER)a < (NUMBER)b ? b : a;
    }

    LLANE_DEVICE WIDE factor(uint32_t n_ranks)
    {
        return n_ranks;
    }

    /* The sum as the type holds it, divided towards zero. */
    LLANE_DEVICE WIDE average(WIDE sum, WIDE n_ranks)
    {
        /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a lane has 2 ranks or more */
        return (WIDE)((NUMBER)widen(narrow(sum)) / (NUMBER)n_ranks);
    }
};

struct llane_int8 : llane_integer<int8_t, uint8_t, int32_t, uint32_t> {
};
struct llane_uint8 : llane_integer<uint8_t, uint8_t, uint32_t, uint32_t> {
};
struct llane_int32 : llane_integer<int32_t, uint32_t, int32_t, uint32_t> {
};
struct llane_uint32 : llane_integer<uint32_t, uint32_t, uint32_t, uint32_t> {
};
struct llane_int64 : llane_integer<int64_t, uint64_t, int64_t, uint64_t> {
};
struct llane_uint64 : llane_integer<uint64_t, uint64_t, uint64_t, uint64_t> {
};

/* ---- what the floats have in common ---- */

template <class BITS, class WIDE> struct llane_floating {
    typedef BITS bits;
    typedef WIDE wide;
    enum { LANES = LLANE_LL_PAYLOAD / (int)sizeof(BITS), IS_FLOAT = 1 };

    LLANE_DEVICE WIDE least(WIDE a, WIDE b)
    {
#ifdef LLANE_EMU
        if (a != a || b != b)
            return a != a ? b : a;
        if (a == b)
            return __builtin_signbit(a) ? a : b;
        return a < b ? a : b;
#else
        return fmin(a, b);
#endif
    }

    LLANE_DEVICE WIDE greatest(WIDE a, WIDE b)
    {
#ifdef LLANE_EMU
        if (a != a || b != b)
            return a != a ? b : a;
        if (a == b)
            return __builtin_signbit(a) ? b : a;
        return a < b ? b : a;
#else
        return fmax(a, b);
#endif
    }

    LLANE_DEVICE WIDE factor(uint32_t n_ranks)
    {
        return (WIDE)1 / (WIDE)n_ranks;
    }

    LLANE_DEVICE WIDE average(WIDE sum, WIDE f)
    {
        return llane_multiply(sum, f);
    }
};

struct llane_float32 : llane_floating<uint32_t, float> {
    enum { AVG_SCALES_INPUT = 1, IS_COMMON = 1 };

    LLANE_DEVICE float widen(uint32_t x)
    {
        return llane_float_from(x);
    }

    LLANE_DEVICE uint32_t narrow(float x)
    {
        return x != x ? 0x7fffffffu : llane_float_bits(x);
    }
};

struct llane_float64 : llane_floating<uint64_t, double> {
    enum { AVG_SCALES_INPUT = 1, IS_COMMON = 0 };

    LLANE_DEVICE double widen(uint64_t x)
    {
        double wide;

        memcpy(&wide, &x, sizeof(wide));
        return wide;
    }

    LLANE_DEVICE uint64_t narrow(double x)
    {
        uint64_t bits;

        memcpy(&bits, &x, sizeof(bits));
        return x != x ? 0x7fffffffffffffffu : bits;
    }
};

/* ---- floats of 8 and 16 bits: sign, exponent, FRACTION bits ---- */

/* The float of a magnitude (sign bit off) that is neither infinite nor NaN; exact. */
template <int FRACTION, int BIAS> LLANE_DEVICE float llane_small_widen(uint32_t magnitude)
{
    if (magnitude >> FRACTION == 0) /* zero or subnormal: counts units of 2^(1 - BIAS - FRACTION) */
        return (float)magnitude * llane_float_from((uint32_t)(128 - BIAS - FRACTION) << 23);
    return llane_float_from((magnitude << (23 - FRACTION)) + ((uint32_t)(127 - BIAS) << 23));
}

/* The magnitude nearest to that of x, which is not NaN, LARGEST at most. */
template <int FRACTION, int BIAS, int LARGEST> LLANE_DEVICE uint32_t llane_small_narrow(float x)
{
    const uint32_t n_dropped = 23 - FRACTION;
    uint32_t magnitude = llane_float_bits(x) & 0x7fffffffu;

    if (magnitude < (uint32_t)(128 - BIAS) << 23) {
        /* The result counts units of 2^(1 - BIAS - FRACTION), as a float near base does. */
        const uint32_t base = (uint32_t)(128 - BIAS - FRACTION + 23) << 23;

        return llane_float_bits(llane_add(llane_float_from(magnitude), llane_float_from(base))) -
               base;
    }
    magnitude += (1u << (n_dropped - 1)) - 1 + ((magnitude >> n_dropped) & 1);
    magnitude = (magnitude - ((uint32_t)(127 - BIAS) << 23)) >> n_dropped;
    return magnitude < (uint32_t)LARGEST ? magnitude : (uint32_t)LARGEST;
}

struct llane_float16 : llane_floating<uint16_t, float> {
    enum { AVG_SCALES_INPUT = 0, IS_COMMON = 1 };

    LLANE_DEVICE float widen(uint16_t x)
    {
#ifdef LLANE_EMU
        const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
        const uint32_t magnitude = x & 0x7fffu;

        if (magnitude >= 0x7c00u)
            return llane_float_from(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
        return llane_float_from(sign | llane_float_bits(llane_small_widen<10, 15>(magnitude)));
#else
        return __half2float(__ushort_as_half(x));
#endif
    }

    LLANE_DEVICE uint16_t narrow(float x)
    {
        if (x != x)
            return 0x7fff;
#ifdef LLANE_EMU
        return (uint16_t)((llane_float_bits(x) >> 16 & 0x8000u) |
                          llane_small_narrow<10, 15, 0x7c00>(x));
#else
        return __half_as_ushort(__float2half_rn(x));
#endif
    }
};

struct llane_bfloat16 : llane_floating<uint16_t, float> {
    enum { AVG_SCALES_INPUT = 1, IS_COMMON = 1 };

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

/* GPUs before sm_89 do not convert float8 themselves: there as on the host. */
#if defined(LLANE_EMU) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890)
#define LLANE_FLOAT8_BY_HAND
#endif

/* No infinities; all ones behind the sign is the NaN. */
struct llane_float8_e4m3 : llane_floating<uint8_t, float> {
    enum { AVG_SCALES_INPUT = 0, IS_COMMON = 0 };

    LLANE_DEVICE float widen(uint8_t x)
    {
#ifdef LLANE_FLOAT8_BY_HAND
        const uint32_t sign = (uint32_t)(x & 0x80u) << 24;
        const uint32_t magnitude = x & 0x7fu;

        if (magnitude == 0x7fu)
            return llane_float_from(0x7fffffffu);
        return llane_float_from(sign | llane_float_bits(llane_small_widen<3, 7>(magnitude)));
#else
        return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
#endif
    }

    LLANE_DEVICE uint8_t narrow(float x)
    {
        if (x != x)
            return 0x7f;
#ifdef LLANE_FLOAT8_BY_HAND
        return (uint8_t)((llane_float_bits(x) >> 24 & 0x80u) | llane_small_narrow<3, 7, 0x7e>(x));
#else
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
#endif
    }
};

/* float16's upper half. */
struct llane_float8_e5m2 : llane_floating<uint8_t, float> {
    enum { AVG_SCALES_INPUT = 0, IS_COMMON = 0 };

    LLANE_DEVICE float widen(uint8_t x)
    {
        return llane_float16::widen((uint16_t)(x << 8));
    }

    LLANE_DEVICE uint8_t narrow(float x)
    {
        if (x != x)
            return 0x7f;
#ifdef LLANE_FLOAT8_BY_HAND
        return (uint8_t)((llane_float_bits(x) >> 24 & 0x80u) | llane_small_narrow<2, 15, 0x7b>(x));
#else
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
#endif
    }
};

#endif
