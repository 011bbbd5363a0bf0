/*
 * Sums and their kin for every NCCL type, in rank order. Floats are carried in double and rounded
 * to the type once (the products of avg and PreMulSum first, as NCCL multiplies in the type);
 * integers in 64 bits, cut to the type at the end. Written for clearness: it is what llane's
 * kernels are compared with, so it shares nothing with them.
 */
#include "fake.h"

#include <math.h>
#include <string.h>

enum { BATCH = 512 };

/* A float narrower than 32 bits: sign, exponent, mantissa. */
struct narrow {
    int exponent_bits, mantissa_bits;
    bool has_infinity;  /* else all-ones is the only NaN and the top exponent holds numbers */
    bool is_saturating; /* too large becomes the largest finite number */
};
static const struct narrow g_f16 = {5, 10, true, false};
static const struct narrow g_bf16 = {8, 7, true, false};
static const struct narrow g_e4m3 = {4, 3, false, true};
static const struct narrow g_e5m2 = {5, 2, true, true};

static double narrow_decode(const struct narrow *f, unsigned bits)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int top = (1 << f->exponent_bits) - 1;
    int exponent = (int)(bits >> f->mantissa_bits) & top;
    int mantissa = (int)bits & ((1 << f->mantissa_bits) - 1);
    double sign = bits >> (f->exponent_bits + f->mantissa_bits) & 1 ? -1.0 : 1.0;
    if (f->has_infinity && exponent == top)
        return mantissa ? NAN : sign * INFINITY;
    if (!f->has_infinity && exponent == top && mantissa == (1 << f->mantissa_bits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return sign * ldexp(mantissa + (1 << f->mantissa_bits), exponent - bias - f->mantissa_bits);
}

static unsigned round_half_even(double x)
{
    unsigned whole = (unsigned)x;
    double rest = x - whole;
    return whole + (rest > 0.5 || (rest == 0.5 && (whole & 1)));
}

/* To nearest, ties to even, of the value counted in units of the last place. */
static unsigned narrow_encode(const struct narrow *f, double value)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int top = (1 << f->exponent_bits) - 1;
    int one = 1 << f->mantissa_bits;
    unsigned sign = signbit(value) ? 1u << (f->exponent_bits + f->mantissa_bits) : 0;
    unsigned largest = f->has_infinity ? (unsigned)(top << f->mantissa_bits) - 1
                                       : (unsigned)((top + 1) << f->mantissa_bits) - 2;
    if (isnan(value))
        return (unsigned)((top + 1) << f->mantissa_bits) - 1;
    if (isinf(value))
        return sign | (f->is_saturating ? largest : largest + 1);
    int exponent;
    frexp(value, &exponent); /* |value| in [2^(exponent-1), 2^exponent) */
    int unit =
        exponent - 1 < 1 - bias ? 1 - bias - f->mantissa_bits : exponent - 1 - f->mantissa_bits;
    unsigned steps = round_half_even(ldexp(fabs(value), -unit));
    /* Normal numbers have steps in [one, 2 one]; one more carries into the exponent by itself. */
    unsigned bits = steps;
    if (steps >= (unsigned)one)
        bits = ((unsigned)(unit + f->mantissa_bits + bias) << f->mantissa_bits) + steps -
               (unsigned)one;
    if (bits > largest)
        bits = f->is_saturating ? largest : largest + 1;
    return sign | bits;
}

static const struct type_row {
    const char *name;
    size_t bytes;
    bool is_float, is_signed;
    const struct narrow *narrow;
} g_types[FAKE_N_TYPES] = {
    [ncclInt8] = {"int8", 1, false, true, NULL},
    [ncclUint8] = {"uint8", 1, false, false, NULL},
    [ncclInt32] = {"int32", 4, false, true, NULL},
    [ncclUint32] = {"uint32", 4, false, false, NULL},
    [ncclInt64] = {"int64", 8, false, true, NULL},
    [ncclUint64] = {"uint64", 8, false, false, NULL},
    [ncclFloat16] = {"float16", 2, true, true, &g_f16},
    [ncclFloat32] = {"float32", 4, true, true, NULL},
    [ncclFloat64] = {"float64", 8, true, true, NULL},
    [ncclBfloat16] = {"bfloat16", 2, true, true, &g_bf16},
    [ncclFloat8e4m3] = {"float8e4m3", 1, true, true, &g_e4m3},
    [ncclFloat8e5m2] = {"float8e5m2", 1, true, true, &g_e5m2},
};

size_t fake_type_bytes(ncclDataType_t type)
{
    return g_types[type].bytes;
}

const char *fake_type_name(ncclDataType_t type)
{
    return g_types[type].name;
}

