/*
 * switch: from which all-reduce call number on the lane carries the calls of a communicator.
 *
 * Owns: struct llane_switch, which lies on the board: one word that all ranks read, and for each rank
 * the number of the call it begins. Numbers are per communicator, from 1, the same on every rank.
 * Threads: begin, uncount and stand_by by the rank's user thread (NCCL wants the calls of one
 * communicator serialised); propose by rank 0's helper thread alone; give_up by any.
 * Blocking: only propose, which sleeps and polls. begin is wait-free: it goes round its loop at most
 * twice.
 * Errors: propose: LLANE_ECANCELED, LLANE_EINVAL (a posted number makes no sense).
 *
 * The word:  OPEN -> PROPOSED(S) -> CONFIRMED(S), which is final,
 *                       PROPOSED(S) -> CANCELLED(S) -> PROPOSED(S'), S' > S,
 *            all but CONFIRMED -> CONFIRMED(NEVER), when a rank is gone before an S was confirmed.
 * Only the proposer writes PROPOSED and CONFIRMED(S); anyone may cancel or give up. All moves are
 * compare-and-swaps.
 *
 * Claim: every rank sends calls below S to NCCL and calls from S on over the lane, for one S.
 *  1. CONFIRMED is never left, so there is at most one such S. NEVER is beyond every call.
 *  2. Before confirming S, after PROPOSED(S) was stored, the proposer read from each rank r a number
 *     begun[r] < S. Take a call k >= S of rank r. Its post "begun[r] = k" comes later than that read,
 *     in the one order that all sequentially consistent accesses have, because numbers do not fall
 *     (uncount: see 4). r loads the word after its post, so it finds PROPOSED(S) or what followed.
 *     If PROPOSED(S): r's compare-and-swap to CANCELLED either succeeds, then S is never confirmed,
 *     or fails because S was confirmed first (LIVE) or cancelled (then S is not confirmed).
 *     So if S is confirmed, r answers LIVE for k.
 *  3. For a call k < S no rank ever answers LIVE: LIVE needs CONFIRMED(S) and k >= S.
 *  4. uncount lowers begun[r] to k-1 when call k came to nothing, or k and all after it: NCCL refused
 *     it, or its group launched nothing. What counts is the attempt at k that is carried out: its post
 *     comes after every uncount of k, and from it on begun[r] >= k, so 2 holds for it. Another attempt
 *     moved no data; if it cancelled a proposal, that costs a round; if it was answered LIVE, the next
 *     call may be below S and asks anew.
 *  5. Calls made before the rank had the board posted nothing. The proposer waits until each rank's
 *     user thread has posted once: whatever went by before is below that post, hence below S.
 *  6. A rank that answers LIVE has acquired CONFIRMED, which the proposer wrote after reading the
 *     last verdict YES, which includes this rank's own vote: all that its helper thread wrote before
 *     that vote (the lane) is visible to its user thread.
 * No ABA: each S' is larger than the S before it, so a word value never comes back, and a slow rank's
 * compare-and-swap can only hit the round that it looked at.
 */
#ifndef LLANE_SWITCH_H
#define LLANE_SWITCH_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    LLANE_SWITCH_MAX_RANKS = 16,
    LLANE_SWITCH_LINE_BYTES = 128, /* two lines: processors fetch them in pairs */
    LLANE_SWITCH_MAX_MARGIN = 1024,
};
#define LLANE_SWITCH_NEVER (UINT64_MAX >> 2) /* S of a switch that was given up */

/* In shared memory; all zero is the initial state. */
struct llane_switch {
    _Alignas(
        LLANE_SWITCH_LINE_BYTES) _Atomic uint64_t word; /* state in the low 2 bits, above it S */
    struct {
        /* 0: nothing yet; else 1 + the number of the call this rank begins. Written by its rank. */
        _Alignas(LLANE_SWITCH_LINE_BYTES) _Atomic uint64_t posted;
    } begun[LLANE_SWITCH_MAX_RANKS];
};

enum llane_switch_state {
    LLANE_SWITCH_OPEN = 0,
    LLANE_SWITCH_PROPOSED = 1,
    LLANE_SWITCH_CONFIRMED = 2,
    LLANE_SWITCH_CANCELLED = 3,
};

enum llane_switch_answer { LLANE_SWITCH_NOT_YET, LLANE_SWITCH_LIVE };

static inline enum llane_switch_state llane_switch_state(uint64_t word)
{
    return (enum llane_switch_state)(word & 3);
}

static inline uint64_t llane_switch_number(uint64_t word)
{
    return word >> 2;
}

/* begin while the word is not final: posts the number, reads the word, cancels what it overtook. */
enum llane_switch_answer llane_switch_begin_unsettled(struct llane_switch *sw, int rank,
                                                      uint64_t call_number);

/* The rank begins this call: may the lane carry it? Before anything else is done for the call. */
static inline enum llane_switch_answer llane_switch_begin(struct llane_switch *sw, int rank,
                                                          uint64_t call_number)
{
    /* Acquire: pairs with the proposer's CONFIRMED (claim 6). Final, so no post is needed any more. */
    uint64_t word = atomic_load_explicit(&sw->word, memory_order_acquire);
    if (llane_switch_state(word) == LLANE_SWITCH_CONFIRMED) {
        return call_number >= llane_switch_number(word) ? LLANE_SWITCH_LIVE : LLANE_SWITCH_NOT_YET;
    }
    return llane_switch_begin_unsettled(sw, rank, call_number);
}

/*
 * The calls begun from this number on came to nothing (NCCL refused the latest, or the group in which
 * they were begun was given up): it is the next call's. Before the next begin.
 */
void llane_switch_uncount(struct llane_switch *sw, int rank, uint64_t call_number);

/*
 * LLANE_WAIT: the user thread is about to wait inside call `last_number + 1` and has begun nothing
 * beyond last_number (0: no call at all). Lets the proposer choose S without another call of ours.
 */
void llane_switch_stand_by(struct llane_switch *sw, int rank, uint64_t last_number);

/*
 * Rank 0's helper, once, after the last verdict was YES. Returns when S is confirmed, or NEVER; waits
 * for every rank's first post, without limit. cancel may be NULL.
 */
int llane_switch_propose(struct llane_switch *sw, int n_ranks, const _Atomic int *cancel,
                         uint64_t *s_out);

/* No call will be the lane's, on any rank, unless S is confirmed. 1: it is given up; 0: it was confirmed
 * before. */
int llane_switch_give_up(struct llane_switch *sw);

/* 1 and S, or NEVER, once the switch is final, else 0; for those who wait or report. Any thread. */
int llane_switch_is_confirmed(struct llane_switch *sw, uint64_t *s_out);

#endif
