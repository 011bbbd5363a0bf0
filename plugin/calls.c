/* The data calls and groups; creation and ends are in calls_comm.c and calls_end.c. */
#include "calls.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "calls_ab.h"
#include "comm.h"
#include "config.h"
#include "contexts.h"
#include "err.h"
#include "group.h"
#include "key.h"
#include "log.h"
#include "place.h"
#include "setup.h"
#include "stats.h"

/* ---- what NCCL always carries ---- */

#define ORDERED(name, since, params, args)                                                         \
    ncclResult_t llane_call_##name(const struct llane_nccl *nccl, LLANE_LIST params)               \
    {                                                                                              \
        struct llane_place place;                                                                  \
        ncclResult_t result = llane_place_take(&place, nccl, comm, stream);                        \
        return result == ncclSuccess ? llane_place_leave(&place, nccl->name args) : result;        \
    }
LLANE_NCCL_ORDERED(ORDERED)

/* ---- all-reduce ---- */

/* What this rank's settings ask of NCCL and the lane does not do. */
static enum llane_inactive_reason objection_of(const struct llane_comm *comm)
{
    int is_primary = 1;
    /* Older ones do not know the variable. */
    if (comm->nccl->version >= 22600 && comm->options.is_launch_ordered) {
        return LLANE_INACTIVE_LAUNCH_ORDER;
    }
    if (comm->options.has_common_id) {
        return LLANE_INACTIVE_COMM_ID;
    }
    if (llane_config_nccl_checks()) {
        return LLANE_INACTIVE_CHECKS;
    }
    return !llane_gpu_context_is_primary(&is_primary) && !is_primary ? LLANE_INACTIVE_CONTEXT
                                                                     : LLANE_INACTIVE_NONE;
}

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
    size_t bytes = malloc_usable_size(handle);
    atomic_store_explicit(&comm->handle_bytes, bytes, memory_order_relaxed);
    uint64_t nccl_id = llane_context_find(handle, bytes, comm->options.name);
    if (nccl_id) {
        /* Before the creation hook's id: the first communicator of a process has only this one. */
        pthread_mutex_lock(&comm->key_lock);
        llane_key_of_nccl_id(nccl_id, comm->shrink, &comm->key);
        comm->has_key = comm->shrink != LLANE_KEY_NAMELESS;
        pthread_mutex_unlock(&comm->key_lock);
    }
    comm->objection = objection_of(comm);
    struct llane_order_events *events = NULL;
    enum llane_inactive_reason reason =
        comm->n_ranks == 1                               ? LLANE_INACTIVE_ONE_RANK
        : comm->n_ranks > LLANE_MAX_RANKS                ? LLANE_INACTIVE_TOO_MANY_RANKS
        : comm->shares_with                              ? LLANE_INACTIVE_SHARED
        : comm->shrink == LLANE_KEY_NAMELESS             ? LLANE_INACTIVE_SHRUNK_AGAIN
        : !comm->has_key                                 ? LLANE_INACTIVE_NO_ID
        : llane_order_events_take(comm->device, &events) ? LLANE_INACTIVE_GPU
                                                         : LLANE_INACTIVE_NONE;
    if (reason) {
        llane_comm_set_inactive(comm, reason);
        LLANE_INFO("rank %d of %d: inactive: %s", comm->rank, comm->n_ranks,
                   llane_inactive_text((int)reason));
        return;
    }
    comm->setup_start_ms = llane_now_ms();
    llane_order_init(&comm->order, events, comm->is_graph_ordered);
    llane_comm_set_setting_up(comm);
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
    if (!sw || (!comm->has_posted && !llane_order_has_begun(&comm->order))) {
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
static enum llane_route route_call(struct llane_comm *comm, struct llane_operation *operation)
{
    uint64_t number = operation->number = ++comm->n_all_reduces;
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
    enum llane_route route =
        llane_route_choose(&lane->limits, operation->count, operation->datatype, operation->op);
    return route == LLANE_ROUTE_LANE && lane->limits.ab != LLANE_AB_OFF
               ? llane_calls_ab_route(lane, number, operation->stream)
               : route;
}

/* The lock is held. */
static ncclResult_t carry(struct llane_comm *comm, const struct llane_operation *operation)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    ncclResult_t result = llane_place_check(comm);
    if (result == ncclSuccess && llane_group_is_open(comm->nccl)) {
        int err = llane_group_add(comm, operation, LLANE_GROUP_LANE);
        result = !err ? ncclSuccess : err == LLANE_EINVAL ? ncclInvalidUsage : ncclSystemError;
    } else if (result == ncclSuccess) {
        int err = llane_lane_all_reduce(lane, operation);
        result = err ? llane_comm_not_launched(comm, err) : ncclSuccess;
    }
    if (result != ncclSuccess) {
        llane_group_fail(comm->nccl, result, LLANE_REFUSED_BY_LLANE);
    }
    return result;
}

static ncclResult_t to_nccl(const struct llane_nccl *nccl, ncclComm_t comm,
                            const struct llane_operation *o)
{
    struct llane_place place;
    ncclResult_t result = llane_place_take(&place, nccl, comm, o->stream);
    return result == ncclSuccess
               ? llane_place_leave(&place, nccl->AllReduce(o->in, o->out, o->count, o->datatype,
                                                           o->op, comm, o->stream))
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
    const struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    if (route == LLANE_ROUTE_LANE) {
        struct llane_plan plan = llane_route_plan(&lane->limits, o->count, o->datatype, o->op);
        LLANE_CALL("AllReduce call %" PRIu64 " rank %d count %zu datatype %d op %d: lane: %s",
                   comm->n_all_reduces, comm->rank, o->count, (int)o->datatype, (int)o->op,
                   llane_plan_text(&plan));
        return;
    }
    int is_inactive = route == LLANE_ROUTE_INACTIVE;
    LLANE_CALL("AllReduce call %" PRIu64 " rank %d count %zu datatype %d op %d: NCCL, %s%s%s",
               comm->n_all_reduces, comm->rank, o->count, (int)o->datatype, (int)o->op,
               llane_route_text(route), is_inactive ? ": " : "",
               is_inactive ? llane_inactive_text(comm->inactive_reason) : "");
}

