// Every datatype's conversions, operations, canonical NaNs and tails are what double arithmetic says.
// CFLAGS: -DLLANE_EMU
/*
 * Runs the kernels' arithmetic as host code. Expected values come from kernel_oracle.h, which shares
 * nothing with it but the numbering of types and operations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

#include "kernel_oracle.h"
#include "kernels/local.cuh"
#include "nccl_abi.h"

#define SAME_NUMBER(name, nccl) static_assert((int)LLANE_TYPE_##name == (int)(nccl), "table.h");
SAME_NUMBER(I8, ncclInt8)
SAME_NUMBER(U8, ncclUint8)
SAME_NUMBER(I32, ncclInt32)
SAME_NUMBER(U32, ncclUint32)
SAME_NUMBER(I64, ncclInt64)
SAME_NUMBER(U64, ncclUint64)
SAME_NUMBER(F16, ncclFloat16)
SAME_NUMBER(F32, ncclFloat32)
SAME_NUMBER(F64, ncclFloat64)
SAME_NUMBER(BF16, ncclBfloat16)
SAME_NUMBER(E4M3, ncclFloat8e4m3)
SAME_NUMBER(E5M2, ncclFloat8e5m2)

namespace
{

/* A type of convert.cuh and its number. */
template <class TYPE, enum llane_type NUMBER>
struct of_type {
    typedef TYPE T; static constexpr enum llane_type number = NUMBER;

    static const struct format * format(){return format_of(NUMBER);}
}; // namespace

template <class BODY> void for_each_small_float(BODY body)
{
    body(of_type<llane_float16, LLANE_TYPE_F16>());
    body(of_type<llane_bfloat16, LLANE_TYPE_BF16>());
    body(of_type<llane_float8_e4m3, LLANE_TYPE_E4M3>());
    body(of_type<llane_float8_e5m2, LLANE_TYPE_E5M2>());
}

template <class BODY> void for_each_float(BODY body)
{
    for_each_small_float(body);
    body(of_type<llane_float32, LLANE_TYPE_F32>());
    body(of_type<llane_float64, LLANE_TYPE_F64>());
}

template <class BODY> void for_each_integer(BODY body)
{
    body(of_type<llane_int8, LLANE_TYPE_I8>());
    body(of_type<llane_uint8, LLANE_TYPE_U8>());
    body(of_type<llane_int32, LLANE_TYPE_I32>());
    body(of_type<llane_uint32, LLANE_TYPE_U32>());
    body(of_type<llane_int64, LLANE_TYPE_I64>());
    body(of_type<llane_uint64, LLANE_TYPE_U64>());
}

template <class BODY> void for_each_type(BODY body)
{
    for_each_integer(body);
    for_each_float(body);
}

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;

    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

bool is_same_number(double a, double b)
{
    return a == b ? signbit(a) == signbit(b) : isnan(a) && isnan(b);
}

/* ---- conversions ---- */

void convert__every_pattern_of_8_and_16_bits__widened_and_back(void **)
{
    for_each_small_float([](auto type) {
        using T = typename decltype(type)::T;
        const struct format *f = type.format();

        for (uint32_t i = 0; i <= format_all_ones(f); i++) {
            const typename T::bits bits = (typename T::bits)i;
            const double value = format_decode(f, bits);

            if (!is_same_number((double)T::widen(bits), value))
                fail_msg("%s %#x widens to %g, not %g", f->name, i, (double)T::widen(bits), value);
            if (T::narrow(T::widen(bits)) != format_encode(f, value))
                fail_msg("%s %#x comes back as %#x", f->name, i, T::narrow(T::widen(bits)));
            if (isfinite(value))
                assert_int_equal(T::narrow(T::widen(bits)), bits);
            if (isnan(value))
                assert_int_equal(T::narrow(T::widen(bits)), format_nan(f));
        }
    });
}

template <class T> void check_narrow(const struct format *f, uint32_t float_bits)
{
    for (uint32_t sign = 0; sign < 2; sign++) {
        const float x = float_of(float_bits | sign << 31);

        if (T::narrow(x) != format_encode(f, (double)x))
            fail_msg("%a is narrowed to %s %#x, not %#x", (double)x, f->name,
                     (unsigned)T::narrow(x), (unsigned)format_encode(f, (double)x));
    }
}

