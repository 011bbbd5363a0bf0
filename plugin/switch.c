#include "switch.h"

#include "backoff.h"
#include "err.h"

/*
 * Test builds put random delays at the places where another thread's step would hurt most.
 * The LLANE_MUTATE_* switches break the protocol on purpose; tests/unit/test_switch_mutants.sh wants
 * the stress test to notice each of them.
 */
#ifdef LLANE_SWITCH_PAUSE
void LLANE_SWITCH_PAUSE(void);
#define PAUSE() LLANE_SWITCH_PAUSE()
#else
#define PAUSE() ((void)0)
#endif

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "words shared by processes must be lock-free");
_Static_assert(sizeof(((struct llane_switch *)0)->begun[0]) == LLANE_SWITCH_LINE_BYTES,
               "each rank's number has its own lines");

/* Far beyond any real call number, so that S and its margin never reach the state bits. */
static const uint64_t max_number = (uint64_t)1 << 60;

static uint64_t make_word(enum llane_switch_state state, uint64_t s)
{
    return s << 2 | (uint64_t)state;
}

/*
 * Labels. B1 (post) and B2 (look) in a rank, P1 (propose) and P2 (re-read) in the proposer are the
 * two halves of one store-then-load pair: all four are sequentially consistent, so B2 sees P1 or P2
 * sees B1. C1 (cancel), P3 (confirm) and G1 (give up) are compare-and-swaps on one word: one wins.
 */
enum llane_switch_answer llane_switch_begin_unsettled(struct llane_switch *sw, int rank,
                                                      uint64_t call_number)
{
#ifndef LLANE_MUTATE_SWITCH_POST_LATE
    atomic_store_explicit(&sw->begun[rank].posted, call_number + 1, memory_order_seq_cst); /* B1 */
    PAUSE();
#endif
    uint64_t word = atomic_load_explicit(&sw->word, memory_order_seq_cst); /* B2 */
#ifdef LLANE_MUTATE_SWITCH_POST_LATE
    PAUSE();
    atomic_store_explicit(&sw->begun[rank].posted, call_number + 1, memory_order_seq_cst);
#endif
    for (;;) {
        enum llane_switch_state state = llane_switch_state(word);
        uint64_t s = llane_switch_number(word);
        if (state == LLANE_SWITCH_CONFIRMED) {
            return call_number >= s ? LLANE_SWITCH_LIVE : LLANE_SWITCH_NOT_YET;
        }
        if (state != LLANE_SWITCH_PROPOSED || call_number < s) {
            return LLANE_SWITCH_NOT_YET;
        }
#ifdef LLANE_MUTATE_SWITCH_NO_CANCEL
        return LLANE_SWITCH_NOT_YET;
#endif
        PAUSE();
        /* C1. Failing, it loads the word anew; a later round has read our number, so its S is
         * beyond this call and the loop ends there, as it does at NEVER. */
        if (atomic_compare_exchange_strong_explicit(&sw->word, &word,
                                                    make_word(LLANE_SWITCH_CANCELLED, s),
                                                    memory_order_seq_cst, memory_order_seq_cst)) {
            return LLANE_SWITCH_NOT_YET;
        }
    }
}

void llane_switch_uncount(struct llane_switch *sw, int rank, uint64_t call_number)
{
    /* As B1. That a proposal may now pass below call_number is what claim 4 allows. */
    atomic_store_explicit(&sw->begun[rank].posted, call_number, memory_order_seq_cst);
}

void llane_switch_stand_by(struct llane_switch *sw, int rank, uint64_t last_number)
{
    /* As B1, without a look at the word: the call that waits begins later, and looks then. */
    atomic_store_explicit(&sw->begun[rank].posted, last_number + 1, memory_order_seq_cst);
}

/* Returns 0 while some rank has posted nothing. Used before P1 and as P2. */
static int read_highest(struct llane_switch *sw, int n_ranks, uint64_t *highest_out)
{
    uint64_t highest = 0;
    for (int r = 0; r < n_ranks; r++) {
        uint64_t posted = atomic_load_explicit(&sw->begun[r].posted, memory_order_seq_cst);
        if (posted == 0) {
            return 0;
        }
        highest = posted - 1 > highest ? posted - 1 : highest;
    }
    *highest_out = highest;
    return 1;
}

