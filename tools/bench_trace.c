/*
 * Where the time inside an operation goes: the lane's kernels with time stamps, on slots of their own
 * in peer memory, launched as the lane does it but without NCCL's part; once with polls that spin and
 * once with polls that sleep. float32 sums.
 */
#include <string.h>

#include "bench.h"
#include "bench_trace_kernels.h"
#include "config.h"
#include "gpu.h"
#include "route.h"
#include "staging.h"

enum { N_LEAD = 2, SPINS_PER_LOOK = 1024, MIN_BYTES = 2 << 20, CLOCK_NS = 200000 };

struct trace {
    struct llane_route_limits limits;
    uint64_t slot_bytes[LLANE_N_PACKETS];
    uint8_t *bases[BENCH_MAX_RANKS]; /* own and peers' */
    struct llane_lane_words *words;
    struct llane_bench_record *records, *seen; /* of all blocks of all operations; device, host */
    double us_per_cycle;
};

static struct trace trace;

static void synchronize(const struct bench_rank *r)
{
    bench_check_gpu(r, llane_gpu_stream_synchronize(r->stream), "stream");
}

static void *host_memory(const struct bench_rank *r, size_t bytes, void **device_out)
{
    void *host;
    bench_check_gpu(r, llane_gpu_host_alloc(bytes, &host, device_out), "host memory");
    memset(host, 0, bytes);
    return host;
}

static uint32_t at_most(uint64_t a, uint32_t most)
{
    return a < most ? (uint32_t)a : most;
}

/* What the lane would take, from the same configuration; how many blocks fit, as set-up counts. */
static void choose_limits(const struct bench_rank *r)
{
    const struct llane_config *config = llane_config();
    struct llane_route_limits *limits = &trace.limits;
    struct llane_gpu_identity gpu;
    int n_devices, device, ctas;
    bench_check_gpu(r, llane_gpu_device_count(&n_devices), "devices");
    if (r->options->n_gpus && r->options->n_gpus < n_devices) {
        n_devices = r->options->n_gpus;
    }
    bench_check_gpu(r, llane_gpu_device_get(&device), "device");
    bench_check_gpu(r, llane_gpu_identify(device, &gpu), "device");
    *limits = (struct llane_route_limits){
        .max_bytes = config->max_bytes,
        .chunk_bytes = config->chunk_bytes,
        .algorithm = (uint32_t)config->algo,
        .packet = (uint32_t)config->packet,
        .n_blocks = (uint32_t)config->blocks,
        .n_threads = (uint32_t)config->threads / 32 * 32,
        .n_ranks = (uint32_t)r->options->n_ranks,
        .max_blocks = LLANE_MAX_BLOCKS,
        .has_float8 = 1,
        .memory = n_devices == 1 ? LLANE_MEMORY_ONE_GPU : LLANE_MEMORY_PEER,
        .ranks_per_gpu = (uint32_t)((r->options->n_ranks + n_devices - 1) / n_devices),
        .n_sockets = 1,
    };
    if (config->max_ctas) {
        limits->max_blocks = (uint32_t)config->max_ctas;
    } else if (llane_config_nccl_number("NCCL_MAX_CTAS", &ctas) && ctas > 0) {
        limits->max_blocks = at_most((uint64_t)ctas, LLANE_MAX_BLOCKS);
    }
    if (limits->n_threads && limits->n_threads < LLANE_MIN_THREADS) {
        limits->n_threads = LLANE_MIN_THREADS;
    }
    for (int w = 0; w < LLANE_N_WIDTHS; w++) {
        limits->fit[w] = UINT32_MAX;
        for (int k = 0; k < LLANE_N_ALGORITHMS * LLANE_N_PACKETS; k++) {
            const void *kernel = (&llane_bench_trace_table[0][0])[k];
            uint32_t blocks = 0;
            if (kernel) {
                bench_check_gpu(
                    r, llane_gpu_kernel_load(kernel, (uint32_t)LLANE_MIN_THREADS << w, &blocks),
                    "kernel");
                uint32_t fit = llane_route_fit((uint32_t)gpu.n_sms, blocks, limits->ranks_per_gpu);
                limits->fit[w] = at_most(fit, limits->fit[w]);
            }
        }
    }
}