const uint32_t fractions[] = {0, 1, 0x3fffff, 0x400000, 0x400001, 0x7fffff};

void convert__floats_at_and_beside_every_tie__rounded_to_nearest_even(void **)
{
    for_each_small_float([](auto type) {
        using T = typename decltype(type)::T;
        const struct format *f = type.format();

        for (uint64_t i = 0; i <= format_infinity(f); i++) {
            const double low = format_decode(f, i);
            const double high = i == format_infinity(f) ? 2 * low : format_decode(f, i + 1);
            const float tie = (float)(isfinite(high) ? (low + high) / 2
                                                     : low + (low - format_decode(f, i - 1)) / 2);
            const uint32_t at[] = {bits_of((float)low), bits_of(tie)};

            for (uint32_t bits : at)
                for (uint32_t beside = bits == 0 ? 0 : bits - 1; beside <= bits + 1; beside++)
                    check_narrow<T>(f, beside & 0x7fffffffu);
        }
        for (uint32_t i = 0; i < 300000; i++)
            check_narrow<T>(f, (uint32_t)mix(1, i) & 0x7fffffffu);
        for (uint32_t exponent = 0; exponent < 256; exponent++)
            for (uint32_t fraction : fractions)
                check_narrow<T>(f, exponent << 23 | fraction);
    });
}

void convert__floats_of_32_and_64_bits__kept_but_for_nans(void **)
{
    const uint64_t halves[] = {0,          1,          0x7fffffff, 0x80000000,
                               0xffffffff, 0x7ff00000, 0xfff00000, 0x7ff00001,
                               0x7ff80000, 0xfff80000, 0x3ff00000, 0x7fefffff};

    for (uint32_t exponent = 0; exponent < 256; exponent++) {
        for (uint32_t i = 0; i < 2000; i++) {
            const uint32_t fraction = i < 3 ? i : i == 3 ? 0x7fffff : (uint32_t)mix(2, i) >> 9;
            const uint32_t bits = (uint32_t)(i & 1) << 31 | exponent << 23 | fraction;
            const bool is_nan = exponent == 255 && fraction != 0;

            assert_int_equal(llane_float32::narrow(llane_float32::widen(bits)),
                             is_nan ? 0x7fffffff : bits);
        }
    }
    for (uint64_t high : halves) {
        for (uint64_t low : halves) {
            const uint64_t bits = high << 32 | low;
            const bool is_nan = format_is_nan(format_of(LLANE_TYPE_F64), bits);

            assert_true(llane_float64::narrow(llane_float64::widen(bits)) ==
                        (is_nan ? 0x7fffffffffffffffu : bits));
        }
    }
}

/* ---- what a rank contributes ---- */

/* Changes nothing but words of all ones, which stay NaNs in every lane. */
template <class T, int W> void check_contribute(const struct format *f, llane_payload<W> p)
{
    const llane_payload<W> before = p;
    const int word_bits = f->bytes == 8 ? 64 : 32;
    const uint64_t word_ones = UINT64_MAX >> (64 - word_bits);

    llane_payload_contribute<T, W>(&p);
    for (int at = 0; at < W * 64; at += word_bits) {
        const uint64_t was = before.word[at / 64] >> (at % 64) & word_ones;
        const uint64_t is = p.word[at / 64] >> (at % 64) & word_ones;

        if (!f->is_float) {
            assert_true(is == was);
            continue;
        }
        assert_true(is != word_ones);
        assert_true(is == (was == word_ones ? word_ones >> 1 : was));
        for (int lane = 0; lane < word_bits; lane += 8 * (int)f->bytes)
            assert_true(format_is_nan(f, was >> lane & format_all_ones(f)) ==
                        format_is_nan(f, is >> lane & format_all_ones(f)));
    }
}

