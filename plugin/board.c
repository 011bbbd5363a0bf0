#include "board.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "backoff.h"
#include "board_rendezvous.h"
#include "err.h"
#include "liveness.h"

/* ---- the memory ---- */

/* LAYOUT counts changes of what lies in the memory. Its size and struct board_shared down to verdict
 * never change: by them a rank with another layout can say no. */
enum { LAYOUT = 2, BOARD_BYTES = 1 << 20 };
static const uint64_t magic = 0x64726f62656e616cU;

enum place_state { PLACE_FREE = 0, PLACE_TAKEN = 1, PLACE_FILLED = 2 };

struct place {
    /* FREE -> TAKEN by compare-and-swap, one winner; FILLED publishes who. */
    _Alignas(LLANE_SWITCH_LINE_BYTES) _Atomic uint32_t state;
    struct llane_liveness who;
};

struct board_shared {
    _Atomic uint64_t magic; /* stored last by the creator, looked at first */
    uint32_t layout;
    uint32_t n_ranks;
    uint64_t build;
    _Alignas(LLANE_SWITCH_LINE_BYTES) _Atomic uint64_t verdict[LLANE_BOARD_STEPS];
    struct llane_switch sw;
    struct place places[LLANE_BOARD_MAX_RANKS];
    struct llane_presence presence[LLANE_BOARD_MAX_RANKS];
    struct llane_check check;
    /* Only pages that are written to take up memory. */
    unsigned char records[LLANE_BOARD_STEPS][LLANE_BOARD_MAX_RANKS][LLANE_BOARD_RECORD_BYTES];
};
_Static_assert(sizeof(struct place) == LLANE_SWITCH_LINE_BYTES, "a place has lines of its own");
_Static_assert(sizeof(struct board_shared) <= BOARD_BYTES, "all layouts have one size");
_Static_assert(offsetof(struct board_shared, verdict) == LLANE_SWITCH_LINE_BYTES, "in all layouts");

struct llane_board {
    _Atomic int references;
    struct board_shared *shared;
    struct llane_rendezvous meet; /* memory NULL: attached, the mapping is not ours */
    struct llane_rendezvous share;
    struct llane_board_key key;
    int n_ranks, rank; /* own copies: what others can write is not trusted */
    uint32_t voted;    /* a bit for each step */
    struct llane_liveness self;
};

/* ---- verdict words: state 2 bits, yes count 8 bits, [16] rank 16 bits, [32] reason 32 bits ---- */

enum verdict_state { VERDICT_OPEN = 0, VERDICT_YES = 1, VERDICT_NO = 2 };

static enum verdict_state verdict_state(uint64_t word)
{
    return (enum verdict_state)(word & 3);
}

static uint64_t verdict_no(int rank, uint32_t reason)
{
    return (uint64_t)reason << 32 | (uint64_t)(uint16_t)rank << 16 | VERDICT_NO;
}

/*
 * Labels. V1 (yes) and V2 (no) are read-modify-writes of one word, so that the voters' releases form
 * one sequence: V3 (read), acquiring the last of them, sees what every voter wrote before its vote:
 * its record, and its place.
 */
static void vote_yes(struct llane_board *board, int step)
{
    _Atomic uint64_t *word = &board->shared->verdict[step];
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed); /* V1 checks what this found */
    while (verdict_state(old) == VERDICT_OPEN) {
        uint64_t n_yes = (old >> 2 & 0xff) + 1;
        uint64_t state = n_yes == (uint64_t)board->n_ranks ? VERDICT_YES : VERDICT_OPEN;
        if (atomic_compare_exchange_weak_explicit(word, &old, n_yes << 2 | state, /* V1 */
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            return;
        }
    }
}

/* Returns the state the step is in now. */
static enum verdict_state vote_no(struct llane_board *board, int step, int rank, uint32_t reason)
{
    _Atomic uint64_t *word = &board->shared->verdict[step];
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed); /* V2 checks what this found */
    while (verdict_state(old) == VERDICT_OPEN) {
        if (atomic_compare_exchange_weak_explicit(word, &old, verdict_no(rank, reason), /* V2 */
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            return VERDICT_NO;
        }
    }
    return verdict_state(old);
}

