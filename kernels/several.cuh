/*
 * Plain sums in private slots of which a thread has several packets: a batch of K of them is on its way
 * at once, where one_shot.cuh and two_shot.cuh take a packet after the other, a round trip each.
 *
 * A warp has K * 32 neighbours in a batch, so that a thread's lie at constant distances: an address for
 * each rank is enough, and the registers are left to the packets. Blocks are whole warps. A thread has
 * the same packets in all steps, the re-arming included; which ones concerns nobody else, since packets
 * lie where they always do. So ranks need not agree on K, nor on batches at all.
 */
#ifndef LLANE_KERNELS_SEVERAL_CUH
#define LLANE_KERNELS_SEVERAL_CUH

#include "one_shot.cuh"
#include "two_shot.cuh"

enum { LLANE_WARP = 32 };

/* The first packet of the thread's first batch; K grids further begins the next batch. */
template <int K> LLANE_DEVICE uint32_t llane_batch_first()
{
    const uint32_t thread = llane_grid_thread();

    return thread / LLANE_WARP * (K * LLANE_WARP) + thread % LLANE_WARP;
}

/* Bytes in a slot from a batch's first packet to its kth. */
LLANE_DEVICE constexpr uint64_t llane_batch_offset(int k)
{
    return (uint64_t)k * LLANE_WARP * LLANE_PACKET_BYTES;
}

/*
 * As llane_gather, but something is missing, and the halves of what is not stay as they are. One loop
 * with one way out, all set at its end whatever happened, and loads in place: otherwise the compiler
 * keeps each packet twice.
 */
template <class P, int N, class ADDRESS, class POLL>
LLANE_DEVICE bool llane_batch_poll(ADDRESS at, uint32_t missing, uint32_t op, const POLL *poll,
                                   uint64_t *low, uint64_t *high)
{
    uint32_t spins = poll->spins_per_look, pause_ns = poll->pause_ns;
    const uint64_t began = llane_poll_begins(poll);

    while (true) {
        uint32_t late = 0;

        LLANE_UNROLL
        for (int i = 0; i < N; i++)
            /* Pairs with P::store at the source, or with nothing yet. */
            llane_load16_if((missing & 1u << i) != 0, at(i), &low[i], &high[i]);
        LLANE_UNROLL
        for (int i = 0; i < N; i++)
            late |= P::is_here(low[i], high[i], op) ? 0 : 1u << i;
        missing &= late;
        if (missing == 0)
            break;
        llane_poll_pause(pause_ns);
        pause_ns = pause_ns < LLANE_LAST_PAUSE_NS ? 2 * pause_ns : pause_ns;
        if (--spins == 0) {
            if (llane_poll_must_stop(poll, P::IS_LL ? LLANE_LL : LLANE_SENTINEL, op))
                break;
            spins = poll->spins_per_look;
        }
    }
    llane_poll_ends(poll, began);
    return missing == 0;
}

/*
 * Awaits the other ranks' packets of the batch that begins at packet i of n; packet 0 lies at `at` in a
 * slot. payloads: packet by packet, rank by rank, with `mine` in the own place. False: stopped.
 */
template <class S, int K>
LLANE_DEVICE bool llane_batch_gather(const struct llane_all_reduce_args &args, uint64_t at,
                                     uint32_t i, uint32_t n, uint32_t op,
                                     const typename S::poll *poll, const typename S::payload *mine,
                                     typename S::payload *payloads)
{
    enum { N_ALL = K * S::N };
    const uint32_t others = ((1u << S::N) - 1) & ~(1u << args.rank);
    uint32_t missing = others;
    uint64_t low[N_ALL], high[N_ALL];

    LLANE_UNROLL
    for (int k = 1; k < K; k++)
        if (i + k * LLANE_WARP < n)
            missing |= others << k * S::N;
    LLANE_UNROLL
    for (int g = 0; g < N_ALL; g++)
        S::P::halves(mine[g / S::N], &low[g], &high[g]);
    at += (uint64_t)i * LLANE_PACKET_BYTES;
    const bool is_whole = llane_batch_poll<typename S::P, N_ALL>(
        [&](int g) { return args.slot[g % S::N].recv + at + llane_batch_offset(g / S::N); },
        missing, op, poll, low, high);

    LLANE_UNROLL
    for (int g = 0; g < N_ALL; g++)
        payloads[g] = S::P::payload(low[g], high[g]);
    return is_whole;
}

