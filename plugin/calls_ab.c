#include "calls_ab.h"

#include <inttypes.h>
#include <stdlib.h>

#include "err.h"
#include "group.h"
#include "log.h"
#include "place.h"

/* Whether a call is captured is the same on all ranks. */
static int is_captured(cudaStream_t stream)
{
    uint64_t capture = 0;
    return stream && !llane_gpu_capture_id(stream, &capture) && capture;
}

enum llane_route llane_calls_ab_route(const struct llane_lane *lane, uint64_t number,
                                      cudaStream_t stream)
{
    switch (lane->limits.ab) {
    case LLANE_AB_ALTERNATE:
        /* A graph's calls are all the lane's: it would replay one turn for ever. */
        return llane_ab_turn(number) == LLANE_AB_NCCL && !is_captured(stream) ? LLANE_ROUTE_AB_TURN
                                                                              : LLANE_ROUTE_LANE;
    case LLANE_AB_SHADOW:
        /* Its results would be in memory that every replay writes anew. */
        return is_captured(stream) ? LLANE_ROUTE_AB_CAPTURED : LLANE_ROUTE_AB_SHADOW;
    default:
        return LLANE_ROUTE_LANE;
    }
}

static ncclResult_t call_nccl(const struct llane_comm *comm, ncclComm_t handle,
                              const struct llane_operation *o)
{
    return comm->nccl->AllReduce(o->in, o->out, o->count, o->datatype, o->op, handle, o->stream);
}

/* ---- alternate ---- */

/* Timed where it is no part of a group. */
static ncclResult_t take_turn(struct llane_comm *comm, ncclComm_t handle,
                              const struct llane_operation *operation)
{
    struct llane_operation o = *operation;
    struct llane_place place;
    ncclResult_t result = llane_place_take(&place, comm->nccl, handle, o.stream);
    if (result != ncclSuccess) {
        return result;
    }
    pthread_mutex_lock(&comm->lock);
    struct llane_lane *lane = llane_comm_live_lane(comm); /* NULL: it was ended meanwhile */
    o.is_grouped = llane_group_is_open(comm->nccl);
    struct llane_ab_pair *pair = lane ? llane_lane_ab_begin(lane, &o) : NULL;
    pthread_mutex_unlock(&comm->lock);
    result = call_nccl(comm, handle, &o);
    if (result == ncclSuccess && lane) {
        llane_lane_ab_end(lane, pair, o.stream);
    } else {
        llane_ab_cancel(pair, result == ncclInProgress); /* NCCL launches that later */
    }
    return llane_place_leave(&place, result);
}

/* ---- shadow ---- */

/* A call of a group, until the group has ended. */
struct pending {
    struct llane_comm *comm; /* held */
    struct llane_operation operation;
    int input;
};

/* The number of the lane's copy, -1 where there is none. */
static int copy_input(struct llane_comm *comm, const struct llane_operation *o)
{
    int input = -1;
    pthread_mutex_lock(&comm->lock);
    struct llane_lane *lane = llane_comm_live_lane(comm);
    if (lane) {
        input = llane_lane_shadow_input(lane, o);
    }
    pthread_mutex_unlock(&comm->lock);
    return input;
}

/* The call has come to an end: taken by NCCL, it is the lane's too, on every rank. */
static void end_shadowed(struct llane_comm *comm, const struct llane_operation *o, int input,
                         ncclResult_t result)
{
    pthread_mutex_lock(&comm->lock);
    struct llane_lane *lane = llane_comm_live_lane(comm);
    if (lane && llane_is_refused(result)) {
        llane_shadow_drop_input(lane->shadow, input);
    } else if (lane && llane_lane_shadow(lane, o, input, result == ncclSuccess)) {
        LLANE_WARN("rank %d: LLANE_AB=shadow: all-reduce %" PRIu64 " did not launch: %s",
                   comm->rank, o->number, llane_gpu_error());
    }
    pthread_mutex_unlock(&comm->lock);
}

static void end_pending(void *arg, ncclResult_t result)
{
    struct pending *p = arg;
    end_shadowed(p->comm, &p->operation, p->input, result);
    llane_comm_release(p->comm);
    free(p);
}

static struct pending *make_pending(struct llane_comm *comm, const struct llane_operation *o)
{
    struct pending *p = malloc(sizeof *p);
    if (p) {
        llane_comm_hold(comm);
        *p = (struct pending){comm, *o, -1};
    }
    return p;
}

static ncclResult_t refuse(struct llane_place *place, const struct llane_nccl *nccl)
{
    llane_group_fail(nccl, ncclSystemError, LLANE_REFUSED_BY_LLANE);
    return llane_place_leave(place, ncclSystemError);
}

static ncclResult_t call_shadowed(struct llane_comm *comm, ncclComm_t handle,
                                  const struct llane_operation *o)
{
    struct llane_place place;
    struct pending *pending = NULL;
    ncclResult_t result = llane_place_take(&place, comm->nccl, handle, o->stream);
    if (result != ncclSuccess) {
        return result;
    }
    if (llane_group_is_open(comm->nccl)) {
        pending = make_pending(comm, o);
        if (!pending) {
            return refuse(&place, comm->nccl);
        }
        if (llane_group_defer(comm->nccl, end_pending, pending)) {
            end_pending(pending, ncclSystemError);
            return refuse(&place, comm->nccl);
        }
    }
    int input = copy_input(comm, o);
    result = llane_place_leave(&place, call_nccl(comm, handle, o));
    if (pending) {
        pending->input = input; /* refused: the group has failed, and ends it so */
    } else {
        end_shadowed(comm, o, input, result);
    }
    return result;
}

ncclResult_t llane_calls_ab(struct llane_comm *comm, ncclComm_t handle,
                            const struct llane_operation *operation, enum llane_route route)
{
    return route == LLANE_ROUTE_AB_SHADOW ? call_shadowed(comm, handle, operation)
                                          : take_turn(comm, handle, operation);
}
