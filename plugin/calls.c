#include "calls.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "config.h"
#include "group.h"
#include "interpose.h"
#include "key.h"
#include "log.h"
#include "setup.h"
#include "startup.h"
#include "stats.h"
#include "tuner_contexts.h"

/* ---- all-reduce ---- */

/*
 * The first all-reduce of a communicator: its ranks arrive with it, so that a communicator that
 * never reduces costs nothing, and a rank whose calls bypass llane never arrives. The lock is held.
 */
static void meet(struct llane_comm *comm)
{
    const struct llane_nccl *nccl = comm->nccl;
    if (nccl->CommCount(comm->handle, &comm->n_ranks) != ncclSuccess ||
        nccl->CommUserRank(comm->handle, &comm->rank) != ncclSuccess ||
        nccl->CommCuDevice(comm->handle, &comm->device) != ncclSuccess) {
        return; /* not ready, or no communicator: NCCL says so to the caller */
    }
    uint64_t tuner_id;
    comm->handle_bytes = malloc_usable_size(comm->handle);
    if (llane_tuner_find(comm->handle, comm->handle_bytes, &tuner_id) && tuner_id) {
        /* Before the creation hook's id: the first communicator of a process has only this one. */
        llane_key_of_tuner(tuner_id, &comm->key);
        comm->has_key = 1;
    }
    enum llane_inactive_reason reason = comm->n_ranks == 1 ? LLANE_INACTIVE_ONE_RANK
                                        : comm->n_ranks > LLANE_MAX_RANKS
                                            ? LLANE_INACTIVE_TOO_MANY_RANKS
                                        : !comm->has_key ? LLANE_INACTIVE_NO_ID
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

/* The call's number is n_all_reduces when this returns. The lock is held. */
static enum llane_route route_call(struct llane_comm *comm, const struct llane_operation *operation)
{
    uint64_t number = ++comm->n_all_reduces;
    int state = atomic_load_explicit(&comm->state, memory_order_acquire);
    if (state == LLANE_COMM_SETTING_UP) {
        /* Acquire pairs with the set-up thread's release: the board is mapped. */
        struct llane_switch *sw = atomic_load_explicit(&comm->switch_word, memory_order_acquire);
        if (!sw || llane_switch_begin(sw, comm->rank, number) != LLANE_SWITCH_LIVE) {
            return LLANE_ROUTE_SETTING_UP;
        }
        atomic_store_explicit(&comm->state, LLANE_COMM_LIVE, memory_order_relaxed);
        state = LLANE_COMM_LIVE;
    }
    if (state != LLANE_COMM_LIVE) {
        return state == LLANE_COMM_INACTIVE ? LLANE_ROUTE_INACTIVE : LLANE_ROUTE_SETTING_UP;
    }
    const struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    return llane_route_choose(&lane->limits, operation->count, operation->datatype, operation->op);
}

/* A dead lane stays dead: results of overlapping or aborted operations are undefined. */
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

/* The lock is held. */
static ncclResult_t carry(struct llane_comm *comm, const struct llane_operation *operation)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    uint32_t dead = llane_lane_dead(lane);
    if (dead) {
        return dead_result(comm, dead);
    }
    if (llane_group_is_open(comm->nccl)) {
        return llane_group_add(comm, operation, LLANE_GROUP_LANE) ? ncclSystemError : ncclSuccess;
    }
    if (llane_lane_all_reduce(lane, operation)) {
        LLANE_WARN("rank %d: all-reduce %" PRIu64 " did not launch: %s", comm->rank,
                   comm->n_all_reduces, llane_gpu_error());
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

static ncclResult_t to_nccl(const struct llane_nccl *nccl, ncclComm_t comm,
                            const struct llane_operation *o)
{
    return nccl->AllReduce(o->in, o->out, o->count, o->datatype, o->op, comm, o->stream);
}

/*
 * NCCL carries a call on a communicator whose lane is live: it keeps its place among the lane's
 * operations on other streams.
 */
static ncclResult_t to_nccl_in_order(struct llane_comm *comm, const struct llane_operation *o)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    if (llane_group_is_open(comm->nccl)) {
        ncclResult_t result = to_nccl(comm->nccl, comm->handle, o);
        if (result == ncclSuccess && llane_group_add(comm, o, LLANE_GROUP_NCCL)) {
            return ncclSystemError;
        }
        return result;
    }
    pthread_mutex_lock(&comm->lock);
    int err = llane_lane_order_before(lane, o->stream);
    pthread_mutex_unlock(&comm->lock);
    ncclResult_t result = err ? ncclUnhandledCudaError : to_nccl(comm->nccl, comm->handle, o);
    if (result == ncclSuccess) {
        pthread_mutex_lock(&comm->lock);
        err = llane_lane_order_after(lane, o->stream);
        pthread_mutex_unlock(&comm->lock);
    }
    return err ? ncclUnhandledCudaError : result;
}

/* NCCL refused the call: the next one bears its number, as on ranks that never made it. */
static void uncount(struct llane_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct llane_switch *sw = atomic_load_explicit(&comm->switch_word, memory_order_acquire);
    if (sw) {
        llane_switch_uncount(sw, comm->rank, comm->n_all_reduces);
    }
    comm->n_all_reduces--;
    pthread_mutex_unlock(&comm->lock);
}

static int is_refused(ncclResult_t result)
{
    return result != ncclSuccess && result != ncclInProgress;
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
    LLANE_CALL("AllReduce call %" PRIu64 " rank %d count %zu datatype %d op %d: %s%s%s",
               comm->n_all_reduces, comm->rank, o->count, (int)o->datatype, (int)o->op,
               route == LLANE_ROUTE_LANE ? "lane" : "NCCL, ",
               route == LLANE_ROUTE_LANE ? "" : llane_route_text(route),
               route == LLANE_ROUTE_INACTIVE ? llane_inactive_text(comm->inactive_reason) : "");
}

ncclResult_t llane_call_AllReduce(const struct llane_nccl *nccl, const void *sendbuff,
                                  void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t handle, cudaStream_t stream)
{
    const struct llane_operation operation = {sendbuff, recvbuff, count, datatype, op, stream};
    struct llane_comm *comm = handle ? llane_comm_find(handle) : NULL;
    int n_ranks;
    if (!comm && handle && nccl->CommCount(handle, &n_ranks) == ncclSuccess) {
        comm = llane_comm_add(nccl, handle, NULL, 0); /* created before llane came, or unseen */
    }
    if (!comm || comm->nccl != nccl) {
        return to_nccl(nccl, handle, &operation);
    }
    if (atomic_load_explicit(&comm->state, memory_order_acquire) == LLANE_COMM_NEW) {
        meet_and_wait(comm);
    }
    uint64_t bytes = count * llane_route_type_bytes(datatype);
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&comm->lock);
    enum llane_route route = route_call(comm, &operation);
    if (llane_log_wants_calls()) {
        log_call(comm, &operation, route);
    }
    if (route == LLANE_ROUTE_LANE) {
        result = carry(comm, &operation);
    }
    llane_stats_count(comm, route, bytes);
    int is_live = atomic_load_explicit(&comm->state, memory_order_relaxed) == LLANE_COMM_LIVE;
    pthread_mutex_unlock(&comm->lock);
    if (route == LLANE_ROUTE_LANE) {
        return result;
    }
    result =
        is_live && count ? to_nccl_in_order(comm, &operation) : to_nccl(nccl, handle, &operation);
    if (is_refused(result)) {
        uncount(comm);
    }
    return result;
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

/* Ends the group without launching anything; the lane's operations in it are dropped likewise. */
ncclResult_t llane_call_GroupSimulateEnd(const struct llane_nccl *nccl, ncclSimInfo_t *info)
{
    ncclResult_t result = nccl->GroupSimulateEnd(info);
    llane_group_drop(nccl);
    return result;
}

/* ---- creation ---- */

/* A communicator under way: its handle is known when the creating call or its group has ended. */
struct birth {
    const struct llane_nccl *nccl;
    ncclComm_t *where;
    struct llane_board_key key;
    int max_ctas;
};

static void deliver(const struct birth *birth, ncclResult_t result)
{
    if (!is_refused(result) && *birth->where) {
        llane_comm_add(birth->nccl, *birth->where, &birth->key, birth->max_ctas);
    }
}

static void deliver_deferred(void *arg, ncclResult_t result)
{
    deliver(arg, result);
    free(arg);
}

/*
 * Outside a group the handle is entered now; inside one it may be written only when the group
 * ends. Without memory for that the communicator has no id from its creation: NCCL may carry it.
 */
static ncclResult_t born(const struct birth *birth, ncclResult_t result)
{
    if (!llane_config()->enable) {
        return result;
    }
    llane_interpose_scan();
    llane_startup_announce();
    if (is_refused(result)) {
        return result;
    }
    if (!llane_group_is_open(birth->nccl)) {
        deliver(birth, result);
        return result;
    }
    struct birth *later = malloc(sizeof *later);
    if (later) {
        *later = *birth;
        if (llane_group_defer(birth->nccl, deliver_deferred, later)) {
            free(later);
        }
    }
    return result;
}

ncclResult_t llane_call_CommInitRank(const struct llane_nccl *nccl, ncclComm_t *comm, int nranks,
                                     ncclUniqueId id, int rank)
{
    struct birth birth = {.nccl = nccl, .where = comm};
    llane_key_of_unique_id(&id, &birth.key);
    return born(&birth, nccl->CommInitRank(comm, nranks, id, rank));
}

ncclResult_t llane_call_CommInitRankConfig(const struct llane_nccl *nccl, ncclComm_t *comm,
                                           int nranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
    struct birth birth = {.nccl = nccl, .where = comm, .max_ctas = llane_key_max_ctas(config)};
    llane_key_of_unique_id(&id, &birth.key);
    return born(&birth, nccl->CommInitRankConfig(comm, nranks, id, rank, config));
}

ncclResult_t llane_call_CommInitRankScalable(const struct llane_nccl *nccl, ncclComm_t *comm,
                                             int nranks, int rank, int n_ids, ncclUniqueId *ids,
                                             ncclConfig_t *config)
{
    struct birth birth = {.nccl = nccl, .where = comm, .max_ctas = llane_key_max_ctas(config)};
    if (n_ids < 1 || !ids) {
        return nccl->CommInitRankScalable(comm, nranks, rank, n_ids, ids, config);
    }
    llane_key_of_unique_id(&ids[0], &birth.key);
    return born(&birth, nccl->CommInitRankScalable(comm, nranks, rank, n_ids, ids, config));
}

ncclResult_t llane_call_CommInitAll(const struct llane_nccl *nccl, ncclComm_t *comms, int ndev,
                                    const int *devlist)
{
    ncclResult_t result = nccl->CommInitAll(comms, ndev, devlist);
    struct birth birth = {.nccl = nccl};
    llane_key_of_process(&birth.key);
    for (int i = 0; i < ndev && comms; i++) {
        birth.where = &comms[i];
        born(&birth, result);
    }
    return result;
}

/* A child's id comes from its parent's, so all ranks of the child derive the same one. */
static void key_of_child(struct llane_comm *parent, int color, struct llane_board_key *key)
{
    pthread_mutex_lock(&parent->lock);
    llane_key_of_child(&parent->key, ++parent->n_splits, color, key);
    pthread_mutex_unlock(&parent->lock);
}

ncclResult_t llane_call_CommSplit(const struct llane_nccl *nccl, ncclComm_t parent, int color,
                                  int key, ncclComm_t *comm, ncclConfig_t *config)
{
    struct birth birth = {.nccl = nccl, .where = comm, .max_ctas = llane_key_max_ctas(config)};
    struct llane_comm *known = llane_comm_find(parent);
    if (known) {
        key_of_child(known, color, &birth.key);
    }
    ncclResult_t result = nccl->CommSplit(parent, color, key, comm, config);
    if (!known || !known->has_key || color == NCCL_SPLIT_NOCOLOR) {
        return result;
    }
    return born(&birth, result);
}

ncclResult_t llane_call_CommShrink(const struct llane_nccl *nccl, ncclComm_t parent, int *excluded,
                                   int n_excluded, ncclComm_t *comm, ncclConfig_t *config,
                                   int flags)
{
    struct birth birth = {.nccl = nccl, .where = comm, .max_ctas = llane_key_max_ctas(config)};
    struct llane_comm *known = llane_comm_find(parent);
    if (known) {
        key_of_child(known, LLANE_KEY_SHRINK, &birth.key);
        struct llane_lane *lane = atomic_load_explicit(&known->lane, memory_order_acquire);
        if (lane && (flags & NCCL_SHRINK_ABORT)) {
            llane_lane_abort(lane);
        }
    }
    ncclResult_t result = nccl->CommShrink(parent, excluded, n_excluded, comm, config, flags);
    return known && known->has_key ? born(&birth, result) : result;
}

/* ---- ends ---- */

ncclResult_t llane_call_CommFinalize(const struct llane_nccl *nccl, ncclComm_t comm)
{
    llane_comm_drop(comm, 0);
    return nccl->CommFinalize(comm);
}

ncclResult_t llane_call_CommDestroy(const struct llane_nccl *nccl, ncclComm_t comm)
{
    llane_comm_drop(comm, 0);
    return nccl->CommDestroy(comm);
}

/* The abort word first: NCCL's abort may wait for a stream on which our kernel spins. */
ncclResult_t llane_call_CommAbort(const struct llane_nccl *nccl, ncclComm_t comm)
{
    llane_comm_drop(comm, 1);
    return nccl->CommAbort(comm);
}

ncclResult_t llane_call_CommRevoke(const struct llane_nccl *nccl, ncclComm_t comm, int flags)
{
    llane_comm_drop(comm, 1);
    return nccl->CommRevoke(comm, flags);
}
