/*
 * place: the place that a call which NCCL carries takes among the operations of its communicator,
 * and whether an operation may be launched at all.
 *
 * Owns: nothing. Threads: those that call NCCL. Blocking: no.
 * Errors: those that NCCL would return; a group that is open has then failed.
 */
#ifndef LLANE_PLACE_H
#define LLANE_PLACE_H

#include "comm.h"

struct llane_place {
    const struct llane_nccl *nccl;
    struct llane_comm *comm; /* held; NULL: there is no order to keep */
    cudaStream_t stream;
};

/* Before the call. An error: do not make it. */
ncclResult_t llane_place_take(struct llane_place *place, const struct llane_nccl *nccl,
                              ncclComm_t handle, cudaStream_t stream);
/* After the call, whose result becomes this one's. */
ncclResult_t llane_place_leave(struct llane_place *place, ncclResult_t result);

/*
 * May an operation of this communicator be launched? A dead lane's error stays; NCCL's own is NCCL's
 * to report, and while it is still at a call of a non-blocking communicator it takes no other. What
 * it has launched since is entered in the order. The lock is held.
 */
ncclResult_t llane_place_check(struct llane_comm *comm);

/*
 * NCCL is ready again: what it was at, and launched late, takes its place. As soon as the program can
 * know of it, since what it issues to that stream afterwards is not the communicator's. The lock is
 * held.
 */
ncclResult_t llane_place_enter_pending(struct llane_comm *comm);

/* What a dead lane answers: results of overlapping or aborted operations are undefined. The lock is
 * held. */
ncclResult_t llane_place_dead_result(struct llane_comm *comm, uint32_t dead);

#endif
