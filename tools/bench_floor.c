/*
 * What no all-reduce can be faster than, on this machine now: a kernel that does nothing, one after
 * the other in a graph, plus a number's way from one rank's kernel to another's memory.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_kernels.h"
#include "gpu.h"

enum {
    EMPTY_KERNELS = 500,  /* enough that the host's part of a replay hides behind it */
    FLAG_BYTES = 2 << 20, /* an allocation of its own, as for the lane */
    FLAG_TRIES = 5,
    LAUNCHES = 50,
};

static void launch_empty(const struct bench_rank *r)
{
    static const struct llane_bench_empty_args args;
    const struct llane_gpu_launch launch = {
        .kernel = llane_bench_kernels[LLANE_BENCH_EMPTY],
        .args = &args,
        .args_bytes = sizeof args,
        .n_blocks = 1,
        .n_threads = 32,
        .stream = r->stream,
    };
    bench_check_gpu(r, llane_gpu_launch(&launch), "empty kernel");
}

static void synchronize(const struct bench_rank *r)
{
    bench_check_gpu(r, llane_gpu_stream_synchronize(r->stream), "stream");
}

static float empty_us(const struct bench_rank *r)
{
    enum { N = 9 };
    struct CUgraphExec_st *graph;
    struct CUevent_st *events[N + 1];
    float us[N];
    int n_kernels = r->is_emulated ? 10 : EMPTY_KERNELS;
    bench_check_gpu(r, llane_gpu_capture_begin(r->stream), "capture");
    for (int i = 0; i < n_kernels; i++) {
        launch_empty(r);
    }
    bench_check_gpu(r, llane_gpu_capture_end(r->stream, &graph), "end of capture");
    for (int i = 0; i <= N; i++) {
        bench_check_gpu(r, llane_gpu_event_create(1, &events[i]), "event");
        bench_check_gpu(r, llane_gpu_graph_launch(graph, r->stream), "graph launch");
        bench_check_gpu(r, llane_gpu_event_record(events[i], r->stream), "event");
    }
    synchronize(r);
    for (int i = 0; i < N; i++) {
        bench_check_gpu(r, llane_gpu_event_elapsed_us(events[i], events[i + 1], &us[i]), "event");
        us[i] /= (float)n_kernels;
    }
    for (int i = 0; i <= N; i++) {
        bench_check_gpu(r, llane_gpu_event_destroy(events[i]), "event");
    }
    bench_check_gpu(r, llane_gpu_graph_destroy(graph), "graph");
    return bench_median(us, N);
}

float bench_floor_launch_us(struct bench_rank *r)
{
    enum { N = 9 };
    float us[N];
    for (int i = 0; i < N; i++) {
        double from = bench_now_us();
        for (int k = 0; k < LAUNCHES; k++) {
            launch_empty(r);
        }
        us[i] = (float)((bench_now_us() - from) / LAUNCHES);
        synchronize(r);
    }
    return bench_median(us, N);
}

/* A page of this program's shared memory each. 0 when it cannot be. */
static int open_host_flags(struct bench_rank *r, uint32_t **own_out, uint32_t **peer_out)
{
    void *pages;
    if (r->rank < 2 &&
        llane_gpu_host_register(r->shared->flag_page, sizeof r->shared->flag_page, &pages)) {
        atomic_fetch_add(&r->shared->n_flag_refusals, 1);
    }
    bench_barrier(r);
    if (r->rank < 2 && !atomic_load(&r->shared->n_flag_refusals)) {
        uint8_t(*page)[sizeof r->shared->flag_page[0]] = pages;
        *own_out = (uint32_t *)(void *)page[r->rank];
        *peer_out = (uint32_t *)(void *)page[1 - r->rank];
    }
    return !atomic_load(&r->shared->n_flag_refusals);
}

/* The flag's memory at this rank and, once both have it, at the other one. 0 when it cannot be. */
static int open_flags(struct bench_rank *r, uint32_t **own_out, uint32_t **peer_out)
{
    struct llane_gpu_ipc_handle handle;
    void *own = NULL, *peer = NULL;
    _Static_assert(sizeof handle == sizeof r->shared->flag_memory[0], "an IPC handle");
    if (r->rank < 2) {
        bench_check_gpu(r, llane_gpu_malloc(FLAG_BYTES, &own), "memory of the flag");
        bench_check_gpu(r, llane_gpu_memset_async(own, 0, FLAG_BYTES, r->stream), "flag");
        synchronize(r);
        if (llane_gpu_ipc_export(own, &handle)) {
            atomic_fetch_add(&r->shared->n_flag_refusals, 1);
        } else {
            memcpy(r->shared->flag_memory[r->rank], &handle, sizeof handle);
        }
    }
    bench_barrier(r);
    if (r->rank < 2 && !atomic_load(&r->shared->n_flag_refusals)) {
        memcpy(&handle, r->shared->flag_memory[1 - r->rank], sizeof handle);
        if (llane_gpu_ipc_open(&handle, &peer)) {
            atomic_fetch_add(&r->shared->n_flag_refusals, 1);
        }
    }
    bench_barrier(r);
    *own_out = own;
    *peer_out = peer;
    return !atomic_load(&r->shared->n_flag_refusals);
}

