/*
 * What an all-reduce must give, computed by this file's own means: element formats by double
 * arithmetic, contributions combined in rank order in double and rounded to float after each step
 * (which makes float's own sums and products: double has more than twice its digits), integers in
 * 128 bits. Beside it, the plain result in higher precision. C and C++.
 */
#ifndef LLANE_TESTS_KERNEL_ORACLE_H
#define LLANE_TESTS_KERNEL_ORACLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "table.h"

__extension__ typedef __int128 oracle_integer;

struct format {
    const char *name;
    uint32_t bytes;
    bool is_float;
    bool is_signed;                   /* integers */
    int fraction_bits, exponent_bits; /* floats, from here on */
    bool is_finite;                   /* no infinities; NaN is all ones behind the sign */
    bool saturates;                   /* results too large become the largest finite number */
    bool avg_scales_input;
};

static inline const struct format *format_of(enum llane_type type)
{
    static const struct format formats[LLANE_N_TYPES] = {
        {"int8", 1, false, true, 0, 0, false, false, false},
        {"uint8", 1, false, false, 0, 0, false, false, false},
        {"int32", 4, false, true, 0, 0, false, false, false},
        {"uint32", 4, false, false, 0, 0, false, false, false},
        {"int64", 8, false, true, 0, 0, false, false, false},
        {"uint64", 8, false, false, 0, 0, false, false, false},
        {"float16", 2, true, true, 10, 5, false, false, false},
        {"float32", 4, true, true, 23, 8, false, false, true},
        {"float64", 8, true, true, 52, 11, false, false, true},
        {"bfloat16", 2, true, true, 7, 8, false, false, true},
        {"float8_e4m3", 1, true, true, 3, 4, true, true, false},
        {"float8_e5m2", 1, true, true, 2, 5, false, true, false},
    };

    return &formats[type];
}

/* All bits of an element. */
static inline uint64_t format_all_ones(const struct format *f)
{
    return UINT64_MAX >> (64 - 8 * f->bytes);
}

static inline uint64_t format_sign_bit(const struct format *f)
{
    return format_all_ones(f) / 2 + 1;
}

/* The one NaN that results have. */
static inline uint64_t format_nan(const struct format *f)
{
    return format_all_ones(f) / 2;
}

/* +infinity, or in a finite format the largest number. */
static inline uint64_t format_infinity(const struct format *f)
{
    return f->is_finite ? format_nan(f) - 1 : ((1ull << f->exponent_bits) - 1) << f->fraction_bits;
}

static inline uint64_t format_largest(const struct format *f)
{
    return f->is_finite ? format_nan(f) - 1 : format_infinity(f) - 1;
}

static inline bool format_is_nan(const struct format *f, uint64_t bits)
{
    return f->is_float && (bits & ~format_sign_bit(f)) > format_infinity(f);
}

static inline int format_bias(const struct format *f)
{
    return (1 << (f->exponent_bits - 1)) - 1;
}

/* The smallest subnormal number. */
static inline double format_unit(const struct format *f)
{
    return ldexp(1, 1 - format_bias(f) - f->fraction_bits);
}

static inline double format_decode(const struct format *f, uint64_t bits)
{
    const uint64_t magnitude = bits & ~format_sign_bit(f);
    const uint64_t fraction = magnitude & ((1ull << f->fraction_bits) - 1);
    const int exponent = (int)(magnitude >> f->fraction_bits);
    const double sign = bits & format_sign_bit(f) ? -1 : 1;

    if (format_is_nan(f, bits))
        return (double)NAN;
    if (magnitude == format_infinity(f) && !f->is_finite)
        return sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp((double)fraction, 1 - format_bias(f) - f->fraction_bits);
    return sign * ldexp((double)(fraction + (1ull << f->fraction_bits)),
                        exponent - format_bias(f) - f->fraction_bits);
}

