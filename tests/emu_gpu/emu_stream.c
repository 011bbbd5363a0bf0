/* Streams: a queue and a detached worker thread each, in order. Copies, launches, host calls. */
#define _GNU_SOURCE
#include "emu_internal.h"
#include "table.h"

#include <stdio.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    STREAM_MAGIC = 0x53545245,
    MAX_BLOCK_THREADS = 1024,
    MAX_ARGS_BYTES = 4096,
    WARPS_PER_SM = 64,
    /* Looks at the queue before a worker sleeps: a futex wake costs more than a short kernel. */
    WORKER_YIELDS = 20,
    MAX_LOADED = 256
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *all_streams; /* never freed: a stale handle is recognised */
static struct CUstream_st *default_streams[EMU_MAX_DEVICES];
static uint32_t n_streams;

/* One list a device. The lock is held while a load waits, as in CUDA: else two threads that launch the
 * same kernel first could each wait for the other's. */
static struct {
    pthread_mutex_t lock;
    const void *kernels[MAX_LOADED];
    size_t n;
} loaded[EMU_MAX_DEVICES];
static pthread_once_t loaded_once = PTHREAD_ONCE_INIT;

struct CUstream_st *emu_stream_new(int device)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->magic = STREAM_MAGIC;
    stream->device = device;
    stream->tail = &stream->head;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->done, NULL);
    pthread_mutex_lock(&all_lock);
    stream->number = n_streams++;
    stream->next_all = all_streams;
    all_streams = stream;
    pthread_mutex_unlock(&all_lock);
    return stream;
}

static struct CUstream_st *default_stream(void)
{
    int device = emu_current_device();
    if (emu_current_physical() < 0)
        return NULL;
    pthread_mutex_lock(&all_lock);
    struct CUstream_st *stream = default_streams[device];
    pthread_mutex_unlock(&all_lock);
    if (stream)
        return stream;
    struct CUstream_st *fresh = emu_stream_new(device);
    if (!fresh) {
        emu_error("out of host memory");
        return NULL;
    }
    pthread_mutex_lock(&all_lock);
    if (!default_streams[device])
        default_streams[device] = fresh; /* else another thread was first; ours is never used */
    stream = default_streams[device];
    pthread_mutex_unlock(&all_lock);
    return stream;
}

static struct CUstream_st *per_thread_stream(void)
{
    static _Thread_local struct CUstream_st *streams[EMU_MAX_DEVICES];
    int device = emu_current_device();
    if (emu_current_physical() < 0)
        return NULL;
    if (!streams[device])
        streams[device] = emu_stream_new(device);
    if (!streams[device])
        emu_error("out of host memory");
    return streams[device];
}

struct CUstream_st *emu_stream_resolve(struct CUstream_st *handle)
{
    /* 1 is cudaStreamLegacy, another name for NULL; 2 is cudaStreamPerThread. */
    if ((uintptr_t)handle <= 1)
        return default_stream();
    if ((uintptr_t)handle == 2)
        return per_thread_stream();
    if ((uintptr_t)handle % _Alignof(struct CUstream_st) != 0 || handle->magic != STREAM_MAGIC) {
        emu_error("%p is no stream", (void *)handle);
        return NULL;
    }
    pthread_mutex_lock(&handle->mutex);
    bool destroyed = handle->destroyed;
    pthread_mutex_unlock(&handle->mutex);
    if (destroyed) {
        emu_error("stream %u has been destroyed", handle->number);
        return NULL;
    }
    return handle;
}

/* ---- positions ---- */

bool emu_position_is_done(struct emu_position position)
{
    if (!position.stream)
        return true;
    pthread_mutex_lock(&position.stream->mutex);
    bool done = position.stream->completed >= position.seq;
    pthread_mutex_unlock(&position.stream->mutex);
    return done;
}

void emu_position_wait(struct emu_position position)
{
    struct CUstream_st *stream = position.stream;
    if (!stream)
        return;
    for (int i = 0; i < WORKER_YIELDS; i++) {
        if (emu_position_is_done(position))
            return;
        sched_yield();
    }
    pthread_mutex_lock(&stream->mutex);
    stream->n_waiters++;
    while (stream->completed < position.seq)
        pthread_cond_wait(&stream->done, &stream->mutex);
    stream->n_waiters--;
    pthread_mutex_unlock(&stream->mutex);
}

struct emu_position emu_stream_position(struct CUstream_st *stream)
{
    pthread_mutex_lock(&stream->mutex);
    struct emu_position position = {stream, stream->issued};
    pthread_mutex_unlock(&stream->mutex);
    return position;
}

