/*
 * What an all-reduce must give, by plain loops over random contributions that every rank can make
 * for every other: floats in double with a tolerance for the orders and roundings that NCCL allows,
 * integers exact. Shares nothing with the kernels.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int is_float(const struct bench_type *type)
{
    return type->mantissa_bits != 0;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/*
 * Bits of a float. For prod, near 1 on either side by rank, so that no product of 16 leaves the
 * range of any type; otherwise magnitudes from 0.25 to 2 of either sign.
 */
static uint64_t float_bits(const struct bench_reference *ref, int rank, uint64_t random)
{
    const struct bench_type *t = ref->type;
    uint64_t bias = (1ull << (t->exponent_bits - 1)) - 1;
    uint64_t mantissa = random & ((1ull << t->mantissa_bits) - 1);
    uint64_t top = 1ull << (t->mantissa_bits - 1);
    uint64_t exponent = bias - (random >> 53) % 3;
    if (ref->op == ncclProd) {
        exponent = bias - (uint64_t)(rank & 1);
        mantissa = rank & 1 ? mantissa | top : mantissa & ~top;
    }
    return (random >> 63) << (t->exponent_bits + t->mantissa_bits) | exponent << t->mantissa_bits |
           mantissa;
}

static uint64_t contribution(const struct bench_reference *ref, int rank, uint64_t seed, size_t i)
{
    uint64_t random = mix(mix(seed * BENCH_MAX_RANKS + (uint64_t)rank) + i);
    return is_float(ref->type) ? float_bits(ref, rank, random) : random;
}

static double narrow_value(const struct bench_type *t, uint32_t bits)
{
    int bias = (1 << (t->exponent_bits - 1)) - 1, top = (1 << t->exponent_bits) - 1;
    int exponent = (int)(bits >> t->mantissa_bits) & top;
    int one = 1 << t->mantissa_bits;
    int mantissa = (int)bits & (one - 1);
    double sign = bits >> (t->exponent_bits + t->mantissa_bits) & 1 ? -1 : 1;
    /* e4m3 spends one pattern on NaN and has no infinity. */
    int has_infinity = !(t->exponent_bits == 4 && t->mantissa_bits == 3);
    if (exponent == top && (has_infinity || mantissa == one - 1)) {
        return has_infinity && !mantissa ? sign * (double)INFINITY : (double)NAN;
    }
    return sign * (exponent ? ldexp(one + mantissa, exponent - bias - t->mantissa_bits)
                            : ldexp(mantissa, 1 - bias - t->mantissa_bits));
}

static double value_of(const struct bench_reference *ref, uint64_t bits)
{
    float single;
    double value;
    uint32_t low = (uint32_t)bits;
    if (ref->narrow) {
        return ref->narrow[bits];
    }
    if (ref->type->bytes == sizeof single) {
        memcpy(&single, &low, sizeof single);
        return (double)single;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Sums of n values are n - 1 roundings, avg two more; float64's reference rounds as often itself. */
static double unit(const struct bench_type *type, ncclRedOp_t op, int n_ranks)
{
    double n = n_ranks + (op == ncclAvg ? 2 : 0);
    return n * ldexp(type->bytes == 8 ? 2 : 1, -type->mantissa_bits - 1);
}

static double smallest(const struct bench_type *type)
{
    return ldexp(1, 2 - (1 << (type->exponent_bits - 1)) - type->mantissa_bits);
}

void bench_reference_describe(const struct bench_type *type, ncclRedOp_t op, int n_ranks,
                              char *text, size_t text_bytes)
{
    if (!is_float(type) || op == ncclMin || op == ncclMax) {
        snprintf(text, text_bytes, "exact");
    } else {
        snprintf(text, text_bytes, "|error| <= %.2g * %s", unit(type, op, n_ranks),
                 op == ncclProd  ? "|product|"
                 : op == ncclAvg ? "average |x|"
                                 : "sum |x|");
    }
}

int bench_reference_open(struct bench_reference *ref, const struct bench_type *type, ncclRedOp_t op,
                         int n_ranks, size_t capacity)
{
    *ref =
        (struct bench_reference){.type = type, .op = op, .n_ranks = n_ranks, .capacity = capacity};
    if (!is_float(type)) {
        ref->integer = calloc(capacity, sizeof *ref->integer);
        return ref->integer ? 0 : -1;
    }
    ref->value = calloc(capacity, sizeof *ref->value);
    ref->tolerance = calloc(capacity, sizeof *ref->tolerance);
    if (type->bytes <= 2) {
        uint32_t n = 1u << 8 * type->bytes;
        ref->narrow = calloc(n, sizeof *ref->narrow);
        for (uint32_t bits = 0; ref->narrow && bits < n; bits++) {
            ref->narrow[bits] = narrow_value(type, bits);
        }
    }
    if (!ref->value || !ref->tolerance || (type->bytes <= 2 && !ref->narrow)) {
        bench_reference_close(ref);
        return -1;
    }
    return 0;
}

void bench_reference_close(struct bench_reference *ref)
{
    free(ref->value);
    free(ref->tolerance);
    free(ref->integer);
    free(ref->narrow);
    *ref = (struct bench_reference){0};
}

static void store(void *to, uint32_t bytes, size_t i, uint64_t bits)
{
    memcpy((char *)to + i * bytes, &bits, bytes); /* little-endian, as every GPU's host is */
}

static uint64_t load(const void *from, uint32_t bytes, size_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)from + i * bytes, bytes);
    return bits;
}

