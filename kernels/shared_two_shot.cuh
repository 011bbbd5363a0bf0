/*
 * Two-shot all-reduce where some or all pairs of ranks have shared slots: as two_shot.cuh. Of a shared
 * slot's generation, n shards long, peer (rank + 1 + s) mod n alone reads the s-th shard, its
 * contributions; all read the last one, the results of the rank's own shard.
 */
#ifndef LLANE_KERNELS_SHARED_TWO_SHOT_CUH
#define LLANE_KERNELS_SHARED_TWO_SHOT_CUH

#include "shared.cuh"

struct llane_shared_two_shot {
    enum { HAS_PLAIN = 1 };

    struct plan {
        uint64_t contributions, results; /* offsets in a private slot */
        uint64_t shared;                 /* of the generation in a shared one */
        uint32_t n_packets, n_shard;     /* of the message, of a shard */
        uint32_t n_ranks;
    };

    template <class S> struct ahead {
    };

    template <class S>
    LLANE_DEVICE struct ahead<S> look_ahead(const struct llane_all_reduce_args &) {
        return {};
    }

    template <class S>
    LLANE_DEVICE struct plan plan_of(const struct llane_all_reduce_args &args, uint32_t op)
    {
        struct plan plan;

        plan.n_ranks = S::n_ranks(args);
        plan.n_packets = S::n_packets(args);
        plan.n_shard = (plan.n_packets + plan.n_ranks - 1) / plan.n_ranks;
        plan.contributions = llane_generation_offset(op, args.slot_bytes);
        plan.results = plan.contributions + args.slot_bytes / 2;
        plan.shared = llane_shared_generation<typename S::P>(args, op);
        return plan;
    }

    /* Packets in the shard of rank r. */
    LLANE_DEVICE uint32_t length(const struct plan &plan, uint32_t r)
    {
        const uint64_t first = (uint64_t)r * plan.n_shard;
        const uint64_t left = first < plan.n_packets ? plan.n_packets - first : 0;

        return left < plan.n_shard ? (uint32_t)left : plan.n_shard;
    }

    /* Where packet i of the s-th shard lies in a shared slot. */
    LLANE_DEVICE uint64_t shared_at(const struct plan &plan, uint32_t s, uint32_t i)
    {
        return plan.shared + ((uint64_t)s * plan.n_shard + i) * LLANE_PACKET_BYTES;
    }

    /* Where rank r leaves its contribution to packet i of this rank's shard. */
    LLANE_DEVICE const uint8_t *contribution(const struct llane_all_reduce_args &args,
                                             const struct plan &plan, uint32_t r, uint32_t i)
    {
        const uint32_t s =
            args.rank > r ? args.rank - r - 1 : args.rank + plan.n_ranks - r - 1; /* r != rank */

        return args.recv[r] + (llane_is_shared(args, r)
                                   ? shared_at(plan, s, i)
                                   : plan.contributions + (uint64_t)i * LLANE_PACKET_BYTES);
    }

    /* Where rank r leaves packet i of its results. */
    LLANE_DEVICE const uint8_t *result_of(const struct llane_all_reduce_args &args,
                                          const struct plan &plan, uint32_t r, uint32_t i)
    {
        return args.recv[r] + (llane_is_shared(args, r)
                                   ? shared_at(plan, plan.n_ranks - 1, i)
                                   : plan.results + (uint64_t)i * LLANE_PACKET_BYTES);
    }

