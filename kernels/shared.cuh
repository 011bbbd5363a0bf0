/*
 * Shared slots: a rank stores its packets into host memory of its own, once but for small messages of
 * one-shot, and every peer that has no other way reads them there. So nobody but the writer stores
 * there, and the writer re-arms:
 *
 * Sentinel: operation k of the family uses generation k mod 4 and re-arms what k-2 stored; the extents
 *   of the last two operations are kept beside the cells. When a rank begins k, every rank has ended
 *   k-2; when a rank begins k+2, every rank has ended k. docs/protocol.md has the argument.
 * LL: two generations, and the stripe is the writer's too.
 *
 * A lane may have pairs of both kinds: with peers whose bit of args.shared is not set, private slots
 * are used.
 */
#ifndef LLANE_KERNELS_SHARED_CUH
#define LLANE_KERNELS_SHARED_CUH

#include "combine.cuh"

/* HAS_SHARED: whether the kernel knows shared slots at all. */
template <bool HAS_SHARED>
LLANE_DEVICE bool llane_is_shared(const struct llane_all_reduce_args &args, uint32_t r)
{
    return HAS_SHARED && (args.shared >> r % LLANE_MAX_RANKS & 1) != 0;
}

template <class P>
LLANE_DEVICE uint64_t llane_shared_generation(const struct llane_all_reduce_args &args, uint32_t op)
{
    return (op & (P::IS_LL ? 1u : LLANE_SHARED_GENERATIONS - 1u)) * args.shared_slot_bytes;
}

/*
 * What a thread has still to re-arm; grid threads share the packets. It need only be done when the kernel
 * ends. Small messages have it done before the first poll, where it costs nothing. The link carries large
 * ones each way in turn, and a read waits for the stores in front of it: there each packet that came is
 * followed by some re-arming.
 */
struct llane_rearming {
    uint8_t *slot;
    uint32_t next, n;
};

enum { LLANE_REARMED_FIRST = 512 }; /* largest message, in packets, that is small */

template <class P>
LLANE_DEVICE struct llane_rearming llane_shared_rearming(const struct llane_all_reduce_args &args,
                                                         uint32_t op)
{
    if (P::IS_LL || args.shared == 0)
        return {NULL, 0, 0};
    /* op - 2, modulo 4. The load pairs with llane_shared_note in the kernels before this one; their end
     * orders the two. */
    return {args.shared_slot + llane_shared_generation<P>(args, op + 2), llane_grid_thread(),
            llane_load_system32(&args.cells->extent[llane_block_id()].before_last)};
}

/* At most n packets. */
template <class P> LLANE_DEVICE void llane_shared_rearm(struct llane_rearming *rearming, uint32_t n)
{
    for (; n > 0 && rearming->next < rearming->n; n--) {
        P::rearm(rearming->slot + (uint64_t)rearming->next * LLANE_PACKET_BYTES);
        rearming->next += llane_grid_threads();
    }
}

/* Of an operation of n_packets, after its stores and before its first poll. */
template <class P>
LLANE_DEVICE void llane_shared_rearm_first(const struct llane_all_reduce_args &args, uint32_t op,
                                           uint32_t n_packets)
{
    if (n_packets <= LLANE_REARMED_FIRST) {
        struct llane_rearming rearming = llane_shared_rearming<P>(args, op);

        llane_shared_rearm<P>(&rearming, UINT32_MAX);
    }
}

/* After the block's last poll, by all of its threads: the running operation's extent is the last one
 * now. Each copy has one thread that writes it, as its cell has. */
LLANE_DEVICE void llane_shared_note(const struct llane_all_reduce_args &args, uint32_t n_packets)
{
    const uint32_t c = llane_block_id() + llane_thread_id() * llane_n_blocks();

    if (c >= LLANE_MAX_BLOCKS)
        return;
    struct llane_extent *extent = &args.cells->extent[c];

    /* Pairs with llane_shared_rearming in the next kernels; the end of this one orders the two. */
    llane_store_system32(&extent->before_last, llane_load_system32(&extent->last));
    llane_store_system32(&extent->last, n_packets);
}

/* As llane_ll_clean, for the own shared slot: is_used(packet) says whether this operation stores it. */
template <class USED>
LLANE_DEVICE void llane_shared_ll_clean(const struct llane_all_reduce_args &args, uint32_t op,
                                        USED is_used)
{
    const uint32_t per_stripe = LLANE_STRIPE_BYTES / LLANE_PACKET_BYTES;

    if ((op >> 1) % 16 != 0 || args.shared == 0)
        return;

    const uint32_t n_stripes = (uint32_t)(args.shared_slot_bytes / LLANE_STRIPE_BYTES);
    const uint32_t first = (op >> 5) % n_stripes * per_stripe;
    uint8_t *const slot = args.shared_slot + (op & 1) * args.shared_slot_bytes;

    LLANE_NO_UNROLL
    for (uint32_t i = llane_grid_thread(); i < per_stripe; i += llane_grid_threads())
        /* Pairs with this rank's own stores two operations later, in a kernel behind this one. */
        if (!is_used(first + i))
            llane_store16(slot + (uint64_t)(first + i) * LLANE_PACKET_BYTES, 0, 0);
}

#endif
