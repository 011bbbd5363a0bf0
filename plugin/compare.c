#include "compare.h"

#include <math.h>
#include <string.h>

#include "route.h"

/* Widths of the floats' exponent and mantissa; zero for integers. */
struct format {
    int exponent_bits, mantissa_bits;
};

static struct format format_of(ncclDataType_t datatype)
{
    switch (datatype) {
    case ncclFloat16:
        return (struct format){5, 10};
    case ncclBfloat16:
        return (struct format){8, 7};
    case ncclFloat32:
        return (struct format){8, 23};
    case ncclFloat64:
        return (struct format){11, 52};
    case ncclFloat8e4m3:
        return (struct format){4, 3};
    case ncclFloat8e5m2:
        return (struct format){5, 2};
    default:
        return (struct format){0, 0};
    }
}

static double narrow_value(struct format f, uint32_t bits)
{
    int top = (1 << f.exponent_bits) - 1, one = 1 << f.mantissa_bits;
    int exponent = (int)(bits >> f.mantissa_bits) & top, mantissa = (int)bits & (one - 1);
    int bias = top / 2;
    double sign = bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -1 : 1;
    /* e4m3 has no infinity, and one NaN. */
    int is_e4m3 = f.exponent_bits == 4;
    if (exponent == top && (!is_e4m3 || mantissa == one - 1)) {
        return !is_e4m3 && !mantissa ? sign * (double)INFINITY : (double)NAN;
    }
    return sign * (exponent ? ldexp(one + mantissa, exponent - bias - f.mantissa_bits)
                            : ldexp(mantissa, 1 - bias - f.mantissa_bits));
}

static double value_at(struct format f, const void *values, size_t bytes, size_t i)
{
    float single;
    double value;
    uint32_t bits = 0;
    const char *at = (const char *)values + i * bytes;
    if (f.mantissa_bits == 52) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (f.mantissa_bits == 23) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    memcpy(&bits, at, bytes); /* both architectures that this runs on have the low byte first */
    return narrow_value(f, bits);
}

static double larger(double a, double b)
{
    return b > a ? b : a; /* a NaN in b does not count */
}

static double magnitude(const struct llane_compared *w, struct format f, size_t bytes, size_t i)
{
    double a = fabs(value_at(f, w->a, bytes, i)), b = fabs(value_at(f, w->b, bytes, i));
    double m = larger(larger(0, a), b);
    return w->op == ncclProd ? m : larger(m, fabs(value_at(f, w->in, bytes, i)));
}

/* Infinities make no bound. */
static double largest_magnitude(const struct llane_compared *w, struct format f, size_t bytes)
{
    double largest = 0;
    for (size_t i = 0; i < w->count; i++) {
        double m = magnitude(w, f, bytes, i);
        largest = isinf(m) ? largest : larger(largest, m);
    }
    return largest;
}

static int is_rounded(const struct llane_compared *w, struct format f)
{
    return f.mantissa_bits && w->op != ncclMin && w->op != ncclMax;
}

static double bound_of(const struct llane_compared *w, struct format f, double m)
{
    return 2 * (w->n_ranks + 2) * ldexp(m, -f.mantissa_bits - 1);
}

/* The sign of a zero is rounding's affair too. */
static int is_within(double a, double b, double bound)
{
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= bound;
}

void llane_compare(const struct llane_compared *what, struct llane_comparison *out)
{
    struct format f = format_of(what->datatype);
    size_t bytes = llane_route_type_bytes(what->datatype);
    int rounds = is_rounded(what, f);
    double bound = -1;
    *out = (struct llane_comparison){0};
    for (size_t i = 0; i < what->count; i++) {
        size_t at = i * bytes;
        if (!memcmp((const char *)what->a + at, (const char *)what->b + at, bytes)) {
            continue;
        }
        out->n_other_bits++;
        double a = f.mantissa_bits ? value_at(f, what->a, bytes, i) : 0;
        double b =
            f.mantissa_bits ? value_at(f, what->b, bytes, i) : 1; /* integers: other values */
        if (rounds && what->op == ncclProd) {
            bound = bound_of(what, f, magnitude(what, f, bytes, i));
        } else if (rounds && bound < 0) {
            bound = bound_of(what, f, largest_magnitude(what, f, bytes));
        }
        if (!is_within(a, b, rounds ? bound : 0)) {
            if (!out->n_beyond++) {
                out->first_beyond = i;
                out->first_a = a;
                out->first_b = b;
            }
        }
    }
}
