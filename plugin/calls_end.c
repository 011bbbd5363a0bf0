/* Communicators: how they pause and how they end. */
#include "calls.h"

#include "comm.h"
#include "group.h"

/* ---- pauses ---- */

static void set_suspended(ncclComm_t handle, int is_suspended)
{
    struct llane_comm *comm = llane_comm_acquire(handle);
    if (comm) {
        atomic_store_explicit(&comm->is_suspended, is_suspended, memory_order_relaxed);
        llane_comm_release(comm);
    }
}

/*
 * While NCCL's memory is away, NCCL alone answers for the communicator. The lane stays as it is, and
 * its memory too: other ranks cannot use it without this one's calls.
 */
ncclResult_t llane_call_CommSuspend(const struct llane_nccl *nccl, ncclComm_t comm, int flags)
{
    ncclResult_t result = llane_group_note(nccl, nccl->CommSuspend(comm, flags));
    if (!llane_is_refused(result)) {
        set_suspended(comm, 1);
    }
    return result;
}

ncclResult_t llane_call_CommResume(const struct llane_nccl *nccl, ncclComm_t comm)
{
    ncclResult_t result = llane_group_note(nccl, nccl->CommResume(comm));
    if (!llane_is_refused(result)) {
        set_suspended(comm, 0);
    }
    return result;
}

/* ---- ends ---- */

static void retire(ncclComm_t handle, int is_abort)
{
    struct llane_comm *comm = llane_comm_acquire(handle);
    if (comm) {
        llane_comm_retire(comm, is_abort);
        llane_comm_release(comm);
    }
}

/* Refused, it goes on as before, with its lane. */
ncclResult_t llane_call_CommFinalize(const struct llane_nccl *nccl, ncclComm_t comm)
{
    ncclResult_t result = llane_group_note(nccl, nccl->CommFinalize(comm));
    if (!llane_is_refused(result)) {
        retire(comm, 0);
    }
    return result;
}

/* Dropped first: its address may be another communicator's before this returns. */
ncclResult_t llane_call_CommDestroy(const struct llane_nccl *nccl, ncclComm_t comm)
{
    llane_comm_drop(comm, 0);
    return llane_group_note(nccl, nccl->CommDestroy(comm));
}

/* The abort word first: NCCL's abort may wait for a stream on which our kernel spins. */
ncclResult_t llane_call_CommAbort(const struct llane_nccl *nccl, ncclComm_t comm)
{
    llane_comm_drop(comm, 1);
    return llane_group_note(nccl, nccl->CommAbort(comm));
}

ncclResult_t llane_call_CommRevoke(const struct llane_nccl *nccl, ncclComm_t comm, int flags)
{
    /* The only flags there are: with others NCCL refuses, and the communicator goes on. */
    if (flags == 0) {
        retire(comm, 1);
    }
    return llane_group_note(nccl, nccl->CommRevoke(comm, flags));
}