void emu_device_drain(int device)
{
    pthread_mutex_lock(&all_lock);
    struct CUstream_st *stream = all_streams;
    pthread_mutex_unlock(&all_lock);
    for (; stream; stream = stream->next_all) {
        if (stream->device == device)
            emu_position_wait(emu_stream_position(stream));
    }
}

/* ---- the worker ---- */

/* What a running kernel may store meanwhile is read in whole words, as a copy engine does. */
static void copy(void *to, const void *from, size_t bytes)
{
    const size_t word = sizeof(uint64_t);
    if (bytes % word || (uintptr_t)from % word || (uintptr_t)to % word) {
        memmove(to, from, bytes);
        return;
    }
    for (size_t i = 0; i < bytes / word; i++) {
        uint64_t value = __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED);
        memcpy((uint64_t *)to + i, &value, word);
    }
}

/* By whole words, atomic: ranks that are threads of one process store there next, in an order that
 * their board gives; of that each maps a copy, which the thread sanitizer takes for other memory. */
static void fill(void *to, int byte, size_t bytes)
{
    if (bytes % sizeof(uint64_t) || (uintptr_t)to % sizeof(uint64_t)) {
        memset(to, byte, bytes);
        return;
    }
    uint64_t value;
    memset(&value, byte, sizeof value);
    for (size_t i = 0; i < bytes / sizeof value; i++)
        __atomic_store_n((uint64_t *)to + i, value, __ATOMIC_RELAXED);
}

static void run_op(struct CUstream_st *stream, struct emu_op *op, uint64_t seq)
{
    switch (op->kind) {
    case EMU_OP_KERNEL: {
        uint64_t seed = emu_config()->seed * 0x9e3779b97f4a7c15ULL;
        seed ^= ((uint64_t)op->u.kernel.device << 56) ^ ((uint64_t)stream->number << 40) ^ seq;
        emu_grid_run(op->u.kernel.fn, op->args, op->u.kernel.n_blocks, op->u.kernel.n_threads,
                     op->u.kernel.device, seed * 0xbf58476d1ce4e5b9ULL);
        break;
    }
    case EMU_OP_MEMSET:
        fill(op->u.copy.to, op->u.copy.byte, op->u.copy.bytes);
        break;
    case EMU_OP_MEMCPY:
        copy(op->u.copy.to, op->u.copy.from, op->u.copy.bytes);
        break;
    case EMU_OP_HOST_CALL:
        op->u.host.fn(op->u.host.arg);
        break;
    case EMU_OP_WAIT:
        emu_position_wait(op->u.wait);
        break;
    case EMU_OP_STAMP:
        emu_event_stamp(op->u.stamp.event, op->u.stamp.ticket);
        break;
    default:
        emu_die("operation %d on a stream", (int)op->kind);
    }
}

/* With the mutex held: the next operation, NULL when the stream is destroyed and empty. */
static struct emu_op *next_op(struct CUstream_st *stream)
{
    int looks = 0;
    while (!stream->head) {
        if (stream->destroyed)
            return NULL;
        if (looks++ < WORKER_YIELDS) {
            pthread_mutex_unlock(&stream->mutex);
            sched_yield();
            pthread_mutex_lock(&stream->mutex);
            continue;
        }
        stream->worker_sleeps = true;
        pthread_cond_wait(&stream->work, &stream->mutex);
        stream->worker_sleeps = false;
    }
    struct emu_op *op = stream->head;
    stream->head = op->next;
    if (!stream->head)
        stream->tail = &stream->head;
    return op;
}

static void *worker_main(void *arg)
{
    struct CUstream_st *stream = arg;
    emu_set_current_device(stream->device);
    pthread_mutex_lock(&stream->mutex);
    struct emu_op *op;
    while ((op = next_op(stream))) {
        uint64_t seq = stream->completed + 1;
        pthread_mutex_unlock(&stream->mutex);
        run_op(stream, op, seq);
        void (*ended)(void *) = op->kind == EMU_OP_HOST_CALL ? op->u.host.ended : NULL;
        void *arg = ended ? op->u.host.arg : NULL;
        free(op);
        if (emu_config()->end_us)
            usleep(emu_config()->end_us);
        pthread_mutex_lock(&stream->mutex);
        stream->completed = seq;
        if (stream->n_waiters > 0)
            pthread_cond_broadcast(&stream->done);
        if (ended) {
            pthread_mutex_unlock(&stream->mutex);
            ended(arg);
            pthread_mutex_lock(&stream->mutex);
        }
    }
    pthread_mutex_unlock(&stream->mutex);
    free(emu_worker()->delayed);
    return NULL;
}

/* With the mutex held. Detached: a kernel that spins must not keep the process. */
static void start_worker(struct CUstream_st *stream)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attr, worker_main, stream) != 0)
        emu_die("no thread for a stream");
    pthread_attr_destroy(&attr);
    stream->has_worker = true;
}

