/* See soak.h: contributions, and the one right result for them. */
#include <math.h>
#include <string.h>

#include "soak.h"

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

uint64_t soak_load(const void *from, uint32_t bytes, size_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)from + i * bytes,
           bytes); /* little-endian, as every GPU's host is */
    return bits;
}

void soak_store(void *to, uint32_t bytes, size_t i, uint64_t bits)
{
    memcpy((char *)to + i * bytes, &bits, bytes);
}

static uint64_t draw(uint64_t seed, int rank, size_t i)
{
    return mix(mix(seed * SOAK_MAX_RANKS + (uint64_t)rank) + i);
}

/* ---- floats ---- */

/* Bits of a number that the type has exactly, normal or 0. */
static uint64_t encode(const struct soak_type *t, double value)
{
    int exponent;
    uint64_t sign = value < 0;
    double fraction = frexp(fabs(value), &exponent); /* in [0.5, 1) */
    if (fraction == 0) {
        return 0;
    }
    uint64_t bias = (1ull << (t->exponent_bits - 1)) - 1;
    uint64_t mantissa = (uint64_t)ldexp(2 * fraction - 1, t->mantissa_bits);
    return sign << (t->exponent_bits + t->mantissa_bits) |
           ((uint64_t)(exponent - 1) + bias) << t->mantissa_bits | mantissa;
}

/* For prod, half, one or two of either sign, by few enough ranks that no product leaves the range. */
static double power(uint64_t random, int rank)
{
    static const double powers[] = {0.5, 1, 2};
    double size = rank < 4 ? powers[random % 3] : 1;
    return random >> 63 ? -size : size;
}

/* Whole numbers, so small that each partial sum is one that the type has. */
static double whole(const struct soak_type *t, uint64_t random, int rank, int n_ranks)
{
    int64_t largest = (1ll << (t->mantissa_bits < 20 ? t->mantissa_bits + 1 : 24)) / n_ranks;
    if (largest == 0) { /* more ranks than whole numbers: some have none */
        return rank < 1 << (t->mantissa_bits + 1) ? (double)(int64_t)(random >> 8 & 1) : 0;
    }
    return (double)((int64_t)(random >> 8) % (largest + 1)) * (random >> 63 ? -1 : 1);
}

static double float_value(const struct soak_case *c, uint64_t seed, int n_ranks, int rank, size_t i)
{
    uint64_t random = draw(seed, rank, i);
    double value = c->op == ncclProd ? power(random, rank) : whole(c->type, random, rank, n_ranks);
    return value == 0 ? 0 : value; /* no -0: whether it beats +0 is for other tests */
}

static double float_expected(const struct soak_case *c, uint64_t seed, int n_ranks, size_t i)
{
    double all = float_value(c, seed, n_ranks, 0, i);
    for (int rank = 1; rank < n_ranks; rank++) {
        double x = float_value(c, seed, n_ranks, rank, i);
        all = c->op == ncclProd  ? all * x
              : c->op == ncclMax ? (x > all ? x : all)
              : c->op == ncclMin ? (x < all ? x : all)
                                 : all + x;
    }
    return c->op == ncclAvg ? all / n_ranks : all;
}

/* ---- integers ---- */

/* The low bytes of bits as a number of the type, in 64 bits. */
static uint64_t widen(const struct soak_type *t, uint64_t bits)
{
    unsigned unused = 64 - 8 * t->bytes;
    uint64_t high = bits << unused;
    return t->is_signed ? (uint64_t)((int64_t)high >> unused) : high >> unused;
}

static int is_less(const struct soak_type *t, uint64_t a, uint64_t b)
{
    return t->is_signed ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combine(const struct soak_type *t, ncclRedOp_t op, uint64_t a, uint64_t b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return is_less(t, a, b) ? b : a;
    case ncclMin:
        return is_less(t, b, a) ? b : a;
    default:
        return a + b;
    }
}

static uint64_t integer_expected(const struct soak_case *c, uint64_t seed, int n_ranks, size_t i)
{
    uint64_t all = widen(c->type, draw(seed, 0, i));
    for (int rank = 1; rank < n_ranks; rank++) {
        all = combine(c->type, c->op, all, widen(c->type, draw(seed, rank, i)));
    }
    all = widen(c->type, all);
    if (c->op == ncclAvg) {
        all = c->type->is_signed ? (uint64_t)((int64_t)all / n_ranks) : all / (uint64_t)n_ranks;
    }
    return all;
}

/* ---- both ---- */

static uint64_t cut(const struct soak_type *t, uint64_t bits)
{
    return t->bytes == 8 ? bits : bits & ((1ull << 8 * t->bytes) - 1);
}

uint64_t soak_contribution(const struct soak_case *c, uint64_t seed, int n_ranks, int rank,
                           size_t i)
{
    return cut(c->type, c->type->mantissa_bits
                            ? encode(c->type, float_value(c, seed, n_ranks, rank, i))
                            : draw(seed, rank, i));
}

uint64_t soak_expected(const struct soak_case *c, uint64_t seed, int n_ranks, size_t i)
{
    return cut(c->type, c->type->mantissa_bits
                            ? encode(c->type, float_expected(c, seed, n_ranks, i))
                            : integer_expected(c, seed, n_ranks, i));
}