/* Half of a round trip; 0 when nothing came. Ranks 0 and 1. */
static float flag_us(const struct bench_rank *r, uint32_t *own, uint32_t *peer)
{
    uint32_t n_warm = r->is_emulated ? 10 : 200, n_rounds = r->is_emulated ? 50 : 2000;
    float us[FLAG_TRIES];
    void *host, *device;
    bench_check_gpu(r, llane_gpu_host_alloc(sizeof(uint64_t), &host, &device), "host memory");
    for (uint32_t i = 0; i < FLAG_TRIES; i++) {
        const struct llane_bench_flag_args args = {
            .own = own,
            .peer = peer,
            .result_ns = device,
            .timeout_ns = 2000000000u,
            .first = i * (n_warm + n_rounds),
            .n_warm = n_warm,
            .n_rounds = n_rounds,
            .is_first = r->rank == 0,
        };
        const struct llane_gpu_launch launch = {
            .kernel = llane_bench_kernels[LLANE_BENCH_FLAG],
            .args = &args,
            .args_bytes = sizeof args,
            .n_blocks = 1,
            .n_threads = 32,
            .stream = r->stream,
        };
        *(uint64_t *)host = 0;
        bench_check_gpu(r, llane_gpu_launch(&launch), "flag kernel");
        synchronize(r);
        us[i] = (float)*(const uint64_t *)host / 1e3f / (float)(2 * n_rounds);
        if (us[i] <= 0) {
            return 0;
        }
    }
    return bench_median(us, FLAG_TRIES);
}

void bench_floor_measure(struct bench_rank *r)
{
    uint32_t *own = NULL, *peer = NULL, blocks;
    bench_at(r, BENCH_STAGE_FLOOR);
    for (int k = 0; k < LLANE_BENCH_N_KERNELS; k++) {
        bench_check_gpu(r, llane_gpu_kernel_load(llane_bench_kernels[k], 256, &blocks), "kernel");
    }
    if (r->rank == 0) {
        r->shared->empty_us = empty_us(r);
    }
    bench_barrier(r);
    const char *memory = getenv("LLANE_MEMORY");
    int is_host = memory && !strcmp(memory, "host");
    if (!is_host && !open_flags(r, &own, &peer)) {
        is_host = 1; /* as the lane does */
        bench_barrier(r);
        if (r->rank == 0) {
            atomic_store(&r->shared->n_flag_refusals, 0);
        }
        bench_barrier(r);
    }
    if (r->rank == 0) {
        r->shared->is_flag_in_host_memory = is_host;
    }
    if ((!is_host || open_host_flags(r, &own, &peer)) && r->rank < 2) {
        float us = flag_us(r, own, peer);
        if (r->rank == 0) {
            r->shared->flag_us = us;
        }
    }
    bench_barrier(r);
}

/* ---- what llane adds to a call that it hands on ---- */

/* Count 0 on a communicator of one rank: the cheapest call there is, so the difference shows. */
static double calls_ns(const struct bench_rank *r, enum bench_path path, int n)
{
    double from = bench_now_us();
    for (int i = 0; i < n; i++) {
        bench_all_reduce(r, path, NULL, NULL, 0);
    }
    return (bench_now_us() - from) * 1e3 / n;
}

void bench_overhead_measure(struct bench_rank *r)
{
    enum { N = 101, CALLS = 10000 };
    float direct[N], through[N], added[N];
    bench_at(r, BENCH_STAGE_TIME);
    calls_ns(r, BENCH_NCCL, CALLS);
    calls_ns(r, BENCH_LANE, CALLS);
    for (int i = 0; i < N; i++) {
        bench_at(r, BENCH_STAGE_TIME);
        direct[i] = (float)calls_ns(r, BENCH_NCCL, CALLS);
        through[i] = (float)calls_ns(r, BENCH_LANE, CALLS);
        added[i] = through[i] - direct[i];
    }
    r->shared->direct_ns = (double)bench_median(direct, N);
    r->shared->through_ns = (double)bench_median(through, N);
    r->shared->added_ns = (double)bench_median(added, N);
}
