#include "place.h"

#include "config.h"
#include "err.h"
#include "group.h"
#include "log.h"

ncclResult_t llane_place_dead_result(struct llane_comm *comm, uint32_t dead)
{
    if (!comm->is_dead_logged) {
        comm->is_dead_logged = 1;
        LLANE_WARN("rank %d: the lane is dead: %s", comm->rank,
                   dead == LLANE_DEAD_OVERLAP
                       ? "operations of one communicator ran at the same time (graphs replayed "
                         "together, or a stream order that the program removed)"
                       : "an operation was aborted");
    }
    return dead == LLANE_DEAD_OVERLAP ? ncclInvalidUsage : ncclInternalError;
}

ncclResult_t llane_place_enter_pending(struct llane_comm *comm)
{
    int err = comm->is_pending ? llane_order_after_nccl(&comm->order, comm->pending_stream) : 0;
    comm->is_pending = 0;
    return err ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t llane_place_check(struct llane_comm *comm)
{
    ncclResult_t failure = llane_comm_failure(comm);
    if (failure != ncclSuccess) {
        return failure;
    }
    const struct llane_lane *lane = llane_comm_live_lane(comm);
    uint32_t dead = lane ? llane_lane_dead(lane) : LLANE_DEAD_NOT;
    if (dead) {
        return llane_place_dead_result(comm, dead);
    }
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = comm->nccl->CommGetAsyncError(comm->handle, &state);
    if (result != ncclSuccess || state == ncclInProgress) {
        return ncclInvalidArgument;
    }
    return state == ncclSuccess ? llane_place_enter_pending(comm) : state;
}

/* Held, or NULL: there is no order to keep. LLANE_WAIT: the first all-reduce may be the lane's. */
static struct llane_comm *find_ordered(const struct llane_nccl *nccl, ncclComm_t handle)
{
    return llane_config()->wait       ? llane_comm_acquire_or_add(nccl, handle)
           : llane_comm_any_ordered() ? llane_comm_acquire(handle)
                                      : NULL;
}

static void leave_first_to_nccl(struct llane_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    if (atomic_load_explicit(&comm->state, memory_order_relaxed) == LLANE_COMM_NEW) {
        comm->leaves_first = 1;
    }
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t llane_place_take(struct llane_place *place, const struct llane_nccl *nccl,
                              ncclComm_t handle, cudaStream_t stream)
{
    *place = (struct llane_place){.nccl = nccl, .stream = stream};
    struct llane_comm *comm = find_ordered(nccl, handle);
    if (comm && comm->shares_with) {
        llane_comm_hold(comm->shares_with);
        llane_comm_release(comm);
        comm = comm->shares_with;
    }
    if (!comm || comm->nccl != nccl || !llane_comm_is_ordered(comm)) {
        if (comm) {
            leave_first_to_nccl(comm);
            llane_comm_release(comm);
        }
        return ncclSuccess;
    }
    pthread_mutex_lock(&comm->lock);
    ncclResult_t result = llane_place_check(comm);
    if (result == ncclSuccess && !llane_group_is_open(nccl) &&
        llane_order_before_nccl(&comm->order, stream)) {
        result = ncclUnhandledCudaError;
    }
    pthread_mutex_unlock(&comm->lock);
    if (result == ncclSuccess) {
        place->comm = comm;
    } else {
        llane_comm_release(comm);
        llane_group_fail(nccl, result, LLANE_REFUSED_BY_LLANE);
    }
    return result;
}

ncclResult_t llane_place_leave(struct llane_place *place, ncclResult_t result)
{
    struct llane_comm *comm = place->comm;
    int err = 0;
    llane_group_note(place->nccl, result);
    if (!comm) {
        return result;
    }
    if (llane_is_refused(result)) {
        err = 0;
    } else if (llane_group_is_open(place->nccl)) {
        const struct llane_operation operation = {.stream = place->stream};
        err = llane_group_add(comm, &operation, LLANE_GROUP_NCCL);
        if (err) {
            llane_group_fail(place->nccl, ncclInvalidUsage, LLANE_REFUSED_BY_LLANE);
        }
    } else {
        pthread_mutex_lock(&comm->lock);
        if (result == ncclInProgress) {
            comm->is_pending = 1;
            comm->pending_stream = place->stream;
        } else if (llane_comm_is_ordered(comm)) {
            err = llane_order_after_nccl(&comm->order, place->stream);
        }
        pthread_mutex_unlock(&comm->lock);
    }
    llane_comm_release(comm);
    if (err && result == ncclSuccess) {
        return err == LLANE_EINVAL ? ncclInvalidUsage : ncclUnhandledCudaError;
    }
    return result;
}