/* One round. 1: S is confirmed. 0: it was cancelled, or the switch was given up. */
static int try_number(struct llane_switch *sw, int n_ranks, uint64_t s)
{
    uint64_t proposed = make_word(LLANE_SWITCH_PROPOSED, s);
    /* OPEN or CANCELLED, which only the proposer leaves, but for who gives up: relaxed, P1 checks it. */
    uint64_t word = atomic_load_explicit(&sw->word, memory_order_relaxed);
    PAUSE();
#ifndef LLANE_MUTATE_SWITCH_PROPOSE_ANEW
    if (llane_switch_state(word) == LLANE_SWITCH_CONFIRMED ||
        !atomic_compare_exchange_strong_explicit(&sw->word, &word, proposed, memory_order_seq_cst,
                                                 memory_order_relaxed)) { /* P1 */
        return 0;
    }
#else
    (void)word;
    atomic_store_explicit(&sw->word, proposed, memory_order_seq_cst);
#endif
    PAUSE();
    uint64_t highest = 0;
#ifndef LLANE_MUTATE_SWITCH_NO_REREAD
    int all_posted = read_highest(sw, n_ranks, &highest); /* P2 */
#else
    int all_posted = n_ranks > 0;
#endif
    PAUSE();
    enum llane_switch_state next =
        all_posted && highest < s ? LLANE_SWITCH_CONFIRMED : LLANE_SWITCH_CANCELLED;
    /* P3 pairs with C1, and with every rank's acquire of the word (claim 6). */
    int is_ours = atomic_compare_exchange_strong_explicit(
        &sw->word, &proposed, make_word(next, s), memory_order_seq_cst, memory_order_seq_cst);
    return is_ours && next == LLANE_SWITCH_CONFIRMED;
}

int llane_switch_propose(struct llane_switch *sw, int n_ranks, const _Atomic int *cancel,
                         uint64_t *s_out)
{
    struct llane_backoff backoff = {0};
    uint64_t margin = 0;
    uint64_t last_s = 0;
    for (;;) {
        uint64_t highest;
#ifndef LLANE_MUTATE_SWITCH_PROPOSE_ANEW
        if (llane_switch_is_confirmed(sw, s_out)) {
            return 0; /* given up */
        }
#endif
        if (llane_is_canceled(cancel)) {
            return LLANE_ECANCELED;
        }
        if (read_highest(sw, n_ranks, &highest)) {
            if (highest > max_number) {
                return LLANE_EINVAL;
            }
            uint64_t s = 1 + highest + margin;
            s = s > last_s ? s : last_s + 1; /* uncount can lower `highest`: keep values unique */
            if (try_number(sw, n_ranks, s)) {
                *s_out = s;
                return 0;
            }
            last_s = s;
            margin = margin == 0 ? 1 : 2 * margin;
            margin = margin < LLANE_SWITCH_MAX_MARGIN ? margin : LLANE_SWITCH_MAX_MARGIN;
            backoff = (struct llane_backoff){0}; /* the ranks are busy calling: look again soon */
        }
        llane_backoff_sleep(&backoff);
    }
}

int llane_switch_give_up(struct llane_switch *sw)
{
    uint64_t word = atomic_load_explicit(&sw->word, memory_order_acquire);
    while (llane_switch_state(word) != LLANE_SWITCH_CONFIRMED) {
        PAUSE();
        /* G1, against C1, P1 and P3: one of them wins. */
        if (atomic_compare_exchange_weak_explicit(
                &sw->word, &word, make_word(LLANE_SWITCH_CONFIRMED, LLANE_SWITCH_NEVER),
                memory_order_seq_cst, memory_order_acquire)) {
            return 1;
        }
    }
    return llane_switch_number(word) == LLANE_SWITCH_NEVER;
}

int llane_switch_is_confirmed(struct llane_switch *sw, uint64_t *s_out)
{
    /* Acquire: pairs with P3, as in begin. */
    uint64_t word = atomic_load_explicit(&sw->word, memory_order_acquire);
    if (llane_switch_state(word) != LLANE_SWITCH_CONFIRMED) {
        return 0;
    }
    *s_out = llane_switch_number(word);
    return 1;
}
