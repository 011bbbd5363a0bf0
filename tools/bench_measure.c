/*
 * One size's operations and their times. Times of graphs are the GPU's own, between events around
 * each replay; replays in front of the first event keep the GPU busy while the host issues the
 * rest, so that no host time is in them.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_kernels.h"
#include "gpu.h"

enum { N_LEAD = 2, N_BATCH = 5, PRODUCER_THREADS = 256, PRODUCER_BLOCKS = 16, CPU_CALLS = 50 };

static size_t words(const struct bench_work *work)
{
    return (work->bytes + 15) / 16; /* strides leave room for a whole last one */
}

static void issue_producer(const struct bench_rank *r, const struct bench_work *work, size_t at)
{
    const struct llane_bench_produce_args args = {
        .from = work->source + at, .to = work->in + at, .n_words = words(work)};
    size_t n_blocks = (words(work) + PRODUCER_THREADS - 1) / PRODUCER_THREADS;
    const struct llane_gpu_launch launch = {
        .kernel = llane_bench_kernels[LLANE_BENCH_PRODUCE],
        .args = &args,
        .args_bytes = sizeof args,
        .n_blocks = (uint32_t)(n_blocks < PRODUCER_BLOCKS ? n_blocks : PRODUCER_BLOCKS),
        .n_threads = PRODUCER_THREADS,
        .stream = r->stream,
    };
    bench_check_gpu(r, llane_gpu_launch(&launch), "producer kernel");
}

/* All operations of a graph or burst. is_alone: the producers without what follows each. */
static void issue(const struct bench_rank *r, const struct bench_work *work, enum bench_path path,
                  int is_alone)
{
    for (int i = 0; i < r->options->n_ops; i++) {
        size_t at = (size_t)(i % work->n_buffers) * work->stride;
        if (r->options->mode == BENCH_PRODUCER) {
            issue_producer(r, work, at);
        }
        if (!is_alone) {
            bench_all_reduce(r, path, work->in + at, work->out + at, work->count);
        }
    }
}

static struct CUgraphExec_st *capture(const struct bench_rank *r, const struct bench_work *work,
                                      enum bench_path path, int is_alone)
{
    struct CUgraphExec_st *graph;
    bench_check_gpu(r, llane_gpu_capture_begin(r->stream), "capture");
    issue(r, work, path, is_alone);
    bench_check_gpu(r, llane_gpu_capture_end(r->stream, &graph), "end of capture");
    return graph;
}

static void synchronize(const struct bench_rank *r)
{
    bench_check_gpu(r, llane_gpu_stream_synchronize(r->stream), "stream");
}

static int n_paths(const struct bench_rank *r)
{
    return r->options->skips_nccl ? BENCH_NCCL : BENCH_N_PATHS;
}

void bench_measure_open(struct bench_rank *r, struct bench_work *work)
{
    bench_at(r, BENCH_STAGE_CAPTURE);
    if (r->options->mode == BENCH_EAGER) {
        return;
    }
    for (int path = 0; path < n_paths(r); path++) {
        /* What NCCL connects at the first use of an algorithm is connected before a capture. */
        bench_all_reduce(r, (enum bench_path)path, work->in, work->out, work->count);
        synchronize(r);
        work->graph[path] = capture(r, work, (enum bench_path)path, 0);
    }
    if (r->options->mode == BENCH_PRODUCER) {
        work->producer = capture(r, work, BENCH_LANE, 1);
    }
}

void bench_measure_close(struct bench_rank *r, struct bench_work *work)
{
    for (int path = 0; path < BENCH_N_PATHS; path++) {
        if (work->graph[path]) {
            bench_check_gpu(r, llane_gpu_graph_destroy(work->graph[path]), "graph");
        }
        work->graph[path] = NULL;
    }
    if (work->producer) {
        bench_check_gpu(r, llane_gpu_graph_destroy(work->producer), "graph");
        work->producer = NULL;
    }
}

static void launch_graph(const struct bench_rank *r, struct CUgraphExec_st *graph)
{
    bench_check_gpu(r, llane_gpu_graph_launch(graph, r->stream), "graph launch");
}

void bench_measure_run_once(struct bench_rank *r, struct bench_work *work, enum bench_path path)
{
    if (work->graph[path]) {
        launch_graph(r, work->graph[path]);
    } else {
        issue(r, work, path, 0);
    }
    synchronize(r);
}

