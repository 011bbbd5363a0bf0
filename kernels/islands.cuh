/*
 * Islands all-reduce, for two groups of ranks with a slow link between them: the lower half of the
 * ranks and the upper one, which is no larger. The message's packets are cut into one shard for each
 * upper rank; shard j belongs to the jth rank of either island. A lower owner combines its island's
 * contributions and sends what it has, as wide as it is, to the upper owner, who goes on with its own
 * island's and has the result: in rank order, rounded once. It goes to the upper island and back to the
 * lower owner, who hands it on. Between the islands goes a message's worth each way, wide on the way up.
 *
 * Packet i of every shard belongs to one thread of the grid, through all steps, on every rank.
 */
#ifndef LLANE_KERNELS_ISLANDS_CUH
#define LLANE_KERNELS_ISLANDS_CUH

#include "combine.cuh"

/* A partial result in the payloads of COUNT packets of 8 bytes. Integers wrap, so the type itself is
 * wide enough. */
template <class T> struct llane_partial {
    enum {
        PER_PACKET = T::IS_FLOAT ? 8 / (int)sizeof(typename T::wide) : (int)T::LANES,
        COUNT = (int)T::LANES / PER_PACKET
    };

    LLANE_DEVICE llane_payload<1> packet(const llane_acc<T, 1> &acc, int k)
    {
        if constexpr (!T::IS_FLOAT)
            return llane_acc_finish<T, 1>(&acc, LLANE_OP_SUM, 0);
        llane_payload<1> p;

        memcpy(&p, &acc.lane[k * PER_PACKET], sizeof(p));
        return p;
    }

    LLANE_DEVICE void unpack(const llane_payload<1> *packets, llane_acc<T, 1> *acc)
    {
        if constexpr (!T::IS_FLOAT) {
            *acc = llane_acc_resume<T, 1>(packets[0]);
        } else {
            LLANE_UNROLL
            for (int k = 0; k < COUNT; k++)
                memcpy(&acc->lane[k * PER_PACKET], &packets[k], sizeof(packets[k]));
        }
    }
};

struct llane_islands {
    enum { HAS_PLAIN = 0 };

    struct plan {
        uint64_t results, inputs;    /* offsets in a slot: contributions and partial results */
        uint32_t n_packets, n_shard; /* of the message, of a shard */
        uint32_t n_shards;           /* as many as upper ranks */
        uint32_t first, n_island;    /* the own island */
        uint32_t own;                /* shard; n_shards or more: none */
        uint32_t twin;               /* the shard's other owner */
        bool is_upper;
    };

    template <class S>
    LLANE_DEVICE struct plan plan_of(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint32_t n_ranks = S::n_ranks(args);
        struct plan plan;

        plan.n_shards = n_ranks / 2;
        const uint32_t n_lower = n_ranks - plan.n_shards;

        plan.n_packets = S::n_packets(args);
        plan.n_shard = (plan.n_packets + plan.n_shards - 1) / plan.n_shards;
        plan.results = llane_generation_offset(op, args.slot_bytes);
        plan.inputs = plan.results + (uint64_t)plan.n_shard * LLANE_PACKET_BYTES;
        plan.is_upper = args.rank >= n_lower;
        plan.first = plan.is_upper ? n_lower : 0;
        plan.n_island = plan.is_upper ? plan.n_shards : n_lower;
        plan.own = args.rank - plan.first;
        plan.twin = plan.is_upper ? plan.own : n_lower + plan.own;
        return plan;
    }

    /* Packets in a shard. */
    LLANE_DEVICE uint32_t length(const struct plan &plan, uint32_t shard)
    {
        const uint64_t first = (uint64_t)shard * plan.n_shard;
        const uint64_t left =
            shard < plan.n_shards && first < plan.n_packets ? plan.n_packets - first : 0;

        return left < plan.n_shard ? (uint32_t)left : plan.n_shard;
    }

    template <class S>
    LLANE_DEVICE uint8_t *slot_at(const struct llane_all_reduce_args &args, uint32_t r)
    {
        const uint32_t n_ranks = S::n_ranks(args);

        return args.slot[(r + n_ranks - args.rank - 1) % n_ranks].send;
    }

