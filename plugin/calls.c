/* The data calls and groups; creation and ends are in calls_comm.c. */
#include "calls.h"

#include <inttypes.h>
#include <malloc.h>
#include <string.h>

#include "comm.h"
#include "config.h"
#include "err.h"
#include "group.h"
#include "key.h"
#include "log.h"
#include "setup.h"
#include "stats.h"
#include "tuner_contexts.h"

/* ---- the order of a communicator's operations ---- */

/* A dead lane stays dead: results of overlapping or aborted operations are undefined. The lock is
 * held. */
static ncclResult_t dead_result(struct llane_comm *comm, uint32_t dead)
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

/*
 * May an operation of this communicator be launched? A dead lane's error stays; NCCL's own is NCCL's
 * to report, and while it is still at a call of a non-blocking communicator it takes no other. What
 * it has launched since is entered in the order. The lock is held.
 */
static ncclResult_t check_ready(struct llane_comm *comm, struct llane_lane *lane)
{
    uint32_t dead = llane_comm_live_lane(comm) ? llane_lane_dead(lane) : LLANE_DEAD_NOT;
    if (dead) {
        return dead_result(comm, dead);
    }
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = comm->nccl->CommGetAsyncError(comm->handle, &state);
    if (result != ncclSuccess || state == ncclInProgress) {
        return ncclInvalidArgument;
    }
    if (state == ncclSuccess && comm->is_pending) {
        comm->is_pending = 0;
        return llane_lane_order_after(lane, comm->pending_stream) ? ncclUnhandledCudaError
                                                                  : ncclSuccess;
    }
    return state;
}

/* A call that NCCL carries, and the communicator among whose operations it has its place. */
struct place {
    const struct llane_nccl *nccl;
    struct llane_comm *comm; /* held; NULL: there is no order to keep */
    cudaStream_t stream;
};

/* Held, or NULL: there is no order to keep. LLANE_WAIT: the first all-reduce may be the lane's. */
static struct llane_comm *find_ordered(const struct llane_nccl *nccl, ncclComm_t handle)
{
    return llane_config()->wait       ? llane_comm_acquire_or_add(nccl, handle)
           : llane_comm_any_ordered() ? llane_comm_acquire(handle)
                                      : NULL;
}

static void note_unordered(struct llane_comm *comm, cudaStream_t stream)
{
    pthread_mutex_lock(&comm->lock);
    comm->unordered_stream = stream;
    comm->has_unordered = 1;
    pthread_mutex_unlock(&comm->lock);
}

/* Before the call. An error: do not make it. */
static ncclResult_t place_take(struct place *place, const struct llane_nccl *nccl,
                               ncclComm_t handle, cudaStream_t stream)
{
    *place = (struct place){.nccl = nccl, .stream = stream};
    struct llane_comm *comm = find_ordered(nccl, handle);
    if (comm && comm->shares_with) {
        llane_comm_hold(comm->shares_with);
        llane_comm_release(comm);
        comm = comm->shares_with;
    }
    struct llane_lane *lane = comm && comm->nccl == nccl ? llane_comm_ordered_lane(comm) : NULL;
    if (!lane) {
        if (comm) {
            note_unordered(comm, stream);
            llane_comm_release(comm);
        }
        return ncclSuccess;
    }
    pthread_mutex_lock(&comm->lock);
    ncclResult_t result = check_ready(comm, lane);
    if (result == ncclSuccess && !llane_group_is_open(nccl) &&
        llane_lane_order_before(lane, stream)) {
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

/* After the call, whose result becomes this one's. */
static ncclResult_t place_leave(struct place *place, ncclResult_t result)
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
        struct llane_lane *lane = llane_comm_ordered_lane(comm);
        if (result == ncclInProgress) {
            comm->is_pending = 1;
            comm->pending_stream = place->stream;
        } else if (lane) {
            err = llane_lane_order_after(lane, place->stream);
        }
        pthread_mutex_unlock(&comm->lock);
    }
    llane_comm_release(comm);
    if (err && result == ncclSuccess) {
        return err == LLANE_EINVAL ? ncclInvalidUsage : ncclUnhandledCudaError;
    }
    return result;
}