struct emu_op *emu_op_new(enum emu_op_kind kind, size_t args_bytes)
{
    struct emu_op *op = calloc(1, sizeof *op + args_bytes);
    if (!op) {
        emu_error("out of host memory");
        return NULL;
    }
    op->kind = kind;
    op->args_bytes = args_bytes;
    return op;
}

struct emu_position emu_stream_push(struct CUstream_st *stream, struct emu_op *op)
{
    pthread_mutex_lock(&stream->mutex);
    op->next = NULL;
    *stream->tail = op;
    stream->tail = &op->next;
    struct emu_position position = {stream, ++stream->issued};
    if (!stream->has_worker)
        start_worker(stream);
    if (stream->worker_sleeps)
        pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
    return position;
}

int emu_stream_push_wait(struct CUstream_st *stream, struct emu_position position)
{
    if (!position.stream || position.stream == stream || emu_position_is_done(position))
        return 0;
    struct emu_op *op = emu_op_new(EMU_OP_WAIT, 0);
    if (!op)
        return LLANE_EGPU;
    op->u.wait = position;
    emu_stream_push(stream, op);
    return 0;
}

int emu_issue(struct CUstream_st *stream, struct emu_op *op)
{
    if (emu_stream_is_capturing(stream))
        return emu_capture_append(stream, op);
    emu_stream_push(stream, op);
    return 0;
}

/* ---- calls ---- */

int llane_gpu_stream_create(struct CUstream_st **out)
{
    if (emu_current_physical() < 0 || emu_check_fail("stream_create"))
        return LLANE_EGPU;
    emu_wait_for_frees(emu_current_physical());
    *out = emu_stream_new(emu_current_device());
    return *out ? 0 : emu_error("out of host memory");
}

void emu_stream_retire(struct CUstream_st *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->destroyed = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
}

int llane_gpu_stream_destroy(struct CUstream_st *handle)
{
    if ((uintptr_t)handle <= 2)
        return emu_error("the default streams cannot be destroyed");
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    emu_capture_invalidate(stream);
    emu_stream_retire(stream);
    return 0;
}

/* As CUDA 13.0 does it, a stream that is asked while it captures loses its capture. */
uint64_t llane_gpu_stream_id(struct CUstream_st *handle)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (stream && emu_stream_is_capturing(stream)) {
        emu_capture_invalidate(stream);
        return 0;
    }
    return stream ? stream->number + 1ull : 0;
}

int llane_gpu_stream_synchronize(struct CUstream_st *handle)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    if (emu_stream_is_capturing(stream)) {
        emu_capture_invalidate(stream);
        return emu_error("stream_synchronize on a capturing stream");
    }
    if (emu_check_unsafe("stream_synchronize"))
        return LLANE_EGPU;
    emu_position_wait(emu_stream_position(stream));
    return 0;
}

int llane_gpu_stream_query(struct CUstream_st *handle, int *done_out)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    if (emu_stream_is_capturing(stream)) {
        emu_capture_invalidate(stream);
        return emu_error("stream_query on a capturing stream");
    }
    bool was_relaxed = emu_exchange_relaxed(true); /* as gpu_cuda.c does */
    int rc = emu_check_unsafe("stream_query");
    (void)emu_exchange_relaxed(was_relaxed);
    if (rc)
        return LLANE_EGPU;
    *done_out = emu_position_is_done(emu_stream_position(stream));
    return 0;
}

static int issue_copy(const char *call, enum emu_op_kind kind, void *to, const void *from, int byte,
                      size_t bytes, struct CUstream_st *handle)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream || emu_check_fail(call))
        return LLANE_EGPU;
    emu_wait_for_frees(emu_config()->physical[stream->device]);
    struct emu_op *op = emu_op_new(kind, 0);
    if (!op)
        return LLANE_EGPU;
    op->u.copy.to = to;
    op->u.copy.from = from;
    op->u.copy.byte = byte;
    op->u.copy.bytes = bytes;
    return emu_issue(stream, op);
}

int llane_gpu_memset_async(void *p, int byte, size_t bytes, struct CUstream_st *stream)
{
    return issue_copy("memset", EMU_OP_MEMSET, p, NULL, byte, bytes, stream);
}

int llane_gpu_memcpy_async(void *to, const void *from, size_t bytes, struct CUstream_st *stream)
{
    return issue_copy("memcpy", EMU_OP_MEMCPY, to, from, 0, bytes, stream);
}

int llane_emu_host_call(struct CUstream_st *handle, void (*fn)(void *arg), void *arg)
{
    return llane_emu_host_call_then(handle, fn, NULL, arg);
}

