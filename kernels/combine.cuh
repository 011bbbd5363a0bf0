/*
 * Combining one packet: what arrives from all ranks, in rank order.
 */
#ifndef LLANE_KERNELS_COMBINE_CUH
#define LLANE_KERNELS_COMBINE_CUH

#include "local.cuh"
#include "packets.cuh"

/* The step-th destination of a rank: behind the own rank, so that not all sources store to one peer
 * at once. step is 1 to n_ranks - 1. */
LLANE_DEVICE uint32_t llane_peer(uint32_t rank, uint32_t step, uint32_t n_ranks)
{
    return rank + step < n_ranks ? rank + step : rank + step - n_ranks;
}

/*
 * Awaits every other rank's packet at offset `at` of its slot, and combines them with `mine`. N: the
 * number of ranks, or 0 where only the arguments know it. False: stopped by an abort.
 */
template <class T, class P, int N>
LLANE_DEVICE bool llane_combine_ranks(const struct llane_all_reduce_args &args, uint64_t at,
                                      uint32_t op, const struct llane_payload<P::W> &mine,
                                      struct llane_poll *poll, struct llane_payload<P::W> *result)
{
    enum { GROUP = N ? N : 4 };
    const uint32_t n_ranks = N ? N : args.n_ranks;
    const typename T::wide factor = llane_acc_factor<T>(n_ranks);
    struct llane_acc<T, P::W> acc = {};

    for (uint32_t base = 0; base < n_ranks; base += GROUP) {
        struct llane_payload<P::W> payloads[GROUP];
        uint32_t missing = 0;

        LLANE_UNROLL
        for (uint32_t g = 0; g < GROUP; g++) {
            payloads[g] = mine;
            if (base + g < n_ranks && base + g != args.rank)
                missing |= 1u << g;
        }
        if (!llane_gather<P, GROUP>([&](int g) { return args.recv[base + g] + at; }, missing, op,
                                    poll, payloads))
            return false;
        llane_acc_add<T, P::W, GROUP>(&acc, args.op, payloads, n_ranks - base, base == 0,
                                      factor);
    }
    *result = llane_acc_finish<T, P::W>(&acc, args.op, factor);
    return true;
}

#endif
