/*
 * Ring all-reduce: the message's packets are cut into n_ranks shards. A shard sets out as its own
 * rank's contribution, and every rank on its way adds its own; the last one has the result, which goes
 * once more round. A rank stores into its neighbours' slots alone.
 *
 * Two channels, one each way round: a shard's first half goes up the ranks, the rest down. Packet i
 * of both halves of every shard belongs to one thread of the grid, through all steps, on every rank.
 * Chunks of a half take all steps before the next chunk does: so the order of steps, which ranks must
 * share, depends on the arguments alone and not on the grid.
 */
#ifndef LLANE_KERNELS_RING_CUH
#define LLANE_KERNELS_RING_CUH

#include "combine.cuh"

struct llane_ring {
    enum { HAS_PLAIN = 0 };
    enum { UP, DOWN, N_CHANNELS };

    struct plan {
        uint64_t generation;         /* offset in a slot */
        uint32_t n_packets, n_shard; /* of the message, of a shard */
        uint32_t n_half;             /* of the longer half, the first one */
        uint32_t n_chunk;            /* of a half */
        uint32_t n_steps;            /* that a shard's packet arrives at a rank in */
    };

    template <class S>
    LLANE_DEVICE struct plan plan_of(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint32_t n_ranks = S::n_ranks(args);
        struct plan plan;

        plan.generation = llane_generation_offset(op, args.slot_bytes);
        plan.n_packets = S::n_packets(args);
        plan.n_shard = (plan.n_packets + n_ranks - 1) / n_ranks;
        plan.n_half = (plan.n_shard + 1) / 2;
        plan.n_chunk = args.chunk_packets != 0 ? args.chunk_packets : plan.n_half;
        plan.n_steps = 2 * (n_ranks - 1);
        return plan;
    }

    /* The shard that a rank has in hand in a step: step 0 sends the own one, the last step but receives
     * nothing new to send. */
    LLANE_DEVICE uint32_t shard_of(uint32_t rank, uint32_t n_ranks, int channel, uint32_t step)
    {
        const uint32_t away = step % n_ranks;

        return (channel == UP ? rank + n_ranks - away : rank + away) % n_ranks;
    }

    /* Whether packet i of that half of the shard exists. */
    LLANE_DEVICE bool has_packet(const struct plan &plan, uint32_t shard, int channel, uint32_t i)
    {
        const uint32_t in_shard = channel * plan.n_half + i;

        return in_shard < plan.n_shard &&
               (uint64_t)shard * plan.n_shard + in_shard < plan.n_packets;
    }

    LLANE_DEVICE uint32_t message_packet(const struct plan &plan, uint32_t shard, int channel,
                                         uint32_t i)
    {
        return shard * plan.n_shard + channel * plan.n_half + i;
    }

    /* Where it is in a slot while it is on its way to the rank that has it in hand in `step` > 0. Two
     * ranks are each other's neighbours on both sides: their channels share a slot. */
    LLANE_DEVICE uint64_t place(const struct plan &plan, uint32_t n_ranks, int channel,
                                uint32_t step, uint32_t i)
    {
        const uint32_t first = n_ranks == 2 ? channel * plan.n_steps * plan.n_half : 0;

        return plan.generation +
               (uint64_t)(first + (step - 1) * plan.n_half + i) * LLANE_PACKET_BYTES;
    }

    /* For step `step` of the neighbour. */
    template <class S>
    LLANE_DEVICE void send(const struct llane_all_reduce_args &args, const struct plan &plan,
                           uint32_t op, int channel, uint32_t step, uint32_t i,
                           const typename S::payload &payload)
    {
        const uint32_t n_ranks = S::n_ranks(args);
        uint8_t *slot = args.slot[channel == UP ? 0 : n_ranks - 2].send;

        S::P::store(slot + place(plan, n_ranks, channel, step, i), payload, op);
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
        typedef typename S::T T;
        const struct plan plan = plan_of<S>(args, op);
        const uint32_t operation = S::operation(args);
        const typename T::wide factor = llane_acc_factor<T>(S::n_ranks(args));

        for (uint32_t w = llane_grid_thread(); w < N_CHANNELS * plan.n_half;
             w += llane_grid_threads()) {
            const int channel = w >= plan.n_half;
            const uint32_t i = w - channel * plan.n_half;

            if (has_packet(plan, args.rank, channel, i)) {
                const typename S::payload mine =
                    S::load(args, message_packet(plan, args.rank, channel, i));

                send<S>(args, plan, op, channel, 1, i,
                        llane_acc_contribution<T, S::W>(mine, operation, factor));
            }
        }
    }