template <class T, int W> void check_contribute_all(const struct format *f)
{
    const uint32_t n = f->bytes > 2 ? 70000 : (uint32_t)format_all_ones(f) + 1;
    const int n_lanes = W * 8 / (int)f->bytes;

    for (uint32_t i = 0; i < n; i++) {
        /* The pattern in every lane; in one lane beside ones, zeros and chance. */
        for (int background = 0; background < 4; background++) {
            llane_payload<W> p;

            for (int w = 0; w < W; w++)
                p.word[w] = background == 0   ? UINT64_MAX
                            : background == 1 ? 0
                                              : mix(i, (uint64_t)w);
            for (int lane = 0; lane < n_lanes; lane++) {
                const int shift = lane * (int)f->bytes * 8;
                uint64_t pattern = i;

                if (f->bytes > 2)
                    pattern = oracle_spiced_bits(f, mix(3, i + (uint64_t)lane),
                                                 i % (ORACLE_N_SPICES + 1), true);
                if (f->bytes == 8 && i % 64 < 2) /* one half of all ones */
                    pattern |= i % 64 == 0 ? 0xffffffff : 0xffffffff00000000;
                if (background == 3 || lane == (int)(i % (uint32_t)n_lanes)) {
                    p.word[shift / 64] &= ~(format_all_ones(f) << (shift % 64));
                    p.word[shift / 64] |= pattern << (shift % 64);
                }
            }
            check_contribute<T, W>(f, p);
        }
    }
}

void contribute__all_patterns__only_words_of_all_ones_change(void **)
{
    for_each_type([](auto type) {
        using T = typename decltype(type)::T;

        check_contribute_all<T, 1>(type.format());
        check_contribute_all<T, 2>(type.format());
    });
}

/* ---- operations ---- */

/* The ranks' payloads combined GROUP at a time. */
template <class T, int W, int GROUP>
llane_payload<W> combine(uint32_t op, const llane_payload<W> *payloads, uint32_t n_ranks)
{
    const typename T::wide f = llane_acc_factor<T>(n_ranks);
    llane_acc<T, W> acc = {};

    for (uint32_t base = 0; base < n_ranks; base += GROUP) {
        llane_payload<W> group[GROUP];

        for (uint32_t i = 0; i < GROUP; i++)
            group[i] = payloads[base + i < n_ranks ? base + i : 0];
        llane_acc_add<T, W, GROUP>(&acc, op, group, n_ranks - base, base == 0, f);
    }
    return llane_acc_finish<T, W>(&acc, op, f);
}

/* bits: n_ranks elements for each lane, lane after lane. */
template <class T, int W, int GROUP>
void check_combine(const struct format *f, uint32_t op, const uint64_t *bits, uint32_t n_ranks,
                   bool is_plain)
{
    llane_payload<W> payloads[LLANE_MAX_RANKS], got;
    const int width = 8 * (int)f->bytes;

    memset(payloads, 0, sizeof(payloads));
    for (int lane = 0; lane < W * T::LANES; lane++)
        for (uint32_t r = 0; r < n_ranks; r++)
            payloads[r].word[lane * width / 64] |= bits[lane * (int)n_ranks + (int)r]
                                                   << (lane * width % 64);
    for (uint32_t r = 0; r < n_ranks; r++)
        llane_payload_contribute<T, W>(&payloads[r]);
    got = combine<T, W, GROUP>(op, payloads, n_ranks);
    for (int lane = 0; lane < W * T::LANES; lane++) {
        const uint64_t *mine = &bits[lane * (int)n_ranks];
        const uint64_t result =
            got.word[lane * width / 64] >> (lane * width % 64) & format_all_ones(f);
        double distance;
        const uint64_t expected =
            oracle_reduce(f, (enum llane_kernel_op)op, mine, n_ranks, &distance);

        if (result != expected) {
            for (uint32_t r = 0; r < n_ranks; r++)
                print_message("rank %u: %#llx\n", r, (unsigned long long)mine[r]);
            fail_msg("%s, op %u, %u ranks, %d words, lane %d: %#llx, not %#llx", f->name, op,
                     n_ranks, W, lane, (unsigned long long)result, (unsigned long long)expected);
        }
        if (is_plain && distance > 1)
            fail_msg("%s, op %u, %u ranks: %g roundings off", f->name, op, n_ranks, distance);
        if (format_is_nan(f, result))
            assert_true(result == format_nan(f));
    }
}

