/*
 * One-shot all-reduce: every rank stores its whole message into its slot at every peer, and combines
 * what arrives in its own slots. A packet is stored, awaited and combined by the same thread of the
 * grid, so nothing inside a block waits for anything but packets. With HAS_SHARED, some or all pairs of
 * ranks have shared slots: one store serves all peers with whom this rank shares. Not where a message is
 * small: polls of one line wait for each other, so that each of these peers finds a copy of its own.
 */
#ifndef LLANE_KERNELS_ONE_SHOT_CUH
#define LLANE_KERNELS_ONE_SHOT_CUH

#include "shared.cuh"

template <bool HAS_SHARED> struct llane_one_shot_of {
    /* Code of its own for LLANE_FLAG_PLAIN, and then for a packet a thread (single.cuh) and for
     * several (several.cuh). */
    enum { HAS_PLAIN = 1, IS_PRIVATE = !HAS_SHARED, N_STEPS = 1 };

    /* Packets that are dealt out to the grid's threads. */
    template <class S> LLANE_DEVICE uint32_t n_dealt(const struct llane_all_reduce_args &args)
    {
        return S::n_packets(args);
    }

    /* In a shared slot: packets from one reader's copy to the next one's; 0: there is one for all. Copy s
     * is for the peer of that number. */
    template <class S> LLANE_DEVICE uint32_t stride_of(const struct llane_all_reduce_args &args)
    {
        const uint32_t n_packets = S::n_packets(args), n_ranks = S::n_ranks(args);
        const uint32_t stride =
            (n_packets + LLANE_LINE_PACKETS - 1) / LLANE_LINE_PACKETS * LLANE_LINE_PACKETS;

        if (!HAS_SHARED || n_ranks == 2 || n_packets > LLANE_COPIED_PACKETS ||
            (uint64_t)(n_ranks - 1) * stride * LLANE_PACKET_BYTES > args.shared_slot_bytes)
            return 0;
        return stride;
    }

    /* Where this rank finds the first packet in rank r's shared slot. */
    template <class S>
    LLANE_DEVICE uint64_t copy_of(const struct llane_all_reduce_args &args, uint32_t stride,
                                  uint32_t r)
    {
        const uint32_t s = llane_peer_number(r, args.rank, S::n_ranks(args));

        return (uint64_t)stride * s * LLANE_PACKET_BYTES;
    }

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
        const uint32_t stride = stride_of<S>(args);
        typename S::payload mine = ahead.mine;

        for (uint32_t i = llane_grid_thread(); i < n_packets;) {
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES, at = generation + offset;

            if (HAS_SHARED && args.shared != 0 && stride == 0)
                S::P::store(args.shared_slot + shared + offset, mine, op);
            LLANE_UNROLL
            for (uint32_t s = 0; s < n_ranks - 1; s++) {
                if (!llane_is_shared<HAS_SHARED>(args, llane_peer(args.rank, s, n_ranks)))
                    S::P::store(args.slot[s].send + at, mine, op);
                else if (stride != 0)
                    S::P::store(args.shared_slot + shared + offset +
                                    (uint64_t)stride * s * LLANE_PACKET_BYTES,
                                mine, op);
            }
            i += llane_grid_threads();
            if (i < n_packets)
                mine = S::load(args, i);
        }
        if constexpr (HAS_SHARED)
            llane_shared_rearm_first<typename S::P>(args, op, n_packets);
    }

    /* False: stopped by an abort. */
    template <class S>
    LLANE_DEVICE bool finish(const struct llane_all_reduce_args &args, uint32_t op,
                             const struct ahead<S> &ahead)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint64_t shared = llane_shared_generation<typename S::P>(args, op);
        const uint32_t n_packets = S::n_packets(args), stride = stride_of<S>(args);
        const typename S::poll poll = S::poll_of(args);
        typename S::payload mine = ahead.mine;
        struct llane_rearming rearming = {NULL, 0, 0};

        if (HAS_SHARED && n_packets > LLANE_REARMED_FIRST)
            rearming = llane_shared_rearming<typename S::P>(args, op);
        for (uint32_t i = llane_grid_thread(); i < n_packets;) {
            const uint64_t offset = (uint64_t)i * LLANE_PACKET_BYTES, at = generation + offset;
            typename S::payload result;

            if (!llane_combine_ranks<S>(
                    args,
                    [&](uint32_t r) {
                        return args.slot[r].recv +
                               (llane_is_shared<HAS_SHARED>(args, r)
                                    ? shared + copy_of<S>(args, stride, r) + offset
                                    : at);
                    },
                    op, mine, &poll, &result))
                return false;
            const uint32_t next = i + llane_grid_threads();

            if (next < n_packets)
                mine = S::load(args, next); /* before the store: in and out may be one buffer */
            S::store(args, i, result);
            if constexpr (HAS_SHARED)
                llane_shared_rearm<typename S::P>(&rearming, 1);
            i = next;
        }
        if constexpr (HAS_SHARED)
            llane_shared_rearm<typename S::P>(&rearming, UINT32_MAX);
        return true;
    }

    /* After the last poll: makes the operation's generation of the private slots fit for its next use. */
    template <class S>
    LLANE_DEVICE void clean(const struct llane_all_reduce_args &args, uint32_t op)
    {
        const uint64_t generation = llane_generation_offset(op, args.slot_bytes);
        const uint32_t n_packets = S::n_packets(args), n_ranks = S::n_ranks(args);
        [[maybe_unused]] const uint32_t stride = stride_of<S>(args);

        if constexpr (S::P::IS_LL) {
            llane_ll_clean(args, op, [&](uint32_t r, uint32_t packet) {
                return llane_is_shared<HAS_SHARED>(args, r) || packet < n_packets;
            });
            if constexpr (HAS_SHARED)
                llane_shared_ll_clean(args, op, [&](uint32_t packet) {
                    if (stride == 0)
                        return packet < n_packets;
                    const uint32_t s = packet / stride;

                    return s < n_ranks - 1 && packet % stride < n_packets &&
                           llane_is_shared<HAS_SHARED>(args, llane_peer(args.rank, s, n_ranks));
                });
        } else {
            for (uint32_t i = llane_grid_thread(); i < n_packets; i += llane_grid_threads()) {
                LLANE_UNROLL
                for (uint32_t r = 0; r < n_ranks; r++)
                    if (r != args.rank && !llane_is_shared<HAS_SHARED>(args, r))
                        S::P::rearm(args.slot[r].recv + generation +
                                    (uint64_t)i * LLANE_PACKET_BYTES);
            }
            if constexpr (HAS_SHARED)
                llane_shared_note(args, stride == 0 ? n_packets : (n_ranks - 1) * stride);
        }
    }
};

typedef struct llane_one_shot_of<false> llane_one_shot;
typedef struct llane_one_shot_of<true> llane_shared_one_shot;

#endif
