/*
 * One-shot all-reduce: every rank stores its whole message into its slot at every peer, and combines
 * what arrives in its own slots. A packet is stored, awaited and combined by the same thread of the
 * grid, so nothing inside a block waits for anything but packets.
 */
#ifndef LLANE_KERNELS_ONE_SHOT_CUH
#define LLANE_KERNELS_ONE_SHOT_CUH

#include "combine.cuh"

struct llane_one_shot {
    /* Stores all of the thread's packets first; destinations start behind the own rank, so that not
     * all sources store to one peer at once. */
    template <class T, class P, int N>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                                  uint64_t generation, uint32_t n_packets)
    {
        const uint32_t n_ranks = N ? N : args.n_ranks;

        for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
            struct llane_payload<P::W> mine = llane_local_load<T, P::W>(args.in, args.count, i);

            llane_payload_contribute<T, P::W>(&mine);
            LLANE_UNROLL
            for (uint32_t step = 1; step < n_ranks; step++)
                P::store(args.send[llane_peer(args.rank, step, n_ranks)] + generation +
                             (uint64_t)i * LLANE_PACKET_BYTES,
                         mine, op);
        }
    }

    /* False: stopped by an abort. */
    template <class T, class P, int N>
    LLANE_DEVICE bool combine(const struct llane_all_reduce_args &args, uint32_t op,
                                     uint64_t generation, uint32_t n_packets)
    {
        struct llane_poll poll = {args.cells, args.words, args.spins_per_look, 0};

        for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
            const uint64_t at = generation + (uint64_t)i * LLANE_PACKET_BYTES;
            struct llane_payload<P::W> mine = llane_local_load<T, P::W>(args.in, args.count, i);
            struct llane_payload<P::W> result;

            llane_payload_contribute<T, P::W>(&mine);
            if (!llane_combine_ranks<T, P, N>(args, at, op, mine, &poll, &result))
                return false;
            llane_local_store<T, P::W>(args.out, args.count, i, result);
        }
        return true;
    }

    template <class T, class P, int N>
    LLANE_DEVICE bool run(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = llane_local_n_packets<T, P::W>(args.count);

        push<T, P, N>(args, op, generation, n_packets);
        return combine<T, P, N>(args, op, generation, n_packets);
    }

    /* After the last poll: makes the operation's generation fit for its next use. */
    template <class T, class P>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = llane_local_n_packets<T, P::W>(args.count);

        if (P::IS_LL) {
            const struct llane_range used = {0, n_packets}, none = {0, 0};

            llane_ll_clean(args.recv, args.n_ranks, args.rank, args.slot_bytes, op, used, none);
            return;
        }
        for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads())
            for (uint32_t r = 0; r < args.n_ranks; r++)
                if (r != args.rank)
                    P::rearm(args.recv[r] + generation + (uint64_t)i * LLANE_PACKET_BYTES);
    }
};

#endif
