/*
 * One-shot for plain sums of messages of which no thread has more than one packet: the same steps as
 * one_shot.cuh takes, without its loops, and with every address at hand before the wait for the kernel
 * in front. At small sizes an operation's time is that of its instructions.
 */
#ifndef LLANE_KERNELS_ONE_SHOT_SINGLE_CUH
#define LLANE_KERNELS_ONE_SHOT_SINGLE_CUH

#include "combine.cuh"

/* As llane_gather for N packets at from[] + at that are all missing. Each round reads all of them. */
template <class P, int N, class POLL>
LLANE_DEVICE bool llane_gather_all(uint8_t *const *from, uint64_t at, uint32_t op, const POLL *poll,
                                   struct llane_payload<P::W> *payloads)
{
    const uint64_t began = llane_poll_begins(poll);
    uint32_t spins = poll->spins_per_look;
    uint64_t low[N], high[N];

    while (true) {
        bool is_here = true;

        LLANE_UNROLL
        for (int i = 0; i < N; i++)
            /* Pairs with P::store at the source, or with nothing yet. */
            llane_load16(from[i] + at, &low[i], &high[i]);
        LLANE_UNROLL
        for (int i = 0; i < N; i++)
            is_here = is_here & P::is_here(low[i], high[i], op);
        if (is_here)
            break;
        llane_poll_pause(0);
        if (--spins == 0) {
            if (llane_poll_must_stop(poll, P::IS_LL ? LLANE_LL : LLANE_SENTINEL, op))
                return false;
            spins = poll->spins_per_look;
        }
    }
    llane_poll_ends(poll, began);
    LLANE_UNROLL
    for (int i = 0; i < N; i++)
        payloads[i] = P::payload(low[i], high[i]);
    return true;
}

/* The grid has a thread for each packet. Polls do not sleep. */
template <class S> LLANE_DEVICE void llane_visit_single(const struct llane_all_reduce_args &args)
{
    typedef typename S::P P;
    typedef typename S::T T;
    enum { N_PEERS = S::N - 1 };
    const uint32_t i = llane_grid_thread(), n_packets = S::n_packets(args), rank = args.rank;
    const bool is_sent = i < n_packets;
    uint8_t *to[N_PEERS], *from[N_PEERS]; /* from: in rank order */

    uint64_t at_hand = (uint64_t)(uintptr_t)args.words | args.slot_bytes | n_packets;

    LLANE_UNROLL
    for (uint32_t s = 0; s < N_PEERS; s++) {
        to[s] = args.slot[s].send + (uint64_t)i * LLANE_PACKET_BYTES;
        from[s] = args.slot[s < rank ? s : s + 1].recv + (uint64_t)i * LLANE_PACKET_BYTES;
        at_hand |= (uint64_t)(uintptr_t)to[s] | (uint64_t)(uintptr_t)from[s];
    }
    struct llane_visit visit =
        llane_cells_enter<true>(args.cells, (args.flags & LLANE_FLAG_EARLY) != 0, at_hand);
    typename S::payload mine = {};

    if (is_sent)
        mine = S::load(args, i);
    const uint32_t op = P::op_of(visit.cell);
    const uint64_t generation = op & 1 ? args.slot_bytes : 0;

    S::stamp(args, LLANE_ENTERED);
    if (visit.is_whole) {
        if (is_sent) {
            LLANE_UNROLL
            for (int s = 0; s < N_PEERS; s++)
                P::store(to[s] + generation, mine, op);
        }
        llane_cells_mark(&visit);
        S::stamp(args, LLANE_PUSHED);
        if (is_sent) {
            const typename S::poll poll = S::poll_of(args);
            typename S::payload theirs[N_PEERS], payloads[S::N];

            visit.is_whole = llane_gather_all<P, N_PEERS>(from, generation, op, &poll, theirs);
            if (visit.is_whole) {
                struct llane_acc<T, S::W> acc = {
                };
                const typename T::wide factor = llane_acc_factor<T>(S::N);

                LLANE_UNROLL
                for (uint32_t r = 0; r < S::N; r++)
                    payloads[r] = r == rank  ? mine
                                  : r < rank ? theirs[r < N_PEERS ? r : 0]
                                             : theirs[r > 0 ? r - 1 : 0];
                llane_acc_add<T, S::W, S::N>(&acc, LLANE_OP_SUM, payloads, S::N, true, factor);
                S::store(args, i, llane_acc_finish<T, S::W>(&acc, LLANE_OP_SUM, factor));
            }
        }
        S::stamp(args, LLANE_FINISHED);
    }
    if (!llane_cells_polled(&visit))
        return;
    if constexpr (P::IS_LL) {
        llane_ll_clean(args, op, [&](uint32_t, uint32_t packet) { return packet < n_packets; });
    } else if (is_sent) {
        LLANE_UNROLL
        for (int s = 0; s < N_PEERS; s++)
            P::rearm(from[s] + generation);
    }
    llane_cells_leave(&visit, args.cells, args.words,
                      P::IS_LL ? llane_next_op(visit.cell.ll_op) : visit.cell.ll_op,
                      P::IS_LL ? visit.cell.sentinel_op : llane_next_op(visit.cell.sentinel_op));
    S::stamp(args, LLANE_LEFT);
}

#endif
