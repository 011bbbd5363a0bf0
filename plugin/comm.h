/*
 * comm: what llane knows of one NCCL communicator, and the table that finds it by handle.
 *
 * Owns: struct llane_comm, counted references (the table's, the set-up thread's, one a call under
 * way), and the table. A struct is used again for another communicator, never freed: a look-up that
 * lost a race against an abort reads a struct, not freed memory.
 * Threads: acquire is lock-free from any thread; a communicator's call state is under its lock, which
 * only misuse or an abort contends. Blocking: no. Errors: NULL where memory is out (NCCL carries).
 * fork: a child of a process that has had communicators is passive, see forks.h.
 */
#ifndef LLANE_COMM_H
#define LLANE_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "board.h"
#include "comm_options.h"
#include "lane.h"
#include "real_nccl.h"
#include "route.h"
#include "stats.h"
#include "switch.h"
#include "watch.h"

enum llane_comm_state {
    LLANE_COMM_NEW,        /* no all-reduce yet */
    LLANE_COMM_SETTING_UP, /* the helper thread works; not all ranks have come */
    LLANE_COMM_SWITCHING,  /* all have; the switch may go live at any call */
    LLANE_COMM_LIVE,       /* lane is valid and every call is routed */
    LLANE_COMM_INACTIVE,   /* NCCL for good; inactive_reason says why */
};

/* Why a communicator has no lane; X(name, text). The order is part of the board's layout. */
#define LLANE_INACTIVE_REASONS(X)                                                                  \
    X(NONE, "")                                                                                    \
    X(ONE_RANK, "one rank")                                                                        \
    X(TOO_MANY_RANKS, "more than 16 ranks")                                                        \
    X(NO_ID, "no communicator id under this door; NCCL_PROFILER_PLUGIN=llane gives one from NCCL " \
             "2.27 on, LD_PRELOAD of libnccl-tuner-llane.so with any")                             \
    X(NOT_READY, "NCCL does not answer for it")                                                    \
    X(CANCELED, "it ended before its lane was live")                                               \
    X(BOARD, "ranks could not meet on this host")                                                  \
    X(GPU, "a rank's GPU does not answer")                                                         \
    X(RECORD, "a peer's record makes no sense")                                                    \
    X(BUILD, "ranks run different builds of llane")                                                \
    X(KERNEL, "a kernel does not load")                                                            \
    X(STAGING, "no device memory for staging")                                                     \
    X(STAGING_CAP, "LLANE_MAX_STAGING reached")                                                    \
    X(NO_BLOCKS, "not enough multiprocessors for all ranks' blocks at once")                       \
    X(PEER, "a peer's memory does not open")                                                       \
    X(PROBE, "the probe of peer memory failed")                                                    \
    X(CALIBRATION, "calibration did not come to its end")                                          \
    X(DIED, "a rank's process ended during set-up")                                                \
    X(LEFT, "a rank ended the communicator during set-up")                                         \
    X(INTERNAL, "a system call failed")                                                            \
    X(SHARED, "it shares its parent's resources (splitShare or shrinkShare)")                      \
    X(CHECKS, "NCCL_CHECK_POINTERS or NCCL_CHECK_MODE is set on one of its ranks")                 \
    X(LAUNCH_ORDER,                                                                                \
      "NCCL_LAUNCH_ORDER_IMPLICIT or launchOrderImplicit is set on one of its ranks")              \
    X(COMM_ID, "NCCL_COMM_ID is set on one of its ranks: communicators have one id")               \
    X(CONTEXT, "one of its ranks uses a CUDA context of its own or a green context")               \
    X(SHRUNK_AGAIN, "NCCL gives it and others one id: a parent was shrunk twice, grown, or "       \
                    "shrunk and then grown")                                                       \
    X(HOST_MEMORY, "no host memory for the pairs of ranks without peer access")                    \
    X(ENDED, "it was finalized or revoked")

enum llane_inactive_reason {
#define LLANE_REASON_MEMBER(name, text) LLANE_INACTIVE_##name,
    LLANE_INACTIVE_REASONS(LLANE_REASON_MEMBER)
#undef LLANE_REASON_MEMBER
        LLANE_N_INACTIVE_REASONS
};
const char *llane_inactive_text(int reason);

struct llane_comm {
    _Atomic int references; /* first: it outlives the communicator, see comm.c */
    _Atomic(ncclComm_t) handle;
    const struct llane_nccl *nccl;

    /* Set once before the state leaves NEW. */
    int n_ranks, rank, device;
    /* Of NCCL's allocation, which holds the plugin contexts' slots; 0: not known yet. Relaxed: whoever
     * ends another communicator's context looks at it at any time. */
    _Atomic size_t handle_bytes;
    struct llane_board_key key; /* this and has_key under key_lock until then */
    int has_key;
    uint64_t shrink; /* llane_key_of_shrink of the last one that it comes of, 0: of none */
    struct llane_comm_options options;
    int is_graph_ordered;
    /* Why this rank wants no lane, which all ranks follow: calls.c: objection_of. */
    enum llane_inactive_reason objection;
    /* The communicator whose resources it shares, held; NULL: none. Its NCCL calls keep their place
     * among that one's. */
    struct llane_comm *shares_with;

    /* Never held in a call of the driver's or NCCL's: what ends a communicator may take it. */
    pthread_mutex_t key_lock;
    uint64_t n_splits, n_shrinks; /* under key_lock; children's ids are made of them */

