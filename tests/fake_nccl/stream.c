/*
 * Order: operations of one communicator run in the order of the calls, whatever their streams, by an
 * event recorded after each and awaited when the stream changes. Under capture the first operation
 * waits for that event at every replay, one external record node announces the graph to later work,
 * and an ordinary event orders the operations of one capture across its streams.
 */
#include "emu.h"
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void trace(const struct ncclComm *comm, const struct fake_op *op)
{
    static _Atomic int fd = -2; /* -2: not yet opened; two openers at once waste a descriptor */
    if (atomic_load(&fd) == -2) {
        const char *file = getenv("FAKE_NCCL_TRACE");
        atomic_store(&fd, file ? open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1);
    }
    if (atomic_load(&fd) < 0)
        return;
    char line[128];
    int n =
        snprintf(line, sizeof(line), "%d %s %zu %s %016llx\n", comm->rank, fake_call_name(op->call),
                 op->count, fake_type_name(op->type), (unsigned long long)comm->id);
    if (write(atomic_load(&fd), line, (size_t)n) != n)
        perror("FAKE_NCCL_TRACE");
}

/* Makes `main` wait for the streams of the other ops of the list, or the other way round. */
static int join_streams(struct ncclComm *comm, const struct fake_op *ops, bool is_after)
{
    cudaStream_t main_stream = ops->stream;
    int r = 0;
    if (is_after)
        r = llane_gpu_event_record(comm->join, main_stream);
    for (const struct fake_op *op = ops->next; op && r == 0; op = op->next) {
        if (op->stream == main_stream)
            continue;
        if (is_after) {
            r = llane_gpu_stream_wait_event(op->stream, comm->join);
        } else {
            r = llane_gpu_event_record(comm->join, op->stream);
            if (r == 0)
                r = llane_gpu_stream_wait_event(main_stream, comm->join);
        }
    }
    return r;
}

static bool has_other_streams(const struct fake_op *ops)
{
    for (const struct fake_op *op = ops; op; op = op->next) {
        if (op->stream != ops->stream)
            return true;
    }
    return false;
}

static bool is_mixing(void)
{
    const char *mixing = fake_getenv("NCCL_GRAPH_MIXING_SUPPORT");
    return !mixing || strcmp(mixing, "0") != 0;
}

static struct fake_capture *capture_of(struct ncclComm *comm, uint64_t id)
{
    for (int i = 0; i < FAKE_CAPTURES; i++) {
        if (comm->captures[i].id == id)
            return &comm->captures[i];
    }
    return NULL;
}

static int make_events(struct ncclComm *comm)
{
    int r = comm->order ? 0 : llane_gpu_event_create(0, &comm->order);
    for (int i = 0; i < FAKE_CAPTURES && r == 0; i++)
        r = comm->captures[i].order ? 0 : llane_gpu_event_create(0, &comm->captures[i].order);
    return r;
}

static int order_before(struct ncclComm *comm, cudaStream_t stream, uint64_t id)
{
    if (make_events(comm) != 0)
        return -1;
    if (id == 0) {
        if (comm->has_order && (comm->is_ordered_by_graph || comm->last_stream != stream))
            return llane_gpu_stream_wait_event(stream, comm->order);
        return 0;
    }
    struct fake_capture *capture = capture_of(comm, id);
    if (capture)
        return capture->stream == stream ? 0 : llane_gpu_stream_wait_event(stream, capture->order);
    capture = &comm->captures[comm->n_captures++ % FAKE_CAPTURES];
    capture->id = id;
    capture->node = NULL;
    /* Even if the event was never recorded yet: it may be by the time of a replay. */
    return is_mixing() ? llane_gpu_capture_wait_external(stream, comm->order) : 0;
}

static int order_after(struct ncclComm *comm, cudaStream_t stream, uint64_t id)
{
    comm->has_order = true;
    if (id == 0) {
        comm->last_stream = stream;
        return llane_gpu_event_record(comm->order, stream);
    }
    /* From now on the event may be recorded by a replay at any time. */
    comm->is_ordered_by_graph = true;
    struct fake_capture *capture = capture_of(comm, id);
    capture->stream = stream;
    int r = 0;
    if (is_mixing())
        r = capture->node ? llane_gpu_capture_record_extend(stream, capture->node)
                          : llane_gpu_capture_record_external(stream, comm->order, &capture->node);
    return r == 0 ? llane_gpu_event_record(capture->order, stream) : r;
}

/* The graph is gone, and what was made of it. */
static void release_captured(void *arg)
{
    struct fake_work *work = arg;
    struct fake_link *link = work->link;
    fake_work_free(work);
    fake_link_release(link);
}

ncclResult_t fake_launch(struct ncclComm *comm, struct fake_op *ops)
{
    struct fake_work *work = calloc(1, sizeof(*work));
    /* A child that shares its parent's resources has its place in the parent's order. */
    struct ncclComm *order = comm->shares_with ? comm->shares_with : comm;
    cudaStream_t stream = ops->stream;
    uint64_t capture = 0;
    int device = 0, r;
    bool has_others = has_other_streams(ops);
    work->link = comm->link;
    work->ops = ops;
    for (const struct fake_op *op = ops; op; op = op->next)
        trace(comm, op);

    pthread_mutex_lock(&order->lock);
    if ((r = llane_gpu_device_get(&device)) != 0 || (r = llane_gpu_device_set(comm->device)) != 0)
        goto out;
    if ((r = llane_gpu_capture_id(stream, &capture)) != 0)
        goto restore;
    if (has_others && !order->join && (r = llane_gpu_event_create(0, &order->join)) != 0)
        goto restore;
    if (has_others && (r = join_streams(order, ops, false)) != 0)
        goto restore;
    if ((r = order_before(order, stream, capture)) != 0)
        goto restore;
    if (!capture)
        atomic_fetch_add(&comm->link->in_flight, 1);
    r = llane_emu_host_call_then(stream, fake_work_run, capture ? NULL : fake_work_end, work);
    if (r != 0) {
        if (!capture)
            atomic_fetch_sub(&comm->link->in_flight, 1);
        goto restore;
    }
    if (capture) {
        atomic_fetch_add(&comm->link->n_holders, 1);
        r = llane_gpu_capture_retain(stream, release_captured, work);
    }
    work = NULL;
    if (r == 0 && (r = order_after(order, stream, capture)) == 0 && has_others)
        r = join_streams(order, ops, true);
restore:
    llane_gpu_device_set(device);
out:
    pthread_mutex_unlock(&order->lock);
    if (work)
        fake_work_free(work);
    if (r != 0)
        FAKE_WARN("launch: %s", llane_gpu_error());
    return r == 0 ? ncclSuccess : ncclUnhandledCudaError;
}
