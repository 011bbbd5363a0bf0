/*
 * What the algorithms share: the shape of a kernel, and combining one packet of all ranks.
 */
#ifndef LLANE_KERNELS_COMBINE_CUH
#define LLANE_KERNELS_COMBINE_CUH

#include "local.cuh"
#include "packets.cuh"

/*
 * What a kernel's code knows when it is compiled. N: the number of ranks, OP: the operation, or 0 and
 * -1 where only the arguments know; IS_PLAIN: see LLANE_FLAG_PLAIN.
 */
template <class TYPE, class PACKET, int N_RANKS, int OPERATION, bool PLAIN> struct llane_shape {
    typedef TYPE T;
    typedef PACKET P;
    typedef struct llane_payload<P::W> payload;
    typedef struct llane_poll poll;
    static constexpr int W = P::W, N = N_RANKS, GROUP = N_RANKS ? N_RANKS : 4;
    static constexpr bool IS_PLAIN = PLAIN;

    LLANE_DEVICE poll poll_of(const struct llane_all_reduce_args &args)
    {
        return llane_poll_of(args);
    }

    /* What a tool that traces kernels hides. */
    LLANE_DEVICE void stamp(const struct llane_all_reduce_args &, enum llane_moment)
    {
    }

    LLANE_DEVICE uint32_t n_ranks(const struct llane_all_reduce_args &args)
    {
        return N != 0 ? (uint32_t)N : args.n_ranks;
    }

    LLANE_DEVICE uint32_t operation(const struct llane_all_reduce_args &args)
    {
        return OPERATION >= 0 ? (uint32_t)OPERATION : args.op;
    }

    LLANE_DEVICE uint32_t n_packets(const struct llane_all_reduce_args &args)
    {
        return llane_local_n_packets<T, W>(args.count);
    }

    /* This rank's contribution to a packet, as all ranks see it. */
    LLANE_DEVICE payload load(const struct llane_all_reduce_args &args, uint32_t packet)
    {
        payload mine;

        if constexpr (IS_PLAIN)
            mine = ((const payload *)args.in)[packet];
        else
            mine = llane_local_load<T, W>(args.in, args.count, packet);
        llane_payload_contribute<T, W>(&mine);
        return mine;
    }

    LLANE_DEVICE void store(const struct llane_all_reduce_args &args, uint32_t packet,
                            const payload &result)
    {
        if constexpr (IS_PLAIN)
            ((payload *)args.out)[packet] = result;
        else
            llane_local_store<T, W>(args.out, args.count, packet, result);
    }
};

/* The rank behind slot[s].send: destinations start behind the own rank, so that not all sources store to
 * one peer at once. */
LLANE_DEVICE uint32_t llane_peer(uint32_t rank, uint32_t s, uint32_t n_ranks)
{
    return rank + 1 + s < n_ranks ? rank + 1 + s : rank + 1 + s - n_ranks;
}

/* The s for which llane_peer(rank, s, n_ranks) is peer, another rank. */
LLANE_DEVICE uint32_t llane_peer_number(uint32_t rank, uint32_t peer, uint32_t n_ranks)
{
    return peer > rank ? peer - rank - 1 : peer + n_ranks - rank - 1;
}

/* A packet's sum, of all ranks' payloads in rank order. */
template <class S> LLANE_DEVICE typename S::payload llane_sum(const typename S::payload *payloads)
{
    typedef typename S::T T;
    const typename T::wide factor = llane_acc_factor<T>(S::N);
    struct llane_acc<T, S::W> acc = {
    };

    llane_acc_add<T, S::W, S::N>(&acc, LLANE_OP_SUM, payloads, S::N, true, factor);
    return llane_acc_finish<T, S::W>(&acc, LLANE_OP_SUM, factor);
}

/*
 * Awaits every other rank's packet, at address(r) for rank r, and combines them with `mine`, in rank
 * order. False: stopped by an abort.
 */
template <class S, class ADDRESS>
LLANE_DEVICE bool llane_combine_ranks(const struct llane_all_reduce_args &args, ADDRESS address,
                                      uint32_t op, const typename S::payload &mine,
                                      const typename S::poll *poll, typename S::payload *result)
{
    typedef typename S::T T;
    const uint32_t n_ranks = S::n_ranks(args), operation = S::operation(args);
    const typename T::wide factor = llane_acc_factor<T>(n_ranks);
    struct llane_acc<T, S::W> acc = {
    };

    for (uint32_t base = 0; base < n_ranks; base += S::GROUP) {
        typename S::payload payloads[S::GROUP];
        uint32_t others = (1u << S::GROUP) - 1;

        if (S::N == 0 && n_ranks - base < S::GROUP)
            others = (1u << (n_ranks - base)) - 1;
        if (args.rank - base < S::GROUP)
            others &= ~(1u << (args.rank - base));
        if (!llane_gather<typename S::P, S::GROUP>([&](int g) { return address(base + g); }, others,
                                                   op, poll, payloads))
            return false;
        LLANE_UNROLL
        for (int g = 0; g < S::GROUP; g++)
            if (base + g == args.rank)
                payloads[g] = mine;
        llane_acc_add<T, S::W, S::GROUP>(&acc, operation, payloads, n_ranks - base, base == 0,
                                         factor);
    }
    *result = llane_acc_finish<T, S::W>(&acc, operation, factor);
    return true;
}

#endif
