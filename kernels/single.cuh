/*
 * One-shot and two-shot for plain sums of which no thread has more than one packet, of the message or of
 * a shard: the same steps as one_shot.cuh and two_shot.cuh take, without their loops, and with every
 * address at hand before the wait for the kernel in front. At small sizes an operation's time is that of
 * its instructions.
 */
#ifndef LLANE_KERNELS_SINGLE_CUH
#define LLANE_KERNELS_SINGLE_CUH

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

/* Largest message of two-shot, in packets: beyond, the GPU's memory has enough to do without polls of what
 * has already come. */
enum { LLANE_SINGLE_TWO_SHOT = 16384 };

/* All ranks' payloads in rank order; theirs: without the own one. */
template <class S>
LLANE_DEVICE typename S::payload llane_single_sum(uint32_t rank, const typename S::payload &mine,
                                                  const typename S::payload *theirs)
{
    typename S::payload payloads[S::N];

    LLANE_UNROLL
    for (uint32_t r = 0; r < S::N; r++)
        payloads[r] = r == rank  ? mine
                      : r < rank ? theirs[r < S::N - 1 ? r : 0]
                                 : theirs[r > 0 ? r - 1 : 0];
    return llane_sum<S>(payloads);
}

/* N_STEPS: 1, one-shot, or 2, two-shot, whose slots have results in their second half. The grid has a
 * thread for each packet of the message, or of a shard. Polls do not sleep. */
template <class S, int N_STEPS>
LLANE_DEVICE void llane_visit_single(const struct llane_all_reduce_args &args)
{
    typedef typename S::P P;
    enum { N_PEERS = S::N - 1, N_PARTS = N_STEPS == 1 ? 1 : N_PEERS };
    const uint32_t i = llane_grid_thread(), rank = args.rank;
    const uint32_t n = N_STEPS == 1 ? S::n_packets(args) : S::n_packets(args) / S::N;
    const uint32_t own = N_STEPS == 1 ? i : rank * n + i;
    const uint64_t half = args.slot_bytes / 2;
    const bool is_sent = i < n;
    uint8_t *to[N_PEERS], *from[N_PEERS]; /* from: in rank order */

    uint64_t at_hand = (uint64_t)(uintptr_t)args.words | args.slot_bytes | n;

    LLANE_UNROLL
    for (uint32_t s = 0; s < N_PEERS; s++) {
        to[s] = args.slot[s].send + (uint64_t)i * LLANE_PACKET_BYTES;
        from[s] = args.slot[s < rank ? s : s + 1].recv + (uint64_t)i * LLANE_PACKET_BYTES;
        at_hand |= (uint64_t)(uintptr_t)to[s] | (uint64_t)(uintptr_t)from[s];
    }
    struct llane_visit visit =
        llane_cells_enter<true>(args.cells, (args.flags & LLANE_FLAG_EARLY) != 0, at_hand);
    typename S::payload mine = {}, parts[N_PARTS] = {}; /* parts: what goes to to[] */

    if (is_sent) {
        mine = S::load(args, own);
        LLANE_UNROLL
        for (uint32_t s = 0; s < N_PARTS; s++)
            parts[s] = N_STEPS == 1 ? mine : S::load(args, llane_peer(rank, s, S::N) * n + i);
    }
    const uint32_t op = P::op_of(visit.cell);
    const uint64_t generation = op & 1 ? args.slot_bytes : 0;

    S::stamp(args, LLANE_ENTERED);
    if (visit.is_whole) {
        if (is_sent) {
            LLANE_UNROLL
            for (int s = 0; s < N_PEERS; s++)
                P::store(to[s] + generation, parts[s % N_PARTS], op);
        }
        llane_cells_mark(&visit);
        S::stamp(args, LLANE_PUSHED);
        if (is_sent) {
            const typename S::poll poll = S::poll_of(args);
            typename S::payload theirs[N_PEERS];

            visit.is_whole = llane_gather_all<P, N_PEERS>(from, generation, op, &poll, theirs);
            if (visit.is_whole) {
                const typename S::payload result = llane_single_sum<S>(rank, mine, theirs);

                if constexpr (N_STEPS == 2) {
                    LLANE_UNROLL
                    for (int s = 0; s < N_PEERS; s++)
                        P::store(to[s] + generation + half, result, op);
                }
                S::store(args, own, result);
                if constexpr (N_STEPS == 2) {
                    visit.is_whole =
                        llane_gather_all<P, N_PEERS>(from, generation + half, op, &poll, theirs);
                    if (visit.is_whole) {
                        LLANE_UNROLL
                        for (uint32_t s = 0; s < N_PEERS; s++)
                            S::store(args, (s < rank ? s : s + 1) * n + i, theirs[s]);
                    }
                }
            }
        }
        S::stamp(args, LLANE_FINISHED);
    }
    if (!llane_cells_polled(&visit))
        return;
    if constexpr (P::IS_LL) {
        const uint32_t results = (uint32_t)(half / LLANE_PACKET_BYTES);

        llane_ll_clean(args, op, [&](uint32_t, uint32_t packet) {
            return packet < n || (N_STEPS == 2 && packet - results < n);
        });
    } else if (is_sent) {
        LLANE_UNROLL
        for (int s = 0; s < N_PEERS; s++) {
            P::rearm(from[s] + generation);
            if constexpr (N_STEPS == 2)
                P::rearm(from[s] + generation + half);
        }
    }
    llane_leave<P>(args, &visit);
    S::stamp(args, LLANE_LEFT);
}

#endif
