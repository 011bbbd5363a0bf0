/*
 * Two-shot all-reduce: reduce-scatter, then all-gather, in one kernel. The message's packets are cut
 * into n_ranks shards of equal length (the last ones may be shorter or empty). Packet i of every
 * shard belongs to one thread of the grid, through all three steps, on every rank; so nothing inside
 * a block waits for anything but packets.
 *
 * A slot's generation has two parts: contributions to the owner's shard, and from the middle on
 * results of the source's shard.
 */
#ifndef LLANE_KERNELS_TWO_SHOT_CUH
#define LLANE_KERNELS_TWO_SHOT_CUH

#include "combine.cuh"

struct llane_two_shot {
    struct plan {
        uint64_t contributions, results; /* offsets in a slot */
        uint32_t n_packets, n_shard;     /* of the message, of a shard */
    };

    /* Packets in the shard of rank r. */
    LLANE_DEVICE uint32_t length(const struct plan &plan, uint32_t r)
    {
        const uint64_t first = (uint64_t)r * plan.n_shard;
        const uint64_t left = first < plan.n_packets ? plan.n_packets - first : 0;

        return left < plan.n_shard ? (uint32_t)left : plan.n_shard;
    }

    template <class T, class P>
    LLANE_DEVICE struct plan plan_of(const struct llane_all_reduce_args &args, uint32_t op)
    {
        struct plan plan;

        plan.n_packets = llane_local_n_packets<T, P::W>(args.count);
        plan.n_shard = (plan.n_packets + args.n_ranks - 1) / args.n_ranks;
        plan.contributions = llane_generation_offset(op, args.slot_bytes);
        plan.results = plan.contributions + args.slot_bytes / 2;
        return plan;
    }

    template <class T, class P, int N>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                                  const struct plan &plan)
    {
        const uint32_t n_ranks = N ? N : args.n_ranks;

        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            LLANE_UNROLL
            for (uint32_t step = 1; step < n_ranks; step++) {
                const uint32_t peer = llane_peer(args.rank, step, n_ranks);

                if (i < length(plan, peer)) {
                    struct llane_payload<P::W> mine = llane_local_load<T, P::W>(
                        args.in, args.count, peer * plan.n_shard + i);

                    llane_payload_contribute<T, P::W>(&mine);
                    P::store(args.send[peer] + plan.contributions +
                                 (uint64_t)i * LLANE_PACKET_BYTES,
                             mine, op);
                }
            }
        }
    }

    /* The own shard: combined, stored and sent to everybody. False: stopped. */
    template <class T, class P, int N>
    LLANE_DEVICE bool reduce(const struct llane_all_reduce_args &args, uint32_t op,
                                    const struct plan &plan, struct llane_poll *poll)
    {
        const uint32_t n_ranks = N ? N : args.n_ranks;

        for (uint32_t i = llane_grid_thread(); i < length(plan, args.rank);
             i += llane_grid_threads()) {
            const uint32_t packet = args.rank * plan.n_shard + i;
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES;
            struct llane_payload<P::W> mine = llane_local_load<T, P::W>(args.in, args.count, packet);
            struct llane_payload<P::W> result;

            llane_payload_contribute<T, P::W>(&mine);
            if (!llane_combine_ranks<T, P, N>(args, plan.contributions + offset, op, mine, poll,
                                              &result))
                return false;
            LLANE_UNROLL
            for (uint32_t step = 1; step < n_ranks; step++)
                P::store(args.send[llane_peer(args.rank, step, n_ranks)] + plan.results + offset,
                         result, op);
            llane_local_store<T, P::W>(args.out, args.count, packet, result);
        }
        return true;
    }

    /* The other shards' results. False: stopped. */
    template <class T, class P, int N>
    LLANE_DEVICE bool gather(const struct llane_all_reduce_args &args, uint32_t op,
                                    const struct plan &plan, struct llane_poll *poll)
    {
        enum { GROUP = N ? N : 4 };
        const uint32_t n_ranks = N ? N : args.n_ranks;

        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            const uint64_t offset = plan.results + (uint64_t)i * LLANE_PACKET_BYTES;

            for (uint32_t base = 0; base < n_ranks; base += GROUP) {
                struct llane_payload<P::W> results[GROUP];
                uint32_t wanted = 0;

                LLANE_UNROLL
                for (uint32_t g = 0; g < GROUP; g++)
                    if (base + g < n_ranks && base + g != args.rank && i < length(plan, base + g))
                        wanted |= 1u << g;
                if (!llane_gather<P, GROUP>([&](int g) { return args.recv[base + g] + offset; },
                                            wanted, op, poll, results))
                    return false;
                LLANE_UNROLL
                for (uint32_t g = 0; g < GROUP; g++)
                    if (wanted & 1u << g)
                        llane_local_store<T, P::W>(args.out, args.count,
                                                   (base + g) * plan.n_shard + i, results[g]);
            }
        }
        return true;
    }

    template <class T, class P, int N>
    LLANE_DEVICE bool run(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const struct plan plan = plan_of<T, P>(args, op);
        struct llane_poll poll = {args.cells, args.words, args.spins_per_look, 0};

        push<T, P, N>(args, op, plan);
        return reduce<T, P, N>(args, op, plan, &poll) && gather<T, P, N>(args, op, plan, &poll);
    }

    /* After the last poll: makes the operation's generation fit for its next use. */
    template <class T, class P>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const struct plan plan = plan_of<T, P>(args, op);

        if (P::IS_LL) {
            /* One range for all sources: a shorter shard leaves packets that the next visits of the
             * stripe, or a longer message, take care of. */
            const struct llane_range contributions = {0, length(plan, args.rank)};
            const struct llane_range results = {
                (uint32_t)(args.slot_bytes / 2 / LLANE_PACKET_BYTES), plan.n_shard};

            llane_ll_clean(args.recv, args.n_ranks, args.rank, args.slot_bytes, op, contributions,
                           results);
            return;
        }
        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES;

            for (uint32_t r = 0; r < args.n_ranks; r++) {
                if (r == args.rank)
                    continue;
                if (i < length(plan, args.rank))
                    P::rearm(args.recv[r] + plan.contributions + offset);
                if (i < length(plan, r))
                    P::rearm(args.recv[r] + plan.results + offset);
            }
        }
    }
};

#endif