/* Returns the state. */
static enum verdict_state read_verdict(struct llane_board *board, int step,
                                       struct llane_verdict *out)
{
    uint64_t word =
        atomic_load_explicit(&board->shared->verdict[step], memory_order_acquire); /* V3 */
    enum verdict_state state = verdict_state(word);
    *out = (struct llane_verdict){.is_yes = state == VERDICT_YES};
    if (state == VERDICT_NO) {
        out->rank = (int)(word >> 16 & 0xffff);
        out->reason = (uint32_t)(word >> 32);
    }
    return state;
}

/* ---- join ---- */

static int is_valid(const struct llane_board_args *args)
{
    return args->n_ranks >= 1 && args->n_ranks <= LLANE_BOARD_MAX_RANKS && args->rank >= 0 &&
           args->rank < args->n_ranks && args->record_bytes <= LLANE_BOARD_RECORD_BYTES;
}

/* L1 pairs with L2: whoever finds the magic finds the lines before it. */
static void make_board(struct board_shared *shared, const struct llane_board_args *args)
{
    shared->layout = LAYOUT;
    shared->n_ranks = (uint32_t)args->n_ranks;
    shared->build = args->build;
    atomic_store_explicit(&shared->magic, magic, memory_order_release); /* L1 */
}

static int is_board(struct llane_board *board)
{
    const struct board_shared *shared = board->shared;
    if (atomic_load_explicit(&shared->magic, memory_order_acquire) != magic) { /* L2 */
        return 0;
    }
    if (shared->layout != LAYOUT || shared->n_ranks != (uint32_t)board->n_ranks) {
        (void)vote_no(board, LLANE_BOARD_ARRIVAL, board->rank, LLANE_BOARD_BUILD);
        return 0;
    }
    return 1;
}