/* Nearest, ties to even; NaN is the format's one. */
static inline uint64_t format_encode(const struct format *f, double x)
{
    const uint64_t sign = signbit(x) ? format_sign_bit(f) : 0;
    const uint64_t too_large = f->saturates ? format_largest(f) : format_infinity(f);
    const int bias = format_bias(f);
    uint64_t magnitude;
    double units;
    int exponent;

    if (isnan(x))
        return format_nan(f);
    x = fabs(x);
    if (isinf(x))
        return sign | too_large;
    if (x == 0)
        return sign;
    (void)frexp(x, &exponent);
    exponent--; /* x = 1.something * 2^exponent */
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    if (exponent > bias + 1)
        return sign | too_large;
    units = nearbyint(ldexp(x, f->fraction_bits - exponent));
    /* A carry out of the fraction moves into the exponent by itself. */
    magnitude = (uint64_t)units + ((uint64_t)(exponent + bias - 1) << f->fraction_bits);
    return sign | (magnitude > format_largest(f) ? too_large : magnitude);
}

/* Little endian. */
static inline void oracle_store(const struct format *f, uint8_t *p, uint64_t bits)
{
    memcpy(p, &bits, f->bytes);
}

static inline oracle_integer oracle_integer_decode(const struct format *f, uint64_t bits)
{
    const oracle_integer value = bits;

    return f->is_signed && (bits & format_sign_bit(f)) ? value - ((oracle_integer)1 << 8 * f->bytes)
                                                       : value;
}

static inline uint64_t oracle_reduce_integers(const struct format *f, enum llane_kernel_op op,
                                              const uint64_t *bits, uint32_t n_ranks)
{
    oracle_integer result = oracle_integer_decode(f, bits[0]);

    for (uint32_t r = 1; r < n_ranks; r++) {
        const oracle_integer x = oracle_integer_decode(f, bits[r]);

        if (op == LLANE_OP_SUM || op == LLANE_OP_AVG)
            result += x;
        else if (op == LLANE_OP_PROD) /* both of 64 bits at most */
            result = oracle_integer_decode(f, (uint64_t)(result * x) & format_all_ones(f));
        else if (op == LLANE_OP_MIN ? x < result : x > result)
            result = x;
    }
    if (op == LLANE_OP_AVG)
        result = oracle_integer_decode(f, (uint64_t)result & format_all_ones(f)) / n_ranks;
    return (uint64_t)result & format_all_ones(f);
}

/* What an operation's step rounds to: float, or double for float64. */
static inline double oracle_round(const struct format *f, double x)
{
    const volatile float narrow = f->bytes == 8 ? 0 : (float)x;

    return f->bytes == 8 ? x : narrow;
}

/* Whether min or max prefer x: a number beats a NaN, -0 is less than +0. */
static inline bool oracle_prefers(enum llane_kernel_op op, double x, double than)
{
    if (isnan(x) || isnan(than))
        return !isnan(x);
    if (x == than)
        return op == LLANE_OP_MIN ? signbit(x) && !signbit(than) : !signbit(x) && signbit(than);
    return op == LLANE_OP_MIN ? x < than : x > than;
}

static inline bool oracle_is_normal(const struct format *f, double x)
{
    return x == 0 || (fabs(x) >= ldexp(1, 1 - format_bias(f)) &&
                      fabs(x) <= format_decode(f, format_largest(f)));
}

/*
 * The element's bits, from contributions in the order in which they are combined; is_stepwise: what
 * each step but the first and the last gives is rounded to the format, else the last alone is.
 * *distance_out: how far they are from a plain result in long double, in parts of what rounding
 * allows (<= 1), or 0 where one of the two, or a step, is not finite or out of the format's range.
 */
