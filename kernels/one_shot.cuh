/*
 * One-shot all-reduce: every rank stores its whole message into its slot at every peer, and combines
 * what arrives in its own slots. A packet is stored, awaited and combined by the same thread of the
 * grid, so nothing inside a block waits for anything but packets. With HAS_SHARED, some or all pairs of
 * ranks have shared slots: one store serves all peers with whom this rank shares.
 */
#ifndef LLANE_KERNELS_ONE_SHOT_CUH
#define LLANE_KERNELS_ONE_SHOT_CUH

#include "shared.cuh"

template <bool HAS_SHARED> struct llane_one_shot_of {
    /* Code of its own for LLANE_FLAG_PLAIN, and for a packet a thread then (one_shot_single.cuh). */
    enum { HAS_PLAIN = 1, HAS_SINGLE = !HAS_SHARED };

    /* Of the thread's first packet: read while the lane's state is on its way. */
    template <class S> struct ahead {
        typename S::payload mine;
    };

    template <class S>
    LLANE_DEVICE struct ahead<S> look_ahead(const struct llane_all_reduce_args &args) {
        struct ahead<S> ahead = {
        };

        if (llane_grid_thread() < S::n_packets(args))
            ahead.mine = S::load(args, llane_grid_thread());
        return ahead;
    }

    /* All of the thread's packets, before it awaits any. */
    template <class S>
    LLANE_DEVICE void push(const struct llane_all_reduce_args &args, uint32_t op,
                           const struct ahead<S> &ahead)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint64_t shared = llane_shared_generation<typename S::P>(args, op);
        const uint32_t n_packets = S::n_packets(args), n_ranks = S::n_ranks(args);
        typename S::payload mine = ahead.mine;

        for (uint32_t i = llane_grid_thread(); i < n_packets;) {
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES, at = generation + offset;

            if (HAS_SHARED && args.shared != 0)
                S::P::store(args.shared_slot + shared + offset, mine, op);
            LLANE_UNROLL
            for (uint32_t s = 0; s < n_ranks - 1; s++)
                if (!llane_is_shared<HAS_SHARED>(args, llane_peer(args.rank, s, n_ranks)))
                    S::P::store(args.slot[s].send + at, mine, op);
            i += llane_grid_threads();
            if (i < n_packets)
                mine = S::load(args, i);
        }
        if constexpr (HAS_SHARED)
            llane_shared_rearm<typename S::P>(args, op);
    }

    /* False: stopped by an abort. */
    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &ahead)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint64_t shared = llane_shared_generation<typename S::P>(args, op);
        const uint32_t n_packets = S::n_packets(args);
        const typename S::poll poll = S::poll_of(args);
        typename S::payload mine = ahead.mine;

        for (uint32_t i = llane_grid_thread(); i < n_packets;) {
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES, at = generation + offset;
            typename S::payload result;

            if (!llane_combine_ranks<S>(
                    args,
                    [&](uint32_t r) {
                        return args.slot[r].recv +
                               (llane_is_shared<HAS_SHARED>(args, r) ? shared + offset : at);
                    },
                    op, mine, &poll, &result))
                return false;
            const uint32_t next = i + llane_grid_threads();

            if (next < n_packets)
                mine = S::load(args, next); /* before the store: in and out may be one buffer */
            S::store(args, i, result);
            i = next;
        }
        return true;
    }

    /* After the last poll: makes the operation's generation of the private slots fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args), n_ranks = S::n_ranks(args);

        if constexpr (S::P::IS_LL) {
            llane_ll_clean(args, op, [&](uint32_t r, uint32_t packet) {
                return llane_is_shared<HAS_SHARED>(args, r) || packet < n_packets;
            });
            if constexpr (HAS_SHARED)
                llane_shared_ll_clean(args, op,
                                      [&](uint32_t packet) { return packet < n_packets; });
        } else {
            for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
                LLANE_UNROLL
                for (uint32_t r = 0; r < n_ranks; r++)
                    if (r != args.rank && !llane_is_shared<HAS_SHARED>(args, r))
                        S::P::rearm(args.slot[r].recv + generation +
                                    (uint64_t)i * LLANE_PACKET_BYTES);
            }
            if constexpr (HAS_SHARED)
                llane_shared_note(args, n_packets);
        }
    }
};

typedef struct llane_one_shot_of<false> llane_one_shot;
typedef struct llane_one_shot_of<true> llane_shared_one_shot;

#endif
