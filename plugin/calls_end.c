/* Communicators: how they pause and how they end. */
#include "calls.h"

#include "backoff.h"
#include "comm.h"
#include "group.h"
#include "report.h"
#include "setup.h"

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

/*
 * As NCCL does with its own, ncclCommFinalize and ncclCommDestroy wait for the operations under way on
 * the lane, after NCCL where they are in a group. An abort by another thread ends the wait, and so does
 * the death of a rank that they need: their kernels then wait on alone.
 */
static void wait_for_lane(struct llane_comm *comm)
{
    struct llane_backoff backoff = {0};
    while (llane_comm_is_busy(comm) && llane_comm_failure(comm) == ncclSuccess) {
        llane_backoff_sleep(&backoff);
    }
}

static void wait_for_all_lanes(struct llane_comm *comm)
{
    wait_for_lane(comm);
    /* Nothing is left to one that is destroyed: the list stays. */
    for (struct llane_comm *c = comm->destroyed_before; c; c = c->next_destroyed) {
        wait_for_lane(c);
    }
}

/*
 * Of several ranks in one process only the last one's ncclCommDestroy waits, for all: a thread may
 * destroy one before it calls for the next. 1: another one is left, and waits for this one too.
 */
static int leave_to_sibling(struct llane_comm *comm)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* marks and lists */
    pthread_mutex_lock(&lock);
    comm->is_destroyed = 1;
    struct llane_comm *other = llane_comm_acquire_sibling(comm);
    if (other) {
        struct llane_comm **end = &other->destroyed_before;
        while (*end) {
            end = &(*end)->next_destroyed;
        }
        llane_comm_hold(comm);
        *end = comm;
        comm->next_destroyed = comm->destroyed_before;
        comm->destroyed_before = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (other) {
        llane_comm_release(other);
    }
    return other != NULL;
}

/*
 * The program may reset the device next: who else may hold the communicator, and be the last to do so,
 * asks the device. Takes over the caller's hold.
 */
static void let_go(void *arg, ncclResult_t result)
{
    struct llane_comm *comm = arg;
    (void)result;
    llane_setup_wait_for_end(comm);
    llane_report_wait_for_look();
    llane_comm_release(comm);
}

static void wait_and_let_go(void *arg, ncclResult_t result)
{
    if (!llane_is_refused(result)) {
        wait_for_all_lanes(arg);
    }
    let_go(arg, result);
}

/* In a group ends take effect at its end. */
static void now_or_deferred(void (*then)(void *arg, ncclResult_t result), struct llane_comm *comm,
                            ncclResult_t result)
{
    if (!llane_group_is_open(comm->nccl) || llane_group_defer(comm->nccl, then, comm)) {
        then(comm, result);
    }
}

/* Refused, it goes on as before, with its lane. */
ncclResult_t llane_call_CommFinalize(const struct llane_nccl *nccl, ncclComm_t handle)
{
    ncclResult_t result = llane_group_note(nccl, nccl->CommFinalize(handle));
    struct llane_comm *comm = llane_is_refused(result) ? NULL : llane_comm_acquire(handle);
    if (!comm) {
        return result;
    }
    llane_comm_retire(comm, 0);
    if (comm->options.is_blocking) {
        now_or_deferred(wait_and_let_go, comm, result);
        return result;
    }
    comm->is_finalizing = 1;
    result = llane_comm_is_busy(comm) ? ncclInProgress : result;
    llane_comm_release(comm);
    return result;
}

/* Dropped first: its address may be another communicator's before NCCL's call returns. */
ncclResult_t llane_call_CommDestroy(const struct llane_nccl *nccl, ncclComm_t handle)
{
    struct llane_comm *comm = llane_comm_acquire(handle);
    int is_left = comm && leave_to_sibling(comm);
    int is_in_group = llane_group_is_open(nccl);
    if (comm && !is_left && !is_in_group) {
        wait_for_all_lanes(comm);
    }
    llane_comm_drop(handle, 0);
    ncclResult_t result = llane_group_note(nccl, nccl->CommDestroy(handle));
    if (comm) {
        now_or_deferred(is_left || !is_in_group ? let_go : wait_and_let_go, comm, result);
    }
    return result;
}

/*
 * The abort word first: NCCL's abort may wait for a stream on which our kernel spins. The communicator is
 * held meanwhile: to bury its lane asks the driver.
 */
ncclResult_t llane_call_CommAbort(const struct llane_nccl *nccl, ncclComm_t handle)
{
    struct llane_comm *comm = llane_comm_acquire(handle);
    llane_comm_drop(handle, 1);
    ncclResult_t result = llane_group_note(nccl, nccl->CommAbort(handle));
    if (comm) {
        now_or_deferred(let_go, comm, result);
    }
    return result;
}

void llane_calls_end_context(void *ctx)
{
    struct llane_comm *comm = llane_comm_acquire_context(ctx);
    if (comm) {
        llane_comm_drop(comm->handle, 0);
        let_go(comm, ncclSuccess);
    }
}

ncclResult_t llane_call_CommRevoke(const struct llane_nccl *nccl, ncclComm_t comm, int flags)
{
    /* The only flags there are: with others NCCL refuses, and the communicator goes on. */
    if (flags == 0) {
        retire(comm, 1);
    }
    return llane_group_note(nccl, nccl->CommRevoke(comm, flags));
}
