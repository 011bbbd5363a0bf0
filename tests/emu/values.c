/* See values.h. */
#include "values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* mantissa < 0: an integer of -mantissa bits (positive exponent: signed) */
static const struct {
    const char *name;
    int bytes, exponent, mantissa;
    int span; /* float inputs lie in [-span, span] */
} g_types[VALUES_N_TYPES] = {
    [ncclInt8] = {"int8", 1, 1, -8, 0},
    [ncclUint8] = {"uint8", 1, 0, -8, 0},
    [ncclInt32] = {"int32", 4, 1, -32, 0},
    [ncclUint32] = {"uint32", 4, 0, -32, 0},
    [ncclInt64] = {"int64", 8, 1, -64, 0},
    [ncclUint64] = {"uint64", 8, 0, -64, 0},
    [ncclFloat16] = {"float16", 2, 5, 10, 100},
    [ncclFloat32] = {"float32", 4, 8, 23, 10000},
    [ncclFloat64] = {"float64", 8, 11, 52, 1000000},
    [ncclBfloat16] = {"bfloat16", 2, 8, 7, 15},
    [ncclFloat8e4m3] = {"float8e4m3", 1, 4, 3, 1},
    [ncclFloat8e5m2] = {"float8e5m2", 1, 5, 2, 1},
};
static const char *const g_ops[VALUES_N_OPS] = {"sum", "prod", "max", "min", "avg"};

const char *values_type_name(ncclDataType_t type)
{
    return g_types[type].name;
}

const char *values_op_name(ncclRedOp_t op)
{
    return g_ops[op];
}

int values_type_of(const char *name)
{
    for (int t = 0; t < VALUES_N_TYPES; t++) {
        if (strcmp(name, g_types[t].name) == 0)
            return t;
    }
    return -1;
}

int values_op_of(const char *name)
{
    for (int op = 0; op < VALUES_N_OPS; op++) {
        if (strcmp(name, g_ops[op]) == 0)
            return op;
    }
    return -1;
}

size_t values_type_bytes(ncclDataType_t type)
{
    return (size_t)g_types[type].bytes;
}

static uint64_t hash(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

static uint64_t noise(int rank, uint64_t call, size_t i)
{
    return hash(hash(call * 1000003u + (uint64_t)rank) + i);
}

static double float_value(ncclDataType_t type, ncclRedOp_t op, int rank, uint64_t call, size_t i)
{
    uint64_t x = noise(rank, call, i);
    if (op == ncclProd) /* +-1, of the first three ranks +-2: within every type's range */
        return (x & 1 ? 1.0 : -1.0) * (rank < 3 && (x & 2) ? 2.0 : 1.0);
    int span = g_types[type].span;
    return (double)(int)(x % (unsigned)(2 * span + 1)) - span;
}

/* Of a small integer, which the type holds exactly. */
static uint64_t float_bits(ncclDataType_t type, double value)
{
    int mantissa = g_types[type].mantissa, bits = 1 + g_types[type].exponent + mantissa;
    int bias = (1 << (g_types[type].exponent - 1)) - 1, exponent;
    if (value == 0)
        return 0;
    double fraction = frexp(fabs(value), &exponent); /* [0.5, 1) */
    uint64_t m = (uint64_t)ldexp(fraction, mantissa + 1) - (UINT64_C(1) << mantissa);
    uint64_t sign = value < 0 ? UINT64_C(1) << (bits - 1) : 0;
    return sign | (uint64_t)(exponent - 1 + bias) << mantissa | m;
}

static double float_of(ncclDataType_t type, uint64_t bits)
{
    int mantissa = g_types[type].mantissa, width = g_types[type].exponent;
    int bias = (1 << (width - 1)) - 1, exponent = (int)(bits >> mantissa) & ((1 << width) - 1);
    uint64_t m = bits & ((UINT64_C(1) << mantissa) - 1);
    double sign = bits >> (width + mantissa) & 1 ? -1.0 : 1.0;
    int is_top = exponent == (1 << width) - 1;
    if (is_top && type == ncclFloat8e4m3)
        is_top = m == 7;
    if (is_top)
        return m ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp((double)m, 1 - bias - mantissa);
    return sign * ldexp((double)(m + (UINT64_C(1) << mantissa)), exponent - bias - mantissa);
}

void values_fill(ncclDataType_t type, ncclRedOp_t op, int rank, uint64_t call, size_t count,
                 void *to)
{
    size_t bytes = values_type_bytes(type);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = g_types[type].mantissa < 0
                            ? noise(rank, call, i)
                            : float_bits(type, float_value(type, op, rank, call, i));
        memcpy((char *)to + i * bytes, &bits, bytes); /* little-endian */
    }
}

static uint64_t widen(ncclDataType_t type, uint64_t x)
{
    int unused = 64 + g_types[type].mantissa;
    if (g_types[type].exponent) /* signed */
        return (uint64_t)((int64_t)(x << unused) >> unused);
    return x << unused >> unused;
}

static uint64_t int_expected(ncclDataType_t type, ncclRedOp_t op, int n, uint64_t call, size_t i)
{
    int is_signed = g_types[type].exponent;
    uint64_t sum = widen(type, noise(0, call, i));
    for (int r = 1; r < n; r++) {
        uint64_t x = widen(type, noise(r, call, i));
        int is_less = is_signed ? (int64_t)x < (int64_t)sum : x < sum;
        if (op == ncclProd)
            sum *= x;
        else if (op == ncclMax)
            sum = is_less ? sum : x;
        else if (op == ncclMin)
            sum = is_less ? x : sum;
        else
            sum += x;
    }
    sum = widen(type, sum);
    if (op == ncclAvg)
        sum = is_signed ? (uint64_t)((int64_t)sum / n) : sum / (uint64_t)n;
    return widen(type, sum);
}

static double float_expected(ncclDataType_t type, ncclRedOp_t op, int n, uint64_t call, size_t i,
                             double *slack_out)
{
    double result = float_value(type, op, 0, call, i), size = fabs(result);
    for (int r = 1; r < n; r++) {
        double x = float_value(type, op, r, call, i);
        size += fabs(x);
        if (op == ncclProd)
            result *= x;
        else if (op == ncclMax)
            result = x > result ? x : result;
        else if (op == ncclMin)
            result = x < result ? x : result;
        else
            result += x;
    }
    double unit = ldexp(1.0, -g_types[type].mantissa);
    *slack_out = 0;
    if (op == ncclAvg) {
        result /= n;
        *slack_out = 2 * unit * size / n;
    } else if ((op == ncclSum && n > 8) || op == ncclProd) {
        *slack_out = unit * size; /* beyond 8 ranks the narrow types may have to round */
    }
    return result;
}

size_t values_check(ncclDataType_t type, ncclRedOp_t op, int n, uint64_t call, size_t count,
                    const void *got, char *words, size_t words_bytes)
{
    size_t bytes = values_type_bytes(type), n_wrong = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)got + i * bytes, bytes);
        if (g_types[type].mantissa < 0) {
            uint64_t want = int_expected(type, op, n, call, i);
            if (widen(type, bits) != want && n_wrong++ == 0)
                snprintf(words, words_bytes, "[%zu] is %lld, not %lld", i,
                         (long long)widen(type, bits), (long long)want);
            continue;
        }
        double slack, want = float_expected(type, op, n, call, i, &slack);
        double have = float_of(type, bits);
        if (!(fabs(have - want) <= slack) && n_wrong++ == 0)
            snprintf(words, words_bytes, "[%zu] is %.17g (%#llx), not %.17g within %g", i, have,
                     (unsigned long long)bits, want, slack);
    }
    return n_wrong;
}