#define ORDERED(name, since, params, args)                                                         \
    ncclResult_t llane_call_##name(const struct llane_nccl *nccl, LLANE_LIST params)               \
    {                                                                                              \
        struct place place;                                                                        \
        ncclResult_t result = place_take(&place, nccl, comm, stream);                              \
        return result == ncclSuccess ? place_leave(&place, nccl->name args) : result;              \
    }
LLANE_NCCL_ORDERED(ORDERED)

/* ---- all-reduce ---- */

/*
 * The first all-reduce of a communicator: its ranks arrive with it, so that a communicator that
 * never reduces costs nothing, and a rank whose calls bypass llane never arrives. The lock is held.
 */
static void meet(struct llane_comm *comm)
{
    const struct llane_nccl *nccl = comm->nccl;
    ncclComm_t handle = comm->handle;
    if (nccl->CommCount(handle, &comm->n_ranks) != ncclSuccess ||
        nccl->CommUserRank(handle, &comm->rank) != ncclSuccess ||
        nccl->CommCuDevice(handle, &comm->device) != ncclSuccess) {
        return; /* not ready, or no communicator: NCCL says so to the caller */
    }
    uint64_t tuner_id;
    comm->handle_bytes = malloc_usable_size(handle);
    if (llane_tuner_find(handle, comm->handle_bytes, &tuner_id) && tuner_id) {
        /* Before the creation hook's id: the first communicator of a process has only this one. */
        llane_key_of_tuner(tuner_id, comm->shrink, &comm->key);
        comm->has_key = comm->shrink != LLANE_KEY_NAMELESS;
    }
    int is_primary = 1;
    if (!llane_gpu_context_is_primary(&is_primary)) {
        comm->has_own_context = !is_primary;
    }
    comm->has_checks = llane_config_nccl_checks();
    comm->leaves_first = comm->has_unordered;
    enum llane_inactive_reason reason =
        comm->n_ranks == 1                   ? LLANE_INACTIVE_ONE_RANK
        : comm->n_ranks > LLANE_MAX_RANKS    ? LLANE_INACTIVE_TOO_MANY_RANKS
        : comm->shares_with                  ? LLANE_INACTIVE_SHARED
        : comm->shrink == LLANE_KEY_NAMELESS ? LLANE_INACTIVE_SHRUNK_AGAIN
        : !comm->has_key                     ? LLANE_INACTIVE_NO_ID
                                             : LLANE_INACTIVE_NONE;
    if (reason) {
        llane_comm_set_inactive(comm, reason);
        LLANE_INFO("rank %d of %d: inactive: %s", comm->rank, comm->n_ranks,
                   llane_inactive_text((int)reason));
        return;
    }
    atomic_store_explicit(&comm->state, LLANE_COMM_SETTING_UP, memory_order_relaxed);
    llane_setup_start(comm);
}

/*
 * Is the lane live from this call on? A number is posted only once an earlier operation was entered
 * in the order: the first one on the lane is then behind all that NCCL was given. Once posted, every
 * call posts. The lock is held.
 */
static int begin_number(struct llane_comm *comm, uint64_t number)
{
    /* Acquire pairs with llane_comm_set_switching. */
    struct llane_switch *sw = atomic_load_explicit(&comm->switch_word, memory_order_acquire);
    const struct llane_lane *lane = llane_comm_ordered_lane(comm);
    if (!sw || !lane || (!comm->has_posted && !llane_order_has_begun(&lane->order))) {
        return 0;
    }
    comm->has_posted = 1;
    if (llane_switch_begin(sw, comm->rank, number) != LLANE_SWITCH_LIVE) {
        return 0;
    }
    llane_comm_set_live(comm);
    return 1;
}