template <class T, int W, int GROUP> void check_operations(const struct format *f, uint32_t n_times)
{
    uint64_t bits[16 * LLANE_MAX_RANKS];

    for (uint32_t n_ranks = 2; n_ranks <= LLANE_MAX_RANKS; n_ranks++) {
        for (uint32_t op = 0; op < LLANE_N_OPS; op++) {
            for (uint32_t i = 0; i < n_times; i++) {
                const uint32_t kind = i % (ORACLE_N_SPICES + 1); /* the last one: plain */

                for (int lane = 0; lane < W * T::LANES; lane++) {
                    for (uint32_t r = 0; r < n_ranks; r++) {
                        const uint64_t h = mix(mix(n_ranks * 8 + op, i), (uint64_t)lane * 16 + r);

                        bits[lane * (int)n_ranks + (int)r] =
                            kind < ORACLE_N_SPICES
                                ? oracle_spiced_bits(f, h, kind, r == i / 2 % n_ranks)
                                : oracle_plain_bits(f, h);
                    }
                }
                check_combine<T, W, GROUP>(f, op, bits, n_ranks, kind == ORACLE_N_SPICES);
            }
        }
    }
}

void reduce__types_operations_ranks__as_the_oracle_says(void **)
{
    for_each_type([](auto type) {
        using T = typename decltype(type)::T;
        const struct format *f = type.format();

        check_operations<T, 1, 4>(f, 30);
        check_operations<T, 1, 8>(f, 20);
        check_operations<T, 2, 2>(f, 20);
        check_operations<T, 2, 16>(f, 20);
    });
}

/* Two ranks, every pattern of one against some of the other, both ways round. */
void reduce__every_pattern_of_8_and_16_bits__as_the_oracle_says(void **)
{
    for_each_type([](auto type) {
        using T = typename decltype(type)::T;
        const struct format *f = type.format();
        const uint64_t ones = format_all_ones(f);
        const uint64_t partners[] = {0, 1, ones, ones / 2, ones / 2 + 1, 0x3c};
        uint64_t bits[2 * T::LANES];

        if (f->bytes > 2)
            return;
        for (uint32_t i = 0; i <= ones; i++) {
            for (uint32_t op = 0; op < LLANE_N_OPS; op++) {
                for (int lane = 0; lane < T::LANES; lane++) {
                    const uint64_t partner = partners[(lane + (int)i) % 6];

                    bits[2 * lane] = lane % 2 ? i : partner;
                    bits[2 * lane + 1] = lane % 2 ? partner : i;
                }
                check_combine<T, 1, 2>(f, op, bits, 2, false);
            }
        }
    });
}

/* ---- what is promised by name ---- */

/* The first lane of what n_ranks elements give. */
template <class T> uint64_t reduce_one(uint32_t op, const uint64_t *bits, uint32_t n_ranks)
{
    llane_payload<1> payloads[LLANE_MAX_RANKS];
    const uint64_t mask = UINT64_MAX >> (64 - 8 * sizeof(typename T::bits));

    for (uint32_t r = 0; r < n_ranks; r++)
        payloads[r].word[0] = bits[r];
    return combine<T, 1, 4>(op, payloads, n_ranks).word[0] & mask;
}