/* Slots as the lane's staging memory has them: LL ones zero, sentinel ones all ones. */
static void take_memory(const struct bench_rank *r)
{
    uint32_t n = trace.limits.n_ranks;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        trace.slot_bytes[p] = llane_route_slot_bytes(&trace.limits, (enum llane_packet)p);
    }
    uint64_t bytes = llane_staging_bytes(n, trace.slot_bytes, 0);
    void *memory, *device;
    struct llane_cells *cells = host_memory(r, sizeof *cells, &device);
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++) {
        cells->cell[c] = (struct llane_cell){.ll_op = 1, .sentinel_op = 1};
    }
    bench_check_gpu(r, llane_gpu_malloc(bytes < MIN_BYTES ? MIN_BYTES : bytes, &memory), "slots");
    trace.bases[r->rank] = memory;
    bench_check_gpu(r, llane_gpu_memset_async(memory, 0, bytes, r->stream), "slots");
    bench_check_gpu(
        r,
        llane_gpu_memset_async(llane_staging_slot(memory, n, trace.slot_bytes, LLANE_SENTINEL, 0),
                               0xff, 2 * trace.slot_bytes[LLANE_SENTINEL] * n, r->stream),
        "slots");
    bench_check_gpu(
        r, llane_gpu_memcpy_async(llane_staging_cells(memory), cells, sizeof *cells, r->stream),
        "cells");
    size_t n_records = (size_t)r->options->n_ops * LLANE_MAX_BLOCKS;
    bench_check_gpu(r, llane_gpu_malloc(n_records * sizeof *trace.records, &memory), "records");
    trace.records = memory;
    trace.seen = host_memory(r, n_records * sizeof *trace.seen, &device);
    (void)host_memory(r, sizeof *trace.words, &device);
    trace.words = device;
    synchronize(r);
}

/* 0 where some rank cannot open some other's memory: then nothing is traced. */
static int open_peers(const struct bench_rank *r)
{
    struct llane_gpu_ipc_handle handle;
    _Static_assert(sizeof handle == sizeof r->shared->trace_memory[0], "an IPC handle");
    if (llane_gpu_ipc_export(trace.bases[r->rank], &handle)) {
        atomic_fetch_add(&r->shared->n_trace_refusals, 1);
    } else {
        memcpy(r->shared->trace_memory[r->rank], &handle, sizeof handle);
    }
    bench_barrier(r);
    for (int peer = 0; peer < r->options->n_ranks && !atomic_load(&r->shared->n_trace_refusals);
         peer++) {
        void *memory = trace.bases[peer];
        memcpy(&handle, r->shared->trace_memory[peer], sizeof handle);
        if (peer != r->rank && llane_gpu_ipc_open(&handle, &memory)) {
            atomic_fetch_add(&r->shared->n_trace_refusals, 1);
        }
        trace.bases[peer] = memory;
    }
    bench_barrier(r);
    return !atomic_load(&r->shared->n_trace_refusals);
}

static void measure_clock(const struct bench_rank *r)
{
    void *device;
    const uint64_t *cycles_ns = host_memory(r, 2 * sizeof *cycles_ns, &device);
    const struct llane_bench_clock_args args = {.ns = CLOCK_NS, .cycles_ns = device};
    const struct llane_gpu_launch launch = {
        .kernel = llane_bench_clock_kernel,
        .args = &args,
        .args_bytes = sizeof args,
        .n_blocks = 1,
        .n_threads = 32,
        .stream = r->stream,
    };
    bench_check_gpu(r, llane_gpu_launch(&launch), "clock kernel");
    synchronize(r);
    trace.us_per_cycle = (double)cycles_ns[1] / (double)(cycles_ns[0] ? cycles_ns[0] : 1) / 1e3;
}

int bench_trace_open(struct bench_rank *r)
{
    bench_at(r, BENCH_STAGE_FLOOR);
    choose_limits(r);
    take_memory(r);
    measure_clock(r);
    return open_peers(r);
}

static void fill_args(const struct bench_rank *r, const struct llane_plan *plan, int sleeps,
                      struct llane_all_reduce_args *args)
{
    uint32_t n = trace.limits.n_ranks, rank = (uint32_t)r->rank;
    args->slot_bytes = trace.slot_bytes[plan->packet];
    args->rank = rank;
    args->n_ranks = n;
    args->op = LLANE_OP_SUM;
    args->flags = sleeps ? LLANE_FLAG_SLEEP : 0;
    args->spins_per_look = SPINS_PER_LOOK;
    args->chunk_packets = plan->chunk_packets;
    args->cells = llane_staging_cells(trace.bases[rank]);
    args->words = trace.words;
    for (uint32_t s = 0; s < n; s++) {
        uint32_t peer = (rank + 1 + s) % n;
        args->slot[peer].recv =
            llane_staging_slot(trace.bases[rank], n, trace.slot_bytes, plan->packet, peer);
        if (peer != rank) {
            args->slot[s].send =
                llane_staging_slot(trace.bases[peer], n, trace.slot_bytes, plan->packet, rank);
        }
    }
}

