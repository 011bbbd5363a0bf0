/*
 * What an all-reduce must give, computed by this file's own means: element formats by double
 * arithmetic, contributions added in rank order in float, and a plain double sum beside it.
 */
#ifndef LLANE_TESTS_KERNEL_ORACLE_H
#define LLANE_TESTS_KERNEL_ORACLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "table.h"

struct format {
    uint32_t bytes;
    int fraction_bits, exponent_bits;
    uint32_t nan;
    bool avg_scales_input;
};

static const struct format *format_of(enum llane_kernel kernel)
{
    static const struct format float32 = {4, 23, 8, 0x7fffffff, true};
    static const struct format float16 = {2, 10, 5, 0x7fff, false};
    static const struct format bfloat16 = {2, 7, 8, 0x7fff, true};

    return kernel == LLANE_KERNEL_ONE_SHOT_LL_F32   ? &float32
           : kernel == LLANE_KERNEL_ONE_SHOT_LL_F16 ? &float16
                                                    : &bfloat16;
}

static double format_decode(const struct format *f, uint32_t bits)
{
    const uint32_t top = (1u << f->exponent_bits) - 1;
    const uint32_t exponent = bits >> f->fraction_bits & top;
    const uint32_t fraction = bits & ((1u << f->fraction_bits) - 1);
    const int bias = (int)(top >> 1);
    const double sign = bits >> (f->fraction_bits + f->exponent_bits) & 1 ? -1 : 1;

    if (exponent == top)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - f->fraction_bits);
    return sign * ldexp((double)fraction + (double)(1u << f->fraction_bits),
                        (int)exponent - bias - f->fraction_bits);
}

/* Nearest, ties to even; NaN is the format's one. */
static uint32_t format_encode(const struct format *f, double x)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1;
    const uint32_t sign = signbit(x) ? 1u << (f->fraction_bits + f->exponent_bits) : 0;
    const uint32_t infinity = ((1u << f->exponent_bits) - 1) << f->fraction_bits;
    int exponent;
    double units;

    if (isnan(x))
        return f->nan;
    x = fabs(x);
    if (isinf(x))
        return sign | infinity;
    if (x == 0)
        return sign;
    (void)frexp(x, &exponent);
    exponent--; /* x = 1.something * 2^exponent */
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    units = nearbyint(ldexp(x, f->fraction_bits - exponent));
    /* A carry out of the fraction moves into the exponent by itself, up to infinity. */
    if (exponent > bias)
        return sign | infinity;
    return sign |
           (uint32_t)((uint64_t)units + ((uint64_t)(exponent + bias - 1) << f->fraction_bits));
}

/* Little endian. */
static void oracle_store(const struct format *f, uint8_t *p, uint32_t bits)
{
    memcpy(p, &bits, f->bytes);
}

/* The element's bits; *distance_out: how far they are from a double sum, in parts of what rounding
 * allows (<= 1), or 0 where the result is not finite. */
static uint32_t oracle_reduce(const struct format *f, enum llane_kernel_op op, const uint32_t *bits,
                              uint32_t n_ranks, double *distance_out)
{
    /* volatile: each step rounds to float by itself, on every compiler */
    const volatile float scale = 1.0f / (float)n_ranks;
    const bool scales_input = op == LLANE_OP_AVG && f->avg_scales_input;
    const bool scales_output = op == LLANE_OP_AVG && !f->avg_scales_input;
    volatile float sum = 0;
    double exact = 0, size = 0;
    uint32_t result;

    for (uint32_t r = 0; r < n_ranks; r++) {
        const double value = format_decode(f, bits[r]);
        volatile float x = (float)value;

        if (scales_input)
            x = x * scale;
        if (r == 0)
            sum = x;
        else
            sum = sum + x;
        exact += value;
        size += fabs(value);
    }
    if (scales_output)
        sum = sum * scale;
    if (op == LLANE_OP_AVG) {
        exact /= n_ranks;
        size /= n_ranks;
    }
    result = format_encode(f, sum);
    *distance_out = 0;
    if (isfinite(format_decode(f, result)) && isfinite(exact)) {
        const double allowed = size * 2 * n_ranks * ldexp(1, -24) +
                               fabs(exact) * ldexp(1, -f->fraction_bits) + ldexp(1, -24);

        *distance_out = fabs(format_decode(f, result) - exact) / allowed;
    }
    return result;
}

#endif
