/*
 * board: the small memory in which the ranks of one communicator on one host agree. Each step of
 * set-up ends with one verdict word that moves once, OPEN -> YES or OPEN -> NO, and that all ranks
 * read: no two of them can leave a step with different answers, and none decides alone.
 *
 * A rank joins (which is its vote on step 0: YES there means that all ranks are on this board), then
 * for step 1, 2, ... votes and waits. Each vote may carry a record for the others. Any rank may
 * refuse a step that is still open, also after it voted yes: nobody has acted on the verdict yet.
 *
 * Owns: the mapping, and while ranks are missing the socket (board_rendezvous.h).
 * Threads: everything by the rank's helper thread, one at a time; llane_board_switch()'s words are
 * shared with the user thread. Blocking: join, wait and linger sleep and poll until `cancel` (may be
 * NULL) is set; arrival has no deadline. Nothing else blocks.
 * Errors: LLANE_ECANCELED; join: also LLANE_EINVAL (this rank's place is taken, too), LLANE_ENOMEM,
 * LLANE_ESYS (errno tells) and LLANE_EREFUSED (another llane, with another layout of the board; it
 * was refused for the others too, with LLANE_BOARD_BUILD).
 *
 * Trust: whoever can write here runs as the same user. Records are therefore copied out before use
 * and their reader checks them; nothing read here is used as an index or a size.
 */
#ifndef LLANE_BOARD_H
#define LLANE_BOARD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "life.h"
#include "switch.h"

enum {
    LLANE_BOARD_MAX_RANKS = LLANE_SWITCH_MAX_RANKS,
    LLANE_BOARD_STEPS = 32,
    LLANE_BOARD_ARRIVAL = 0, /* the first step */
    LLANE_BOARD_RECORD_BYTES = 1024,
};

/* Reasons for a NO that the board itself gives; the caller's start at LLANE_BOARD_REASON_FIRST. */
enum {
    LLANE_BOARD_AGREED = 0,
    LLANE_BOARD_DIED = 1,  /* the verdict's rank is a process that is gone */
    LLANE_BOARD_LEFT = 2,  /* the verdict's rank left before the step was decided */
    LLANE_BOARD_BUILD = 3, /* the verdict's rank runs another build than the board's creator */
    LLANE_BOARD_REASON_FIRST = 16,
};

/* Known to all ranks of the communicator and to nobody else. */
struct llane_board_key {
    uint64_t comm_id[2];
};

struct llane_board_args {
    struct llane_board_key key;
    uint64_t build; /* equal for all ranks, or arrival ends with NO, LLANE_BOARD_BUILD */
    int n_ranks, rank;
    const void *record; /* the record of step 0; may be NULL */
    size_t record_bytes;
};

struct llane_verdict {
    int is_yes;
    int rank;        /* NO: who refused, or about whom it was refused */
    uint32_t reason; /* 0: YES */
};

/*
 * What a rank tells of itself from its arrival on, in lines of its own, which nobody else writes but
 * the kernel. PRESENT until the communicator ends on that rank: LEFT when it was finalized or
 * destroyed, ABORTED also when it was revoked or has no lane after all, EXITED when the process came
 * to its regular end before that.
 */
enum llane_presence_state {
    LLANE_PRESENT,
    LLANE_PRESENCE_LEFT,
    LLANE_PRESENCE_ABORTED,
    LLANE_PRESENCE_EXITED,
};
struct llane_presence {
    _Alignas(LLANE_SWITCH_LINE_BYTES) struct llane_life life;
    _Atomic uint32_t state;
    _Atomic uint32_t is_using;      /* its kernels may still write to other ranks' staging memory */
    _Atomic uint64_t n_operations;  /* the lane's, launched outside of captures */
    _Atomic uint64_t number, bytes; /* the last one's all-reduce number and size */
};

struct llane_board;

/* Finds or makes the board, posts the record, votes on step 0. Does not wait for the others. */
int llane_board_join(const struct llane_board_args *args, const _Atomic int *cancel,
                     struct llane_board **out);

/*
 * This rank's vote on a step: reason 0 is yes. Once a step, in order, after the step before was YES;
 * a vote on a step that is decided changes nothing. Before a no of its own it says no on behalf of a rank
 * that is gone. record (may be NULL, at most LLANE_BOARD_RECORD_BYTES) can be read by all once the step
 * is YES.
 */
void llane_board_vote(struct llane_board *board, int step, uint32_t reason, const void *record,
                      size_t record_bytes);

/* Makes an open step NO, whatever this rank voted (a deadline passed, the communicator ended). */
void llane_board_refuse(struct llane_board *board, int step, uint32_t reason);

/*
 * Until the step is decided. Lets further ranks in while step 0 is open. Refuses on behalf of a rank
 * whose process is gone (seen within 0.1 s or so, in one pid namespace).
 */
int llane_board_wait(struct llane_board *board, int step, const _Atomic int *cancel,
                     struct llane_verdict *out);

/*
 * After a NO: goes on letting ranks in, so that late ones read the NO and its reason too instead of
 * waiting on a board of their own. Returns when all came; at once on all but the creator.
 */
int llane_board_linger(struct llane_board *board, const _Atomic int *cancel);

/* Copies a rank's record of a step. LLANE_EINVAL unless that step is YES. */
int llane_board_record(struct llane_board *board, int step, int rank, void *out, size_t bytes);

/*
 * A further memory of all ranks, zero at first, of a size that they agree on: found as the board was, and
 * handed on while this rank waits for a step, up to the first verdict. Once, after step 0 was YES. The
 * mapping is the caller's for good. LLANE_ECANCELED, LLANE_ESYS, LLANE_ENOMEM.
 */
int llane_board_share(struct llane_board *board, size_t bytes, const _Atomic int *cancel,
                      void **out);

/* The words of the switch, valid until leave. */
struct llane_switch *llane_board_switch(struct llane_board *board);

/* What the ranks said of their calls, likewise. Any thread. */
struct llane_check *llane_board_check(struct llane_board *board);

/* A rank's words, likewise. Any thread. */
struct llane_presence *llane_board_presence(struct llane_board *board, int rank);
/* Its process, as it told at its arrival; 0: it has not arrived. Any thread. */
int32_t llane_board_pid(struct llane_board *board, int rank);
/* 1: the rank's process has certainly ended, or is being taken down. QUICK reads a word that the kernel
 * writes; THOROUGH also asks /proc, which knows more where that word could not be had, and of a core
 * that is being written. Any thread. */
enum llane_board_look { LLANE_BOARD_QUICK, LLANE_BOARD_THOROUGH };
int llane_board_is_gone(struct llane_board *board, int rank, enum llane_board_look look);
/* A rank that is gone, by THOROUGH; -1: there is none. Any thread. */
int llane_board_find_gone(struct llane_board *board);
/* 1: no rank's kernels write to staging memory of others any more. Any thread. */
int llane_board_is_unused(struct llane_board *board);

/* The mapping stays until there were as many leaves as joins and holds. */
void llane_board_hold(struct llane_board *board);

/*
 * Refuses the first step that is not YES (all ranks read LLANE_BOARD_LEFT if it was open); the last one
 * unmaps. The user thread must be past its last llane_switch_begin. In a forked child it only unmaps.
 * NULL is allowed.
 */
void llane_board_leave(struct llane_board *board);

/*
 * join on memory found in another way (tests: one mapping for all ranks, where a thread sanitizer
 * can see the words). is_new: the memory is zero and this call makes it a board.
 */
size_t llane_board_bytes(void);
int llane_board_attach(void *memory, int is_new, const struct llane_board_args *args,
                       struct llane_board **out);

#endif