static int take_place(struct llane_board *board)
{
    struct place *place = &board->shared->places[board->rank];
    uint32_t expected = PLACE_FREE;
    /* Relaxed: it only chooses the one who writes the place. */
    if (!atomic_compare_exchange_strong_explicit(&place->state, &expected, PLACE_TAKEN,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return LLANE_EINVAL;
    }
    place->who = board->self;
    (void)llane_life_hold(&board->shared->presence[board->rank].life); /* else only `who` tells */
    /* F1 pairs with F2 in is_filled. */
    atomic_store_explicit(&place->state, PLACE_FILLED, memory_order_release);
    return 0;
}

/* The board has its memory; on failure it has it still. */
static int arrive(struct llane_board *board, int is_new, const struct llane_board_args *args)
{
    if (is_new) {
        make_board(board->shared, args);
    } else if (!is_board(board)) {
        return LLANE_EREFUSED;
    }
    int rc = take_place(board);
    if (rc == 0) {
        uint32_t reason =
            board->shared->build == args->build ? LLANE_BOARD_AGREED : LLANE_BOARD_BUILD;
        llane_board_vote(board, LLANE_BOARD_ARRIVAL, reason, args->record, args->record_bytes);
    }
    return rc;
}

static struct llane_board *new_board(const struct llane_board_args *args)
{
    struct llane_board *board = calloc(1, sizeof(*board));
    if (board != NULL) {
        atomic_init(&board->references, 1);
        board->n_ranks = args->n_ranks;
        board->rank = args->rank;
        board->meet.listener = board->share.listener = -1;
        board->meet.memory_fd = board->share.memory_fd = -1;
        board->key = args->key;
        llane_liveness_self(&board->self);
    }
    return board;
}

int llane_board_join(const struct llane_board_args *args, const _Atomic int *cancel,
                     struct llane_board **out)
{
    if (!is_valid(args)) {
        return LLANE_EINVAL;
    }
    struct llane_board *board = new_board(args);
    if (board == NULL) {
        return LLANE_ENOMEM;
    }
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    llane_rendezvous_name(args->key.comm_id, geteuid(), args->n_ranks, name);
    int rc = llane_rendezvous_find(name, BOARD_BYTES, cancel, &board->meet);
    if (rc != 0) {
        goto undo_board;
    }
    board->shared = board->meet.memory;
    rc = arrive(board, board->meet.is_creator, args);
    if (rc != 0) {
        goto undo_meet;
    }
    *out = board;
    return 0;

undo_meet:
    llane_rendezvous_end(&board->meet);
undo_board:
    free(board);
    return rc;
}

size_t llane_board_bytes(void)
{
    return BOARD_BYTES;
}

int llane_board_attach(void *memory, int is_new, const struct llane_board_args *args,
                       struct llane_board **out)
{
    if (!is_valid(args)) {
        return LLANE_EINVAL;
    }
    struct llane_board *board = new_board(args);
    if (board == NULL) {
        return LLANE_ENOMEM;
    }
    board->shared = memory;
    int rc = arrive(board, is_new, args);
    if (rc != 0) {
        free(board);
        return rc;
    }
    *out = board;
    return 0;
}

/* ---- the others ---- */

static int is_filled(struct llane_board *board, int rank)
{
    /* F2 pairs with F1. */
    return atomic_load_explicit(&board->shared->places[rank].state, memory_order_acquire) ==
           PLACE_FILLED;
}

int llane_board_is_gone(struct llane_board *board, int rank, enum llane_board_look look)
{
    if (rank == board->rank || !is_filled(board, rank)) {
        return 0;
    }
    struct llane_liveness who = board->shared->places[rank].who;
    return llane_life_is_over(&board->shared->presence[rank].life) ||
           (look == LLANE_BOARD_THOROUGH && llane_liveness_is_ending(&board->self, &who));
}

int llane_board_find_gone(struct llane_board *board)
{
    int r = 0;
    while (r < board->n_ranks && !llane_board_is_gone(board, r, LLANE_BOARD_THOROUGH)) {
        r++;
    }
    return r < board->n_ranks ? r : -1;
}

static void refuse_for_the_dead(struct llane_board *board, int step)
{
    int gone = llane_board_find_gone(board);
    if (gone >= 0) {
        (void)vote_no(board, step, gone, LLANE_BOARD_DIED);
    }
}

/* ---- steps ---- */

void llane_board_vote(struct llane_board *board, int step, uint32_t reason, const void *record,
                      size_t record_bytes)
{
    uint32_t bit = (uint32_t)1 << step;
    if ((board->voted & bit) != 0) {
        return; /* a second yes would count for a rank that has not voted */
    }
    board->voted |= bit;
    if (reason != LLANE_BOARD_AGREED) {
        refuse_for_the_dead(board, step); /* what failed here may have needed one of them */
        (void)vote_no(board, step, board->rank, reason);
        return;
    }
    if (record != NULL && record_bytes <= LLANE_BOARD_RECORD_BYTES) {
        memcpy(board->shared->records[step][board->rank], record, record_bytes);
    }
#ifdef __SANITIZE_THREAD__
    /* Who finds the switch confirmed sees what this rank did before its vote, by way of rank 0's helper,
     * which may be another process's: there the sanitizer does not look. */
    __tsan_release(&board->shared->sw);
#endif
    vote_yes(board, step);
}

void llane_board_refuse(struct llane_board *board, int step, uint32_t reason)
{
    board->voted |= (uint32_t)1 << step;
    (void)vote_no(board, step, board->rank, reason);
}

int32_t llane_board_pid(struct llane_board *board, int rank)
{
    return is_filled(board, rank) ? board->shared->places[rank].who.pid : 0;
}

enum { LOOK_FOR_THE_DEAD_US = 50000 };

int llane_board_wait(struct llane_board *board, int step, const _Atomic int *cancel,
                     struct llane_verdict *out)
{
    struct llane_backoff backoff = {0};
    long looked_us = 0;
    for (;;) {
        enum verdict_state state = read_verdict(board, step, out);
        if (state != VERDICT_OPEN) {
            if (state == VERDICT_YES) {
                llane_rendezvous_stop(&board->meet); /* all are here */
            }
            llane_rendezvous_stop(&board->share); /* all have it, or nobody needs it any more */
            return 0;
        }
        if (llane_is_canceled(cancel)) {
            return LLANE_ECANCELED;
        }
        llane_rendezvous_serve(&board->meet);
        llane_rendezvous_serve(&board->share);
        if (backoff.slept_us - looked_us >= LOOK_FOR_THE_DEAD_US) {
            looked_us = backoff.slept_us;
            refuse_for_the_dead(board, step);
        }
        llane_backoff_sleep(&backoff);
    }
}

static int has_all(struct llane_board *board)
{
    for (int r = 0; r < board->n_ranks; r++) {
        if (!is_filled(board, r)) {
            return 0;
        }
    }
    return 1;
}

int llane_board_linger(struct llane_board *board, const _Atomic int *cancel)
{
    struct llane_backoff backoff = {0};
    while (board->meet.listener >= 0 && !has_all(board)) {
        if (llane_is_canceled(cancel)) {
            return LLANE_ECANCELED;
        }
        llane_rendezvous_serve(&board->meet);
        llane_backoff_sleep(&backoff);
    }
    llane_rendezvous_stop(&board->meet);
    return 0;
}

int llane_board_record(struct llane_board *board, int step, int rank, void *out, size_t bytes)
{
    struct llane_verdict verdict;
    if (step < 0 || step >= LLANE_BOARD_STEPS || rank < 0 || rank >= board->n_ranks ||
        bytes > LLANE_BOARD_RECORD_BYTES || read_verdict(board, step, &verdict) != VERDICT_YES) {
        return LLANE_EINVAL;
    }
    memcpy(out, board->shared->records[step][rank], bytes);
    return 0;
}

int llane_board_share(struct llane_board *board, size_t bytes, const _Atomic int *cancel,
                      void **out)
{
    /* Another name than the board's; as hard to guess. */
    const uint64_t id[2] = {~board->key.comm_id[0], ~board->key.comm_id[1]};
    char name[LLANE_RENDEZVOUS_NAME_BYTES];
    llane_rendezvous_name(id, geteuid(), board->n_ranks, name);
    int rc = llane_rendezvous_find(name, bytes, cancel, &board->share);
    if (rc == 0) {
        *out = board->share.memory;
        board->share.memory = NULL; /* the caller's now */
    }
    return rc;
}

struct llane_switch *llane_board_switch(struct llane_board *board)
{
    return &board->shared->sw;
}

struct llane_check *llane_board_check(struct llane_board *board)
{
    return &board->shared->check;
}

struct llane_presence *llane_board_presence(struct llane_board *board, int rank)
{
    return &board->shared->presence[rank];
}

int llane_board_is_unused(struct llane_board *board)
{
    for (int r = 0; r < board->n_ranks; r++) {
        struct llane_liveness who = board->shared->places[r].who;
        /* Acquire pairs with collect in staging.c. A process that is being taken down may have kernels
         * still; one that is gone has none. */
        if (atomic_load_explicit(&board->shared->presence[r].is_using, memory_order_acquire) &&
            (r == board->rank || !llane_liveness_is_gone(&board->self, &who))) {
            return 0;
        }
    }
    return 1;
}

void llane_board_hold(struct llane_board *board)
{
    /* Relaxed: the caller has a reference. */
    atomic_fetch_add_explicit(&board->references, 1, memory_order_relaxed);
}

static void refuse_what_is_open(struct llane_board *board)
{
    int step = 0;
    /* Refusing and looking are one access: a step may become YES at any moment before. */
    while (step < LLANE_BOARD_STEPS &&
           vote_no(board, step, board->rank, LLANE_BOARD_LEFT) == VERDICT_YES) {
        step++;
    }
}

void llane_board_leave(struct llane_board *board)
{
    if (board == NULL) {
        return;
    }
    int is_owner = board->self.pid == (int32_t)getpid();
    if (is_owner) {
        refuse_what_is_open(board);
    }
    /* Acquire-release: the last one comes after all that the others did. */
    if (atomic_fetch_sub_explicit(&board->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (is_owner) {
        llane_life_release(&board->shared->presence[board->rank].life);
    }
    llane_rendezvous_end(&board->share);
    llane_rendezvous_end(&board->meet);
    free(board);
}
