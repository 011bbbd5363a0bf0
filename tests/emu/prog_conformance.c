/*
 * One client, run with and without llane: every return code is compared with what NCCL is known to
 * answer, every result with an independent computation, and the caller compares what both runs print.
 * Runs on the emulation and, compiled by tests/gpu1/conformance.c, on a GPU with a real NCCL.
 * `prog_conformance --help`.
 */
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 1 << 20, SMALL = 100, LARGE = 100000, N_BUFFERS = 6, N_STREAMS = 3 };

static struct {
    int rank, n, device, version, n_wrong, n_ids;
    ncclComm_t comm;
    struct CUstream_st *streams[N_STREAMS];
    struct CUevent_st *event;
    void *buffers[N_BUFFERS];
    void *host;
    const char *section;
} g;

/* ---- what is expected ---- */

static void report(bool is_right, const char *what, int got, int expected)
{
    if (g.rank == 0 || !is_right)
        printf("%s%s: %s = %d\n", is_right ? "" : "WRONG ", g.section, what, got);
    if (!is_right) {
        printf("    rank %d: expected %d\n", g.rank, expected);
        g.n_wrong++;
    }
}

/* The call's result, compared. */
#define EXPECT(call, expected)                                                                     \
    do {                                                                                           \
        int got_ = (int)(call);                                                                    \
        report(got_ == (int)(expected), #call, got_, (int)(expected));                             \
    } while (0)
#define OK(call) RANKS_CHECK(call)

static void sync_stream(int stream)
{
    OK(llane_gpu_stream_synchronize(g.streams[stream]));
}

/* ---- data: call `call` of float32 sums, whose inputs differ by rank, call and element ---- */

static void fill(int buffer, uint64_t call, size_t count, int stream)
{
    values_fill(ncclFloat32, ncclSum, g.rank, call, count, g.host);
    OK(llane_gpu_memcpy_async(g.buffers[buffer], g.host, count * 4, g.streams[stream]));
    sync_stream(stream);
}

static void poison(int buffer, size_t bytes, int stream)
{
    OK(llane_gpu_memset_async(g.buffers[buffer], 0xa5, bytes, g.streams[stream]));
    sync_stream(stream);
}

/* The stream's work is awaited; 0 when the buffer holds the sum. */
static int sum_is_wrong(int buffer, uint64_t call, size_t count, int stream)
{
    char words[160] = "";
    sync_stream(stream);
    OK(llane_gpu_memcpy_async(g.host, g.buffers[buffer], count * 4, g.streams[stream]));
    sync_stream(stream);
    size_t n = values_check(ncclFloat32, ncclSum, g.n, call, count, g.host, words, sizeof(words));
    if (n)
        printf("    rank %d: %s\n", g.rank, words);
    return n != 0;
}

/* The call's input in buffer 0; nothing of an earlier one in the next three. */
static void start_anew(uint64_t call, size_t count)
{
    fill(0, call, count, 0);
    for (int b = 1; b < 4; b++)
        poison(b, 4 * count, 0);
}

static void double_it(int buffer, size_t count)
{
    float *numbers = g.host;
    OK(llane_gpu_memcpy_async(numbers, g.buffers[buffer], count * 4, g.streams[0]));
    sync_stream(0);
    for (size_t i = 0; i < count; i++)
        numbers[i] *= 2;
    OK(llane_gpu_memcpy_async(g.buffers[buffer], numbers, count * 4, g.streams[0]));
    sync_stream(0);
}

static int is_poisoned(int buffer, size_t bytes, int stream)
{
    sync_stream(stream);
    OK(llane_gpu_memcpy_async(g.host, g.buffers[buffer], bytes, g.streams[stream]));
    sync_stream(stream);
    for (size_t i = 0; i < bytes; i++) {
        if (((uint8_t *)g.host)[i] != 0xa5)
            return 0;
    }
    return 1;
}

static ncclResult_t sum(int from, int to, size_t count, ncclComm_t comm, int stream)
{
    return ncclAllReduce(g.buffers[from], g.buffers[to], count, ncclFloat32, ncclSum, comm,
                         g.streams[stream]);
}

/* What leaves numbers that are equal on all ranks as they are. */
static ncclRedOp_t unchanged(void)
{
    return (g.n & (g.n - 1)) == 0 ? ncclAvg : ncclMax; /* 1/3 three times is not one */
}

/* A whole small sum on the communicator: it is in step on all ranks. */
static void in_step(ncclComm_t comm)
{
    static uint64_t call = 1000;
    fill(0, ++call, SMALL, 0);
    EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    EXPECT(sum_is_wrong(1, call, SMALL, 0), 0);
}

static ncclUniqueId new_id(void)
{
    char name[32];
    ncclUniqueId id;
    snprintf(name, sizeof(name), "id.%d", g.n_ids++);
    ranks_unique_id(name, ncclGetUniqueId, &id);
    return id;
}

static ncclComm_t new_comm(void)
{
    ncclComm_t comm = NULL;
    OK(ncclCommInitRank(&comm, g.n, new_id(), g.rank));
    return comm;
}

static void barrier(void)
{
    char name[32];
    snprintf(name, sizeof(name), "barrier.%d", g.n_ids++);
    ranks_barrier(name);
}

/* ---- arguments ---- */

static void arguments(void)
{
    void *in = g.buffers[0], *out = g.buffers[1];
    cudaStream_t stream = g.streams[0];
    in_step(g.comm);
    EXPECT(ncclAllReduce(in, out, 4, ncclFloat32, ncclSum, NULL, stream), ncclInvalidArgument);
    void *no_comm =
        calloc(1, 4 << 20); /* NCCL 2.30 looks behind its first MiB before it refuses it */
    EXPECT(ncclAllReduce(in, out, 4, ncclFloat32, ncclSum, no_comm, stream), ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 4, -1, ncclSum, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 4, 1000, ncclSum, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 4, ncclFloat32, -1, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 4, ncclFloat32, 1000, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, g.comm, stream), ncclSuccess);
    EXPECT(ncclAllReduce(NULL, NULL, 0, 1000, ncclSum, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclBroadcast(in, out, 4, ncclFloat32, g.n, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclReduce(in, out, 4, ncclFloat32, ncclSum, -1, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclSend(in, 4, ncclFloat32, g.n, g.comm, stream), ncclInvalidArgument);
    EXPECT(ncclRecv(out, 4, ncclFloat32, 0, NULL, stream), ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT(ncclCommGetAsyncError(NULL, NULL), ncclInvalidArgument);
    EXPECT(ncclCommGetAsyncError(g.comm, NULL), ncclInvalidArgument);
    ncclResult_t state = ncclInternalError;
    EXPECT(ncclCommGetAsyncError(g.comm, &state), ncclSuccess);
    EXPECT(state, ncclSuccess);
    EXPECT(ncclCommDestroy(NULL), ncclSuccess);
    EXPECT(ncclCommAbort(NULL), ncclSuccess);
    free(no_comm);
    in_step(g.comm);

    ncclRedOp_t op = ncclSum;
    float half = 0.5f;
    OK(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, g.comm));
    EXPECT(ncclAllReduce(in, out, 4, ncclFloat16, op, g.comm, stream), ncclInvalidArgument);
    fill(0, 5, SMALL, 0);
    EXPECT(ncclAllReduce(in, out, SMALL, ncclFloat32, op, g.comm, stream), ncclSuccess);
    EXPECT(ncclRedOpDestroy(op, g.comm), ncclSuccess);
    double_it(1, SMALL);
    EXPECT(sum_is_wrong(1, 5, SMALL, 0), 0);
    in_step(g.comm);
}

/* A float8 sum: refused below compute capability 9.0, right from there on. */
static void float8(void)
{
    struct llane_gpu_identity identity;
    OK(llane_gpu_identify(g.device, &identity));
    ncclResult_t expected = g.version < 22400 || identity.cc_major < 9 ? ncclInvalidArgument : 0;
    EXPECT(
        ncclAllReduce(g.buffers[0], g.buffers[1], 0, ncclFloat8e4m3, ncclSum, g.comm, g.streams[0]),
        g.version < 22400 ? ncclInvalidArgument : ncclSuccess);
    EXPECT(ncclAllReduce(g.buffers[0], g.buffers[1], 16, ncclFloat8e4m3, ncclSum, g.comm,
                         g.streams[0]),
           expected);
    in_step(g.comm);
}

/* cases.md 36: the average of large floats stays finite. */
static void large_average(void)
{
    float *host = g.host;
    for (int i = 0; i < SMALL; i++)
        host[i] = 2e38f;
    OK(llane_gpu_memcpy_async(g.buffers[0], host, SMALL * 4, g.streams[0]));
    EXPECT(ncclAllReduce(g.buffers[0], g.buffers[1], SMALL, ncclFloat32, ncclAvg, g.comm,
                         g.streams[0]),
           ncclSuccess);
    OK(llane_gpu_memcpy_async(host, g.buffers[1], SMALL * 4, g.streams[0]));
    sync_stream(0);
    int n_off = 0;
    for (int i = 0; i < SMALL; i++)
        n_off += !(host[i] > 1.9999e38f && host[i] < 2.0001e38f);
    EXPECT(n_off, 0);
}

/* ---- groups ---- */

static void groups(void)
{
    /* nested; large ones are NCCL's, small ones the lane's */
    fill(0, 10, LARGE, 0);
    fill(2, 11, SMALL, 0);
    OK(ncclGroupStart());
    EXPECT(sum(0, 1, LARGE, g.comm, 0), ncclSuccess);
    OK(ncclGroupStart());
    EXPECT(sum(2, 3, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(sum_is_wrong(1, 10, LARGE, 0), 0);
    EXPECT(sum_is_wrong(3, 11, SMALL, 0), 0);

    /* streams of their own in one group */
    fill(0, 12, SMALL, 0);
    fill(2, 13, SMALL, 1);
    OK(ncclGroupStart());
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(sum(2, 3, SMALL, g.comm, 1), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(sum_is_wrong(1, 12, SMALL, 0), 0);
    EXPECT(sum_is_wrong(3, 13, SMALL, 1), 0);
}

/* An error inside: nothing of the group is launched. */
static void group_errors(void)
{
    fill(0, 20, SMALL, 0);
    poison(1, 4 * SMALL, 0);
    OK(ncclGroupStart());
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(ncclAllReduce(g.buffers[0], g.buffers[1], 4, 1000, ncclSum, g.comm, g.streams[0]),
           ncclInvalidArgument);
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT(is_poisoned(1, 4 * SMALL, 0), 1);
    in_step(g.comm);

    /* in an inner group, by another call */
    poison(1, 4 * SMALL, 0);
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    EXPECT(ncclBroadcast(g.buffers[0], g.buffers[1], 4, 1000, 0, g.comm, g.streams[0]),
           ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT(is_poisoned(1, 4 * SMALL, 0), 1);
    in_step(g.comm);
}

static void simulated_group(void)
{
    if (g.version < 22200)
        return;
    struct llane_opaque_sim_info info = {sizeof(info), 0x74685283, 22809, -1};
    fill(0, 30, SMALL, 0);
    poison(1, 4 * SMALL, 0);
    OK(ncclGroupStart());
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(ncclGroupSimulateEnd(&info), ncclSuccess);
    EXPECT(is_poisoned(1, 4 * SMALL, 0), 1);
    in_step(g.comm);
}

/* One rank asks what groups would take while the lane goes live: its calls keep their numbers. */
static void simulated_on_one_rank(void)
{
    struct llane_opaque_sim_info info = {sizeof(info), 0x74685283, 22809, -1};
    for (int i = 0; i < 60; i++) {
        if (g.rank == 0 && i % 3 == 0) {
            OK(ncclGroupStart());
            for (int k = 0; k < 5; k++)
                OK(sum(2, 3, SMALL, g.comm, 1));
            OK(ncclGroupSimulateEnd(&info));
        }
        in_step(g.comm);
        ranks_sleep_ms(5);
    }
}

/* cases.md 32: rank 0 {receive, sum} in a group, rank 1 sum and then send. */
static void receive_with_sum_against_sum_then_send(void)
{
    fill(0, 40, SMALL, 0);
    if (g.rank == 0) {
        OK(ncclGroupStart());
        EXPECT(ncclRecv(g.buffers[2], SMALL, ncclFloat32, 1, g.comm, g.streams[0]), ncclSuccess);
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
        EXPECT(ncclGroupEnd(), ncclSuccess);
    } else {
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
        if (g.rank == 1)
            EXPECT(ncclSend(g.buffers[1], SMALL, ncclFloat32, 0, g.comm, g.streams[0]),
                   ncclSuccess);
    }
    EXPECT(sum_is_wrong(1, 40, SMALL, 0), 0);
    if (g.rank == 0)
        EXPECT(sum_is_wrong(2, 40, SMALL, 0), 0);
}

/* cases.md 33: the very first calls, with a message between them that is not NCCL's. */
static void first_calls(void)
{
    ncclComm_t comm = new_comm();
    char byte = 1;
    fill(0, 50, SMALL, 0);
    if (g.rank == 0) {
        EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
        ranks_publish("after.sum", &byte, 1);
    } else {
        ranks_fetch("after.sum", &byte, 1);
        EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    }
    EXPECT(sum_is_wrong(1, 50, SMALL, 0), 0);
    OK(ncclCommDestroy(comm));
}

/* ---- order ---- */

/* Ranks come late in turns: the others' operations are under way, and wait, when they call again. */
static void dawdle(void)
{
    static int n_calls;
    if (++n_calls % g.n == g.rank)
        ranks_sleep_ms(10);
}

/*
 * A chain over all data calls and three streams, without a wait of the program's: each operation
 * works on what the one before left, as the order of one communicator promises. cases.md 14.
 */
static void order_across_streams(void)
{
    for (uint64_t k = 0; k < 4; k++) {
        uint64_t call = 60 + k;
        int last = g.n - 1, s = 0;
        fill(0, call, LARGE, 0);
        for (int b = 1; b < N_BUFFERS; b++)
            poison(b, ROOM, 0);
        size_t count = k % 2 ? SMALL : 40000;
#define NEXT (dawdle(), g.streams[s++ % N_STREAMS])
        EXPECT(ncclAllReduce(g.buffers[0], g.buffers[1], count, ncclFloat32, ncclSum, g.comm, NEXT),
               0);
        EXPECT(ncclBroadcast(g.buffers[1], g.buffers[2], count, ncclFloat32, 0, g.comm, NEXT), 0);
        /* every rank has the sum: its maximum over all ranks is the sum again, by the lane or not */
        EXPECT(ncclAllReduce(g.buffers[2], g.buffers[3], count, ncclFloat32, ncclMax, g.comm, NEXT),
               0);
        EXPECT(
            ncclReduce(g.buffers[3], g.buffers[4], count, ncclFloat32, ncclMin, last, g.comm, NEXT),
            0);
        EXPECT(ncclBroadcast(g.buffers[4], g.buffers[4], count, ncclFloat32, last, g.comm, NEXT),
               0);
        /* rank r's average of equal numbers is the number: lane again */
        EXPECT(ncclAllReduce(g.buffers[4], g.buffers[5], SMALL, ncclFloat32, unchanged(), g.comm,
                             NEXT),
               0);
        EXPECT(ncclBcast(g.buffers[5], SMALL, ncclFloat32, last, g.comm, NEXT), 0);
        OK(ncclGroupStart());
        EXPECT(ncclSend(g.buffers[5], SMALL, ncclFloat32, (g.rank + 1) % g.n, g.comm, NEXT), 0);
        s--;
        EXPECT(ncclRecv(g.buffers[1], SMALL, ncclFloat32, (g.rank + last) % g.n, g.comm, NEXT), 0);
        EXPECT(ncclGroupEnd(), 0);
        EXPECT(ncclAllReduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, unchanged(), g.comm,
                             NEXT),
               0);
        EXPECT(sum_is_wrong(2, call, SMALL, (s - 1) % N_STREAMS), 0);
#undef NEXT
    }
}

/* ---- graphs ---- */

static void capture_begin(void)
{
    OK(llane_gpu_capture_begin(g.streams[0]));
}

static struct CUgraphExec_st *capture_end(void)
{
    struct CUgraphExec_st *graph = NULL;
    OK(llane_gpu_capture_end(g.streams[0], &graph));
    return graph;
}

/* Stream `to` goes on where `from` is. */
static void follow(int from, int to)
{
    OK(llane_gpu_event_record(g.event, g.streams[from]));
    OK(llane_gpu_stream_wait_event(g.streams[to], g.event));
}

static int current_device(void)
{
    int device = -1;
    OK(llane_gpu_device_get(&device));
    return device;
}

/* The call is made while another device is current, which then still is. */
#define ELSEWHERE(call, expected)                                                                  \
    do {                                                                                           \
        OK(llane_gpu_device_set(elsewhere));                                                       \
        EXPECT(call, expected);                                                                    \
        EXPECT(current_device() == elsewhere, 1);                                                  \
        OK(llane_gpu_device_set(g.device));                                                        \
    } while (0)

/*
 * Whatever device is current: the default streams are the communicator's device's. A copy on each, which
 * waits behind another communicator's sum, makes the input, and another one takes the result.
 */
static void default_streams(ncclComm_t other, int elsewhere, size_t count, uint64_t call)
{
    /* legacy, also by its name, and the thread's own */
    struct CUstream_st *all[] = {NULL, (void *)(uintptr_t)1, (void *)(uintptr_t)2};
    for (int i = 0; i < 3; i++) {
        start_anew(call + (uint64_t)i, count);
        dawdle();
        OK(ncclAllReduce(g.buffers[4], g.buffers[5], SMALL, ncclFloat32, ncclMax, other, all[i]));
        OK(llane_gpu_memcpy_async(g.buffers[1], g.buffers[0], 4 * count, all[i]));
        ELSEWHERE(
            ncclAllReduce(g.buffers[1], g.buffers[2], count, ncclFloat32, ncclSum, g.comm, all[i]),
            ncclSuccess);
        OK(llane_gpu_memcpy_async(g.buffers[3], g.buffers[2], 4 * count, all[i]));
        OK(llane_gpu_stream_synchronize(all[i]));
        EXPECT(sum_is_wrong(3, call + (uint64_t)i, count, 0), 0);
    }
}

static void any_device(void)
{
    int n_devices = 0;
    ncclComm_t other = new_comm(), child = NULL;
    ncclResult_t state = ncclInternalError;
    OK(llane_gpu_device_count(&n_devices));
    int elsewhere = (g.device + 1) % n_devices;
    in_step(other);
    default_streams(other, elsewhere, SMALL, 360);
    default_streams(other, elsewhere, LARGE, 370);

    fill(0, 380, SMALL, 0);
    OK(ncclGroupStart());
    ELSEWHERE(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    ELSEWHERE(ncclBroadcast(g.buffers[2], g.buffers[3], 4, ncclFloat32, 0, g.comm, g.streams[0]),
              0);
    ELSEWHERE(ncclGroupEnd(), ncclSuccess);
    EXPECT(sum_is_wrong(1, 380, SMALL, 0), 0);

    capture_begin();
    ELSEWHERE(sum(0, 2, SMALL, g.comm, 0), ncclSuccess);
    struct CUgraphExec_st *graph = capture_end();
    EXPECT(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    EXPECT(sum_is_wrong(2, 380, SMALL, 0), 0);
    OK(llane_gpu_graph_destroy(graph));

    ELSEWHERE(ncclCommGetAsyncError(g.comm, &state), ncclSuccess);
    ELSEWHERE(ncclCommSplit(g.comm, 0, g.rank, &child, NULL), ncclSuccess);
    fill(0, 381, SMALL, 0);
    ELSEWHERE(sum(0, 1, SMALL, child, 0), ncclSuccess); /* its first */
    EXPECT(sum_is_wrong(1, 381, SMALL, 0), 0);
    ELSEWHERE(ncclCommFinalize(child), ncclSuccess);
    ELSEWHERE(ncclCommDestroy(child), ncclSuccess);
    ELSEWHERE(ncclCommDestroy(other), ncclSuccess);
    in_step(g.comm);
}

/* cases.md 15: two graphs of one communicator on two streams, eager calls on a third, no waits. */
static void graphs_and_eager_calls(void)
{
    struct CUgraphExec_st *graphs[2];
    for (int i = 0; i < 2; i++) {
        capture_begin();
        EXPECT(sum(i, 2 + i, SMALL, g.comm, 0), ncclSuccess);
        EXPECT(sum(i, 2 + i, i ? LARGE : SMALL, g.comm, 0), ncclSuccess);
        graphs[i] = capture_end();
    }
    for (uint64_t k = 0; k < 5; k++) {
        fill(0, 70 + k, SMALL, 0);
        fill(1, 80 + k, LARGE, 0);
        for (int i = 0; i < 2; i++)
            EXPECT(llane_gpu_graph_launch(graphs[i], g.streams[i]), 0);
        EXPECT(sum(0, 4, SMALL, g.comm, 2), ncclSuccess);
        EXPECT(llane_gpu_graph_launch(graphs[0], g.streams[1]), 0);
        EXPECT(sum(0, 5, SMALL, g.comm, 2), ncclSuccess);
        sync_stream(0);
        sync_stream(1);
        EXPECT(sum_is_wrong(2, 70 + k, SMALL, 2), 0);
        EXPECT(sum_is_wrong(3, 80 + k, LARGE, 2), 0);
        EXPECT(sum_is_wrong(4, 70 + k, SMALL, 2), 0);
        EXPECT(sum_is_wrong(5, 70 + k, SMALL, 2), 0);
    }
    for (int i = 0; i < 2; i++)
        OK(llane_gpu_graph_destroy(graphs[i]));
    in_step(g.comm);
}

/* Two captures under way at once, their calls in turns, each over two streams. */
static void captures_in_turns(void)
{
    struct CUgraph_st *ends_first;
    struct CUgraphExec_st *first, *second;
    struct CUstream_st *other;
    OK(llane_gpu_stream_create(&other));
    capture_begin();
    OK(llane_gpu_capture_begin(other));
    follow(0, 1);
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(ncclAllReduce(g.buffers[0], g.buffers[4], SMALL, ncclFloat32, ncclSum, g.comm, other),
           ncclSuccess);
    EXPECT(ncclAllReduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, unchanged(), g.comm,
                         g.streams[1]),
           ncclSuccess);
    EXPECT(
        ncclAllReduce(g.buffers[4], g.buffers[5], SMALL, ncclFloat32, unchanged(), g.comm, other),
        ncclSuccess);
    follow(1, 0);
    EXPECT(sum(0, 3, SMALL, g.comm, 0), ncclSuccess);
    OK(llane_gpu_capture_end_graph(other, &ends_first));
    first = capture_end();
    OK(llane_gpu_graph_instantiate(ends_first, &second));
    for (uint64_t k = 0; k < 3; k++) {
        fill(0, 90 + k, SMALL, 0);
        EXPECT(llane_gpu_graph_launch(first, g.streams[0]), 0);
        EXPECT(llane_gpu_graph_launch(second, other), 0);
        OK(llane_gpu_stream_synchronize(other));
        EXPECT(sum_is_wrong(2, 90 + k, SMALL, 0), 0);
        EXPECT(sum_is_wrong(3, 90 + k, SMALL, 0), 0);
        EXPECT(sum_is_wrong(5, 90 + k, SMALL, 0), 0);
    }
    OK(llane_gpu_graph_destroy(first));
    OK(llane_gpu_graph_destroy(second));
    OK(llane_gpu_stream_destroy(other));
    in_step(g.comm);
}

/* How many nodes a graph of three sums has, which depends on the settings. On the emulation. */
static void graph_nodes(void)
{
    size_t (*count)(const struct CUgraphExec_st *) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "llane_emu_graph_nodes");
    memcpy(&count, &symbol, sizeof(symbol));
    capture_begin();
    for (int i = 0; i < 3; i++)
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    struct CUgraphExec_st *graph = capture_end();
    report(true, "nodes", (int)count(graph), 0);
    OK(llane_gpu_graph_destroy(graph));
}

/* The first all-reduce ever in a capture; never launched; graph gone before and after its
 * communicator; streams of one group in different captures. */
static void odd_captures(void)
{
    ncclComm_t comm = new_comm();
    capture_begin();
    EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    struct CUgraphExec_st *graph = capture_end();
    fill(0, 100, SMALL, 0);
    EXPECT(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    EXPECT(sum_is_wrong(1, 100, SMALL, 0), 0);
    in_step(comm);
    OK(llane_gpu_graph_destroy(graph));

    capture_begin();
    EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    graph = capture_end(); /* never launched */
    OK(llane_gpu_graph_destroy(graph));
    in_step(comm);

    capture_begin(); /* abandoned: a stream that was forked is not joined */
    follow(0, 1);
    EXPECT(sum(0, 1, SMALL, comm, 1), ncclSuccess);
    struct CUgraph_st *abandoned = NULL;
    int code = llane_gpu_capture_end_graph(g.streams[0], &abandoned);
    printf("odd_captures: the end of an abandoned capture: %d\n", code);
    if (!code) { /* NCCL's end of a communicator waits for its graphs' */
        OK(llane_gpu_graph_instantiate(abandoned, &graph));
        OK(llane_gpu_graph_destroy(graph));
    }
    in_step(comm);

    capture_begin();
    EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    graph = capture_end();
    fill(0, 101, SMALL, 0);
    EXPECT(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    EXPECT(sum_is_wrong(1, 101, SMALL, 0), 0);
    OK(llane_gpu_graph_destroy(graph));
    barrier();
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    comm = new_comm();
    in_step(comm);

    capture_begin();
    OK(ncclGroupStart());
    EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    EXPECT(sum(0, 2, SMALL, comm, 1), ncclInvalidUsage);
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    if (!llane_gpu_capture_end(g.streams[0], &graph))
        OK(llane_gpu_graph_destroy(graph));
    in_step(comm);
    OK(ncclCommDestroy(comm));
}

/*
 * A graph of the communicator's first all-reduce, which NCCL carries, and calls on other streams before
 * and behind it once the lane is live: they keep their order, as NCCL's would.
 */
static void graph_before_the_lane(void)
{
    ncclComm_t comm = new_comm();
    capture_begin();
    EXPECT(ncclAllReduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, unchanged(), comm,
                         g.streams[0]),
           ncclSuccess);
    struct CUgraphExec_st *graph = capture_end();
    for (int i = 0; i < 60; i++) { /* the lane goes live */
        in_step(comm);
        ranks_sleep_ms(5);
    }
    for (uint64_t k = 0; k < 6; k++) {
        start_anew(310 + k, SMALL);
        dawdle();
        EXPECT(sum(0, 1, SMALL, comm, 1), ncclSuccess);
        EXPECT(llane_gpu_graph_launch(graph, g.streams[0]), 0);
        EXPECT(ncclAllReduce(g.buffers[2], g.buffers[3], SMALL, ncclFloat32, unchanged(), comm,
                             g.streams[2]),
               ncclSuccess);
        EXPECT(sum_is_wrong(3, 310 + k, SMALL, 2), 0);
    }
    OK(llane_gpu_graph_destroy(graph));
    OK(ncclCommDestroy(comm));
}

/*
 * Graphs that are replayed after their communicators' ends, beside new communicators' calls, which have
 * memory of their own. A real NCCL's destruction would wait for the graph's. What an abort left sums
 * nothing any more, but ends.
 */
static void graph_after_its_communicator(void)
{
    for (int is_aborted = 0; is_aborted < 2; is_aborted++) {
        ncclComm_t comm = new_comm();
        in_step(comm);
        capture_begin();
        for (int i = 0; i < 3; i++)
            EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
        struct CUgraphExec_st *graph = capture_end();
        barrier();
        EXPECT(is_aborted ? ncclCommAbort(comm) : ncclCommDestroy(comm), ncclSuccess);
        for (uint64_t k = 0; k < 8; k++) {
            ncclComm_t next = new_comm();
            fill(0, 400 + k, SMALL, 0);
            fill(2, 410 + k, SMALL, 0);
            EXPECT(sum(2, 3, SMALL, next, 0), ncclSuccess);
            dawdle();
            EXPECT(llane_gpu_graph_launch(graph, g.streams[1]), 0);
            EXPECT(sum(2, 4, SMALL, next, 2), ncclSuccess);
            sync_stream(1);
            EXPECT(!is_aborted && sum_is_wrong(1, 400 + k, SMALL, 1), 0);
            EXPECT(sum_is_wrong(3, 410 + k, SMALL, 0), 0);
            EXPECT(sum_is_wrong(4, 410 + k, SMALL, 2), 0);
            EXPECT(ncclCommDestroy(next), ncclSuccess);
        }
        OK(llane_gpu_graph_destroy(graph));
    }
    in_step(g.comm);
}

/* ---- communicators ---- */

static void children(void)
{
    ncclComm_t child = NULL;
    ncclConfig_t config = FAKE_CONFIG_INIT;
    int rank = -1;
    EXPECT(ncclCommSplit(g.comm, 0, -g.rank, &child, NULL), ncclSuccess);
    EXPECT(ncclCommUserRank(child, &rank), ncclSuccess);
    EXPECT(rank == g.n - 1 - g.rank, 1);
    in_step(child); /* sums do not depend on the ranks' order */
    EXPECT(ncclCommDestroy(child), ncclSuccess);

    child = (ncclComm_t)&config;
    int color = g.rank == g.n - 1 ? NCCL_SPLIT_NOCOLOR : 7;
    EXPECT(ncclCommSplit(g.comm, color, 0, &child, NULL), ncclSuccess);
    EXPECT(child == NULL, g.rank == g.n - 1);
    if (child)
        EXPECT(ncclCommDestroy(child), ncclSuccess);

    /* its own config does not make it share the parent's resources: it has a lane */
    config.split_share = 1;
    EXPECT(ncclCommSplit(g.comm, 0, g.rank, &child, &config), ncclSuccess);
    in_step(child);
    EXPECT(ncclCommDestroy(child), ncclSuccess);
    in_step(g.comm);
}

/* Children of a parent whose config says so share its resources, and so do theirs: their operations in
 * one order. */
static void sharing_children(void)
{
    ncclComm_t parent = NULL, child = NULL, grandchild = NULL;
    ncclConfig_t sharing = FAKE_CONFIG_INIT;
    sharing.split_share = 1;
    OK(ncclCommInitRankConfig(&parent, g.n, new_id(), g.rank, &sharing));
    in_step(parent);
    EXPECT(ncclCommSplit(parent, 0, g.rank, &child, &sharing), ncclSuccess);
    EXPECT(ncclCommSplit(child, 0, g.rank, &grandchild, NULL), ncclSuccess);
    for (uint64_t k = 0; k < 8; k++) {
        start_anew(110 + k, SMALL);
        dawdle();
        EXPECT(sum(0, 1, SMALL, parent, 0), ncclSuccess);
        EXPECT(ncclAllReduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, unchanged(),
                             k % 2 ? child : grandchild, g.streams[1]),
               ncclSuccess);
        EXPECT(ncclAllReduce(g.buffers[2], g.buffers[3], SMALL, ncclFloat32, unchanged(), parent,
                             g.streams[2]),
               ncclSuccess);
        sync_stream(1);
        EXPECT(sum_is_wrong(3, 110 + k, SMALL, 2), 0);
    }
    EXPECT(ncclCommDestroy(grandchild), ncclSuccess);
    EXPECT(ncclCommDestroy(child), ncclSuccess);
    EXPECT(ncclCommDestroy(parent), ncclSuccess);
}

/* The same for what a parent is shrunk to: the rank that is out goes on with the parent alone. */
static void sharing_shrunk_child(void)
{
    ncclComm_t parent = NULL, child = NULL;
    ncclConfig_t sharing = FAKE_CONFIG_INIT;
    int last = g.n - 1;
    sharing.shrink_share = 1;
    OK(ncclCommInitRankConfig(&parent, g.n, new_id(), g.rank, &sharing));
    in_step(parent);
    if (g.rank != last)
        EXPECT(ncclCommShrink(parent, &last, 1, &child, NULL, 0), ncclSuccess);
    for (uint64_t k = 0; k < 8; k++) {
        start_anew(420 + k, SMALL);
        dawdle();
        EXPECT(sum(0, 1, SMALL, parent, 0), ncclSuccess);
        if (child)
            EXPECT(ncclAllReduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, ncclMax, child,
                                 g.streams[1]),
                   ncclSuccess);
        EXPECT(ncclAllReduce(g.buffers[child ? 2 : 1], g.buffers[3], SMALL, ncclFloat32, ncclMax,
                             parent, g.streams[2]),
               ncclSuccess);
        EXPECT(sum_is_wrong(3, 420 + k, SMALL, 2), 0);
        sync_stream(1);
    }
    if (child)
        EXPECT(ncclCommDestroy(child), ncclSuccess);
    EXPECT(ncclCommDestroy(parent), ncclSuccess);
}

/* 1 once the sum of `call`, the same numbers from all ranks, is there and wrong. */
static int same_sum_is_wrong(ncclComm_t comm, int call)
{
    float *numbers = g.host;
    int n = 0, n_bad = 0;
    EXPECT(ncclCommCount(comm, &n), ncclSuccess);
    for (int i = 0; i < SMALL; i++)
        numbers[i] = (float)(call + i % 100);
    OK(llane_gpu_memcpy_async(g.buffers[0], numbers, SMALL * 4, g.streams[0]));
    sync_stream(0);
    EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    OK(llane_gpu_memcpy_async(numbers, g.buffers[1], SMALL * 4, g.streams[0]));
    sync_stream(0);
    for (int i = 0; i < SMALL; i++)
        n_bad += numbers[i] != (float)(n * (call + i % 100));
    return n_bad != 0;
}

/* 60 sums, the same numbers from all ranks: the number of wrong ones. */
static int sums_going_live(ncclComm_t comm, int call)
{
    int n_wrong = 0;
    for (int k = 0; k < 60; k++) {
        n_wrong += same_sum_is_wrong(comm, call + k);
        ranks_sleep_ms(5);
    }
    return n_wrong;
}

/*
 * Two communicators of the same ranks, to which NCCL_COMM_ID gives one id. Each rank first uses another
 * one of them.
 */
static void one_id_for_two(void)
{
    ncclComm_t comms[2] = {new_comm(), new_comm()};
    int n_wrong = 0;
    for (uint64_t k = 0; k < 60; k++) {
        for (int i = 0; i < 2; i++) {
            int which = i ^ (g.rank & 1);
            fill(2 * which, 500 + 100 * (uint64_t)which + k, SMALL, which);
            EXPECT(sum(2 * which, 2 * which + 1, SMALL, comms[which], which), ncclSuccess);
            ranks_sleep_ms(k ? 5 : 200);
        }
        for (int i = 0; i < 2; i++)
            n_wrong += sum_is_wrong(2 * i + 1, 500 + 100 * (uint64_t)i + k, SMALL, i) != 0;
    }
    EXPECT(n_wrong, 0);
    for (int i = 0; i < 2; i++)
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
}

/*
 * Of four ranks two make two children: one without the last rank, then one without the rank before it.
 * NCCL tells plugins the same id for both, and each of them has three ranks, numbered alike. The last
 * rank comes before the other one does.
 */
static void shrunk_children(void)
{
    ncclComm_t a = NULL, b = NULL;
    int without_3[] = {3}, without_2[] = {2};
    if (g.rank != 3)
        OK(ncclCommShrink(g.comm, without_3, 1, &a, NULL, 0));
    if (g.rank != 2)
        OK(ncclCommShrink(g.comm, without_2, 1, &b, NULL, 0));
    barrier();
    if (g.rank == 3) {
        EXPECT(sum(0, 1, SMALL, b, 0), ncclSuccess); /* waits for the others */
        ranks_sleep_ms(100);
    }
    barrier();
    if (g.rank < 2)
        EXPECT(sum(0, 1, SMALL, a, 0), ncclSuccess);
    ranks_sleep_ms(100);
    barrier();
    if (g.rank == 2)
        EXPECT(sum(0, 1, SMALL, a, 0), ncclSuccess);
    if (g.rank < 2)
        EXPECT(sum(0, 1, SMALL, b, 0), ncclSuccess);
    int n_wrong = 0;
    for (int k = 0; k < 40; k++) {
        n_wrong += a && same_sum_is_wrong(a, 10 * k);
        n_wrong += b && same_sum_is_wrong(b, 10 * k + 1);
        ranks_sleep_ms(5);
    }
    EXPECT(n_wrong, 0);
    /* afterwards a child of all: the ranks were in different numbers of shrinks */
    ncclComm_t child = NULL;
    OK(ncclCommSplit(g.comm, 0, g.rank, &child, NULL));
    for (int k = 0; k < 40; k++) {
        in_step(child);
        ranks_sleep_ms(5);
    }
    OK(ncclCommDestroy(child));
    if (a)
        OK(ncclCommDestroy(a));
    if (b)
        OK(ncclCommDestroy(b));
}

/*
 * Three ranks and the other three shrink one parent to themselves; then each half has children. To a
 * plugin NCCL tells one id for both halves, hence also for their children of the same kind. Ranks come
 * in such an order that those of a number, if it were one communicator, were there.
 */
static void children_of_halves(void)
{
    enum { N = 3 };
    int half = g.rank / N, others[N], last = N - 1, n_wrong = 0;
    ncclComm_t parent = NULL, children[2] = {NULL};
    for (int i = 0; i < N; i++)
        others[i] = N * !half + i;
    OK(ncclCommShrink(g.comm, others, N, &parent, NULL, 0));
    OK(ncclCommSplit(parent, 0, g.rank, &children[0], NULL));
    if (g.rank % N != last)
        OK(ncclCommShrink(parent, &last, 1, &children[1], NULL, 0));
    for (int i = 0; i < 2 && children[i]; i++) {
        ranks_sleep_ms(half == (g.rank % N == 0) ? 200 : 0);
        n_wrong += sums_going_live(children[i], 1000 * half);
    }
    EXPECT(n_wrong, 0);
    for (int i = 0; i < 2 && children[i]; i++)
        OK(ncclCommDestroy(children[i]));
    OK(ncclCommDestroy(parent));
}

static void ends(void)
{
    for (int i = 0; i < 4; i++) { /* addresses are used again */
        ncclComm_t comm = new_comm();
        in_step(comm);
        EXPECT(ncclCommFinalize(comm), ncclSuccess);
        EXPECT(ncclCommDestroy(comm), ncclSuccess);
    }
    ncclComm_t comm = new_comm();
    in_step(comm);
    /* destroyed with calls in flight */
    fill(0, 120, SMALL, 0);
    for (int i = 0; i < 3; i++)
        EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    EXPECT(sum_is_wrong(1, 120, SMALL, 0), 0);
    if (g.version >= 22807) {
        comm = new_comm();
        in_step(comm);
        barrier();
        EXPECT(ncclCommRevoke(comm, 0), ncclSuccess);
        EXPECT(sum(0, 1, SMALL, comm, 0), ncclInvalidUsage);
        EXPECT(ncclBroadcast(g.buffers[0], g.buffers[1], 4, ncclFloat32, 0, comm, g.streams[0]),
               ncclInvalidUsage);
        barrier();
        EXPECT(ncclCommDestroy(comm), ncclSuccess);
    }
    in_step(g.comm);
}

/* What ends a communicator returns when its operations have ended: the sum of the rank that comes first
 * waits for the others'. */
static void sum_in_flight(ncclComm_t comm, uint64_t call, int stream)
{
    fill(0, call, SMALL, stream);
    barrier();
    if (g.rank != 0)
        ranks_sleep_ms(150);
    EXPECT(sum(0, 1, SMALL, comm, stream), ncclSuccess);
}

static void sum_has_ended(uint64_t call, int stream)
{
    int is_done = 0;
    EXPECT(llane_gpu_stream_query(g.streams[stream], &is_done), 0);
    EXPECT(is_done, 1);
    EXPECT(sum_is_wrong(1, call, SMALL, stream), 0);
}

static void ends_wait(void)
{
    ncclComm_t comm = new_comm();
    in_step(comm);
    sum_in_flight(comm, 300, 0);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    sum_has_ended(300, 0);

    comm = new_comm();
    in_step(comm);
    sum_in_flight(comm, 301, 1);
    EXPECT(ncclCommFinalize(comm), ncclSuccess);
    sum_has_ended(301, 1);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);

    comm = new_comm(); /* two ends in a group, of which one communicator has nothing to do */
    ncclComm_t idle = new_comm();
    in_step(comm);
    in_step(idle);
    sum_in_flight(comm, 302, 2);
    OK(ncclGroupStart());
    EXPECT(ncclCommDestroy(idle), ncclSuccess);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sum_has_ended(302, 2);

    comm = new_comm();
    in_step(comm);
    sum_in_flight(comm, 303, 0);
    OK(ncclGroupStart());
    EXPECT(ncclCommFinalize(comm), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sum_has_ended(303, 0);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

static void open_all(void);

/* One thread drives two ranks and destroys the first before it calls for the second: as NCCL, the last
 * one's end waits for both. With llane alone: the fake NCCL's own operations would be waited for. */
static void destroy_in_turns(bool is_reset_between)
{
    ncclComm_t comms[2];
    float numbers[SMALL];
    int devices[] = {0, 1}, is_done = 0;
    void *in[2], *out[2];
    struct CUstream_st *streams[2];
    OK(ncclCommInitAll(comms, 2, devices));
    for (int i = 0; i < 2; i++) {
        OK(llane_gpu_device_set(i));
        OK(llane_gpu_stream_create(&streams[i]));
        OK(llane_gpu_malloc(sizeof(numbers), &in[i]));
        OK(llane_gpu_malloc(sizeof(numbers), &out[i]));
        for (int k = 0; k < SMALL; k++)
            numbers[k] = (float)((1 + i) * k);
        OK(llane_gpu_memcpy_async(in[i], numbers, sizeof(numbers), streams[i]));
        OK(llane_gpu_stream_synchronize(streams[i]));
    }
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclAllReduce(in[i], out[i], SMALL, ncclFloat32, ncclSum, comms[i], streams[i]));
    OK(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        if (is_reset_between)
            OK(llane_gpu_stream_synchronize(streams[i]));
        else
            OK(ncclAllReduce(in[i], out[i], SMALL, ncclFloat32, ncclSum, comms[i], streams[i]));
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
        if (is_reset_between) {
            OK(llane_gpu_device_set(i));
            OK(llane_gpu_device_reset());
        }
    }
    for (int i = 0; i < 2 && !is_reset_between; i++) {
        int n_off = 0;
        EXPECT(llane_gpu_stream_query(streams[i], &is_done), 0);
        EXPECT(is_done, 1);
        OK(llane_gpu_memcpy_async(numbers, out[i], sizeof(numbers), streams[i]));
        OK(llane_gpu_stream_synchronize(streams[i]));
        for (int k = 0; k < SMALL; k++)
            n_off += numbers[k] != (float)(3 * k);
        EXPECT(n_off, 0);
    }
    OK(llane_gpu_device_set(g.device));
}

static void destroyed_in_turns(void)
{
    destroy_in_turns(false);
}

/* What the first one left to the second's end is gone by then. */
static void destroyed_and_reset_in_turns(void)
{
    destroy_in_turns(true);
    open_all();
}

/* cases.md 34: the abort of one communicator while another one's kernel spins on the same GPU. */
static void abort_beside_a_spinning_kernel(void)
{
    ncclComm_t other = new_comm();
    in_step(other);
    fill(0, 130, SMALL, 0);
    if (g.rank == 0)
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess); /* waits for the others */
    double start = ranks_now_ms();
    EXPECT(ncclCommAbort(other), ncclSuccess);
    EXPECT(ranks_now_ms() - start < 1000, 1);
    barrier();
    if (g.rank != 0)
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    EXPECT(sum_is_wrong(1, 130, SMALL, 0), 0);
}

/* A non-blocking call's result once it is known. */
static ncclResult_t settled(ncclComm_t comm, ncclResult_t state)
{
    while (state == ncclInProgress)
        OK(ncclCommGetAsyncError(comm, &state));
    return state;
}

static ncclComm_t new_non_blocking_comm(void)
{
    ncclComm_t comm = NULL;
    ncclConfig_t config = FAKE_CONFIG_INIT;
    config.blocking = 0;
    ncclUniqueId id = new_id();
    ncclResult_t state = ncclCommInitRankConfig(&comm, g.n, id, g.rank, &config);
    EXPECT(settled(comm, state), ncclSuccess);
    return comm;
}

static void not_blocking(void)
{
    ncclComm_t comm = new_non_blocking_comm();
    /* large and small in turns on two streams: what NCCL launches late keeps its place too */
    for (uint64_t k = 0; k < 6; k++) {
        fill(0, 140 + k, LARGE, 0);
        poison(1, 4 * LARGE, 0);
        poison(2, 4 * SMALL, 0);
        OK(settled(comm, sum(0, 1, LARGE, comm, 0)));
        OK(settled(comm, ncclAllReduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, unchanged(),
                                       comm, g.streams[1])));
        EXPECT(sum_is_wrong(2, 140 + k, SMALL, 1), 0);
    }
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

/* Finalized, it is in progress until its operations have ended. */
static void not_blocking_end(void)
{
    ncclComm_t comm = new_non_blocking_comm();
    fill(0, 146, SMALL, 0);
    OK(settled(comm, sum(0, 1, SMALL, comm, 0)));
    EXPECT(sum_is_wrong(1, 146, SMALL, 0), 0);
    fill(0, 147, SMALL, 0);
    barrier();
    if (g.rank != 0)
        ranks_sleep_ms(150);
    OK(settled(comm, sum(0, 1, SMALL, comm, 0)));
    EXPECT(settled(comm, ncclCommFinalize(comm)), ncclSuccess);
    ncclResult_t state = ncclInternalError;
    do {
        OK(ncclCommGetAsyncError(comm, &state));
    } while (state == ncclInProgress);
    EXPECT(state, ncclSuccess);
    sum_has_ended(147, 0);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

struct beside {
    ncclComm_t polled, ended;
    ncclResult_t polled_result, end_result;
    _Atomic int n_polls, is_over;
};

/* Devices with a context of this process; 0 on a GPU, which does not tell. */
static uint32_t contexts(void)
{
    uint32_t (*call)(void) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "llane_emu_contexts");
    memcpy(&call, &symbol, sizeof(symbol));
    return call ? call() : 0;
}

/* A watchdog, on the thread's first device, which asks after the communicator's state for as long as the capture lasts. */
static void *poll_beside(void *arg)
{
    struct beside *b = arg;
    while (!atomic_load(&b->is_over)) {
        ncclResult_t state = ncclInternalError, result = ncclCommGetAsyncError(b->polled, &state);
        if (result || state)
            b->polled_result = result ? result : state;
        atomic_fetch_add(&b->n_polls, 1);
    }
    return NULL;
}

static void *end_beside(void *arg)
{
    struct beside *b = arg;
    OK(llane_gpu_device_set(g.device));
    b->end_result = ncclCommDestroy(b->ended);
    return NULL;
}

/* Other threads poll a finalized communicator and destroy another while this one captures, and polls. */
static void captured_beside_others(void)
{
    struct beside b = {.polled = new_non_blocking_comm()};
    ncclResult_t state = ncclInternalError;
    pthread_t poller, ender;
    fill(0, 105, SMALL, 0);
    OK(settled(b.polled, sum(0, 1, SMALL, b.polled, 0)));
    EXPECT(sum_is_wrong(1, 105, SMALL, 0), 0);
    EXPECT(settled(b.polled, ncclCommFinalize(b.polled)), ncclSuccess);
    b.ended = new_comm();
    in_step(b.ended);
    uint32_t before = contexts();

    capture_begin();
    EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
    OK(pthread_create(&poller, NULL, poll_beside, &b));
    OK(pthread_create(&ender, NULL, end_beside, &b));
    OK(pthread_join(ender, NULL));
    while (atomic_load(&b.n_polls) < 10)
        ranks_sleep_ms(1);
    OK(ncclCommGetAsyncError(b.polled, &state));
    EXPECT(sum(0, 2, SMALL, g.comm, 0), ncclSuccess);
    struct CUgraphExec_st *graph = capture_end();
    atomic_store(&b.is_over, 1);
    OK(pthread_join(poller, NULL));
    EXPECT(state, ncclSuccess);
    EXPECT(b.polled_result, ncclSuccess);
    EXPECT(b.end_result, ncclSuccess);
    EXPECT(contexts() != before, 0);

    fill(0, 106, SMALL, 0);
    EXPECT(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    EXPECT(sum_is_wrong(1, 106, SMALL, 0), 0);
    EXPECT(sum_is_wrong(2, 106, SMALL, 0), 0);
    OK(llane_gpu_graph_destroy(graph));
    EXPECT(ncclCommDestroy(b.polled), ncclSuccess);
    in_step(g.comm);
}

static void *end_on_any_device(void *arg)
{
    struct beside *b = arg;
    b->end_result = ncclCommDestroy(b->ended);
    return NULL;
}

/* A thread that never named a device ends a communicator: it gets no context of its first device. */
static void destroyed_on_any_device(void)
{
    struct beside b = {.ended = new_comm()};
    pthread_t ender;
    in_step(b.ended);
    uint32_t before = contexts();
    OK(pthread_create(&ender, NULL, end_on_any_device, &b));
    OK(pthread_join(ender, NULL));
    EXPECT(b.end_result, ncclSuccess);
    EXPECT(contexts() != before, 0);
    in_step(g.comm);
}

/*
 * NCCL launches late, then says that it has: work that the program issues to that stream afterwards,
 * here a sum that waits for the other ranks, is nothing that the communicator's next operation is
 * behind.
 */
static void not_blocking_then_other_work(void)
{
    ncclComm_t comm = new_non_blocking_comm();
    fill(0, 148, SMALL, 1);
    OK(settled(comm, sum(0, 1, SMALL, comm, 1)));
    EXPECT(sum_is_wrong(1, 148, SMALL, 1), 0);
    OK(settled(comm, sum(2, 3, LARGE, comm, 0)));
    if (g.rank == 0)
        OK(sum(4, 5, SMALL, g.comm, 0));
    OK(settled(comm, sum(0, 1, SMALL, comm, 1)));
    EXPECT(sum_is_wrong(1, 148, SMALL, 1), 0);
    if (g.rank != 0)
        OK(sum(4, 5, SMALL, g.comm, 2));
    sync_stream(0);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

/* Groups that are simulated or fail on one rank alone, at a call or at their end, while the lane is on
 * its way: all stay in step. */
static void void_groups_on_one_rank(void)
{
    ncclComm_t comm = new_comm();
    struct llane_opaque_sim_info info = {sizeof(info), 0x74685283, 22809, -1};
    for (uint64_t k = 0; k < 30; k++) {
        struct CUstream_st *stream;
        OK(llane_gpu_stream_create(&stream));
        if (g.rank == 0) {
            OK(ncclGroupStart());
            for (int i = 0; i < 4; i++) {
                OK(ncclAllReduce(g.buffers[0], g.buffers[1], SMALL, ncclFloat32, ncclSum, comm,
                                 stream));
                ranks_sleep_ms(2); /* the lane may go live here, for a call that comes to nothing */
            }
            if (k % 3 == 0 && g.version >= 22200) {
                EXPECT(ncclGroupSimulateEnd(&info), ncclSuccess);
            } else if (k % 3 == 1) {
                OK(llane_gpu_stream_destroy(stream));
                EXPECT(ncclGroupEnd(), ncclUnhandledCudaError);
            } else {
                EXPECT(sum(0, 1, SMALL, NULL, 0), ncclInvalidArgument);
                EXPECT(ncclGroupEnd(), ncclInvalidArgument);
            }
        }
        fill(0, 150 + k, SMALL, 0);
        OK(sum(0, 1, SMALL, comm, 0));
        EXPECT(sum_is_wrong(1, 150 + k, SMALL, 0), 0);
    }
    OK(ncclCommDestroy(comm));
}

/* Splits that are refused on one rank alone: its later children meet those of the same call. */
static void refused_splits_on_one_rank(void)
{
    enum { N = 3 };
    ncclComm_t comm = new_comm(), children[N] = {NULL};
    for (int i = 0; i < N; i++) {
        if (g.rank == 0)
            EXPECT(ncclCommSplit(comm, -5, 0, &children[i], NULL), ncclInvalidArgument);
        OK(ncclCommSplit(comm, 0, g.rank, &children[i], NULL));
    }
    for (uint64_t k = 0; k < 40; k++) {
        fill(0, 180 + k, SMALL, 0);
        OK(sum(0, 1, SMALL, children[k % N], 0));
        EXPECT(sum_is_wrong(1, 180 + k, SMALL, 0), 0);
        ranks_sleep_ms(2);
    }
    for (int i = 0; i < N; i++)
        OK(ncclCommDestroy(children[i]));
    OK(ncclCommDestroy(comm));
}

/*
 * With LLANE_WAIT the first sum may take the lane: behind what NCCL was given before it, which here
 * waits on rank 0 for another communicator's sum.
 */
static void first_sum_behind_others(void)
{
    ncclComm_t comm = new_comm();
    fill(0, 250, SMALL, 0);
    poison(1, 4 * SMALL, 0);
    if (g.rank == 0)
        OK(sum(2, 3, SMALL, g.comm, 0));
    OK(ncclBroadcast(g.buffers[0], g.buffers[1], SMALL, ncclFloat32, 0, comm, g.streams[0]));
    OK(ncclAllReduce(g.buffers[1], g.buffers[4], SMALL, ncclFloat32, unchanged(), comm,
                     g.streams[1]));
    if (g.rank != 0) {
        ranks_sleep_ms(100);
        OK(sum(2, 3, SMALL, g.comm, 2));
    }
    sync_stream(1);
    float *expected = g.host, *got = expected + SMALL;
    values_fill(ncclFloat32, ncclSum, 0, 250, SMALL, expected);
    OK(llane_gpu_memcpy_async(got, g.buffers[4], 4 * SMALL, g.streams[1]));
    sync_stream(1);
    int n_off = 0;
    for (int i = 0; i < SMALL; i++)
        n_off += got[i] != expected[i];
    EXPECT(n_off, 0);
    OK(ncclCommDestroy(comm));
}

/* A call that the installed NCCL may be too old for. */
static bool find_call(void *library, const char *name, void *call_out)
{
    void *call = dlsym(library, name);
    memcpy(call_out, &call, sizeof(call));
    return call != NULL;
}

static bool is_emulated(void)
{
    return dlsym(RTLD_DEFAULT, "llane_emu_timer_ns") != NULL;
}

/* Suspended, a communicator takes no calls; what it was asked meanwhile, on one rank alone, is forgotten
 * when it goes on. */
static void suspended(void)
{
    ncclResult_t (*suspend)(ncclComm_t, int), (*resume)(ncclComm_t);
    if (g.version < 22907 || !find_call(RTLD_DEFAULT, "ncclCommSuspend", &suspend) ||
        !find_call(RTLD_DEFAULT, "ncclCommResume", &resume))
        return;
    ncclComm_t comm = new_comm();
    for (int i = 0; i < 20; i++) {
        in_step(comm);
        sync_stream(0);
        barrier();
        ncclResult_t result = suspend(comm, 1);
        EXPECT(result == ncclSuccess || result == ncclInvalidUsage, 1); /* no memory manager */
        /* A real NCCL does not look, and would use memory that is away. */
        if (g.rank == 0 && is_emulated())
            EXPECT(sum(2, 3, SMALL, comm, 0), ncclInvalidUsage);
        barrier();
        EXPECT(resume(comm), result);
        ranks_sleep_ms(5);
    }
    in_step(comm);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

/* What NCCL refuses ends nothing: the sums go on as before, on the lane where there is one. */
static void refused_ends(void)
{
    ncclResult_t (*suspend)(ncclComm_t, int), (*resume)(ncclComm_t);
    ncclComm_t comm = new_comm(), child = NULL;
    int none = 0;
    in_step(comm);
    EXPECT(ncclCommRevoke(comm, 1), ncclInvalidArgument);
    in_step(comm);
    /* a real NCCL does not look at these */
    if (is_emulated() && find_call(RTLD_DEFAULT, "ncclCommSuspend", &suspend) &&
        find_call(RTLD_DEFAULT, "ncclCommResume", &resume)) {
        EXPECT(ncclCommShrink(comm, &none, 0, &child, NULL, FAKE_SHRINK_ABORT),
               ncclInvalidArgument);
        in_step(comm);
        EXPECT(suspend(comm, 1), ncclSuccess);
        EXPECT(ncclCommFinalize(comm), ncclInvalidUsage);
        EXPECT(resume(comm), ncclSuccess);
        in_step(comm);
    }
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

/*
 * A communicator of all ranks but the last grows by that one, which has no parent to tell; so does one
 * that all but the last shrank to, whose new rank does not know of the shrink.
 */
static void grown(void)
{
    ncclResult_t (*grow)(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
    ncclResult_t (*get_id)(ncclComm_t, ncclUniqueId *);
    int last = g.n - 1;
    bool is_new = g.rank == last;
    if (g.version < 22900 || !find_call(RTLD_DEFAULT, "ncclCommGrow", &grow) ||
        !find_call(RTLD_DEFAULT, "ncclCommGetUniqueId", &get_id))
        return;
    for (int is_shrunk = 0; is_shrunk < 2; is_shrunk++) {
        ncclComm_t small = NULL, comm = NULL;
        ncclUniqueId first = new_id(), id;
        char name[16];
        snprintf(name, sizeof(name), "grow.%d", is_shrunk);
        if (!is_new && is_shrunk)
            OK(ncclCommShrink(g.comm, &last, 1, &small, NULL, 0));
        else if (!is_new)
            OK(ncclCommInitRank(&small, last, first, g.rank));
        if (g.rank == 0) {
            OK(get_id(small, &id));
            ranks_publish(name, &id, sizeof(id));
        } else if (is_new) {
            ranks_fetch(name, &id, sizeof(id));
        }
        if (!is_new) {
            EXPECT(same_sum_is_wrong(small, 1), 0);
            EXPECT(grow(small, last, NULL, -1, &comm, NULL), ncclInvalidArgument);
            EXPECT(grow(small, g.n, NULL, g.rank, &comm, NULL), ncclInvalidArgument);
        }
        barrier();
        EXPECT(
            grow(small, g.n, g.rank == 0 || is_new ? &id : NULL, is_new ? g.rank : -1, &comm, NULL),
            ncclSuccess);
        EXPECT(ncclCommDestroy(small), ncclSuccess);
        EXPECT(sums_going_live(comm, 100), 0);
        EXPECT(ncclCommDestroy(comm), ncclSuccess);
    }
}

/*
 * Of four ranks two and two shrink one parent to themselves; each half grows by two new ranks, which then
 * split off. NCCL tells one id for both of these, as it does for what they come of; no new rank knows of
 * the shrink.
 */
static void grown_halves(void)
{
    ncclResult_t (*grow)(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
    ncclResult_t (*get_id)(ncclComm_t, ncclUniqueId *);
    int half = g.rank / 2 % 2, others[] = {2 * !half, 2 * !half + 1}, n_wrong = 0;
    bool is_new = g.rank >= 4, is_first = g.rank % 2 == 0;
    ncclComm_t parent = NULL, small = NULL, comm = NULL, child = NULL;
    ncclUniqueId first = new_id(), id;
    char name[16];
    if (!find_call(RTLD_DEFAULT, "ncclCommGrow", &grow) ||
        !find_call(RTLD_DEFAULT, "ncclCommGetUniqueId", &get_id))
        return;
    snprintf(name, sizeof(name), "half.%d", half);
    if (!is_new) {
        OK(ncclCommInitRank(&parent, 4, first, g.rank));
        OK(ncclCommShrink(parent, others, 2, &small, NULL, 0));
    }
    if (!is_new && is_first) {
        OK(get_id(small, &id));
        ranks_publish(name, &id, sizeof(id));
    } else if (is_new) {
        ranks_fetch(name, &id, sizeof(id));
    }
    barrier();
    EXPECT(
        grow(small, 4, is_new || is_first ? &id : NULL, is_new ? 2 + g.rank % 2 : -1, &comm, NULL),
        ncclSuccess);
    EXPECT(ncclCommSplit(comm, is_new, g.rank, &child, NULL), ncclSuccess);
    /* Ranks come in such an order that those of a number, if it were one communicator, were there. */
    ranks_sleep_ms(half == is_first ? 200 : 0);
    n_wrong += sums_going_live(child, 1000 * (1 + half));
    EXPECT(n_wrong, 0);
    EXPECT(ncclCommDestroy(child), ncclSuccess);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    if (!is_new) {
        EXPECT(ncclCommDestroy(small), ncclSuccess);
        EXPECT(ncclCommDestroy(parent), ncclSuccess);
    }
}

/* ncclAllReduceConfig, with a configuration and without one, among plain calls on other streams. */
static void collective_configs(void)
{
    ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t, const ncclCollConfig_t *);
    static const char some[256];
    if (g.version < 23200 || !find_call(RTLD_DEFAULT, "ncclAllReduceConfig", &reduce))
        return;
    for (uint64_t k = 0; k < 4; k++) {
        start_anew(330 + k, SMALL);
        dawdle();
        EXPECT(reduce(g.buffers[0], g.buffers[1], SMALL, ncclFloat32, ncclSum, g.comm, g.streams[0],
                      NULL),
               ncclSuccess);
        /* what is in a configuration, only a real NCCL's header knows */
        EXPECT(reduce(g.buffers[1], g.buffers[2], SMALL, ncclFloat32, unchanged(), g.comm,
                      g.streams[1], is_emulated() ? (const void *)some : NULL),
               ncclSuccess);
        EXPECT(ncclAllReduce(g.buffers[2], g.buffers[3], SMALL, ncclFloat32, unchanged(), g.comm,
                             g.streams[2]),
               ncclSuccess);
        EXPECT(sum_is_wrong(3, 330 + k, SMALL, 2), 0);
    }
}

/* ---- memory that the runtime did not give: nothing asks what a pointer is. On the emulation, where host
 * memory stands for managed, mapped and registered memory and for the driver's own mappings. ---- */

static void sum_in_memory(const char *kind, void *in, void *out, uint64_t call, size_t count)
{
    char words[160] = "";
    values_fill(ncclFloat32, ncclSum, g.rank, call, count, in);
    EXPECT(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, g.comm, g.streams[0]), ncclSuccess);
    sync_stream(0);
    size_t n = values_check(ncclFloat32, ncclSum, g.n, call, count, out, words, sizeof(words));
    report(n == 0, kind, n != 0, 0);
}

static void foreign_memory(void)
{
    static float fixed[2 * SMALL];
    enum { CHUNK = 1 << 16 };
    float *from_heap = malloc(sizeof(fixed));
    sum_in_memory("heap", from_heap, from_heap, 340, SMALL);
    sum_in_memory("static", fixed, fixed + SMALL, 341, SMALL);
    free(from_heap);
    /* a range of two chunks, one of which is another memory at each call; a sum across them */
    char *range = mmap(NULL, 2 * CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 2; i++)
        OK(mmap(range + i * CHUNK, CHUNK, PROT_READ | PROT_WRITE,
                MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    for (uint64_t k = 0; k < 5; k++) {
        sum_in_memory("chunks", range + CHUNK - 2 * SMALL, range, 342 + k, SMALL);
        OK(mmap(range + CHUNK, CHUNK, PROT_READ | PROT_WRITE,
                MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    }
    OK(munmap(range, 2 * CHUNK));
}

/* Another NCCL in this process, SECOND_NCCL, opened behind the first one's back: calls in turns on both,
 * each of which goes to the one whose communicator it is. */
static void two_copies(void)
{
    ncclResult_t (*get_id)(ncclUniqueId *), (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclUniqueId id;
    ncclComm_t other = NULL;
    void *library = dlopen(getenv("SECOND_NCCL"), RTLD_NOW | RTLD_LOCAL);
    OK(!library || !find_call(library, "ncclGetUniqueId", &get_id) ||
       !find_call(library, "ncclCommInitRank", &init) ||
       !find_call(library, "ncclCommDestroy", &destroy));
    ranks_unique_id("second", get_id, &id);
    OK(init(&other, g.n, id, g.rank));
    OK(!find_call(library, "ncclAllReduce", &reduce));
    for (uint64_t k = 0; k < 60; k++) {
        fill(0, 350 + k, SMALL, 0);
        fill(2, 450 + k, SMALL, 1);
        EXPECT(reduce(g.buffers[0], g.buffers[1], SMALL, ncclFloat32, ncclSum, other, g.streams[0]),
               ncclSuccess);
        EXPECT(sum(2, 3, SMALL, g.comm, 1), ncclSuccess);
        EXPECT(sum_is_wrong(1, 350 + k, SMALL, 0), 0);
        EXPECT(sum_is_wrong(3, 450 + k, SMALL, 1), 0);
        ranks_sleep_ms(2);
    }
    /* each knows its own alone */
    EXPECT(sum(0, 1, SMALL, NULL, 0), ncclInvalidArgument);
    EXPECT(destroy(other), ncclSuccess);
}

/* A child process that ends by exit() leaves the communicators to its parent, and does not linger. */
static void fork_after_use(void)
{
    fflush(NULL);
    double start = ranks_now_ms();
    pid_t pid = fork();
    if (pid == 0)
        exit(0);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT(status, 0);
    EXPECT(ranks_now_ms() - start < 900, 1);
    in_step(g.comm);
}

/* Of the named thread of this process: its blocked signals, 0 if there is none. */
static unsigned long long blocked_signals_of(const char *name)
{
    unsigned long long blocked = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *d; dir && (d = readdir(dir));) {
        char path[300], line[128];
        bool is_it = false;
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", d->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof(line), file)) {
            is_it |= strncmp(line, "Name:\t", 6) == 0 && strcspn(line + 6, "\n") == strlen(name) &&
                     strncmp(line + 6, name, strlen(name)) == 0;
            if (is_it && sscanf(line, "SigBlk: %llx", &blocked) == 1)
                break;
        }
        if (file)
            fclose(file);
    }
    if (dir)
        closedir(dir);
    return blocked;
}

/* The program's handlers run in its own threads alone: those that could not count on it would break. */
static void helper_takes_no_signals(void)
{
    ncclComm_t comm = new_comm();
    unsigned long long blocked = 0;
    if (g.rank == 0) {
        EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
        for (int i = 0; i < 500 && !blocked; i++) {
            ranks_sleep_ms(2);
            blocked = blocked_signals_of("llane-setup");
        }
        EXPECT(blocked >> (SIGALRM - 1) & 1, 1);
        EXPECT(blocked >> (SIGTERM - 1) & 1, 1);
    }
    barrier();
    if (g.rank != 0)
        EXPECT(sum(0, 1, SMALL, comm, 0), ncclSuccess);
    sync_stream(0);
    OK(ncclCommDestroy(comm));
}

/* SIGTERM ends a program whose kernel spins: cases.md 14. Not among the default sections. */
static void killed_while_spinning(void)
{
    if (g.rank == 0) {
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
        fflush(NULL);
        if (fork() == 0) {
            ranks_sleep_ms(300);
            kill(getppid(), SIGTERM);
            _exit(0);
        }
        sync_stream(0);
        report(false, "a sum without its peers ended", 0, 0);
    }
    ranks_sleep_ms(1500);
    _exit(0);
}

/* As programs do that want leaks found, at their end or between two runs. */
static void device_reset(void)
{
    for (int round = 0; round < 3; round++) {
        OK(ncclCommDestroy(g.comm));
        OK(llane_gpu_device_reset());
        ranks_sleep_ms(300); /* who would still look at what is gone does so now */
        open_all();
        fill(0, 160, SMALL, 0);
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
        EXPECT(sum_is_wrong(1, 160, SMALL, 0), 0);
    }
}

static ncclResult_t end_unseen(const char *name, ncclComm_t comm)
{
    ncclResult_t (*end)(ncclComm_t comm) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(&end, &symbol, sizeof(end));
    return end(comm);
}

/* In turns: destroyed, aborted, both in a group, which takes effect at its end, and both by calls that
 * llane does not see. */
static void end_in_turns(int round)
{
    bool is_abort = round % 2, is_grouped = round % 6 / 2 == 1, is_unseen = round % 6 / 2 == 2;
    if (is_grouped)
        OK(ncclGroupStart());
    if (is_unseen)
        OK(end_unseen(is_abort ? "pncclCommAbort" : "pncclCommDestroy", g.comm));
    else
        OK(is_abort ? ncclCommAbort(g.comm) : ncclCommDestroy(g.comm));
    if (is_grouped)
        OK(ncclGroupEnd());
}

/* The same while set-up is under way, here and there in it. */
static void device_reset_in_set_up(void)
{
    for (int round = 0; round < 90; round++) {
        fill(0, 161, SMALL, 0);
        EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
        sync_stream(0);
        ranks_sleep_ms(round / 5);
        end_in_turns(round);
        OK(llane_gpu_device_reset());
        open_all();
    }
}

/* A child that the last rank is not in; its parent ends. */
static void shrink_and_abort(void)
{
    int last = g.n - 1;
    ncclComm_t child = NULL;
    if (g.rank != last) {
        EXPECT(ncclCommShrink(g.comm, &last, 1, &child, NULL, FAKE_SHRINK_ABORT), ncclSuccess);
        EXPECT(sum(0, 1, SMALL, child, 0), ncclSuccess);
        sync_stream(0);
        EXPECT(ncclCommDestroy(child), ncclSuccess);
    }
    EXPECT(ncclCommAbort(g.comm), ncclSuccess);
}

/* A child; one of the two ends while the other one has just begun its set-up, or goes on with it. */
static void end_child_or_parent(bool is_parent_first)
{
    ncclComm_t child = NULL;
    EXPECT(ncclCommSplit(g.comm, 0, g.rank, &child, NULL), ncclSuccess);
    in_step(child);
    EXPECT(ncclCommDestroy(is_parent_first ? g.comm : child), ncclSuccess);
    for (int i = 0; i < 3; i++)
        in_step(is_parent_first ? child : g.comm);
    EXPECT(ncclCommDestroy(is_parent_first ? child : g.comm), ncclSuccess);
}

static void end_both_in_a_group(void)
{
    ncclComm_t child = NULL;
    EXPECT(ncclCommSplit(g.comm, 0, g.rank, &child, NULL), ncclSuccess);
    in_step(child);
    OK(ncclGroupStart());
    EXPECT(ncclCommDestroy(g.comm), ncclSuccess);
    EXPECT(ncclCommAbort(child), ncclSuccess);
    OK(ncclGroupEnd());
}

/* Whatever ends a communicator, while set-up is under way, here and there in it on each rank. */
static void ends_in_set_up(void)
{
    for (int round = 0; round < 72; round++) {
        in_step(g.comm);
        ranks_sleep_ms((round / 6 + 5 * g.rank) % 12);
        switch (round % 6) {
        case 0:
            EXPECT(ncclCommFinalize(g.comm), ncclSuccess);
            EXPECT(ncclCommDestroy(g.comm), ncclSuccess);
            break;
        case 1:
            EXPECT(ncclCommRevoke(g.comm, 0), ncclSuccess);
            EXPECT(ncclCommAbort(g.comm), ncclSuccess);
            break;
        case 2:
            shrink_and_abort();
            break;
        case 3:
        case 4:
            end_child_or_parent(round % 6 == 3);
            break;
        default:
            end_both_in_a_group();
        }
        OK(llane_gpu_device_reset());
        open_all();
    }
}

/* The same while a thread of llane's looks at the operations' events. */
static void device_reset_while_timed(void)
{
    for (int round = 0; round < 12; round++) {
        in_step(g.comm);
        for (int i = 0; i < 20; i++)
            EXPECT(sum(0, 1, SMALL, g.comm, 0), ncclSuccess);
        sync_stream(0);
        ranks_sleep_ms(3 * round);
        end_in_turns(round);
        OK(llane_gpu_device_reset());
        open_all();
    }
}

/* A thread with communicators of its own. */
static void *come_and_go(void *arg)
{
    enum { N_ROUNDS = 30 };
    ncclComm_t comms[2];
    int devices[] = {0, 1};
    void *buffers[2];
    struct CUstream_st *streams[2];
    for (int i = 0; i < 2; i++) {
        OK(llane_gpu_device_set(i));
        OK(llane_gpu_stream_create(&streams[i]));
        OK(llane_gpu_malloc(SMALL * 4, &buffers[i]));
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        OK(ncclCommInitAll(comms, 2, devices));
        OK(ncclGroupStart());
        for (int i = 0; i < 2; i++)
            OK(ncclAllReduce(buffers[i], buffers[i], SMALL, ncclFloat32, ncclMax, comms[i],
                             streams[i]));
        OK(ncclGroupEnd());
        OK(raise(SIGUSR1));
        for (int i = 0; i < 2; i++)
            OK(ncclCommDestroy(comms[i]));
    }
    return arg;
}

/* One's ends, and reports, look at what the others' first sums write: as a thread sanitizer sees it. */
static void threads_apart(void)
{
    enum { N_THREADS = 3 };
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        OK(pthread_create(&threads[i], NULL, come_and_go, NULL));
    for (int i = 0; i < N_THREADS; i++)
        OK(pthread_join(threads[i], NULL));
    report(true, "threads with communicators of their own", 0, 0);
}

static const struct section {
    const char *name;
    void (*run)(void);
    bool is_extra; /* only when named */
} g_sections[] = {
    {"arguments", arguments, false},
    {"float8", float8, false},
    {"large_average", large_average, false},
    {"groups", groups, false},
    {"group_errors", group_errors, false},
    {"simulated_group", simulated_group, false},
    {"simulated_on_one_rank", simulated_on_one_rank, true},
    {"receive_with_sum_against_sum_then_send", receive_with_sum_against_sum_then_send, false},
    {"order_across_streams", order_across_streams, false},
    {"any_device", any_device, false},
    {"graphs_and_eager_calls", graphs_and_eager_calls, false},
    {"captures_in_turns", captures_in_turns, false},
    {"odd_captures", odd_captures, false},
    {"graph_nodes", graph_nodes, true}, /* on the emulation */
    {"captured_beside_others", captured_beside_others, false},
    {"destroyed_on_any_device", destroyed_on_any_device, false},
    {"graph_before_the_lane", graph_before_the_lane, true},               /* LLANE_WAIT=0 */
    {"graph_after_its_communicator", graph_after_its_communicator, true}, /* on the emulation */
    {"children", children, false},
    {"sharing_children", sharing_children, false},
    {"sharing_shrunk_child", sharing_shrunk_child, true}, /* three ranks or more */
    {"one_id_for_two", one_id_for_two, true},             /* NCCL_COMM_ID, two ranks */
    {"shrunk_children", shrunk_children, true},           /* four ranks */
    {"children_of_halves", children_of_halves, true},     /* six ranks */
    {"ends", ends, false},
    {"ends_wait", ends_wait, false},
    {"refused_ends", refused_ends, true},                                 /* NCCL 2.28.7 */
    {"destroyed_in_turns", destroyed_in_turns, true},                     /* one rank, with llane */
    {"destroyed_and_reset_in_turns", destroyed_and_reset_in_turns, true}, /* likewise */
    /* A real NCCL frees device memory in an abort, which waits for the other kernel. */
    {"abort_beside_a_spinning_kernel", abort_beside_a_spinning_kernel, true},
    {"not_blocking", not_blocking, false},
    {"not_blocking_end", not_blocking_end, false},
    {"not_blocking_then_other_work", not_blocking_then_other_work, false},
    {"suspended", suspended, false},
    {"grown", grown, true},               /* three ranks or more */
    {"grown_halves", grown_halves, true}, /* eight ranks */
    {"collective_configs", collective_configs, false},
    {"foreign_memory", foreign_memory, true}, /* on the emulation */
    {"two_copies", two_copies, true},         /* SECOND_NCCL: another libnccl's path */
    {"first_calls", first_calls, true},       /* nothing may wait inside: LLANE_WAIT=0 */
    {"void_groups_on_one_rank", void_groups_on_one_rank, true},
    {"refused_splits_on_one_rank", refused_splits_on_one_rank, true},
    {"first_sum_behind_others", first_sum_behind_others, true},
    {"fork_after_use", fork_after_use, true},
    {"helper_takes_no_signals", helper_takes_no_signals, true}, /* LLANE_WAIT=0, with llane */
    {"killed_while_spinning", killed_while_spinning, true},
    {"device_reset", device_reset, true}, /* all that was there is gone afterwards */
    {"device_reset_in_set_up", device_reset_in_set_up, true},     /* LLANE_WAIT=0 */
    {"ends_in_set_up", ends_in_set_up, true},                     /* LLANE_WAIT=0 */
    {"device_reset_while_timed", device_reset_while_timed, true}, /* LLANE_AB */
    {"threads_apart", threads_apart, true}, /* one rank, LLANE_REPORT_SIGNAL=usr1 */
};
enum { N_SECTIONS = sizeof(g_sections) / sizeof(*g_sections) };

static bool is_wanted(const struct section *section, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], section->name) == 0)
            return true;
    }
    return argc == 1 && !section->is_extra;
}

static void open_all(void)
{
    int n_devices = 0;
    g.rank = ranks_rank();
    g.n = ranks_size();
    OK(llane_gpu_device_count(&n_devices));
    g.device = n_devices ? g.rank % n_devices : 0;
    OK(llane_gpu_device_set(g.device));
    OK(ncclGetVersion(&g.version));
    for (int i = 0; i < N_STREAMS; i++)
        OK(llane_gpu_stream_create(&g.streams[i]));
    OK(llane_gpu_event_create(0, &g.event));
    for (int i = 0; i < N_BUFFERS; i++)
        OK(llane_gpu_malloc(ROOM, &g.buffers[i]));
    free(g.host);
    g.host = malloc(ROOM);
    g.comm = new_comm();
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        puts("prog_conformance [section...]   two ranks or more; the sections:");
        for (int i = 0; i < N_SECTIONS; i++)
            printf("  %s%s\n", g_sections[i].name, g_sections[i].is_extra ? " (when named)" : "");
        return 0;
    }
    open_all();
    g.section = "warm-up";
    if (argc == 1 || strcmp(argv[1], "first_calls") != 0)
        in_step(g.comm); /* a lane, where there is one, is live from here on (LLANE_WAIT) */
    for (int i = 0; i < N_SECTIONS; i++) {
        if (is_wanted(&g_sections[i], argc, argv)) {
            g.section = g_sections[i].name;
            g_sections[i].run();
            barrier();
        }
    }
    OK(ncclCommDestroy(g.comm));
    free(g.host);
    printf("rank %d: %s\n", g.rank, g.n_wrong ? "WRONG" : "ok");
    return g.n_wrong ? 1 : 0;
}