bool fake_type_is_float(ncclDataType_t type)
{
    return g_types[type].is_float;
}

static double float_load(ncclDataType_t type, const void *from, size_t i)
{
    const struct type_row *t = &g_types[type];
    if (t->narrow && t->bytes == 1)
        return narrow_decode(t->narrow, ((const uint8_t *)from)[i]);
    uint16_t half;
    float single;
    double whole;
    switch (t->bytes) {
    case 2:
        memcpy(&half, (const uint8_t *)from + 2 * i, 2);
        return narrow_decode(t->narrow, half);
    case 4:
        memcpy(&single, (const uint8_t *)from + 4 * i, 4);
        return (double)single;
    default:
        memcpy(&whole, (const uint8_t *)from + 8 * i, 8);
        return whole;
    }
}

static void float_store(ncclDataType_t type, void *to, size_t i, double value)
{
    const struct type_row *t = &g_types[type];
    if (t->narrow) {
        unsigned bits = narrow_encode(t->narrow, value);
        memcpy((uint8_t *)to + t->bytes * i, &bits, t->bytes); /* little-endian */
    } else if (t->bytes == 4) {
        float single = (float)value;
        memcpy((uint8_t *)to + 4 * i, &single, 4);
    } else {
        memcpy((uint8_t *)to + 8 * i, &value, 8);
    }
}

static double float_round(ncclDataType_t type, double value)
{
    uint8_t raw[8];
    float_store(type, raw, 0, value);
    return float_load(type, raw, 0);
}

/* Sign- or zero-extended to 64 bits. */
static uint64_t int_load(ncclDataType_t type, const void *from, size_t i)
{
    size_t bytes = g_types[type].bytes;
    uint64_t value = 0;
    memcpy(&value, (const uint8_t *)from + bytes * i, bytes);
    unsigned unused = 64 - 8 * (unsigned)bytes;
    if (g_types[type].is_signed)
        return (uint64_t)((int64_t)(value << unused) >> unused);
    return value;
}

static double float_combine(ncclRedOp_t op, double a, double b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return isnan(a) || b > a ? b : a; /* a number beats a NaN */
    case ncclMin:
        return isnan(a) || b < a ? b : a;
    default:
        return a + b;
    }
}

static uint64_t int_combine(ncclRedOp_t op, bool is_signed, uint64_t a, uint64_t b)
{
    bool is_less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return is_less ? b : a;
    case ncclMin:
        return is_less ? a : b;
    default:
        return a + b;
    }
}

static void reduce_floats(const struct fake_op *op, const void *const *from, int n, size_t first,
                          size_t count, void *to)
{
    double sum[BATCH] = {0};
    double scale = float_round(op->type, 1.0 / n);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++) {
            double x = float_load(op->type, from[r], first + i);
            if (op->op == ncclAvg)
                x = float_round(op->type, x * scale);
            sum[i] = r ? float_combine(op->op, sum[i], x) : x;
        }
    }
    for (size_t i = 0; i < count; i++)
        float_store(op->type, to, first + i, sum[i]);
}

static void reduce_ints(const struct fake_op *op, const void *const *from, int n, size_t first,
                        size_t count, void *to)
{
    uint64_t sum[BATCH] = {0};
    const struct type_row *t = &g_types[op->type];
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++) {
            uint64_t x = int_load(op->type, from[r], first + i);
            sum[i] = r ? int_combine(op->op, t->is_signed, sum[i], x) : x;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (op->op == ncclAvg) { /* wraps in the type, then divides truncating */
            uint64_t wrapped = int_load(op->type, &sum[i], 0);
            sum[i] = t->is_signed ? (uint64_t)((int64_t)wrapped / n) : wrapped / (uint64_t)n;
        }
        memcpy((uint8_t *)to + t->bytes * (first + i), &sum[i], t->bytes);
    }
}

void fake_reduce(const struct fake_op *op, const void *const *from, int n, size_t count, void *to)
{
    for (size_t first = 0; first < count; first += BATCH) {
        size_t some = count - first < BATCH ? count - first : BATCH;
        if (g_types[op->type].is_float)
            reduce_floats(op, from, n, first, some, to);
        else
            reduce_ints(op, from, n, first, some, to);
    }
}

void fake_scale(const struct fake_op *op, const void *scalar, size_t count, void *data)
{
    for (size_t i = 0; i < count; i++) {
        if (g_types[op->type].is_float) {
            double x = float_load(op->type, data, i) * float_load(op->type, scalar, 0);
            float_store(op->type, data, i, x);
        } else {
            uint64_t x = int_load(op->type, data, i) * int_load(op->type, scalar, 0);
            memcpy((uint8_t *)data + g_types[op->type].bytes * i, &x, g_types[op->type].bytes);
        }
    }
}