/* The call's number is n_all_reduces when this returns. The lock is held. */
static enum llane_route route_call(struct llane_comm *comm, const struct llane_operation *operation)
{
    uint64_t number = ++comm->n_all_reduces;
    int state = atomic_load_explicit(&comm->state, memory_order_acquire);
    if (state == LLANE_COMM_SETTING_UP) {
        return LLANE_ROUTE_SETTING_UP;
    }
    if (state == LLANE_COMM_SWITCHING && !begin_number(comm, number)) {
        return LLANE_ROUTE_SETTING_UP;
    }
    const struct llane_lane *lane = llane_comm_live_lane(comm);
    if (!lane) {
        return state == LLANE_COMM_NEW ? LLANE_ROUTE_SETTING_UP : LLANE_ROUTE_INACTIVE;
    }
    return llane_route_choose(&lane->limits, operation->count, operation->datatype, operation->op);
}

/* The lock is held. */
static ncclResult_t carry(struct llane_comm *comm, const struct llane_operation *operation)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    ncclResult_t result = check_ready(comm, lane);
    if (result == ncclSuccess && llane_group_is_open(comm->nccl)) {
        int err = llane_group_add(comm, operation, LLANE_GROUP_LANE);
        result = !err ? ncclSuccess : err == LLANE_EINVAL ? ncclInvalidUsage : ncclSystemError;
    } else if (result == ncclSuccess && llane_lane_all_reduce(lane, operation)) {
        LLANE_WARN("rank %d: all-reduce %" PRIu64 " did not launch: %s", comm->rank,
                   comm->n_all_reduces, llane_gpu_error());
        result = ncclUnhandledCudaError;
    }
    if (result != ncclSuccess) {
        llane_group_fail(comm->nccl, result, LLANE_REFUSED_BY_LLANE);
    }
    return result;
}

static ncclResult_t to_nccl(const struct llane_nccl *nccl, ncclComm_t comm,
                            const struct llane_operation *o)
{
    struct place place;
    ncclResult_t result = place_take(&place, nccl, comm, o->stream);
    return result == ncclSuccess
               ? place_leave(&place, nccl->AllReduce(o->in, o->out, o->count, o->datatype, o->op,
                                                     comm, o->stream))
               : result;
}

static void meet_and_wait(struct llane_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    int was_new = atomic_load_explicit(&comm->state, memory_order_relaxed) == LLANE_COMM_NEW;
    if (was_new) {
        meet(comm);
    }
    int is_setting_up =
        atomic_load_explicit(&comm->state, memory_order_relaxed) == LLANE_COMM_SETTING_UP;
    pthread_mutex_unlock(&comm->lock);
    if (!was_new || !is_setting_up || !llane_config()->wait) {
        return;
    }
    if (!llane_group_is_open(comm->nccl)) {
        llane_setup_wait(&comm, 1);
    } else if (llane_group_wait_for(comm)) {
        LLANE_WARN("rank %d: LLANE_WAIT: out of memory; not waiting", comm->rank);
    }
}

static void log_call(const struct llane_comm *comm, const struct llane_operation *o,
                     enum llane_route route)
{
    int is_inactive = route == LLANE_ROUTE_INACTIVE;
    LLANE_CALL("AllReduce call %" PRIu64 " rank %d count %zu datatype %d op %d: %s%s%s%s",
               comm->n_all_reduces, comm->rank, o->count, (int)o->datatype, (int)o->op,
               route == LLANE_ROUTE_LANE ? "lane" : "NCCL, ",
               route == LLANE_ROUTE_LANE ? "" : llane_route_text(route), is_inactive ? ": " : "",
               is_inactive ? llane_inactive_text(comm->inactive_reason) : "");
}

/* The communicator is known, and of this libnccl. */
static ncclResult_t all_reduce(struct llane_comm *comm, ncclComm_t handle,
                               const struct llane_operation *operation)
{
    if (atomic_load_explicit(&comm->state, memory_order_acquire) == LLANE_COMM_NEW) {
        meet_and_wait(comm);
    }
    uint64_t bytes = operation->count * llane_route_type_bytes(operation->datatype);
    ncclResult_t result = ncclSuccess;
    if (llane_group_is_open(comm->nccl) && llane_group_count(comm)) {
        llane_group_fail(comm->nccl, ncclSystemError, LLANE_REFUSED_BY_LLANE);
        return ncclSystemError;
    }
    pthread_mutex_lock(&comm->lock);
    enum llane_route route = route_call(comm, operation);
    if (llane_log_wants_calls()) {
        log_call(comm, operation, route);
    }
    if (route == LLANE_ROUTE_LANE) {
        result = carry(comm, operation);
    }
    llane_stats_count(comm, route, bytes);
    pthread_mutex_unlock(&comm->lock);
    if (route == LLANE_ROUTE_LANE) {
        return result;
    }
    result = to_nccl(comm->nccl, handle, operation);
    /* Refused, its number is the next one's, as on ranks that never made the call. In a group that
     * waits for the group's end: it will fail, with all that is in it. */
    if (llane_is_refused(result) && !llane_group_is_open(comm->nccl)) {
        llane_comm_uncount(comm, 1);
    }
    return result;
}