void bench_reference_fill(const struct bench_reference *ref, int rank, uint64_t seed, void *to,
                          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        store(to, ref->type->bytes, i, contribution(ref, rank, seed, i));
    }
}

/* The low bytes of bits as a number of the type, in 64 bits. */
static uint64_t widen(const struct bench_type *type, uint64_t bits)
{
    unsigned unused = 64 - 8 * type->bytes;
    uint64_t high = bits << unused;
    return type->is_signed ? (uint64_t)((int64_t)high >> unused) : high >> unused;
}

static int is_less(const struct bench_type *type, uint64_t a, uint64_t b)
{
    return type->is_signed ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combine_integers(const struct bench_type *type, ncclRedOp_t op, uint64_t a,
                                 uint64_t b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return is_less(type, a, b) ? b : a;
    case ncclMin:
        return is_less(type, b, a) ? b : a;
    default:
        return a + b;
    }
}

/* Integers wrap; avg sums, wraps, then divides toward zero. */
static uint64_t integer_result(const struct bench_reference *ref, uint64_t seed, size_t i)
{
    uint64_t all = widen(ref->type, contribution(ref, 0, seed, i));
    for (int rank = 1; rank < ref->n_ranks; rank++) {
        all = combine_integers(ref->type, ref->op, all,
                               widen(ref->type, contribution(ref, rank, seed, i)));
    }
    all = widen(ref->type, all);
    if (ref->op == ncclAvg) {
        all = ref->type->is_signed ? (uint64_t)((int64_t)all / ref->n_ranks)
                                   : all / (uint64_t)ref->n_ranks;
    }
    return widen(ref->type, all);
}

static void float_result(struct bench_reference *ref, uint64_t seed, size_t i)
{
    double all = value_of(ref, contribution(ref, 0, seed, i)), size = fabs(all);
    for (int rank = 1; rank < ref->n_ranks; rank++) {
        double x = value_of(ref, contribution(ref, rank, seed, i));
        size += fabs(x);
        switch (ref->op) {
        case ncclProd:
            all *= x;
            break;
        case ncclMax:
            all = x > all ? x : all;
            break;
        case ncclMin:
            all = x < all ? x : all;
            break;
        default:
            all += x;
        }
    }
    if (ref->op == ncclAvg) {
        all /= ref->n_ranks;
        size /= ref->n_ranks;
    }
    ref->value[i] = all;
    ref->tolerance[i] =
        ref->op == ncclMax || ref->op == ncclMin
            ? 0
            : unit(ref->type, ref->op, ref->n_ranks) * (ref->op == ncclProd ? fabs(all) : size) +
                  ref->n_ranks * smallest(ref->type);
}

void bench_reference_compute(struct bench_reference *ref, uint64_t seed, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (is_float(ref->type)) {
            float_result(ref, seed, i);
        } else {
            ref->integer[i] = integer_result(ref, seed, i);
        }
    }
}

uint64_t bench_reference_count_wrong(const struct bench_reference *ref, const void *got,
                                     size_t count)
{
    uint64_t wrong = 0;
    uint32_t bytes = ref->type->bytes;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = load(got, bytes, i);
        if (is_float(ref->type)) {
            /* Also true of a NaN. */
            wrong += !(fabs(value_of(ref, bits) - ref->value[i]) <= ref->tolerance[i]);
        } else {
            wrong += widen(ref->type, bits) != ref->integer[i];
        }
    }
    return wrong;
}