int llane_emu_host_call_then(struct CUstream_st *handle, void (*fn)(void *arg),
                             void (*ended)(void *arg), void *arg)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    struct emu_op *op = emu_op_new(EMU_OP_HOST_CALL, 0);
    if (!op)
        return LLANE_EGPU;
    op->u.host.fn = fn;
    op->u.host.ended = ended;
    op->u.host.arg = arg;
    return emu_issue(stream, op);
}

static void init_loaded(void)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        pthread_mutex_init(&loaded[i].lock, NULL);
}

/* As CUDA's lazy loading: the first load of a kernel on a device waits for what runs there. */
static void load_kernel(const void *kernel, int device)
{
    pthread_once(&loaded_once, init_loaded);
    pthread_mutex_lock(&loaded[device].lock);
    size_t i = 0;
    while (i < loaded[device].n && loaded[device].kernels[i] != kernel)
        i++;
    if (i == MAX_LOADED)
        emu_die("too many kernels");
    if (i == loaded[device].n) {
        emu_device_drain(device);
        loaded[device].kernels[loaded[device].n++] = kernel;
    }
    pthread_mutex_unlock(&loaded[device].lock);
}

static int check_shape(const void *kernel, uint32_t n_threads)
{
    if (!kernel)
        return emu_error("no kernel");
    if (n_threads == 0 || n_threads > MAX_BLOCK_THREADS)
        return emu_error("%u threads in a block", n_threads);
    return 0;
}

void llane_gpu_range_begin(const char *name)
{
    if (getenv("EMU_RANGES"))
        fprintf(stderr, "emulated GPU: range %s\n", name);
}

void llane_gpu_range_end(void)
{
    if (getenv("EMU_RANGES"))
        fputs("emulated GPU: range ends\n", stderr);
}

int llane_gpu_kernel_load(const void *kernel, uint32_t n_threads, uint32_t *blocks_per_sm_out)
{
    if (emu_current_physical() < 0 || emu_check_fail("kernel_load") ||
        check_shape(kernel, n_threads))
        return LLANE_EGPU;
    if (emu_config()->load_us)
        usleep(emu_config()->load_us);
    load_kernel(kernel, emu_current_device());
    uint32_t n_warps = (n_threads + 31) / 32;
    *blocks_per_sm_out = n_warps > 0 ? WARPS_PER_SM / n_warps : 0;
    return 0;
}

/* A round in which nothing came ends with a sleep: a few of them are milliseconds. */
uint32_t llane_gpu_spins_per_look(void)
{
    return 16;
}

static void say_launch(const struct llane_gpu_launch *launch)
{
    const struct llane_all_reduce_args *args = launch->args;
    if (launch->args_bytes == sizeof *args && getenv("EMU_LAUNCHES"))
        fprintf(stderr, "emulated GPU: launch of %u blocks, %u threads, chunks of %u packets, %s\n",
                launch->n_blocks, launch->n_threads, args->chunk_packets,
                args->flags & LLANE_FLAG_SLEEP ? "sleeping" : "spinning");
}

int llane_gpu_launch(const struct llane_gpu_launch *launch)
{
    struct CUstream_st *stream = emu_stream_resolve(launch->stream);
    if (!stream || emu_check_fail("launch") || check_shape(launch->kernel, launch->n_threads))
        return LLANE_EGPU;
    if (launch->n_blocks == 0 || launch->args_bytes > MAX_ARGS_BYTES)
        return emu_error("%u blocks, %zu bytes of arguments", launch->n_blocks, launch->args_bytes);
    if (stream->device != emu_current_device())
        return emu_error("launch on a stream of device %d, current is %d", stream->device,
                         emu_current_device());
    if (launch->chain) {
        /* Stands for the node: its capture's id. A driver may use a node's address again. */
        uint64_t id;
        if (llane_gpu_capture_id(launch->stream, &id))
            return LLANE_EGPU;
        if (*launch->chain && (uintptr_t)*launch->chain != id)
            return emu_error("chain is a node of another capture");
        *launch->chain = (void *)(uintptr_t)id;
    }
    say_launch(launch);
    load_kernel(launch->kernel, stream->device);
    struct emu_op *op = emu_op_new(EMU_OP_KERNEL, launch->args_bytes);
    if (!op)
        return LLANE_EGPU;
    op->u.kernel.fn = (emu_kernel_fn)(uintptr_t)launch->kernel;
    op->u.kernel.n_blocks = launch->n_blocks;
    op->u.kernel.n_threads = launch->n_threads;
    op->u.kernel.device = emu_current_physical();
    if (launch->args_bytes > 0)
        memcpy(op->args, launch->args, launch->args_bytes);
    return emu_issue(stream, op);
}
