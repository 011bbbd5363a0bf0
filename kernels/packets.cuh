/*
 * Packets: 16 bytes in a slot that tell by themselves that they have arrived. Two families:
 *
 * LL: two 8-byte halves, each {payload in the low word, flag in the high word}; the flag is the
 *   number of the LL operation. Carries any bits. A half is whole when its flag is right.
 * Sentinel: 16 bytes of payload. A word of all ones (32 bits, 64 for float64) means "not here yet";
 *   contributions and results never hold one. The reader re-arms what it has read.
 *
 * Nothing orders two halves, two words or two packets. A slot holds two generations; operation `op`
 * of a family uses generation op mod 2. docs/protocol.md has the arguments for two, for the wrap,
 * for the stripe and for re-arming.
 */
#ifndef LLANE_KERNELS_PACKETS_CUH
#define LLANE_KERNELS_PACKETS_CUH

#include "cells.cuh"
#include "reduce.cuh"

/* Numbers go 1, 2, ... 2^32-1, 4, 5, ...: 0 is what clean memory says, and leaving out 1, 2 and 3 as
 * well keeps two or four generations taking turns across the wrap. */
LLANE_DEVICE uint32_t llane_next_op(uint32_t op)
{
    return op == 0xffffffffu ? 4 : op + 1;
}

/* Leaves the lane after an operation of the family P. */
template <class P>
LLANE_DEVICE void llane_leave(const struct llane_all_reduce_args &args,
                              const struct llane_visit *visit)
{
    const struct llane_cell &cell = visit->cell;

    llane_cells_leave(visit, args.cells, args.words,
                      P::IS_LL ? llane_next_op(cell.ll_op) : cell.ll_op,
                      P::IS_LL ? cell.sentinel_op : llane_next_op(cell.sentinel_op));
}

LLANE_DEVICE uint64_t llane_generation_offset(uint32_t op, uint64_t slot_bytes)
{
    return (op & 1) * slot_bytes;
}

/* Each family: W, the payload's 8-byte words; op_of, the family's number in a cell;
 * store; is_here and payload of what was read; halves, of which payload makes the same again; rearm. */
template <class T> struct llane_ll {
    enum { W = 1 };
    static constexpr bool IS_LL = true;

    LLANE_DEVICE uint32_t op_of(const struct llane_cell &cell)
    {
        return cell.ll_op;
    }

    /* Pairs with llane_gather at the slot's owner. */
    LLANE_DEVICE void store(uint8_t *to, const struct llane_payload<1> &payload, uint32_t op)
    {
        const uint64_t flag = (uint64_t)op << 32;

        llane_store16(to, (payload.word[0] & 0xffffffffu) | flag, payload.word[0] >> 32 | flag);
    }

    LLANE_DEVICE struct llane_payload<1> payload(uint64_t low, uint64_t high) {
        return {{(low & 0xffffffffu) | high << 32}};
    }

    LLANE_DEVICE void
    halves(const struct llane_payload<1> &payload, uint64_t *low, uint64_t *high)
    {
        *low = payload.word[0];
        *high = payload.word[0] >> 32;
    }

    LLANE_DEVICE bool is_here(uint64_t low, uint64_t high, uint32_t op)
    {
        return (uint32_t)(low >> 32) == op && (uint32_t)(high >> 32) == op;
    }

    LLANE_DEVICE void rearm(uint8_t *)
    {
    }
};

template <class T> struct llane_sentinel {
    enum { W = 2 };
    static constexpr bool IS_LL = false;

    LLANE_DEVICE uint32_t op_of(const struct llane_cell &cell)
    {
        return cell.sentinel_op;
    }

    /* Pairs with llane_gather at the slot's owner. */
    LLANE_DEVICE void store(uint8_t *to, const struct llane_payload<2> &payload, uint32_t)
    {
        llane_store16(to, payload.word[0], payload.word[1]);
    }

    LLANE_DEVICE bool is_whole(uint64_t word)
    {
        if (sizeof(typename T::bits) == 8)
            return word != ~0ull;
        return (uint32_t)word != 0xffffffffu && (uint32_t)(word >> 32) != 0xffffffffu;
    }

    LLANE_DEVICE struct llane_payload<2> payload(uint64_t low, uint64_t high) {
        return {{low, high}};
    }

    LLANE_DEVICE void
    halves(const struct llane_payload<2> &payload, uint64_t *low, uint64_t *high)
    {
        *low = payload.word[0];
        *high = payload.word[1];
    }

    LLANE_DEVICE bool is_here(uint64_t low, uint64_t high, uint32_t)
    {
        return is_whole(low) && is_whole(high);
    }

    /* Pairs with the source's store two operations later, which cannot begin before this rank's next
     * kernel. */
    LLANE_DEVICE void rearm(uint8_t *at)
    {
        llane_store16(at, ~0ull, ~0ull);
    }
};

