/*
 * Payloads, and combining them: in rank order, the first one as it is, each step rounded in the
 * type's wide format, the result narrowed once.
 *
 * sum:  s = x0; s = s + x1; ...
 * prod: s = x0; s = s * x1; ...
 * min, max: of the wide values; a number beats a NaN, -0 is less than +0
 * avg over n ranks, f = 1/n rounded to wide:
 *   float32, float64, bfloat16: s = x0*f; s = s + x1*f; ... (summing first would overflow where NCCL
 *                               does not)
 *   float16, float8:            s as for sum, then s * f
 *   integers:                   s as for sum, wrapped to the type, then s / n towards zero
 */
#ifndef LLANE_KERNELS_REDUCE_CUH
#define LLANE_KERNELS_REDUCE_CUH

#include "convert.cuh"

/* What a packet carries of the message: 8 bytes in an LL line, 16 in a sentinel packet. */
template <int W> struct [[gnu::may_alias]] alignas(8 * W) llane_payload {
    uint64_t word[W];
};

template <class T, int W>
LLANE_DEVICE typename T::bits llane_payload_lane(const llane_payload<W> &p, int lane)
{
    return (typename T::bits)(p.word[lane / T::LANES] >>
                              (lane % T::LANES * 8 * (int)sizeof(typename T::bits)));
}

/*
 * What a rank contributes, its own included, whatever the packets: in the floats a 32-bit word of
 * all ones (float64: 64 bits) loses its top bit. Both are NaNs in all lanes of the word; all ones
 * means "not here yet" to the sentinel packets.
 */
template <class T, int W>
LLANE_DEVICE void llane_payload_contribute([[maybe_unused]] llane_payload<W> *p)
{
    if constexpr (T::IS_FLOAT) {
        LLANE_UNROLL
        for (int w = 0; w < W; w++) {
            uint32_t low = (uint32_t)p->word[w];
            uint32_t high = (uint32_t)(p->word[w] >> 32);

            if (T::LANES == 1) {
                high = (low & high) == 0xffffffffu ? 0x7fffffffu : high;
            } else {
                low = low == 0xffffffffu ? 0x7fffffffu : low;
                high = high == 0xffffffffu ? 0x7fffffffu : high;
            }
            p->word[w] = (uint64_t)high << 32 | low;
        }
    }
}

/* One packet's running result. */
template <class T, int W> struct llane_acc {
    typename T::wide lane[W * T::LANES];
};

/* What llane_acc_add and llane_acc_finish want as f. */
template <class T> LLANE_DEVICE typename T::wide llane_acc_factor(uint32_t n_ranks)
{
    return T::factor(n_ranks);
}

struct llane_sum {
    template <class T> LLANE_DEVICE typename T::wide prepare(typename T::wide x, typename T::wide)
    {
        return x;
    }

    template <class T>
    LLANE_DEVICE typename T::wide combine(typename T::wide sum, typename T::wide x)
    {
        return llane_add(sum, x);
    }
};

struct llane_scaled_sum : llane_sum {
    template <class T> LLANE_DEVICE typename T::wide prepare(typename T::wide x, typename T::wide f)
    {
        return llane_multiply(x, f);
    }
};

struct llane_product : llane_sum {
    template <class T>
    LLANE_DEVICE typename T::wide combine(typename T::wide product, typename T::wide x)
    {
        return llane_multiply(product, x);
    }
};

struct llane_minimum : llane_sum {
    template <class T>
    LLANE_DEVICE typename T::wide combine(typename T::wide least, typename T::wide x)
    {
        return T::least(least, x);
    }
};

struct llane_maximum : llane_sum {
    template <class T>
    LLANE_DEVICE typename T::wide combine(typename T::wide greatest, typename T::wide x)
    {
        return T::greatest(greatest, x);
    }
};