static void issue(const struct bench_rank *r, const struct bench_work *work,
                  const struct llane_plan *plan, int sleeps)
{
    struct llane_bench_trace_args args = {0};
    uint64_t n_shards = plan->algorithm == LLANE_TWO_SHOT ? (uint64_t)r->options->n_ranks : 1;
    void *chain = NULL;
    fill_args(r, plan, sleeps, &args.all_reduce);
    if (work->bytes % (llane_payload_bytes(plan->packet) * n_shards) == 0) {
        args.all_reduce.flags |= LLANE_FLAG_PLAIN; /* buffers are aligned */
    }
    for (int i = 0; i < r->options->n_ops; i++) {
        size_t at = (size_t)(i % work->n_buffers) * work->stride;
        args.all_reduce.in = work->in + at;
        args.all_reduce.out = work->out + at;
        args.all_reduce.count = work->bytes / sizeof(float);
        args.records = trace.records + (size_t)i * LLANE_MAX_BLOCKS;
        const struct llane_gpu_launch launch = {
            .kernel = llane_bench_trace_table[plan->algorithm][plan->packet],
            .args = &args,
            .args_bytes = sizeof args,
            .n_blocks = plan->n_blocks,
            .n_threads = plan->n_threads,
            .stream = r->stream,
            .chain = &chain,
            .fit = trace.limits.fit,
        };
        bench_check_gpu(r, llane_gpu_launch(&launch), "traced kernel");
    }
}

/* Means over the blocks and operations of the last replay. */
static struct bench_inside summarize(const struct bench_rank *r, const struct llane_plan *plan,
                                     float op_us)
{
    double push = 0, poll = 0, reduce = 0, end = 0;
    double n = (double)r->options->n_ops * plan->n_blocks;
    for (int i = 0; i < r->options->n_ops; i++) {
        for (uint32_t b = 0; b < plan->n_blocks; b++) {
            const struct llane_bench_record *record = &trace.seen[(size_t)i * LLANE_MAX_BLOCKS + b];
            const uint64_t *at = record->moments;
            push += (double)(at[LLANE_PUSHED] - at[LLANE_ENTERED]);
            poll += (double)record->polled;
            reduce += (double)(at[LLANE_FINISHED] - at[LLANE_PUSHED]) - (double)record->polled;
            end += (double)(at[LLANE_LEFT] - at[LLANE_FINISHED]);
        }
    }
    double scale = trace.us_per_cycle / n;
    return (struct bench_inside){
        .op_us = op_us,
        .launch_us = (float)((double)op_us - (push + poll + reduce + end) * scale),
        .push_us = (float)(push * scale),
        .poll_us = (float)(poll * scale),
        .reduce_us = (float)(reduce * scale),
        .end_us = (float)(end * scale),
    };
}

static struct bench_inside run(const struct bench_rank *r, const struct bench_work *work,
                               const struct llane_plan *plan, int sleeps)
{
    struct CUgraphExec_st *graph;
    struct CUevent_st *from, *to;
    float us;
    bench_check_gpu(r, llane_gpu_event_create(1, &from), "event");
    bench_check_gpu(r, llane_gpu_event_create(1, &to), "event");
    bench_check_gpu(r, llane_gpu_capture_begin(r->stream), "capture");
    issue(r, work, plan, sleeps);
    bench_check_gpu(r, llane_gpu_capture_end(r->stream, &graph), "end of capture");
    bench_barrier(r);
    for (int i = 0; i < N_LEAD; i++) {
        bench_check_gpu(r, llane_gpu_graph_launch(graph, r->stream), "graph launch");
    }
    bench_check_gpu(r, llane_gpu_event_record(from, r->stream), "event");
    bench_check_gpu(r, llane_gpu_graph_launch(graph, r->stream), "graph launch");
    bench_check_gpu(r, llane_gpu_event_record(to, r->stream), "event");
    synchronize(r);
    bench_check_gpu(r, llane_gpu_event_elapsed_us(from, to, &us), "event");
    bench_check_gpu(
        r,
        llane_gpu_memcpy_async(trace.seen, trace.records,
                               (size_t)r->options->n_ops * LLANE_MAX_BLOCKS * sizeof *trace.seen,
                               r->stream),
        "records");
    synchronize(r);
    bench_barrier(r); /* no rank destroys a graph that another one's kernels still need */
    bench_check_gpu(r, llane_gpu_graph_destroy(graph), "graph");
    bench_check_gpu(r, llane_gpu_event_destroy(from), "event");
    bench_check_gpu(r, llane_gpu_event_destroy(to), "event");
    return summarize(r, plan, us / (float)r->options->n_ops);
}

void bench_trace_size(struct bench_rank *r, const struct bench_work *work, int size)
{
    size_t count = work->bytes / sizeof(float);
    struct llane_plan plan;
    if (count == 0 || work->bytes % sizeof(float) || work->bytes > trace.limits.max_bytes) {
        return;
    }
    bench_at(r, BENCH_STAGE_TIME);
    plan = llane_route_plan(&trace.limits, count, ncclFloat32, ncclSum);
    for (int sleeps = 0; sleeps < BENCH_N_POLLS; sleeps++) {
        r->shared->result[r->rank].inside[sleeps][size] = run(r, work, &plan, sleeps);
    }
}
