/*
 * Two-shot all-reduce: reduce-scatter, then all-gather, in one kernel. The message's packets are cut
 * into n_ranks shards of equal length (the last ones may be shorter or empty). Packet i of every
 * shard belongs to one thread of the grid, through all three steps, on every rank; so nothing inside
 * a block waits for anything but packets.
 *
 * A slot's generation has two parts: contributions to the owner's shard, and from the middle on
 * results of the source's shard.
 *
 * With HAS_SHARED, some or all pairs of ranks have shared slots. A shared slot's generation is n shards
 * long: peer (rank + 1 + s) mod n alone reads the s-th, its contributions; all read the last one, the
 * results of the rank's own shard.
 */
#ifndef LLANE_KERNELS_TWO_SHOT_CUH
#define LLANE_KERNELS_TWO_SHOT_CUH

#include "shared.cuh"

template <bool HAS_SHARED> struct llane_two_shot_of {
    enum { HAS_PLAIN = 1, IS_PRIVATE = !HAS_SHARED, N_STEPS = 2 }; /* see llane_one_shot_of */

    struct plan {
        uint64_t contributions, results; /* offsets in a private slot */
        uint64_t shared;                 /* of the generation in a shared one */
        uint32_t n_packets, n_shard;     /* of the message, of a shard */
    };

    template <class S>
    LLANE_DEVICE struct plan plan_of(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint32_t n_ranks = S::n_ranks(args);
        struct plan plan;

        plan.n_packets = S::n_packets(args);
        plan.n_shard = (plan.n_packets + n_ranks - 1) / n_ranks;
        plan.contributions = llane_generation_offset(op, args.slot_bytes);
        plan.results = plan.contributions + args.slot_bytes / 2;
        plan.shared = llane_shared_generation<typename S::P>(args, op);
        return plan;
    }

    /* Packets that are dealt out to the grid's threads, each with those of the other shards. */
    template <class S> LLANE_DEVICE uint32_t n_dealt(const struct llane_all_reduce_args &args)
    {
        return plan_of<S>(args, 0).n_shard;
    }

    /* Packets in the shard of rank r. */
    template <class S> LLANE_DEVICE uint32_t length(const struct plan &plan, uint32_t r)
    {
        if (S::IS_PLAIN)
            return plan.n_shard;
        const uint64_t first = (uint64_t)r * plan.n_shard;
        const uint64_t left = first < plan.n_packets ? plan.n_packets - first : 0;

        return left < plan.n_shard ? (uint32_t)left : plan.n_shard;
    }

    /* Where packet i of the s-th shard lies in a shared slot. */
    LLANE_DEVICE uint64_t shared_at(const struct plan &plan, uint32_t s, uint32_t i)
    {
        return plan.shared + ((uint64_t)s * plan.n_shard + i) * LLANE_PACKET_BYTES;
    }

    /* Where rank r, not this one, leaves its contribution to packet i of this rank's shard. */
    template <class S>
    LLANE_DEVICE const uint8_t *contribution(const struct llane_all_reduce_args &args,
                                             const struct plan &plan, uint32_t r, uint32_t i)
    {
        if (llane_is_shared<HAS_SHARED>(args, r)) {
            const uint32_t s = llane_peer_number(r, args.rank, S::n_ranks(args));

            return args.slot[r].recv + shared_at(plan, s, i);
        }
        return args.slot[r].recv + plan.contributions + (uint64_t)i * LLANE_PACKET_BYTES;
    }

    /* Where rank r leaves packet i of its results. */
    template <class S>
    LLANE_DEVICE const uint8_t *result_of(const struct llane_all_reduce_args &args,
                                          const struct plan &plan, uint32_t r, uint32_t i)
    {
        if (llane_is_shared<HAS_SHARED>(args, r))
            return args.slot[r].recv + shared_at(plan, S::n_ranks(args) - 1, i);
        return args.slot[r].recv + plan.results + (uint64_t)i * LLANE_PACKET_BYTES;
    }

    /* Of the thread's first packets, where the number of ranks is known: read while the lane's state
     * is on its way. */
    template <class S> struct ahead {
        typename S::payload mine[S::GROUP];
    };

    template <class S>
    LLANE_DEVICE struct ahead<S> look_ahead(const struct llane_all_reduce_args &args) {
        const struct plan plan = plan_of<S>(args, 0);
        struct ahead<S> ahead = {
        };

        if constexpr (S::IS_PLAIN) {
            if (llane_grid_thread() < plan.n_shard) {
                LLANE_UNROLL
                for (uint32_t s = 0; s < S::N - 1; s++)
                    ahead.mine[s] = S::load(args, llane_peer(args.rank, s, S::N) * plan.n_shard +
                                                      llane_grid_thread());
            }
        }
        return ahead;
    }

    /* All of the thread's contributions, before it awaits anything. */
    template <class S>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                           const struct ahead<S> &ahead)
    {
        const struct plan plan = plan_of<S>(args, op);
        const uint32_t n_ranks = S::n_ranks(args);

        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            const uint64_t at = plan.contributions + (uint64_t)i * LLANE_PACKET_BYTES;

            LLANE_UNROLL
            for (uint32_t s = 0; s < n_ranks - 1; s++) {
                const uint32_t peer = llane_peer(args.rank, s, n_ranks);
                uint8_t *const to = llane_is_shared<HAS_SHARED>(args, peer)
                                        ? args.shared_slot + shared_at(plan, s, i)
                                        : args.slot[s].send + at;

                if (S::IS_PLAIN && i == llane_grid_thread())
                    S::P::store(to, ahead.mine[s % S::GROUP], op);
                else if (i < length<S>(plan, peer))
                    S::P::store(to, S::load(args, peer * plan.n_shard + i), op);
            }
        }
        if constexpr (HAS_SHARED)
            llane_shared_rearm_first<typename S::P>(args, op, plan.n_packets);
    }

    /* The own shard: combined, stored and sent to everybody. False: stopped. */
    template <class S>
    LLANE_DEVICE bool reduce(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct plan &plan, const typename S::poll *poll,
                             [[maybe_unused]] struct llane_rearming *rearming)
    {
        const uint32_t n_ranks = S::n_ranks(args);

        for (uint32_t i = llane_grid_thread(); i < length<S>(plan, args.rank);
             i += llane_grid_threads()) {
            const uint32_t packet = args.rank * plan.n_shard + i;
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES;
            typename S::payload result;

            if (!llane_combine_ranks<S>(
                    args, [&](uint32_t r) { return contribution<S>(args, plan, r, i); }, op,
                    S::load(args, packet), poll, &result))
                return false;
            if (HAS_SHARED && args.shared != 0)
                S::P::store(args.shared_slot + shared_at(plan, n_ranks - 1, i), result, op);
            LLANE_UNROLL
            for (uint32_t s = 0; s < n_ranks - 1; s++)
                if (!llane_is_shared<HAS_SHARED>(args, llane_peer(args.rank, s, n_ranks)))
                    S::P::store(args.slot[s].send + plan.results + offset, result, op);
            S::store(args, packet, result);
            if constexpr (HAS_SHARED)
                llane_shared_rearm<typename S::P>(rearming, n_ranks / 2);
        }
        return true;
    }

    /* The other shards' results. False: stopped. */
    template <class S>
    LLANE_DEVICE bool collect(const struct llane_all_reduce_args &args, uint32_t op,
                              const struct plan &plan, const typename S::poll *poll,
                              [[maybe_unused]] struct llane_rearming *rearming)
    {
        const uint32_t n_ranks = S::n_ranks(args);

        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            for (uint32_t base = 0; base < n_ranks; base += S::GROUP) {
                typename S::payload results[S::GROUP];
                uint32_t wanted = 0;

                LLANE_UNROLL
                for (int g = 0; g < S::GROUP; g++)
                    if (base + g != args.rank && (S::N != 0 || base + g < n_ranks) &&
                        i < length<S>(plan, base + g))
                        wanted |= 1u << g;
                if (!llane_gather<typename S::P, S::GROUP>(
                        [&](int g) { return result_of<S>(args, plan, base + g, i); }, wanted, op,
                        poll, results))
                    return false;
                LLANE_UNROLL
                for (int g = 0; g < S::GROUP; g++)
                    if (wanted & 1u << g)
                        S::store(args, (base + g) * plan.n_shard + i, results[g]);
            }
            if constexpr (HAS_SHARED)
                llane_shared_rearm<typename S::P>(rearming, n_ranks - n_ranks / 2);
        }
        if constexpr (HAS_SHARED)
            llane_shared_rearm<typename S::P>(rearming, UINT32_MAX);
        return true;
    }

    /* False: stopped by an abort. */
    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &)
    {
        const struct plan plan = plan_of<S>(args, op);
        const typename S::poll poll = S::poll_of(args);

        struct llane_rearming rearming = {NULL, 0, 0};

        if (HAS_SHARED && plan.n_packets > LLANE_REARMED_FIRST)
            rearming = llane_shared_rearming<typename S::P>(args, op);
        return reduce<S>(args, op, plan, &poll, &rearming) &&
               collect<S>(args, op, plan, &poll, &rearming);
    }

    /* Whether this rank stores a packet of its shared slot's generation. */
    template <class S>
    LLANE_DEVICE bool is_stored(const struct llane_all_reduce_args &args, const struct plan &plan,
                                uint32_t packet)
    {
        const uint32_t s = packet / plan.n_shard, i = packet % plan.n_shard;
        const uint32_t n_ranks = S::n_ranks(args);

        if (s >= n_ranks)
            return false;
        const uint32_t r = s == n_ranks - 1 ? args.rank : llane_peer(args.rank, s, n_ranks);

        return (r == args.rank || llane_is_shared<HAS_SHARED>(args, r)) && i < length<S>(plan, r);
    }

    /* After the last poll: makes the operation's generation of the private slots fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const struct plan plan = plan_of<S>(args, op);
        const uint32_t n_ranks = S::n_ranks(args);

        if constexpr (S::P::IS_LL) {
            const uint32_t results = (uint32_t)(args.slot_bytes / 2 / LLANE_PACKET_BYTES);

            llane_ll_clean(args, op, [&](uint32_t r, uint32_t packet) {
                return llane_is_shared<HAS_SHARED>(args, r) ||
                       packet < length<S>(plan, args.rank) || packet - results < length<S>(plan, r);
            });
            if constexpr (HAS_SHARED)
                llane_shared_ll_clean(
                    args, op, [&](uint32_t packet) { return is_stored<S>(args, plan, packet); });
        } else {
            for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
                const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES;

                LLANE_UNROLL
                for (uint32_t r = 0; r < n_ranks; r++) {
                    if (r == args.rank || llane_is_shared<HAS_SHARED>(args, r))
                        continue;
                    if (i < length<S>(plan, args.rank))
                        S::P::rearm(args.slot[r].recv + plan.contributions + offset);
                    if (i < length<S>(plan, r))
                        S::P::rearm(args.slot[r].recv + plan.results + offset);
                }
            }
            if constexpr (HAS_SHARED)
                llane_shared_note(args, n_ranks * plan.n_shard);
        }
    }
};

typedef struct llane_two_shot_of<false> llane_two_shot;
typedef struct llane_two_shot_of<true> llane_shared_two_shot;

#endif
