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

static int order_before(struct ncclComm *comm, cudaStream_t stream, uint64_t capture)
{
    if (!comm->order && (llane_gpu_event_create(0, &comm->order) != 0 ||
                         llane_gpu_event_create(0, &comm->capture_order) != 0))
        return -1;
    if (capture == 0) {
        if (comm->has_order && (comm->is_ordered_by_graph || comm->last_stream != stream))
            return llane_gpu_stream_wait_event(stream, comm->order);
        return 0;
    }
    if (capture == comm->capture_id)
        return comm->capture_stream == stream
                   ? 0
                   : llane_gpu_stream_wait_event(stream, comm->capture_order);
    const char *mixing = fake_getenv("NCCL_GRAPH_MIXING_SUPPORT");
    if (mixing && strcmp(mixing, "0") == 0)
        return 0;
    /* Even if the event was never recorded yet: it may be by the time of a replay. */
    return llane_gpu_capture_wait_external(stream, comm->order);
}

static int order_after(struct ncclComm *comm, cudaStream_t stream, uint64_t capture)
{
    comm->has_order = true;
    if (capture == 0) {
        comm->last_stream = stream;
        return llane_gpu_event_record(comm->order, stream);
    }
    /* From now on the event may be recorded by a replay at any time. */
    comm->is_ordered_by_graph = true;
    int r;
    const char *mixing = fake_getenv("NCCL_GRAPH_MIXING_SUPPORT");
    if (mixing && strcmp(mixing, "0") == 0)
        r = 0;
    else if (capture == comm->capture_id)
        r = llane_gpu_capture_record_extend(stream, comm->capture_node);
    else
        r = llane_gpu_capture_record_external(stream, comm->order, &comm->capture_node);
    comm->capture_id = capture;
    comm->capture_stream = stream;
    if (r == 0)
        r = llane_gpu_event_record(comm->capture_order, stream);
    return r;
}

/* Captured work belongs to its graph, of which we hear nothing: kept for the life of the process. */
static void keep_captured(struct fake_work *work)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct fake_work *all;
    pthread_mutex_lock(&lock);
    work->next = all;
    all = work;
    pthread_mutex_unlock(&lock);
}

ncclResult_t fake_launch(struct ncclComm *comm, struct fake_op *ops)
{
    struct fake_work *work = calloc(1, sizeof(*work));
    cudaStream_t stream = ops->stream;
    uint64_t capture = 0;
    int device = 0, r;
    bool has_others = has_other_streams(ops);
    work->link = comm->link;
    work->ops = ops;
    for (const struct fake_op *op = ops; op; op = op->next)
        trace(comm, op);

    pthread_mutex_lock(&comm->lock);
    if ((r = llane_gpu_device_get(&device)) != 0 || (r = llane_gpu_device_set(comm->device)) != 0)
        goto out;
    if ((r = llane_gpu_capture_id(stream, &capture)) != 0)
        goto restore;
    work->is_captured = capture != 0;
    if (has_others && !comm->join && (r = llane_gpu_event_create(0, &comm->join)) != 0)
        goto restore;
    if (has_others && (r = join_streams(comm, ops, false)) != 0)
        goto restore;
    if ((r = order_before(comm, stream, capture)) != 0)
        goto restore;
    if (capture)
        atomic_store(&comm->link->captured, 1);
    else
        atomic_fetch_add(&comm->link->in_flight, 1);
    r = llane_emu_host_call(stream, fake_work_run, work);
    if (r != 0) {
        if (!capture)
            atomic_fetch_sub(&comm->link->in_flight, 1);
        goto restore;
    }
    if (capture)
        keep_captured(work);
    work = NULL;
    if ((r = order_after(comm, stream, capture)) == 0 && has_others)
        r = join_streams(comm, ops, true);
restore:
    llane_gpu_device_set(device);
out:
    pthread_mutex_unlock(&comm->lock);
    if (work)
        fake_work_free(work);
    if (r != 0)
        FAKE_WARN("launch: %s", llane_gpu_error());
    return r == 0 ? ncclSuccess : ncclUnhandledCudaError;
}