/* Fills n samples, at most N_BATCH. */
static void time_graph(const struct bench_rank *r, struct CUgraphExec_st *graph, int n, float *us)
{
    static struct CUevent_st *events[N_BATCH + 1];
    for (int i = 0; i <= N_BATCH && !events[i]; i++) {
        bench_check_gpu(r, llane_gpu_event_create(1, &events[i]), "event");
    }
    bench_barrier(r);
    for (int i = 0; i < N_LEAD; i++) {
        launch_graph(r, graph);
    }
    bench_check_gpu(r, llane_gpu_event_record(events[0], r->stream), "event");
    for (int i = 0; i < n; i++) {
        launch_graph(r, graph);
        bench_check_gpu(r, llane_gpu_event_record(events[i + 1], r->stream), "event");
    }
    synchronize(r);
    for (int i = 0; i < n; i++) {
        bench_check_gpu(r, llane_gpu_event_elapsed_us(events[i], events[i + 1], &us[i]), "event");
        us[i] /= (float)r->options->n_ops;
    }
}

/* Wall time of a burst, from the first call to the end of the last operation. */
static void time_burst(const struct bench_rank *r, const struct bench_work *work,
                       enum bench_path path, float *us)
{
    bench_barrier(r);
    double from = bench_now_us();
    issue(r, work, path, 0);
    synchronize(r);
    *us = (float)((bench_now_us() - from) / r->options->n_ops);
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float bench_median(float *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, compare);
    return n % 2 ? us[n / 2] : (us[n / 2 - 1] + us[n / 2]) / 2;
}

/* less: what the same graph takes without the operations. */
static struct bench_times summarize(float *us, int n, float less)
{
    struct bench_times times = {.median = bench_median(us, n) - less};
    times.p99 = us[(n * 99 + 99) / 100 - 1] - less; /* the smallest that 99 of 100 do not exceed */
    times.min = us[0] - less;
    return times;
}

/* The time that calls take to return. The host waits between bursts, so that no queue fills. */
static float cpu_time(struct bench_rank *r, const struct bench_work *work, enum bench_path path)
{
    enum { N = 9 };
    float us[N];
    for (int i = 0; i < N; i++) {
        bench_barrier(r);
        double from = bench_now_us();
        for (int call = 0; call < CPU_CALLS; call++) {
            bench_all_reduce(r, path, work->in, work->out, work->count);
        }
        us[i] = (float)((bench_now_us() - from) / CPU_CALLS);
        synchronize(r);
    }
    return bench_median(us, N);
}

/* The ways take turns, so that what changes on the machine meanwhile meets all of them. */
static void take_samples(struct bench_rank *r, struct bench_work *work, float *samples[3])
{
    int n_samples = r->options->n_samples, is_eager = r->options->mode == BENCH_EAGER;
    int step = is_eager ? 1 : N_BATCH;
    for (int first = 0; first < n_samples; first += step) {
        int n = n_samples - first < step ? n_samples - first : step;
        for (int path = 0; path < n_paths(r); path++) {
            atomic_store(&r->shared->place[r->rank].path, path);
            bench_at(r, BENCH_STAGE_TIME);
            if (is_eager) {
                time_burst(r, work, (enum bench_path)path, samples[path] + first);
            } else {
                time_graph(r, work->graph[path], n, samples[path] + first);
            }
        }
        if (work->producer) {
            time_graph(r, work->producer, n, samples[BENCH_N_PATHS] + first);
        }
    }
}

void bench_measure_times(struct bench_rank *r, struct bench_work *work, int size)
{
    static float buffer[BENCH_N_PATHS + 1][BENCH_MAX_SAMPLES];
    float *samples[BENCH_N_PATHS + 1] = {buffer[0], buffer[1], buffer[2]};
    struct bench_result *result = &r->shared->result[r->rank];
    int n_samples = r->options->n_samples;
    float less = 0;
    take_samples(r, work, samples);
    if (work->producer) {
        less = bench_median(samples[BENCH_N_PATHS], n_samples);
        result->producer_us[size] = less;
    }
    for (int path = 0; path < n_paths(r); path++) {
        result->times[path][size] = summarize(samples[path], n_samples, less);
    }
    for (int path = 0; path < n_paths(r) && r->options->does_breakdown; path++) {
        result->cpu_us[path][size] = cpu_time(r, work, (enum bench_path)path);
    }
}