    /* What has arrived, with this rank's contribution added. */
    template <class S>
    LLANE_DEVICE typename S::payload combine(const struct llane_all_reduce_args &args,
                                             const typename S::payload &partial, uint32_t packet,
                                             bool is_last)
    {
        typedef typename S::T T;
        const uint32_t operation = S::operation(args);
        const typename T::wide factor = llane_acc_factor<T>(S::n_ranks(args));
        const typename S::payload mine = S::load(args, packet);
        struct llane_acc<T, S::W> acc = llane_acc_resume<T, S::W>(partial);

        llane_acc_add<T, S::W, 1>(&acc, operation, &mine, 1, false, factor);
        return llane_acc_finish<T, S::W>(&acc, is_last ? operation : (uint32_t)LLANE_OP_SUM,
                                         factor);
    }

    /* False: stopped. */
    template <class S>
    LLANE_DEVICE bool pass(const struct llane_all_reduce_args &args, const struct plan &plan,
                           uint32_t op, int channel, uint32_t step, uint32_t i,
                           const typename S::poll *poll)
    {
        const uint32_t n_ranks = S::n_ranks(args);
        const uint32_t shard = shard_of(args.rank, n_ranks, channel, step);
        const uint32_t source = shard_of(args.rank, n_ranks, channel, 1);
        const uint8_t *at = args.slot[source].recv + place(plan, n_ranks, channel, step, i);
        typename S::payload payload;

        if (!has_packet(plan, shard, channel, i))
            return true;
        if (!llane_gather<typename S::P, 1>([&](int) { return at; }, 1, op, poll, &payload))
            return false;
        const uint32_t packet = message_packet(plan, shard, channel, i);

        if (step < n_ranks)
            payload = combine<S>(args, payload, packet, step == n_ranks - 1);
        if (step < plan.n_steps)
            send<S>(args, plan, op, channel, step + 1, i, payload);
        if (step >= n_ranks - 1)
            S::store(args, packet, payload);
        return true;
    }

    /* False: stopped by an abort. */
    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &)
    {
        const struct plan plan = plan_of<S>(args, op);
        const typename S::poll poll = S::poll_of(args);

        for (uint32_t first = 0; first < plan.n_half; first += plan.n_chunk) {
            const uint32_t left = plan.n_half - first;
            const uint32_t length = left < plan.n_chunk ? left : plan.n_chunk;

            for (uint32_t step = 1; step <= plan.n_steps; step++) {
                for (uint32_t w = llane_grid_thread(); w < N_CHANNELS * length;
                     w += llane_grid_threads()) {
                    const int channel = w >= length;

                    if (!pass<S>(args, plan, op, channel, step, first + w - channel * length,
                                 &poll))
                        return false;
                }
            }
        }
        return true;
    }

    /* Whether rank r stores this packet of its slot here in an operation of this plan. */
    LLANE_DEVICE bool is_used(const struct plan &plan, uint32_t rank, uint32_t n_ranks, uint32_t r,
                              uint32_t packet)
    {
        for (int channel = UP; channel < N_CHANNELS; channel++) {
            const uint32_t first = n_ranks == 2 ? channel * plan.n_steps * plan.n_half : 0;
            const uint32_t step = 1 + (packet - first) / plan.n_half;

            if (r == shard_of(rank, n_ranks, channel, 1) && packet >= first &&
                step <= plan.n_steps &&
                has_packet(plan, shard_of(rank, n_ranks, channel, step), channel,
                           (packet - first) % plan.n_half))
                return true;
        }
        return false;
    }

    /* After the last poll: makes the operation's generation fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        static_assert(S::P::IS_LL, "nothing here re-arms a packet");
        const struct plan plan = plan_of<S>(args, op);
        const uint32_t n_ranks = S::n_ranks(args);

        llane_ll_clean(args, op, [&](uint32_t r, uint32_t packet) {
            return is_used(plan, args.rank, n_ranks, r, packet);
        });
    }
};

#endif
