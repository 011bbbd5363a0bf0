/*
 * LL packets: a 16-byte line of two 8-byte halves, each {payload in the low word, flag in the high
 * word}. The flag is the number of the LL operation. A half is whole when its flag is right; nothing
 * else orders the two halves, or two lines.
 *
 * A slot holds two generations; operation `op` uses generation op mod 2, from its first line on.
 * docs/protocol.md has the argument for two, for the wrap and for the stripe.
 */
#ifndef LLANE_KERNELS_PACKET_LL_CUH
#define LLANE_KERNELS_PACKET_LL_CUH

#include "cells.cuh"

/* Numbers go 1, 2, ... 2^32-1, 2, 3, ...: 0 is what clean memory says, and leaving 1 out as well
 * keeps generations taking turns across the wrap. */
LLANE_DEVICE uint32_t llane_ll_next_op(uint32_t op)
{
#ifdef LLANE_MUTATE_SKIP_ONE
    return op == 0xffffffffu ? 1 : op + 1;
#else
    return op == 0xffffffffu ? 2 : op + 1;
#endif
}

LLANE_DEVICE uint64_t llane_ll_generation_offset(uint32_t op, uint64_t slot_bytes)
{
#ifdef LLANE_MUTATE_ONE_GENERATION
    return 0 * op * slot_bytes;
#else
    return (op & 1) * slot_bytes;
#endif
}

LLANE_DEVICE void llane_ll_store(uint8_t *line, uint64_t payload, uint32_t flag)
{
    const uint64_t high_flag = (uint64_t)flag << 32;

    /* Pairs with llane_ll_gather at the slot's owner. */
    llane_store16(line, (payload & 0xffffffffu) | high_flag, payload >> 32 | high_flag);
}

LLANE_DEVICE bool llane_ll_is_here(uint64_t low, uint64_t high, uint32_t flag)
{
#if defined(LLANE_MUTATE_HALF_FLAG)
    (void)high;
    return (uint32_t)(low >> 32) == flag;
#elif defined(LLANE_MUTATE_ANY_FLAG)
    (void)flag;
    return (low >> 32) != 0 && (high >> 32) != 0;
#else
    return (uint32_t)(low >> 32) == flag && (uint32_t)(high >> 32) == flag;
#endif
}

/*
 * Polls up to N lines, all at once in each round, until every line whose bit is set in `missing` has
 * come; payloads of the others are left alone. at(i) is line i's address. False: stopped.
 */
template <int N, class ADDRESS>
LLANE_DEVICE bool llane_ll_gather(ADDRESS at, uint32_t missing, uint32_t flag,
                                  struct llane_poll *poll, uint64_t *payloads)
{
    while (missing != 0) {
        uint64_t low[N], high[N];

        LLANE_UNROLL
        for (int i = 0; i < N; i++) {
            low[i] = high[i] = 0;
            /* Pairs with llane_ll_store at the source, or with nothing yet. */
            if (missing & 1u << i)
                llane_load16(at(i), &low[i], &high[i]);
        }
        LLANE_UNROLL
        for (int i = 0; i < N; i++) {
            if ((missing & 1u << i) && llane_ll_is_here(low[i], high[i], flag)) {
                payloads[i] = (low[i] & 0xffffffffu) | high[i] << 32;
                missing &= ~(1u << i);
            }
        }
        if (missing != 0 && llane_poll_must_stop(poll))
            return false;
    }
    return true;
}

/*
 * The owner zeroes one stripe of each of its slots, in the operation's generation, behind the
 * n_lines that the operation uses. Operation after operation the stripe walks the whole generation,
 * so that no flag lives until its number comes round again. Grid threads share the lines.
 */
LLANE_DEVICE void llane_ll_clean(uint8_t *const *slots, uint32_t n_slots, uint32_t own,
                                 uint64_t slot_bytes, uint32_t op, uint32_t n_lines)
{
    const uint32_t lines_per_stripe = LLANE_STRIPE_BYTES / LLANE_LINE_BYTES;
    const uint32_t n_stripes = (uint32_t)(slot_bytes / LLANE_STRIPE_BYTES);
    const uint32_t first = (op >> 1) % n_stripes * lines_per_stripe;
    const uint64_t generation = llane_ll_generation_offset(op, slot_bytes);

    for (uint32_t i = llane_grid_thread(); i < n_slots * lines_per_stripe;
         i += llane_grid_threads()) {
        const uint32_t slot = i / lines_per_stripe;
        const uint32_t line = first + i % lines_per_stripe;

        /* Pairs with the source's llane_ll_store two operations later, which cannot begin before
         * this rank's next kernel. */
#ifdef LLANE_MUTATE_CLEAN_OWN
        if (slot != own)
#else
        if (slot != own && line >= n_lines)
#endif
            llane_store16(slots[slot] + generation + (uint64_t)line * LLANE_LINE_BYTES, 0, 0);
    }
}

#endif
