/*
 * comm: what llane knows of one NCCL communicator, and the table that finds it by handle.
 *
 * Owns: struct llane_comm, counted references (the table's, the set-up thread's), and the table.
 * Threads: find is lock-free from any thread; a communicator's call state is under its lock, which
 * only misuse or an abort contends. Blocking: no. Errors: NULL where memory is out (NCCL carries).
 */
#ifndef LLANE_COMM_H
#define LLANE_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "board.h"
#include "lane.h"
#include "real_nccl.h"
#include "route.h"
#include "switch.h"

enum llane_comm_state {
    LLANE_COMM_NEW,        /* no all-reduce yet */
    LLANE_COMM_SETTING_UP, /* the helper thread works; the switch word may go live at any call */
    LLANE_COMM_LIVE,       /* lane is valid and every call is routed */
    LLANE_COMM_INACTIVE,   /* NCCL for good; inactive_reason says why */
};

/* Why a communicator has no lane; X(name, text). The order is part of the board's layout. */
#define LLANE_INACTIVE_REASONS(X)                                                                  \
    X(NONE, "")                                                                                    \
    X(ONE_RANK, "one rank")                                                                        \
    X(TOO_MANY_RANKS, "more than 16 ranks")                                                        \
    X(NO_ID, "no communicator id before NCCL 2.28 under this door; LD_PRELOAD of "                 \
             "libnccl-tuner-llane.so gives one")                                                   \
    X(NOT_READY, "NCCL does not answer for it")                                                    \
    X(CANCELED, "it ended during set-up")                                                          \
    X(BOARD, "ranks could not meet on this host")                                                  \
    X(RECORD, "a peer's record makes no sense")                                                    \
    X(BUILD, "ranks run different builds of llane")                                                \
    X(KERNEL, "a kernel does not load")                                                            \
    X(STAGING, "no device memory for staging")                                                     \
    X(STAGING_CAP, "LLANE_MAX_STAGING reached")                                                    \
    X(NO_BLOCKS, "not enough multiprocessors for all ranks' blocks at once")                       \
    X(PEER, "a peer's memory does not open")                                                       \
    X(PROBE, "the probe of peer memory failed")                                                    \
    X(DIED, "a rank died during set-up")                                                           \
    X(LEFT, "a rank ended the communicator during set-up")                                         \
    X(INTERNAL, "a system call failed")

enum llane_inactive_reason {
#define LLANE_REASON_MEMBER(name, text) LLANE_INACTIVE_##name,
    LLANE_INACTIVE_REASONS(LLANE_REASON_MEMBER)
#undef LLANE_REASON_MEMBER
        LLANE_N_INACTIVE_REASONS
};
const char *llane_inactive_text(int reason);

struct llane_comm {
    ncclComm_t handle;
    const struct llane_nccl *nccl;
    _Atomic int references;

    /* Set once before the state leaves NEW. */
    int n_ranks, rank, device;
    size_t handle_bytes; /* of NCCL's allocation, which holds the tuner context's slot */
    struct llane_board_key key;
    int has_key;
    int max_ctas; /* config.maxCTAs at creation, 0 if unknown */

    pthread_mutex_t lock; /* over everything below, but for the atomics */
    /* Written by the set-up thread (INACTIVE) and under the lock; read by every call. */
    _Atomic int state;
    _Atomic int inactive_reason;
    uint64_t n_all_reduces; /* begun and not refused by NCCL */
    uint64_t n_splits;
    int is_dead_logged;

    /* Published by the set-up thread before its last vote, hence before the switch is confirmed. */
    struct llane_board *board;
    struct llane_switch *_Atomic switch_word;
    struct llane_lane *_Atomic lane;
    _Atomic int cancel;     /* the communicator ended: the set-up thread leaves */
    _Atomic int is_settled; /* the set-up thread has no more to do: LIVE or INACTIVE is decided */

    struct {
        uint64_t calls, bytes;
    } stats[LLANE_N_ROUTES];

    struct llane_comm *next_in_all; /* list of all, for exit */
};

/* NULL if llane has not met the handle. */
struct llane_comm *llane_comm_find(ncclComm_t handle);

/*
 * Enters a handle. A communicator that still stands under this address is dropped first: it ended
 * without llane being told. key may be NULL.
 */
struct llane_comm *llane_comm_add(const struct llane_nccl *nccl, ncclComm_t handle,
                                  const struct llane_board_key *key, int max_ctas);

/*
 * Takes the communicator out of the table; ends its set-up. is_abort: spinning kernels end at once.
 * NULL-safe for unknown handles.
 */
void llane_comm_drop(ncclComm_t handle, int is_abort);

/* Drops whatever communicator holds this address inside its allocation (a tuner context's slot). */
void llane_comm_drop_containing(const void *slot);

void llane_comm_hold(struct llane_comm *comm);
void llane_comm_release(struct llane_comm *comm);

void llane_comm_set_inactive(struct llane_comm *comm, enum llane_inactive_reason reason);

/* Calls visit for every communicator in the table; for exit. */
void llane_comm_for_all(void (*visit)(struct llane_comm *comm));

#endif
