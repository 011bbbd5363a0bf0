#include "calibrate_lane.h"

#include <stdlib.h>
#include <time.h>

#include "backoff.h"
#include "config.h"
#include "err.h"
#include "log.h"

/* A sample is a replay; the first one, during which the host issues the others, does not count. */
enum { SAMPLES = 5, SAMPLE_US = 60, MAX_OPS = 20, MIN_OPS = 2, WARM_SAMPLES = 2 };

/* One candidate's operations. */
struct burst {
    uint64_t bytes;
    double model_us;
    struct CUgraphExec_st *graph; /* NULL: it could not be made, so they are launched one by one */
    int n_ops;                    /* by the model, so that it is the same on all ranks */
    struct llane_plan plan;
};

static int launch_all(struct llane_calibrate_lane *m, const struct burst *burst)
{
    const struct llane_operation operation = {
        .in = m->scratch,
        .out = m->scratch,
        .count = burst->bytes / sizeof(float),
        .datatype = ncclFloat32,
        .op = ncclSum,
        .stream = m->stream,
    };
    void *node = NULL;
    int err = 0;
    for (int i = 0; i < burst->n_ops && !err; i++) {
        err = llane_lane_launch(m->lane, &operation, &burst->plan, &node);
    }
    return err;
}

static int count_ops(double us)
{
    double n = SAMPLE_US / us;
    return llane_gpu_is_emulated() || n < MIN_OPS ? MIN_OPS : n > MAX_OPS ? MAX_OPS : (int)n;
}

static void end_burst(struct burst *burst)
{
    if (burst->graph) {
        (void)llane_gpu_graph_destroy(burst->graph);
    }
}

static void make_burst(struct llane_calibrate_lane *m, uint32_t bucket,
                       const struct llane_tuning_choice *choice, struct burst *out)
{
    struct llane_route_limits limits = m->lane->limits;
    uint64_t bytes = llane_tuning_bucket_bytes(bucket);
    limits.tuning.choice[LLANE_TUNING_FLOAT][bucket] = *choice;
    *out = (struct burst){
        .plan = llane_route_plan(&limits, bytes / sizeof(float), ncclFloat32, ncclSum),
        .bytes = bytes,
    };
    out->model_us = llane_route_lane_us(&limits, out->plan.algorithm, out->plan.packet, out->bytes);
    out->n_ops = count_ops(out->model_us);
    /* Graph or not is this rank's affair: the operations are the same. */
    if (!llane_gpu_capture_begin(m->stream)) {
        int err = launch_all(m, out);
        if (llane_gpu_capture_end(m->stream, &out->graph)) {
            out->graph = NULL;
        } else if (err) {
            end_burst(out);
            out->graph = NULL;
        }
    }
}

static int replay(struct llane_calibrate_lane *m, const struct burst *burst)
{
    return burst->graph ? llane_gpu_graph_launch(burst->graph, m->stream) : launch_all(m, burst);
}