    /* All of the thread's contributions, before it awaits anything. */
    template <class S>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                           const struct ahead<S> &)
    {
        const struct plan plan = plan_of<S>(args, op);

        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            LLANE_UNROLL
            for (uint32_t s = 0; s < S::n_ranks(args) - 1; s++) {
                const uint32_t peer = llane_peer(args.rank, s, plan.n_ranks);
                uint8_t *const to =
                    llane_is_shared(args, peer)
                        ? args.shared_slot + shared_at(plan, s, i)
                        : args.send[s] + plan.contributions + (uint64_t)i * LLANE_PACKET_BYTES;

                if (i < length(plan, peer))
                    S::P::store(to, S::load(args, peer * plan.n_shard + i), op);
            }
        }
        llane_shared_rearm<typename S::P>(args, op);
    }

    /* The own shard: combined, stored and sent to everybody. False: stopped. */
    template <class S>
    LLANE_DEVICE bool reduce(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct plan &plan, const typename S::poll *poll)
    {
        for (uint32_t i = llane_grid_thread(); i < length(plan, args.rank);
             i += llane_grid_threads()) {
            const uint32_t packet = args.rank * plan.n_shard + i;
            typename S::payload result;

            if (!llane_combine_ranks<S>(
                    args, [&](uint32_t r) { return contribution(args, plan, r, i); }, op,
                    S::load(args, packet), poll, &result))
                return false;
            if (args.shared != 0)
                S::P::store(args.shared_slot + shared_at(plan, plan.n_ranks - 1, i), result, op);
            LLANE_UNROLL
            for (uint32_t s = 0; s < S::n_ranks(args) - 1; s++)
                if (!llane_is_shared(args, llane_peer(args.rank, s, plan.n_ranks)))
                    S::P::store(args.send[s] + plan.results + (uint64_t)i * LLANE_PACKET_BYTES,
                                result, op);
            S::store(args, packet, result);
        }
        return true;
    }

    /* The other shards' results. False: stopped. */
    template <class S>
    LLANE_DEVICE bool collect(const struct llane_all_reduce_args &args, uint32_t op,
                              const struct plan &plan, const typename S::poll *poll)
    {
        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            for (uint32_t base = 0; base < S::n_ranks(args); base += S::GROUP) {
                typename S::payload results[S::GROUP];
                uint32_t wanted = 0;

                LLANE_UNROLL
                for (int g = 0; g < S::GROUP; g++)
                    if (base + g != args.rank && (S::N != 0 || base + g < plan.n_ranks) &&
                        i < length(plan, base + g))
                        wanted |= 1u << g;
                if (!llane_gather<typename S::P, S::GROUP>(
                        [&](int g) { return result_of(args, plan, base + g, i); }, wanted, op, poll,
                        results))
                    return false;
                LLANE_UNROLL
                for (int g = 0; g < S::GROUP; g++)
                    if (wanted & 1u << g)
                        S::store(args, (base + g) * plan.n_shard + i, results[g]);
            }
        }
        return true;
    }

    /* False: stopped by an abort. */
    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &)
    {
        const struct plan plan = plan_of<S>(args, op);
        const typename S::poll poll = S::poll_of(args);

        return reduce<S>(args, op, plan, &poll) && collect<S>(args, op, plan, &poll);
    }

    /* Whether this rank stores a packet of its shared slot's generation. */
    LLANE_DEVICE bool is_stored(const struct llane_all_reduce_args &args, const struct plan &plan,
                                uint32_t packet)
    {
        const uint32_t s = packet / plan.n_shard, i = packet % plan.n_shard;

        if (s >= plan.n_ranks)
            return false;
        const uint32_t r =
            s == plan.n_ranks - 1 ? args.rank : llane_peer(args.rank, s, plan.n_ranks);

        return (r == args.rank || llane_is_shared(args, r)) && i < length(plan, r);
    }

    /* After the last poll: makes the operation's generation of the private slots fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const struct plan plan = plan_of<S>(args, op);

        if constexpr (S::P::IS_LL) {
            const uint32_t results = (uint32_t)(args.slot_bytes / 2 / LLANE_PACKET_BYTES);

            llane_ll_clean(args, op, [&](uint32_t r, uint32_t packet) {
                return llane_is_shared(args, r) || packet < length(plan, args.rank) ||
                       packet - results < length(plan, r);
            });
            llane_shared_ll_clean(args, op,
                                  [&](uint32_t packet) { return is_stored(args, plan, packet); });
        } else {
            for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
                const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES;

                LLANE_UNROLL
                for (uint32_t r = 0; r < S::n_ranks(args); r++) {
                    if (r == args.rank || llane_is_shared(args, r))
                        continue;
                    if (i < length(plan, args.rank))
                        S::P::rearm(args.recv[r] + plan.contributions + offset);
                    if (i < length(plan, r))
                        S::P::rearm(args.recv[r] + plan.results + offset);
                }
            }
            llane_shared_note(args, plan.n_ranks * plan.n_shard);
        }
    }
};

#endif
