/*
 * Combining contributions, in rank order, the first one as it is.
 *
 * sum: s = x0; s = s + x1; ... each addition rounded in the type's wide format.
 * avg over n ranks, f = 1/n rounded to wide:
 *   float32, bfloat16: s = x0*f; s = s + x1*f; ... (summing first would overflow where NCCL does not)
 *   float16:           s as for sum, then s * f
 * Products and sums are rounded one by one, never fused, so that every compiler makes equal bits.
 * The result is narrowed once.
 */
#ifndef LLANE_KERNELS_REDUCE_CUH
#define LLANE_KERNELS_REDUCE_CUH

#include "convert.cuh"

LLANE_DEVICE float llane_add(float a, float b)
{
#ifdef LLANE_EMU
    return a + b;
#else
    return __fadd_rn(a, b);
#endif
}

LLANE_DEVICE float llane_multiply(float a, float b)
{
#ifdef LLANE_EMU
    volatile float product = a * b; /* keeps the compiler from fusing it with an addition */

    return product;
#else
    return __fmul_rn(a, b);
#endif
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

    template <class T> LLANE_DEVICE typename T::wide finish(typename T::wide sum, typename T::wide)
    {
        return sum;
    }
};

struct llane_avg {
    template <class T> LLANE_DEVICE typename T::wide prepare(typename T::wide x, typename T::wide f)
    {
        return T::AVG_SCALES_INPUT ? llane_multiply(x, f) : x;
    }

    template <class T>
    LLANE_DEVICE typename T::wide combine(typename T::wide sum, typename T::wide x)
    {
        return llane_add(sum, x);
    }

    template <class T>
    LLANE_DEVICE typename T::wide finish(typename T::wide sum, typename T::wide f)
    {
        return T::AVG_SCALES_INPUT ? sum : llane_multiply(sum, f);
    }
};

/* A line's payload as elements. */
template <class T> LLANE_DEVICE typename T::bits llane_payload_lane(uint64_t payload, int lane)
{
    return (typename T::bits)(payload >> (lane * 8 * (int)sizeof(typename T::bits)));
}

/*
 * What a rank contributes, its own included: an all-ones word loses its top bit. Both are NaNs in
 * every float type; all ones means "not here yet" to the sentinel packets.
 */
LLANE_DEVICE uint64_t llane_payload_contribute(uint64_t payload)
{
    uint32_t low = (uint32_t)payload;
    uint32_t high = (uint32_t)(payload >> 32);

    low = low == 0xffffffffu ? 0x7fffffffu : low;
    high = high == 0xffffffffu ? 0x7fffffffu : high;
    return (uint64_t)high << 32 | low;
}

/* One line's running result. */
template <class T> struct llane_line_sum {
    typename T::wide lane[T::LANES];
};

template <class T, class OP, int GROUP>
LLANE_DEVICE void llane_line_add_as(struct llane_line_sum<T> *sum, const uint64_t *payloads,
                                    uint32_t n_payloads, bool is_first, typename T::wide f)
{
    LLANE_UNROLL
    for (int i = 0; i < GROUP; i++) {
        if ((uint32_t)i < n_payloads) {
            LLANE_UNROLL
            for (int lane = 0; lane < T::LANES; lane++) {
                const typename T::wide x =
                    OP::template prepare<T>(T::widen(llane_payload_lane<T>(payloads[i], lane)), f);

                sum->lane[lane] =
                    is_first && i == 0 ? x : OP::template combine<T>(sum->lane[lane], x);
            }
        }
    }
}

/*
 * Adds the contributions of the next n_payloads (at most GROUP) ranks. The operation is chosen here,
 * once for a line and group, outside the unrolled loops.
 */
template <class T, int GROUP>
LLANE_DEVICE void llane_line_add(struct llane_line_sum<T> *sum, uint32_t op,
                                 const uint64_t *payloads, uint32_t n_payloads, bool is_first,
                                 typename T::wide f)
{
    switch (op) {
    case LLANE_OP_AVG:
        llane_line_add_as<T, llane_avg, GROUP>(sum, payloads, n_payloads, is_first, f);
        break;
    default:
        llane_line_add_as<T, llane_sum, GROUP>(sum, payloads, n_payloads, is_first, f);
        break;
    }
}

template <class T>
LLANE_DEVICE uint64_t llane_line_finish(const struct llane_line_sum<T> *sum, uint32_t op,
                                        typename T::wide f)
{
    uint64_t payload = 0;

    LLANE_UNROLL
    for (int lane = 0; lane < T::LANES; lane++) {
        typename T::wide x = sum->lane[lane];

        switch (op) {
        case LLANE_OP_AVG:
            x = llane_avg::template finish<T>(x, f);
            break;
        default:
            x = llane_sum::template finish<T>(x, f);
            break;
        }
        payload |= (uint64_t)T::narrow(x) << (lane * 8 * (int)sizeof(typename T::bits));
    }
    return payload;
}

#endif