/* Raises the abort word when it is over before the GPU is done. */
static int await(struct llane_calibrate_lane *m)
{
    int64_t deadline = llane_now_ms() + 2 * (int64_t)llane_config()->probe_timeout_ms;
    struct llane_backoff backoff = {0};
    int is_done = 0, err;
    while (!(err = llane_gpu_stream_query(m->stream, &is_done)) && !is_done) {
        int is_canceled = llane_is_canceled(m->cancel);
        if (is_canceled || llane_now_ms() > deadline) {
            llane_lane_abort(m->lane);
            return is_canceled ? LLANE_ECANCELED : LLANE_EREFUSED;
        }
        llane_backoff_sleep(&backoff);
    }
    return err                              ? err
           : llane_lane_is_aborted(m->lane) ? LLANE_ECANCELED
           : llane_lane_dead(m->lane)       ? LLANE_EREFUSED
                                            : 0;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median microseconds an operation, by n replays behind one more. 0: the events did not tell. */
static int time_burst(struct llane_calibrate_lane *m, const struct burst *burst, int n,
                      struct CUevent_st *const *events, float *us_out)
{
    float us[SAMPLES];
    int err = replay(m, burst);
    for (int i = 0; i < n && !err; i++) {
        if (!(err = llane_gpu_event_record(events[2 * i], m->stream)) &&
            !(err = replay(m, burst))) {
            err = llane_gpu_event_record(events[2 * i + 1], m->stream);
        }
    }
    if (err || (err = await(m))) {
        return err;
    }
    for (int i = 0; i < n; i++) {
        if (llane_gpu_event_elapsed_us(events[2 * i], events[2 * i + 1], &us[i])) {
            us[i] = 0;
        }
    }
    if (llane_gpu_is_emulated()) {
        *us_out = (float)burst->model_us; /* its clock tells nothing */
        return 0;
    }
    qsort(us, (size_t)n, sizeof *us, ascending);
    *us_out = us[n / 2] / (float)burst->n_ops;
    return 0;
}

static int open_events(struct CUevent_st *events[2 * SAMPLES])
{
    int err = 0;
    for (int i = 0; i < 2 * SAMPLES; i++) {
        events[i] = NULL;
        err = err ? err : llane_gpu_event_create(1, &events[i]);
    }
    return err;
}

static void close_events(struct CUevent_st *events[2 * SAMPLES])
{
    for (int i = 0; i < 2 * SAMPLES; i++) {
        if (events[i]) {
            (void)llane_gpu_event_destroy(events[i]);
        }
    }
}

static int tell(const struct llane_calibrate_lane *m, int err)
{
    if (err == LLANE_EGPU) {
        LLANE_INFO("rank %d: calibration: %s", m->rank, llane_gpu_error());
    } else if (err == LLANE_EREFUSED) {
        LLANE_WARN("rank %d: calibration: kernels did not end in time", m->rank);
    }
    return err;
}

/* Each once before any is timed: a graph's first launch, and its kernel's, take longer than others. */
static int warm_all(struct llane_calibrate_lane *m, const struct burst *bursts, int n)
{
    int err = 0;
    for (int i = 0; i < n && !err; i++) {
        err = replay(m, &bursts[i]);
    }
    return err ? err : await(m);
}

/* Forwards, then backwards: what drifts meanwhile does not favour one of them. */
static int measure(void *arg, uint32_t bucket, const struct llane_tuning_choice *candidates, int n,
                   struct llane_tuning_times *out)
{
    struct llane_calibrate_lane *m = arg;
    struct burst bursts[LLANE_TUNING_CANDIDATES] = {0};
    struct CUevent_st *events[2 * SAMPLES];
    int n_samples = llane_gpu_is_emulated() ? 1 : SAMPLES;
    int err = open_events(events);
    for (int i = 0; i < n; i++) {
        make_burst(m, bucket, &candidates[i], &bursts[i]);
    }
    err = err ? err : warm_all(m, bursts, n);
    for (int i = 0; i < LLANE_TUNING_PASSES * n && !err; i++) {
        int pass = i / n, c = pass ? LLANE_TUNING_PASSES * n - 1 - i : i;
        err = time_burst(m, &bursts[c], n_samples, events, &out->us[pass][c]);
    }
    for (int i = 0; i < n; i++) {
        end_burst(&bursts[i]);
    }
    close_events(events);
    return tell(m, err);
}

static int warm(void *arg, float *us_out)
{
    struct llane_calibrate_lane *m = arg;
    const struct llane_tuning_choice by_default = {.path = LLANE_TUNING_DEFAULT};
    uint32_t ladder[LLANE_TUNING_SIZES];
    uint32_t n = llane_tuning_ladder(m->lane->limits.max_bytes, ladder);
    struct burst burst;
    struct CUevent_st *events[2 * SAMPLES];
    int err = open_events(events);
    make_burst(m, ladder[n - 1], &by_default, &burst);
    err = err ? err : time_burst(m, &burst, WARM_SAMPLES, events, us_out);
    end_burst(&burst);
    close_events(events);
    return tell(m, err);
}

static double now_ms(void *arg)
{
    struct timespec ts;
    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

struct llane_calibrate_source llane_calibrate_lane_source(struct llane_calibrate_lane *lane)
{
    return (struct llane_calibrate_source){warm, measure, now_ms, lane};
}