ncclResult_t llane_call_AllReduce(const struct llane_nccl *nccl, const void *sendbuff,
                                  void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t handle, cudaStream_t stream)
{
    const struct llane_operation operation = {sendbuff, recvbuff, count, datatype, op, stream};
    struct llane_comm *comm = llane_comm_acquire_or_add(nccl, handle);
    /* Suspended: relaxed, written by the thread that the program lets call. */
    if (!comm || comm->nccl != nccl ||
        atomic_load_explicit(&comm->is_suspended, memory_order_relaxed)) {
        if (comm) {
            llane_comm_release(comm);
        }
        return to_nccl(nccl, handle, &operation);
    }
    ncclResult_t result = all_reduce(comm, handle, &operation);
    llane_comm_release(comm);
    return result;
}

/*
 * A configuration asks for things that only NCCL understands; all ranks give the same one. Without
 * one it is a plain all-reduce, which other ranks may call as such.
 */
ncclResult_t llane_call_AllReduceConfig(const struct llane_nccl *nccl, const void *sendbuff,
                                        void *recvbuff, size_t count, ncclDataType_t datatype,
                                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                        const ncclCollConfig_t *config)
{
    if (!config) {
        return llane_call_AllReduce(nccl, sendbuff, recvbuff, count, datatype, op, comm, stream);
    }
    struct place place;
    ncclResult_t result = place_take(&place, nccl, comm, stream);
    return result == ncclSuccess
               ? place_leave(&place, nccl->AllReduceConfig(sendbuff, recvbuff, count, datatype, op,
                                                           comm, stream, config))
               : result;
}

/* ---- groups ---- */

ncclResult_t llane_call_GroupStart(const struct llane_nccl *nccl)
{
    ncclResult_t result = nccl->GroupStart();
    if (result == ncclSuccess) {
        llane_group_start(nccl);
    }
    return result;
}

ncclResult_t llane_call_GroupEnd(const struct llane_nccl *nccl)
{
    return llane_group_end(nccl);
}

/*
 * Ends the group without launching anything; the lane's operations in it are dropped likewise.
 * Without info NCCL takes it for ncclGroupEnd.
 */
ncclResult_t llane_call_GroupSimulateEnd(const struct llane_nccl *nccl, ncclSimInfo_t *info)
{
    if (!info) {
        return llane_group_end(nccl);
    }
    ncclResult_t result = nccl->GroupSimulateEnd(info);
    llane_group_drop(nccl);
    return result;
}

/* ---- errors ---- */

ncclResult_t llane_call_CommGetAsyncError(const struct llane_nccl *nccl, ncclComm_t handle,
                                          ncclResult_t *error)
{
    ncclResult_t result = nccl->CommGetAsyncError(handle, error);
    struct llane_comm *comm =
        result == ncclSuccess && llane_comm_any_ordered() ? llane_comm_acquire(handle) : NULL;
    if (!comm) {
        return result;
    }
    struct llane_lane *lane = comm->nccl == nccl ? llane_comm_live_lane(comm) : NULL;
    uint32_t dead = lane ? llane_lane_dead(lane) : 0;
    if (dead && (*error == ncclSuccess || *error == ncclInProgress)) {
        pthread_mutex_lock(&comm->lock);
        *error = dead_result(comm, dead);
        pthread_mutex_unlock(&comm->lock);
    }
    llane_comm_release(comm);
    return result;
}