/*
 * Polls up to N packets, all that are missing at once in each round, until every one whose bit is set
 * in `missing` has come; payloads of the others are rubbish. at(i) is packet i's address, which need
 * not be valid if its bit is not set. False: stopped.
 */
template <class P, int N, class ADDRESS, class POLL>
LLANE_DEVICE bool llane_gather(ADDRESS at, uint32_t missing, uint32_t op, const POLL *poll,
                               struct llane_payload<P::W> *payloads)
{
    uint64_t low[N], high[N];
    uint32_t pause_ns = poll->pause_ns;

    LLANE_UNROLL
    for (int i = 0; i < N; i++)
        low[i] = high[i] = 0;
    const uint64_t began = llane_poll_begins(poll);

    while (missing != 0) {
        for (uint32_t spins = poll->spins_per_look; spins > 0 && missing != 0; spins--) {
            uint32_t late = 0;

            LLANE_UNROLL
            for (int i = 0; i < N; i++)
                /* Pairs with P::store at the source, or with nothing yet. Plain ifs: the compiler makes
                 * predicates of them, and all loads of a round fly together. */
                if (missing & 1u << i)
                    llane_load16(at(i), &low[i], &high[i]);
            LLANE_UNROLL
            for (int i = 0; i < N; i++)
                late |= P::is_here(low[i], high[i], op) ? 0 : 1u << i;
            missing &= late;
            if (missing != 0) {
                llane_poll_pause(pause_ns);
                pause_ns = pause_ns < LLANE_LAST_PAUSE_NS ? 2 * pause_ns : pause_ns;
            }
        }
        /* Not out of the function: the compiler would keep each payload twice, for the caller that
         * looks at one which was not set here. */
        if (missing != 0 && llane_poll_must_stop(poll, P::IS_LL ? LLANE_LL : LLANE_SENTINEL, op))
            break;
    }
    llane_poll_ends(poll, began);
    LLANE_UNROLL
    for (int i = 0; i < N; i++)
        payloads[i] = P::payload(low[i], high[i]);
    return missing == 0;
}

/*
 * Every 32nd operation (16th of its generation) the owner zeroes one stripe of each of its LL slots,
 * in the operation's generation, outside the packets that the operation uses: is_used(r, packet) says
 * whether rank r stores this one. The stripe walks the whole generation, so that no flag lives until
 * its number comes round again: a flag of a generation of n stripes is written over or zeroed within
 * 32 * n operations. Hence a packet that nobody stores must not be spared. Seldom and wide, not
 * always and narrow: a kernel ends later for it. Grid threads share the packets.
 */
template <class USED>
LLANE_DEVICE void llane_ll_clean(const struct llane_all_reduce_args &args, uint32_t op,
                                 USED is_used)
{
    const uint32_t per_stripe = LLANE_STRIPE_BYTES / LLANE_PACKET_BYTES;

    if ((op >> 1) % 16 != 0)
        return;

    const uint32_t n_stripes = (uint32_t)(args.slot_bytes / LLANE_STRIPE_BYTES);
    const uint32_t first = (op >> 5) % n_stripes * per_stripe;
    const uint64_t generation = llane_generation_offset(op, args.slot_bytes);

    LLANE_NO_UNROLL
    for (uint32_t i = llane_grid_thread(); i < args.n_ranks * per_stripe;
         i += llane_grid_threads()) {
        const uint32_t r = i / per_stripe, packet = first + i % per_stripe;

        /* Pairs with the source's store two operations later, which cannot begin before this rank's
         * next kernel. */
        if (r != args.rank && !is_used(r, packet))
            llane_store16(args.slot[r].recv + generation + (uint64_t)packet * LLANE_PACKET_BYTES, 0,
                          0);
    }
}

#endif