void avg__inputs_whose_sum_overflows__exact(void **)
{
    const struct format *f32 = format_of(LLANE_TYPE_F32), *f64 = format_of(LLANE_TYPE_F64),
                        *bf16 = format_of(LLANE_TYPE_BF16), *f16 = format_of(LLANE_TYPE_F16);
    const uint64_t a[2] = {format_encode(f32, 2e38), format_encode(f32, 2e38)};
    const uint64_t b[2] = {format_encode(f64, -1.5e308), format_encode(f64, -1.5e308)};
    const uint64_t c[2] = {format_encode(bf16, 3e38), format_encode(bf16, 3e38)};
    const uint64_t d[2] = {format_encode(f16, 65504), format_encode(f16, 65504)};
    const uint64_t e[2] = {0x7e, 0x7e};

    assert_true(reduce_one<llane_float32>(LLANE_OP_AVG, a, 2) == a[0]);
    assert_true(reduce_one<llane_float64>(LLANE_OP_AVG, b, 2) == b[0]);
    assert_true(reduce_one<llane_bfloat16>(LLANE_OP_AVG, c, 2) == c[0]);
    assert_true(reduce_one<llane_float16>(LLANE_OP_AVG, d, 2) == d[0]);
    assert_true(reduce_one<llane_float8_e4m3>(LLANE_OP_AVG, e, 2) == e[0]);
    /* Their sums are not. */
    assert_true(reduce_one<llane_float32>(LLANE_OP_SUM, a, 2) == format_infinity(f32));
    assert_true(reduce_one<llane_float8_e4m3>(LLANE_OP_SUM, e, 2) == 0x7e);
}

void avg__integers__wrap_then_divide_towards_zero(void **)
{
    const uint64_t a[2] = {(uint8_t)-3, (uint8_t)-4};
    const uint64_t b[3] = {100, 100, 100};
    const uint64_t c[2] = {0x80000000, 0x80000001};
    const uint64_t d[2] = {UINT64_MAX, UINT64_MAX - 1};

    assert_true(reduce_one<llane_int8>(LLANE_OP_AVG, a, 2) == (uint8_t)-3);
    assert_true(reduce_one<llane_uint8>(LLANE_OP_AVG, a, 2) == (uint8_t)(0xfd + 0xfc) / 2);
    assert_true(reduce_one<llane_int8>(LLANE_OP_AVG, b, 3) == 44 / 3);
    assert_true(reduce_one<llane_int32>(LLANE_OP_AVG, c, 2) == 0);
    assert_true(reduce_one<llane_int64>(LLANE_OP_AVG, d, 2) == (uint64_t)-1);
    assert_true(reduce_one<llane_uint64>(LLANE_OP_AVG, d, 2) == (UINT64_MAX - 2) / 2);
}

void avg__factor__is_one_over_n_rounded_once(void **)
{
    for (uint32_t n = 2; n <= LLANE_MAX_RANKS; n++) {
        assert_true(llane_acc_factor<llane_float32>(n) == (float)(1.0 / n));
        assert_true(llane_acc_factor<llane_float64>(n) == 1.0 / n);
        assert_true(llane_acc_factor<llane_int8>(n) == n);
    }
}

const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* All ones, a NaN with a sign and some payload, a NaN without; a number among them. */
void nans__three_kinds_in_any_rank_order__equal_bits(void **)
{
    for_each_float([](auto type) {
        using T = typename decltype(type)::T;
        const struct format *f = type.format();
        const uint64_t base = f->is_finite ? format_nan(f) : format_infinity(f) | 1;
        const uint64_t kinds[3] = {format_all_ones(f), format_sign_bit(f) | base, base};
        const uint64_t number = format_encode(f, -1.5);

        for (uint32_t op = 0; op < LLANE_N_OPS; op++) {
            for (const auto &order : orders) {
                uint64_t bits[4];

                for (uint32_t at = 0; at < 4; at++) {
                    const bool picks = op == LLANE_OP_MIN || op == LLANE_OP_MAX;

                    for (uint32_t r = 0; r < 3; r++)
                        bits[r] = kinds[order[r]];
                    assert_true(reduce_one<T>(op, bits, 3) == format_nan(f));
                    assert_true(reduce_one<T>(op, bits, 2) == format_nan(f));
                    for (uint32_t r = 0, k = 0; r < 4; r++)
                        bits[r] = r == at ? number : kinds[order[k++]];
                    assert_true(reduce_one<T>(op, bits, 4) == (picks ? number : format_nan(f)));
                }
            }
        }
    });
}

void min_max__zeros_of_both_signs__minus_is_less(void **)
{
    for_each_float([](auto type) {
        using T = typename decltype(type)::T;
        const uint64_t minus = format_sign_bit(type.format());
        const uint64_t a[2] = {0, minus}, b[2] = {minus, 0};

        assert_true(reduce_one<T>(LLANE_OP_MIN, a, 2) == minus);
        assert_true(reduce_one<T>(LLANE_OP_MIN, b, 2) == minus);
        assert_true(reduce_one<T>(LLANE_OP_MAX, a, 2) == 0);
        assert_true(reduce_one<T>(LLANE_OP_MAX, b, 2) == 0);
    });
}