static inline uint64_t oracle_combine(const struct format *f, enum llane_kernel_op op,
                                      const uint64_t *bits, uint32_t n_ranks, bool is_stepwise,
                                      double *distance_out)
{
    const double scale = oracle_round(f, 1.0 / n_ranks);
    const bool scales_input = op == LLANE_OP_AVG && f->avg_scales_input;
    const bool scales_output = op == LLANE_OP_AVG && !f->avg_scales_input;
    volatile double result = 0; /* each step rounds by itself, on every compiler */
    long double exact = 0, size = 0;
    bool is_in_range = true;
    uint64_t encoded;

    *distance_out = 0;
    if (!f->is_float)
        return oracle_reduce_integers(f, op, bits, n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        const double value = format_decode(f, bits[r]);
        volatile double x = value;

        if (scales_input) {
            x = x * scale;
            x = oracle_round(f, x);
        }
        if (r == 0) {
            result = x;
            exact = value;
            size = fabs(value);
            if (is_stepwise && scales_input)
                result = format_decode(f, format_encode(f, result));
            continue;
        }
        switch (op) {
        case LLANE_OP_PROD:
            result = result * x;
            exact *= value;
            size = fabsl(exact);
            break;
        case LLANE_OP_MIN:
        case LLANE_OP_MAX:
            result = oracle_prefers(op, x, result) ? x : result;
            exact = op == LLANE_OP_MIN ? fmin((double)exact, value) : fmax((double)exact, value);
            break;
        default:
            result = result + x;
            exact += value;
            size += fabs(value);
            break;
        }
        result = oracle_round(f, result);
        if (is_stepwise && r + 1 < n_ranks) {
            is_in_range = is_in_range && oracle_is_normal(f, result);
            result = format_decode(f, format_encode(f, result));
        }
    }
    if (scales_output) {
        result = result * scale;
        result = oracle_round(f, result);
    }
    if (op == LLANE_OP_AVG) {
        exact /= n_ranks;
        size /= n_ranks;
    }
    encoded = format_encode(f, result);
    if (is_in_range && isfinite(format_decode(f, encoded)) &&
        fabsl(exact) <= format_decode(f, format_largest(f))) {
        const long double step = ldexp(1, f->bytes == 8 ? -52 : -23);
        const long double allowed =
            size * n_ranks * (is_stepwise ? ldexp(1, -f->fraction_bits) : step) +
            fabsl(exact) * ldexp(1, -f->fraction_bits) + format_unit(f);

        *distance_out = (double)(fabsl(format_decode(f, encoded) - exact) / allowed);
    }
    return encoded;
}

/* As the kernels but the ring do: in rank order, rounded once. */
static inline uint64_t oracle_reduce(const struct format *f, enum llane_kernel_op op,
                                     const uint64_t *bits, uint32_t n_ranks, double *distance_out)
{
    return oracle_combine(f, op, bits, n_ranks, false, distance_out);
}

/* An ordinary element made of 64 random bits: any integer, or a float around 1. */
static inline uint64_t oracle_plain_bits(const struct format *f, uint64_t h)
{
    const uint64_t fraction = (h ^ h >> 12) & ((1ull << f->fraction_bits) - 1);

    if (!f->is_float)
        return h & format_all_ones(f);
    return (h >> 63 ? format_sign_bit(f) : 0) | fraction |
           (uint64_t)(format_bias(f) - 4 + (int)((h >> 32) % 9)) << f->fraction_bits;
}

enum { ORACLE_N_SPICES = 9 };

/* An element of one of ORACLE_N_SPICES awkward kinds; is_chosen: one rank of each element. */
static inline uint64_t oracle_spiced_bits(const struct format *f, uint64_t h, uint32_t spice,
                                          bool is_chosen)
{
    const uint64_t sign = h >> 63 ? format_sign_bit(f) : 0;
    const uint64_t low = h & ((1ull << f->fraction_bits) - 1);

    switch (spice) {
    case 0: /* anything */
        return h >> 3 & format_all_ones(f);
    case 1: /* subnormals, small integers */
        return f->is_float ? sign | low : h % 4;
    case 2: /* zeros of both signs, the lowest integer among zeros */
        return sign;
    case 3: /* the largest numbers of one sign: sums overflow, averages may not */
        return f->is_float ? format_largest(f) : format_nan(f);
    case 4: /* all ones on one rank */
        if (is_chosen)
            return format_all_ones(f);
        break;
    case 5: /* some NaN on one rank */
        if (is_chosen && f->is_float)
            return sign | (f->is_finite ? format_nan(f) : format_infinity(f) | low | 1);
        break;
    case 6:
        if (is_chosen && f->is_float)
            return sign | format_infinity(f);
        break;
    case 7: /* nothing but NaNs; negative small integers */
        if (!f->is_float)
            return format_all_ones(f) - h % 4;
        return sign | (f->is_finite ? format_nan(f) : format_infinity(f) | low | 1);
    case 8: /* the lower half all ones, which in the longer types is a number */
        return oracle_plain_bits(f, h) | format_all_ones(f) >> 4 * f->bytes;
    default:
        break;
    }
    return oracle_plain_bits(f, h);
}

#endif