/* Re-arms the batch that begins at packet i of n; packet 0 lies at `at` in a slot. The thread read these
 * itself: those of other blocks may still be awaited. */
template <class S, int K>
LLANE_DEVICE void llane_batch_rearm(const struct llane_all_reduce_args &args, uint64_t at,
                                    uint32_t i, uint32_t n)
{
    at += (uint64_t)i * LLANE_PACKET_BYTES;
    LLANE_UNROLL
    for (int k = 0; k < K; k++) {
        if (i + k * LLANE_WARP < n) {
            LLANE_UNROLL
            for (uint32_t r = 0; r < S::N; r++)
                if (r != args.rank)
                    S::P::rearm(args.slot[r].recv + at + llane_batch_offset(k));
        }
    }
}

/* The algorithm A, K packets at once. */
template <class A, int K> struct llane_several;

template <int K> struct llane_several<llane_one_shot, K> : llane_one_shot {
    template <class S> struct ahead {
        typename S::payload mine[K];
    };

    template <class S>
    LLANE_DEVICE struct ahead<S> load(const struct llane_all_reduce_args &args, uint32_t i) {
        struct ahead<S> batch = {
        };

        LLANE_UNROLL
        for (int k = 0; k < K; k++)
            if (i + k * LLANE_WARP < S::n_packets(args))
                batch.mine[k] = S::load(args, i + k * LLANE_WARP);
        return batch;
    }

    template <class S>
    LLANE_DEVICE struct ahead<S> look_ahead(const struct llane_all_reduce_args &args) {
        return load<S>(args, llane_batch_first<K>());
    }

    template <class S>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                           const struct ahead<S> &first)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args);
        struct ahead<S> batch = first;

        for (uint32_t i = llane_batch_first<K>(); i < n_packets;) {
            const uint64_t at = generation + (uint64_t)i * LLANE_PACKET_BYTES;

            LLANE_UNROLL
            for (int k = 0; k < K; k++) {
                if (i + k * LLANE_WARP < n_packets) {
                    LLANE_UNROLL
                    for (int s = 0; s < S::N - 1; s++)
                        S::P::store(args.slot[s].send + at + llane_batch_offset(k), batch.mine[k],
                                    op);
                }
            }
            i += K * llane_grid_threads();
            if (i < n_packets)
                batch = load<S>(args, i);
        }
    }

    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &first)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args);
        const typename S::poll poll = S::poll_of(args);
        struct ahead<S> batch = first;

        for (uint32_t i = llane_batch_first<K>(); i < n_packets;) {
            typename S::payload payloads[K * S::N];

            if (!llane_batch_gather<S, K>(args, generation, i, n_packets, op, &poll, batch.mine,
                                          payloads))
                return false;
            LLANE_UNROLL
            for (int k = 0; k < K; k++)
                if (i + k * LLANE_WARP < n_packets)
                    S::store(args, i + k * LLANE_WARP, llane_sum<S>(&payloads[k * S::N]));
            i += K * llane_grid_threads();
            if (i < n_packets)
                batch = load<S>(args, i);
        }
        return true;
    }

    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args);

        if constexpr (S::P::IS_LL)
            llane_one_shot::clean<S>(args, op);
        else
            for (uint32_t i = llane_batch_first<K>(); i < n_packets; i += K * llane_grid_threads())
                llane_batch_rearm<S, K>(args, generation, i, n_packets);
    }
};