/* float8 saturates; its infinities do too, whatever the operation. */
void float8__too_large__largest_finite(void **)
{
    const uint64_t infinities[2] = {0x7c, 0x7c}, large[2] = {0xfb, 0xfb}, huge[2] = {0x7e, 0xfe};

    for (uint32_t op = 0; op < LLANE_N_OPS; op++)
        assert_int_equal(reduce_one<llane_float8_e5m2>(op, infinities, 2), 0x7b);
    assert_int_equal(reduce_one<llane_float8_e5m2>(LLANE_OP_SUM, large, 2), 0xfb);
    assert_int_equal(reduce_one<llane_float8_e5m2>(LLANE_OP_PROD, large, 2), 0x7b);
    assert_int_equal(reduce_one<llane_float8_e4m3>(LLANE_OP_PROD, huge, 2), 0xfe);
}

/* ---- the caller's buffers ---- */

template <class T, int W> void check_local(const struct format *f)
{
    const uint32_t n_lanes = W * (uint32_t)T::LANES;
    const uint32_t bytes = f->bytes;
    alignas(16) uint8_t in[16 * 8 + 64], out[16 * 8 + 64], expected[16 * 8 + 64];

    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (uint8_t)mix(9, i);
    for (uint32_t shift = 0; shift < 32; shift += bytes) {
        for (uint64_t count = 1; count <= 3 * n_lanes + 1 && count * bytes <= 100; count++) {
            const uint32_t n_packets = llane_local_n_packets<T, W>(count);

            assert_int_equal(n_packets, (count + n_lanes - 1) / n_lanes);
            memset(out, 0xc3, sizeof(out));
            memset(expected, 0xc3, sizeof(expected));
            memcpy(expected + shift, in + shift, count * bytes);
            for (uint32_t i = 0; i < n_packets; i++) {
                const size_t first = (size_t)i * 8 * W;
                const size_t n_left = count * bytes - first;
                const llane_payload<W> p = llane_local_load<T, W>(in + shift, count, i);
                uint8_t wanted[8 * W] = {0};

                memcpy(wanted, in + shift + first,
                       n_left < sizeof(wanted) ? n_left : sizeof(wanted));
                assert_memory_equal(p.word, wanted, sizeof(wanted));
                llane_local_store<T, W>(out + shift, count, i, p);
            }
            assert_memory_equal(out, expected, sizeof(out));
        }
    }
}

void local__every_alignment_and_tail__zero_filled_and_nothing_else_written(void **)
{
    for_each_type([](auto type) {
        check_local<typename decltype(type)::T, 1>(type.format());
        check_local<typename decltype(type)::T, 2>(type.format());
    });
}

} // namespace

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convert__every_pattern_of_8_and_16_bits__widened_and_back),
        cmocka_unit_test(convert__floats_at_and_beside_every_tie__rounded_to_nearest_even),
        cmocka_unit_test(convert__floats_of_32_and_64_bits__kept_but_for_nans),
        cmocka_unit_test(contribute__all_patterns__only_words_of_all_ones_change),
        cmocka_unit_test(reduce__types_operations_ranks__as_the_oracle_says),
        cmocka_unit_test(reduce__every_pattern_of_8_and_16_bits__as_the_oracle_says),
        cmocka_unit_test(avg__inputs_whose_sum_overflows__exact),
        cmocka_unit_test(avg__integers__wrap_then_divide_towards_zero),
        cmocka_unit_test(avg__factor__is_one_over_n_rounded_once),
        cmocka_unit_test(nans__three_kinds_in_any_rank_order__equal_bits),
        cmocka_unit_test(min_max__zeros_of_both_signs__minus_is_less),
        cmocka_unit_test(float8__too_large__largest_finite),
        cmocka_unit_test(local__every_alignment_and_tail__zero_filled_and_nothing_else_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