template <class T, int W, int GROUP, class OP>
LLANE_DEVICE void llane_acc_add_as(llane_acc<T, W> *acc, const llane_payload<W> *payloads,
                                   uint32_t n_payloads, bool is_first, typename T::wide f)
{
    LLANE_UNROLL
    for (int i = 0; i < GROUP; i++) {
        if ((uint32_t)i < n_payloads) {
            LLANE_UNROLL
            for (int lane = 0; lane < W * T::LANES; lane++) {
                const typename T::wide x = OP::template prepare<T>(
                    T::widen(llane_payload_lane<T, W>(payloads[i], lane)), f);

                acc->lane[lane] =
                    is_first && i == 0 ? x : OP::template combine<T>(acc->lane[lane], x);
            }
        }
    }
}

/* A result of the ranks before, as a packet brought it: llane_acc_add goes on from there. */
template <class T, int W> LLANE_DEVICE llane_acc<T, W> llane_acc_resume(const llane_payload<W> &p)
{
    llane_acc<T, W> acc;

    LLANE_UNROLL
    for (int lane = 0; lane < W * T::LANES; lane++)
        acc.lane[lane] = T::widen(llane_payload_lane<T, W>(p, lane));
    return acc;
}

/*
 * Adds the contributions of the next n_payloads (at most GROUP are looked at) ranks; is_first: they
 * start at rank 0. The operation is chosen here, once for a packet and group, outside the unrolled
 * loops.
 */
template <class T, int W, int GROUP>
LLANE_DEVICE void llane_acc_add(llane_acc<T, W> *acc, uint32_t op, const llane_payload<W> *payloads,
                                uint32_t n_payloads, bool is_first, typename T::wide f)
{
    if (op == LLANE_OP_SUM || (op == LLANE_OP_AVG && !T::AVG_SCALES_INPUT))
        llane_acc_add_as<T, W, GROUP, llane_sum>(acc, payloads, n_payloads, is_first, f);
    else if (op == LLANE_OP_AVG)
        llane_acc_add_as<T, W, GROUP, llane_scaled_sum>(acc, payloads, n_payloads, is_first, f);
    else if (op == LLANE_OP_PROD)
        llane_acc_add_as<T, W, GROUP, llane_product>(acc, payloads, n_payloads, is_first, f);
    else if (op == LLANE_OP_MIN)
        llane_acc_add_as<T, W, GROUP, llane_minimum>(acc, payloads, n_payloads, is_first, f);
    else
        llane_acc_add_as<T, W, GROUP, llane_maximum>(acc, payloads, n_payloads, is_first, f);
}

/* What every rank stores: no word of a float type is all ones. */
template <class T, int W>
LLANE_DEVICE llane_payload<W> llane_acc_finish(const llane_acc<T, W> *acc, uint32_t op,
                                               typename T::wide f)
{
    const bool is_scaled = op == LLANE_OP_AVG && !T::AVG_SCALES_INPUT;
    llane_payload<W> p;

    LLANE_UNROLL
    for (int w = 0; w < W; w++) {
        p.word[w] = 0;
        LLANE_UNROLL
        for (int lane = 0; lane < T::LANES; lane++) {
            typename T::wide x = acc->lane[w * T::LANES + lane];

            if (is_scaled)
                x = T::average(x, f);
            p.word[w] |= (uint64_t)T::narrow(x) << (lane * 8 * (int)sizeof(typename T::bits));
        }
    }
    return p;
}

/* A contribution as the first result that is passed on: scaled, where inputs are, else as it is. */
template <class T, int W>
LLANE_DEVICE llane_payload<W> llane_acc_contribution(const llane_payload<W> &mine, uint32_t op,
                                                     typename T::wide f)
{
    if (op != LLANE_OP_AVG || !T::AVG_SCALES_INPUT)
        return mine;
    struct llane_acc<T, W> acc;

    llane_acc_add_as<T, W, 1, llane_scaled_sum>(&acc, &mine, 1, true, f);
    return llane_acc_finish<T, W>(&acc, op, f);
}

#endif