    pthread_mutex_t lock; /* over everything below, but for the atomics */
    /* Written by the set-up thread (INACTIVE) and under the lock; read by every call. */
    _Atomic int state;
    _Atomic int inactive_reason;
    uint64_t n_all_reduces; /* begun, but for those that came to nothing */
    uint64_t n_in_group;    /* the last of them: begun in the open group, none launched yet */
    int is_dead_logged;
    /* NCCL said ncclInProgress to a call on this stream: its kernel launches later, and is recorded
     * in the order when the communicator is ready again. */
    int is_pending;
    cudaStream_t pending_stream;
    struct llane_order order; /* kept while llane_comm_is_ordered */

    _Atomic int is_finalizing; /* non-blocking, finalized: in progress while its lane is busy */
    /* calls_end.c's: ranks of the same communicator in this process that were destroyed before, held;
     * who is destroyed last waits for the operations of all. */
    _Atomic int is_destroyed;
    struct llane_comm *destroyed_before, *next_destroyed;

    _Atomic int is_suspended; /* NCCL alone answers its calls */

    /*
     * Published by the set-up thread with SWITCHING. From then on each call posts its number; the rest
     * of the lane is written before the last vote, hence before the switch is confirmed.
     */
    struct llane_board *board;
    struct llane_switch *_Atomic switch_word;
    int has_posted; /* this rank's thread has posted a number; under the lock */
    struct llane_lane *_Atomic lane;
    struct llane_watched *_Atomic watched;
    _Atomic int failure; /* an ncclResult_t, once a rank is found gone */
    /* LLANE_WAIT: NCCL was given something before the first all-reduce, which then is NCCL's too: what
     * comes on the lane is behind it, and so behind all. */
    int leaves_first;
    _Atomic int cancel;     /* the communicator ended: the set-up thread leaves */
    _Atomic int is_settled; /* the set-up thread has no more to do: LIVE or INACTIVE is decided */

    struct llane_stats stats;
    int64_t setup_start_ms;
    _Atomic int64_t setup_ms; /* from the first all-reduce to the verdict; by the set-up thread */

    struct llane_comm *next_in_all; /* list of all, for exit */
};

/* NULL if llane has not met the handle. Released by the caller. */
struct llane_comm *llane_comm_acquire(ncclComm_t handle);

/* As acquire; a communicator that was created before llane came, or unseen, is entered. */
struct llane_comm *llane_comm_acquire_or_add(const struct llane_nccl *nccl, ncclComm_t handle);

/* 0 while no communicator of this process has an order to keep: then no call needs a look-up. */
extern _Atomic int llane_comm_n_ordered;
static inline int llane_comm_any_ordered(void)
{
    /* Acquire pairs with llane_comm_set_setting_up. */
    return atomic_load_explicit(&llane_comm_n_ordered, memory_order_acquire) != 0;
}

/*
 * Enters a handle. A communicator that still stands under this address is dropped first: it ended
 * without llane being told. key may be NULL; shares_with likewise, else the new one holds it. The
 * result is to be released.
 */
struct llane_comm *llane_comm_add(const struct llane_nccl *nccl, ncclComm_t handle,
                                  const struct llane_board_key *key,
                                  const struct llane_comm_options *options,
                                  struct llane_comm *shares_with);

/*
 * Takes the communicator out of the table; ends its set-up. is_abort: spinning kernels end at once.
 * NULL-safe for unknown handles.
 */
void llane_comm_drop(ncclComm_t handle, int is_abort);

/* As acquire: the communicator of a plugin context (contexts.h), which NCCL ends and which is forgotten. */
struct llane_comm *llane_comm_acquire_context(void *ctx);

void llane_comm_hold(struct llane_comm *comm);
void llane_comm_release(struct llane_comm *comm);

/* NEW -> SETTING_UP, under the lock: order.events are there, and its order is kept from now on. */
void llane_comm_set_setting_up(struct llane_comm *comm);
/* SETTING_UP -> SWITCHING, by the set-up thread. */
void llane_comm_set_switching(struct llane_comm *comm, struct llane_lane *lane,
                              struct llane_switch *switch_word);
/* SWITCHING -> LIVE, under the lock. */
void llane_comm_set_live(struct llane_comm *comm);
/* The last n all-reduces begun came to nothing on this rank: their numbers are used again. */
void llane_comm_uncount(struct llane_comm *comm, uint64_t n);
/* The lane, while it may be used; NULL else. */
struct llane_lane *llane_comm_live_lane(struct llane_comm *comm);
/* What a lane's operation that was not launched is to the caller: LLANE_E* -> ncclResult_t, logged. */
ncclResult_t llane_comm_not_launched(struct llane_comm *comm, int err);
/* ncclSuccess, or what the lane's data calls and ncclCommGetAsyncError report from now on. */
ncclResult_t llane_comm_failure(struct llane_comm *comm);
/* From the first all-reduce on, until it has no lane and will have none. */
int llane_comm_is_ordered(const struct llane_comm *comm);

/* Are its operations on the lane still under way? Also once it was retired. */
int llane_comm_is_busy(const struct llane_comm *comm);

/* It goes on, but without its lane (finalized or revoked): its set-up ends, NCCL gets its calls. */
void llane_comm_retire(struct llane_comm *comm, int is_abort);

/* Held: another rank of the same communicator in this process that is not marked as destroyed. NULL:
 * there is none. */
struct llane_comm *llane_comm_acquire_sibling(const struct llane_comm *comm);

void llane_comm_set_inactive(struct llane_comm *comm, enum llane_inactive_reason reason);

/* Calls visit, which may take its time, for every communicator that is in the table now. */
void llane_comm_for_all(void (*visit)(struct llane_comm *comm));

#endif