    template <class S> struct ahead {
    };

    template <class S>
    LLANE_DEVICE struct ahead<S> look_ahead(const struct llane_all_reduce_args &) {
        return {};
    }

    template <class S>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                           const struct ahead<S> &)
    {
        const struct plan plan = plan_of<S>(args, op);

        for (uint32_t i = llane_grid_thread(); i < plan.n_shard; i += llane_grid_threads()) {
            for (uint32_t s = 1; s <= plan.n_shards; s++) {
                const uint32_t shard = (plan.own + s) % plan.n_shards;

                if (shard != plan.own && i < length(plan, shard))
                    S::P::store(slot_at<S>(args, plan.first + shard) + plan.inputs +
                                    (uint64_t)i * LLANE_PACKET_BYTES,
                                S::load(args, shard * plan.n_shard + i), op);
            }
        }
    }

    /* Adds the own island's contributions to packet i of the own shard. False: stopped. */
    template <class S>
    LLANE_DEVICE bool add_island(const struct llane_all_reduce_args &args, const struct plan &plan,
                                 uint32_t op, uint32_t i, const typename S::poll *poll,
                                 struct llane_acc<typename S::T, S::W> *acc)
    {
        typedef typename S::T T;
        const uint64_t at = plan.inputs + (uint64_t)i * LLANE_PACKET_BYTES;
        const uint32_t end = plan.first + plan.n_island;

        for (uint32_t base = plan.first; base < end; base += S::GROUP) {
            typename S::payload payloads[S::GROUP];
            uint32_t others = 0;

            LLANE_UNROLL
            for (int g = 0; g < S::GROUP; g++)
                if (base + g < end && base + g != args.rank)
                    others |= 1u << g;
            if (!llane_gather<typename S::P, S::GROUP>(
                    [&](int g) { return args.slot[base + g].recv + at; }, others, op, poll,
                    payloads))
                return false;
            LLANE_UNROLL
            for (int g = 0; g < S::GROUP; g++)
                if (base + g == args.rank)
                    payloads[g] = S::load(args, plan.own * plan.n_shard + i);
            llane_acc_add<T, S::W, S::GROUP>(acc, S::operation(args), payloads, end - base,
                                             base == 0, llane_acc_factor<T>(S::n_ranks(args)));
        }
        return true;
    }

    /* A result of the own shard: stored, and sent to the rest of the island. */
    template <class S>
    LLANE_DEVICE void spread(const struct llane_all_reduce_args &args, const struct plan &plan,
                             uint32_t op, uint32_t i, const typename S::payload &result)
    {
        for (uint32_t s = 1; s < plan.n_island; s++)
            S::P::store(slot_at<S>(args, plan.first + (plan.own + s) % plan.n_island) +
                            plan.results + (uint64_t)i * LLANE_PACKET_BYTES,
                        result, op);
        S::store(args, plan.own * plan.n_shard + i, result);
    }

    /* A lower owner's first part: partial results. False: stopped. */
    template <class S>
    LLANE_DEVICE bool begin(const struct llane_all_reduce_args &args, const struct plan &plan,
                            uint32_t op, const typename S::poll *poll)
    {
        typedef struct llane_partial<typename S::T> partial;
        uint8_t *slot = slot_at<S>(args, plan.twin) + plan.inputs;

        for (uint32_t i = llane_grid_thread(); i < length(plan, plan.own);
             i += llane_grid_threads()) {
            struct llane_acc<typename S::T, S::W> acc = {
            };

            if (!add_island<S>(args, plan, op, i, poll, &acc))
                return false;
            LLANE_UNROLL
            for (int k = 0; k < partial::COUNT; k++)
                S::P::store(slot + ((uint64_t)i * partial::COUNT + k) * LLANE_PACKET_BYTES,
                            partial::packet(acc, k), op);
        }
        return true;
    }

    /* An upper owner's part. False: stopped. */
    template <class S>
    LLANE_DEVICE bool complete(const struct llane_all_reduce_args &args, const struct plan &plan,
                               uint32_t op, const typename S::poll *poll)
    {
        typedef typename S::T T;
        typedef struct llane_partial<T> partial;
        const uint8_t *slot = args.slot[plan.twin].recv + plan.inputs;

        for (uint32_t i = llane_grid_thread(); i < length(plan, plan.own);
             i += llane_grid_threads()) {
            const uint8_t *at = slot + (uint64_t)i * partial::COUNT * LLANE_PACKET_BYTES;
            typename S::payload packets[partial::COUNT];
            struct llane_acc<T, S::W> acc;

            if (!llane_gather<typename S::P, partial::COUNT>(
                    [&](int k) { return at + k * LLANE_PACKET_BYTES; }, (1u << partial::COUNT) - 1,
                    op, poll, packets))
                return false;
            partial::unpack(packets, &acc);
            if (!add_island<S>(args, plan, op, i, poll, &acc))
                return false;
            const typename S::payload result = llane_acc_finish<T, S::W>(
                &acc, S::operation(args), llane_acc_factor<T>(S::n_ranks(args)));

            S::P::store(slot_at<S>(args, plan.twin) + plan.results +
                            (uint64_t)i * LLANE_PACKET_BYTES,
                        result, op);
            spread<S>(args, plan, op, i, result);
        }
        return true;
    }

    /* Results that rank r sends of a shard, each given to use(i, result). False: stopped. */
    template <class S, class USE>
    LLANE_DEVICE bool receive(const struct llane_all_reduce_args &args, const struct plan &plan,
                              uint32_t op, const typename S::poll *poll, uint32_t r, uint32_t shard,
                              USE use)
    {
        for (uint32_t i = llane_grid_thread(); i < length(plan, shard); i += llane_grid_threads()) {
            const uint8_t *at = args.slot[r].recv + plan.results + (uint64_t)i * LLANE_PACKET_BYTES;
            typename S::payload result;

            if (!llane_gather<typename S::P, 1>([&](int) { return at; }, 1, op, poll, &result))
                return false;
            use(i, result);
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

        if (plan.is_upper) {
            if (!complete<S>(args, plan, op, &poll))
                return false;
        } else if (!begin<S>(args, plan, op, &poll) ||
                   !receive<S>(args, plan, op, &poll, plan.twin, plan.own,
                               [&](uint32_t i, const typename S::payload &result) {
                                   spread<S>(args, plan, op, i, result);
                               })) {
            return false;
        }
        for (uint32_t shard = 0; shard < plan.n_shards; shard++)
            if (shard != plan.own &&
                !receive<S>(args, plan, op, &poll, plan.first + shard, shard,
                            [&](uint32_t i, const typename S::payload &result) {
                                S::store(args, shard * plan.n_shard + i, result);
                            }))
                return false;
        return true;
    }

    /* Whether rank r stores this packet of its slot here in an operation of this plan. n_partials: of a
     * packet's partial result. */
    LLANE_DEVICE bool is_used(const struct plan &plan, uint32_t n_partials, uint32_t r,
                              uint32_t packet)
    {
        const bool is_of_island = r >= plan.first && r - plan.first < plan.n_island;

        if (packet < plan.n_shard) {
            if (is_of_island)
                return packet < length(plan, r - plan.first);
            return !plan.is_upper && r == plan.twin && packet < length(plan, plan.own);
        }
        if (is_of_island)
            return packet - plan.n_shard < length(plan, plan.own);
        return plan.is_upper && r == plan.twin &&
               packet - plan.n_shard < n_partials * length(plan, plan.own);
    }

    /* After the last poll: makes the operation's generation fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        static_assert(S::P::IS_LL, "nothing here re-arms a packet");
        const struct plan plan = plan_of<S>(args, op);

        llane_ll_clean(args, op, [&](uint32_t r, uint32_t packet) {
            return is_used(plan, llane_partial<typename S::T>::COUNT, r, packet);
        });
    }
};

#endif