template <int K> struct llane_several<llane_two_shot, K> : llane_two_shot {
    /* Of each packet of the batch, for each peer. */
    template <class S> struct ahead {
        typename S::payload mine[K][S::N - 1];
    };

    template <class S>
    LLANE_DEVICE struct ahead<S> load(const struct llane_all_reduce_args &args, uint32_t n_shard,
                                      uint32_t i) {
        struct ahead<S> batch = {
        };

        LLANE_UNROLL
        for (int k = 0; k < K; k++) {
            if (i + k * LLANE_WARP < n_shard) {
                LLANE_UNROLL
                for (uint32_t s = 0; s < S::N - 1; s++)
                    batch.mine[k][s] = S::load(args, llane_peer(args.rank, s, S::N) * n_shard + i +
                                                         k * LLANE_WARP);
            }
        }
        return batch;
    }

    template <class S>
    LLANE_DEVICE struct ahead<S> look_ahead(const struct llane_all_reduce_args &args) {
        return load<S>(args, llane_two_shot::plan_of<S>(args, 0).n_shard, llane_batch_first<K>());
    }

    template <class S>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                           const struct ahead<S> &first)
    {
        const struct plan plan = llane_two_shot::plan_of<S>(args, op);
        struct ahead<S> batch = first;

        for (uint32_t i = llane_batch_first<K>(); i < plan.n_shard;) {
            const uint64_t at = plan.contributions + (uint64_t)i * LLANE_PACKET_BYTES;

            LLANE_UNROLL
            for (int k = 0; k < K; k++) {
                if (i + k * LLANE_WARP < plan.n_shard) {
                    LLANE_UNROLL
                    for (int s = 0; s < S::N - 1; s++)
                        S::P::store(args.slot[s].send + at + llane_batch_offset(k),
                                    batch.mine[k][s], op);
                }
            }
            i += K * llane_grid_threads();
            if (i < plan.n_shard)
                batch = load<S>(args, plan.n_shard, i);
        }
    }

    template <class S>
    LLANE_DEVICE bool reduce(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct plan &plan, const typename S::poll *poll)
    {
        const uint32_t own = args.rank * plan.n_shard;

        for (uint32_t i = llane_batch_first<K>(); i < plan.n_shard; i += K * llane_grid_threads()) {
            const uint64_t at = plan.results + (uint64_t)i * LLANE_PACKET_BYTES;
            typename S::payload mine[K] = {}, payloads[K * S::N];

            LLANE_UNROLL
            for (int k = 0; k < K; k++)
                if (i + k * LLANE_WARP < plan.n_shard)
                    mine[k] = S::load(args, own + i + k * LLANE_WARP);
            if (!llane_batch_gather<S, K>(args, plan.contributions, i, plan.n_shard, op, poll, mine,
                                          payloads))
                return false;
            LLANE_UNROLL
            for (int k = 0; k < K; k++) {
                if (i + k * LLANE_WARP < plan.n_shard) {
                    const typename S::payload result = llane_sum<S>(&payloads[k * S::N]);

                    LLANE_UNROLL
                    for (int s = 0; s < S::N - 1; s++)
                        S::P::store(args.slot[s].send + at + llane_batch_offset(k), result, op);
                    S::store(args, own + i + k * LLANE_WARP, result);
                }
            }
        }
        return true;
    }

    template <class S>
    LLANE_DEVICE bool collect(const struct llane_all_reduce_args &args, uint32_t op,
                              const struct plan &plan, const typename S::poll *poll)
    {
        for (uint32_t i = llane_batch_first<K>(); i < plan.n_shard; i += K * llane_grid_threads()) {
            const typename S::payload none[K] = {};
            typename S::payload results[K * S::N];

            if (!llane_batch_gather<S, K>(args, plan.results, i, plan.n_shard, op, poll, none,
                                          results))
                return false;
            LLANE_UNROLL
            for (int k = 0; k < K; k++) {
                if (i + k * LLANE_WARP < plan.n_shard) {
                    LLANE_UNROLL
                    for (uint32_t r = 0; r < S::N; r++)
                        if (r != args.rank)
                            S::store(args, r * plan.n_shard + i + k * LLANE_WARP,
                                     results[k * S::N + r]);
                }
            }
        }
        return true;
    }

    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &)
    {
        const struct plan plan = llane_two_shot::plan_of<S>(args, op);
        const typename S::poll poll = S::poll_of(args);

        return reduce<S>(args, op, plan, &poll) && collect<S>(args, op, plan, &poll);
    }

    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const struct plan plan = llane_two_shot::plan_of<S>(args, op);

        if constexpr (S::P::IS_LL) {
            llane_two_shot::clean<S>(args, op);
        } else {
            for (uint32_t i = llane_batch_first<K>(); i < plan.n_shard;
                 i += K * llane_grid_threads()) {
                llane_batch_rearm<S, K>(args, plan.contributions, i, plan.n_shard);
                llane_batch_rearm<S, K>(args, plan.results, i, plan.n_shard);
            }
        }
    }
};

#endif