static void count_error(struct llane_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->stats.n_errors++;
    pthread_mutex_unlock(&comm->lock);
}

/* LLANE_CHECK: of a call that NCCL carries, while others may carry theirs on the lane. */
static ncclResult_t check_call(struct llane_comm *comm, const struct llane_operation *operation,
                               ncclResult_t result)
{
    struct llane_lane *lane = llane_comm_live_lane(comm);
    int err = lane ? llane_lane_check(lane, operation) : 0;
    return err ? llane_comm_not_launched(comm, err) : result;
}

/* A call of a group, whose number counts once the group has ended well. */
struct unchecked {
    struct llane_comm *comm; /* held */
    struct llane_operation operation;
};

static void check_now(void *arg, ncclResult_t result)
{
    struct unchecked *u = arg;
    if (!llane_is_refused(result)) {
        (void)check_call(u->comm, &u->operation, result); /* the communicator reports it */
    }
    llane_comm_release(u->comm);
    free(u);
}

/* The lane checks what it carries, or is beside. */
static ncclResult_t check_later(struct llane_comm *comm, const struct llane_operation *operation,
                                enum llane_route route, ncclResult_t result)
{
    const struct llane_lane *lane = llane_comm_live_lane(comm);
    if (!lane || !lane->is_checked || route == LLANE_ROUTE_LANE || route == LLANE_ROUTE_AB_SHADOW) {
        return result;
    }
    struct unchecked *u = malloc(sizeof *u);
    if (!u) {
        return result; /* one call less is compared */
    }
    llane_comm_hold(comm);
    *u = (struct unchecked){comm, *operation};
    if (llane_group_defer(comm->nccl, check_now, u)) {
        check_now(u, ncclSystemError);
    }
    return result;
}

/* The communicator is known, and of this libnccl. */
static ncclResult_t all_reduce(struct llane_comm *comm, ncclComm_t handle,
                               struct llane_operation *operation)
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
    llane_stats_count(&comm->stats, route, bytes);
    comm->stats.n_errors += route == LLANE_ROUTE_LANE && result != ncclSuccess;
    pthread_mutex_unlock(&comm->lock);
    if (route != LLANE_ROUTE_LANE) {
        result = route == LLANE_ROUTE_AB_TURN || route == LLANE_ROUTE_AB_SHADOW
                     ? llane_calls_ab(comm, handle, operation, route)
                     : to_nccl(comm->nccl, handle, operation);
    }
    if (llane_is_refused(result) && route != LLANE_ROUTE_LANE) {
        count_error(comm);
    }
    /* Refused, its number is the next one's, as on ranks that never made the call. In a group that
     * waits for the group's end: it will fail, with all that is in it. */
    if (llane_is_refused(result) && !llane_group_is_open(comm->nccl)) {
        llane_comm_uncount(comm, 1);
    }
    if (llane_is_refused(result)) {
        return result;
    }
    return llane_group_is_open(comm->nccl) ? check_later(comm, operation, route, result)
                                           : check_call(comm, operation, result);
}

ncclResult_t llane_call_AllReduce(const struct llane_nccl *nccl, const void *sendbuff,
                                  void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t handle, cudaStream_t stream)
{
    struct llane_operation operation = {sendbuff, recvbuff, count, datatype, op, stream, 0, 0};
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
    struct llane_place place;
    ncclResult_t result = llane_place_take(&place, nccl, comm, stream);
    return result == ncclSuccess
               ? llane_place_leave(&place,
                                   nccl->AllReduceConfig(sendbuff, recvbuff, count, datatype, op,
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

/* What the lane knows beyond NCCL's "success" or "in progress". The lock is held. */
static ncclResult_t async_error(struct llane_comm *comm, ncclResult_t nccls)
{
    const struct llane_lane *lane = llane_comm_live_lane(comm);
    uint32_t dead = lane ? llane_lane_dead(lane) : LLANE_DEAD_NOT;
    if (dead) {
        return llane_place_dead_result(comm, dead);
    }
    if (nccls == ncclSuccess && llane_comm_is_ordered(comm)) {
        return llane_place_enter_pending(comm);
    }
    return nccls == ncclSuccess && comm->is_finalizing && llane_comm_is_busy(comm) ? ncclInProgress
                                                                                   : nccls;
}

/* A call of another thread's may hold the lock that waits, in the driver, for the dead: who asks so as
 * to end that must not wait for it. */
enum { LOCK_MS = 20 };

ncclResult_t llane_call_CommGetAsyncError(const struct llane_nccl *nccl, ncclComm_t handle,
                                          ncclResult_t *error)
{
    ncclResult_t result = nccl->CommGetAsyncError(handle, error);
    struct llane_comm *comm =
        result == ncclSuccess && !llane_is_refused(*error) ? llane_comm_acquire(handle) : NULL;
    ncclResult_t failure = comm && comm->nccl == nccl ? llane_comm_failure(comm) : ncclSuccess;
    if (failure != ncclSuccess) {
        *error = failure;
    } else if (comm && comm->nccl == nccl && !llane_lock_within(&comm->lock, LOCK_MS)) {
        *error = async_error(comm, *error);
        pthread_mutex_unlock(&comm->lock);
    }
    if (comm) {
        llane_comm_release(comm);
    }
    return result;
}
