/*
 * group: this thread's NCCL group: its depth and what llane does when it ends.
 *
 * Owns: thread-local state, one per libnccl copy. Lane operations launch at the outermost
 * ncclGroupEnd, before pncclGroupEnd: NCCL runs collectives before sends and receives, and a group
 * of {recv, all-reduce} against {all-reduce, send} would deadlock the other way round.
 * An error inside the group ends it as it ends NCCL's: nothing of it is launched, neither by llane
 * nor by NCCL, and ncclGroupEnd returns the first error.
 * A thread that was inside a group when llane was loaded has depth 0 here: its operations launch at
 * the call, which is before its group ends all the same.
 */
#ifndef LLANE_GROUP_H
#define LLANE_GROUP_H

#include "comm.h"

int llane_group_is_open(const struct llane_nccl *nccl);

/* Called after pncclGroupStart succeeded. */
void llane_group_start(const struct llane_nccl *nccl);

/*
 * An operation in the group on a communicator whose lane is live. LANE: launched at the end of the
 * group. NCCL: given to NCCL already; kept in order with the lane's at the end, on operation.stream,
 * of which alone it needs to know. 0, LLANE_ENOMEM, or LLANE_EINVAL where NCCL allows no such streams.
 */
enum llane_group_path { LLANE_GROUP_LANE, LLANE_GROUP_NCCL };
int llane_group_add(struct llane_comm *comm, const struct llane_operation *operation,
                    enum llane_group_path path);

/*
 * A call inside the group failed; nothing if no group is open. REFUSED_BY_NCCL: NCCL knows. BY_LLANE:
 * it has to be told when the group ends.
 */
enum llane_refusal { LLANE_REFUSED_BY_NCCL, LLANE_REFUSED_BY_LLANE };
void llane_group_fail(const struct llane_nccl *nccl, ncclResult_t result, enum llane_refusal by);

/*
 * Remembers to call then(arg) after the outermost GroupEnd, with NCCL's result: for calls whose
 * outcome is only known there. 0 or LLANE_ENOMEM.
 */
int llane_group_defer(const struct llane_nccl *nccl, void (*then)(void *arg, ncclResult_t result),
                      void *arg);

/* LLANE_WAIT: waits for the communicator's lane when the group has ended. 0 or LLANE_ENOMEM. */
int llane_group_wait_for(struct llane_comm *comm);

/*
 * An all-reduce is begun in the group. One that fails or is only simulated gives the numbers of its
 * all-reduces back when it ends, unless the lane has launched some of them. 0 or LLANE_ENOMEM.
 */
int llane_group_count(struct llane_comm *comm);

/* The group ended without launching anything (ncclGroupSimulateEnd). */
void llane_group_drop(const struct llane_nccl *nccl);

/* NCCL will not do it. */
static inline int llane_is_refused(ncclResult_t result)
{
    return result != ncclSuccess && result != ncclInProgress;
}

/* Returns NCCL's answer, which fails the group if one is open. */
ncclResult_t llane_group_note(const struct llane_nccl *nccl, ncclResult_t result);

/* The whole of ncclGroupEnd. */
ncclResult_t llane_group_end(const struct llane_nccl *nccl);

#endif
