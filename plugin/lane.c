#include "lane.h"

#include <stdlib.h>

#include "config.h"
#include "device.h"
#include "err.h"

/* How this rank may read and write its own buffers: no peer sees a difference. */
static int is_plain(const struct llane_operation *o, const struct llane_plan *plan,
                    uint32_t n_ranks)
{
    uint64_t bytes = o->count * llane_route_type_bytes(o->datatype);
    uint64_t payload = llane_payload_bytes(plan->packet);
    uint64_t grain = payload * (plan->algorithm == LLANE_TWO_SHOT ? n_ranks : 1);
    return ((uintptr_t)o->in | (uintptr_t)o->out) % payload == 0 && bytes % grain == 0;
}

/* For those who watch; a replay's operations are not counted. Relaxed: the numbers alone matter. */
static void post(const struct llane_lane *lane, const struct llane_operation *o)
{
    struct llane_presence *mine = llane_board_presence(lane->board, lane->rank);
    uint64_t n = atomic_load_explicit(&mine->n_operations, memory_order_relaxed);
    atomic_store_explicit(&mine->number, o->number, memory_order_relaxed);
    atomic_store_explicit(&mine->bytes, o->count * llane_route_type_bytes(o->datatype),
                          memory_order_relaxed);
    atomic_store_explicit(&mine->n_operations, n + 1, memory_order_relaxed);
}

/* After order's before(): groups and captures have no time of a single call. */
static struct llane_ab_pair *ab_begin(struct llane_lane *lane, enum llane_ab_path path,
                                      const struct llane_operation *o)
{
    int is_timed = !o->is_grouped && !lane->order->current_capture;
    return lane->ab ? llane_ab_begin(lane->ab, path, o->count * llane_route_type_bytes(o->datatype),
                                     o->stream, is_timed)
                    : NULL;
}

int llane_lane_launch(const struct llane_lane *lane, const struct llane_operation *operation,
                      const struct llane_plan *plan, void **chain)
{
    struct llane_all_reduce_args args = lane->args[plan->packet];
    args.in = operation->in;
    args.out = operation->out;
    args.count = operation->count;
    args.op = plan->op;
    args.flags = (is_plain(operation, plan, args.n_ranks) ? LLANE_FLAG_PLAIN : 0u) |
                 (lane->limits.sleeps ? LLANE_FLAG_SLEEP : 0u);
    args.chunk_packets = plan->chunk_packets;
    const struct llane_gpu_launch request = {
        .kernel = lane->has_shared
                      ? llane_shared_table[plan->type][plan->algorithm][plan->packet]
                      : llane_all_reduce_table[plan->type][plan->algorithm][plan->packet],
        .args = &args,
        .args_bytes = sizeof args,
        .n_blocks = plan->n_blocks,
        .n_threads = plan->n_threads,
        .stream = operation->stream,
        .chain = chain,
        .fit = lane->limits.fit,
    };
    if (!llane_config()->nvtx) {
        return llane_gpu_launch(&request);
    }
    llane_gpu_range_begin(llane_plan_text(plan));
    int err = llane_gpu_launch(&request);
    llane_gpu_range_end();
    return err;
}

static int launch(struct llane_lane *lane, const struct llane_operation *operation)
{
    struct llane_plan plan =
        llane_route_plan(&lane->limits, operation->count, operation->datatype, operation->op);
    int err = llane_order_before(lane->order, operation->stream);
    if (err) {
        return err;
    }
    void **chain = llane_order_chain(lane->order);
    if (!chain) {
        post(lane, operation);
    }
    uint64_t bytes = operation->count * llane_route_type_bytes(operation->datatype);
    struct llane_ab_pair *pair = ab_begin(lane, LLANE_AB_LANE, operation);
    err = llane_lane_launch(lane, operation, &plan, chain);
    if (err) {
        llane_ab_cancel(pair, 0);
        return err;
    }
    llane_ab_end(pair, operation->stream);
    lane->n_launched[llane_size_bucket(bytes)][plan.algorithm][plan.packet]++;
    return llane_order_after(lane->order, operation->stream);
}

