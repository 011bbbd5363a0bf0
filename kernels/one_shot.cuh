/*
 * One-shot all-reduce: every rank stores its whole message into its slot at every peer, and combines
 * what arrives in its own slots. A packet is stored, awaited and combined by the same thread of the
 * grid, so nothing inside a block waits for anything but packets.
 */
#ifndef LLANE_KERNELS_ONE_SHOT_CUH
#define LLANE_KERNELS_ONE_SHOT_CUH

#include "combine.cuh"

struct llane_one_shot {
    /* All of the thread's packets, before it awaits any. */
    template <class S> LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args), n_ranks = S::n_ranks(args);

        for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
            const uint64_t at = generation + (uint64_t)i * LLANE_PACKET_BYTES;
            const typename S::payload mine = S::load(args, i);

            LLANE_UNROLL
            for (uint32_t s = 0; s < n_ranks - 1; s++)
                S::P::store(args.send[s] + at, mine, op);
        }
    }

    /* False: stopped by an abort. */
    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args);
        struct llane_poll poll = {args.cells, args.words, args.spins_per_look};

        for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
            typename S::payload result;

            if (!llane_combine_ranks<S>(args, generation + (uint64_t)i * LLANE_PACKET_BYTES, op,
                                        S::load(args, i), &poll, &result))
                return false;
            S::store(args, i, result);
        }
        return true;
    }

    /* After the last poll: makes the operation's generation fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args), n_ranks = S::n_ranks(args);

        if constexpr (S::P::IS_LL) {
            const struct llane_range used = {0, n_packets}, none = {0, 0};

            llane_ll_clean(args.recv, n_ranks, args.slot_bytes, op, used, none);
        } else {
            for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
                LLANE_UNROLL
                for (uint32_t r = 0; r < n_ranks; r++)
                    S::P::rearm(args.recv[r] + generation + (uint64_t)i * LLANE_PACKET_BYTES);
            }
        }
    }
};

#endif