int llane_lane_check(struct llane_lane *lane, const struct llane_operation *o)
{
    const struct llane_check_what what = {o->number, o->count, (int)o->datatype, (int)o->op};
    return lane->is_checked ? llane_check_post(llane_board_check(lane->board),
                                               (int)lane->limits.n_ranks, lane->rank, &what)
                            : 0;
}

int llane_lane_all_reduce(struct llane_lane *lane, const struct llane_operation *operation)
{
    int previous;
    int err = llane_lane_check(lane, operation);
    err = err ? err : llane_device_enter(lane->device, &previous);
    return err ? err : llane_device_leave(lane->device, previous, launch(lane, operation));
}

int llane_lane_is_aborted(const struct llane_lane *lane)
{
    return llane_staging_is_aborted(lane->staging);
}

/* The program did, and nothing of the lane runs any more. */
static int was_reset(const struct llane_lane *lane)
{
    return llane_device_was_reset(lane->device, lane->order->events->context);
}

int llane_lane_is_busy(const struct llane_lane *lane)
{
    int is_done = 0, previous;
    /* Its device has a context; this thread's, by whichever thread it is called, may have none. */
    if (llane_lane_is_aborted(lane) || was_reset(lane) ||
        llane_device_enter(lane->device, &previous)) {
        return 0;
    }
    int err = llane_gpu_event_query(lane->order->events->last_op, &is_done);
    return !llane_device_leave(lane->device, previous, err) && !is_done;
}

struct llane_ab_pair *llane_lane_ab_begin(struct llane_lane *lane,
                                          const struct llane_operation *operation)
{
    int previous;
    if (llane_device_enter(lane->device, &previous)) {
        return NULL;
    }
    struct llane_ab_pair *pair = ab_begin(lane, LLANE_AB_NCCL, operation);
    (void)llane_device_leave(lane->device, previous, 0);
    return pair;
}

void llane_lane_ab_end(struct llane_lane *lane, struct llane_ab_pair *pair, cudaStream_t stream)
{
    int previous;
    if (pair && !llane_device_enter(lane->device, &previous)) {
        llane_ab_end(pair, stream);
        (void)llane_device_leave(lane->device, previous, 0);
    }
}

int llane_lane_shadow_input(struct llane_lane *lane, const struct llane_operation *operation)
{
    int previous;
    if (llane_device_enter(lane->device, &previous)) {
        return -1;
    }
    int input = llane_shadow_copy_input(lane->shadow, operation);
    (void)llane_device_leave(lane->device, previous, 0);
    return input;
}

int llane_lane_shadow(struct llane_lane *lane, const struct llane_operation *operation, int input,
                      int is_compared)
{
    int previous;
    int err = llane_device_enter(lane->device, &previous);
    return err ? err
               : llane_device_leave(
                     lane->device, previous,
                     llane_shadow_launch(lane->shadow, lane, operation, input, is_compared));
}

uint32_t llane_lane_dead(const struct llane_lane *lane)
{
    /* Pairs with the system-scope store of a kernel that gave up. */
    return __atomic_load_n(&lane->staging->mapped->words.dead, __ATOMIC_ACQUIRE);
}

void llane_lane_abort(struct llane_lane *lane)
{
    llane_staging_abort(lane->staging);
}

void llane_lane_bury(struct llane_lane *lane)
{
    if (lane) {
        if (lane->shadow && lane->order && !was_reset(lane)) {
            (void)llane_shadow_enter_order(lane->shadow, lane->order);
        }
        llane_staging_bury(lane->staging, lane->board, lane->rank);
        llane_ab_bury(lane->ab);
        llane_shadow_bury(lane->shadow);
    }
    free(lane);
}
