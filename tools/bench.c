/*
 * llane-bench: real NCCL and the lane side by side (docs/bench.md). See bench.h for how its files
 * work together; the parent is here.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "gpu.h"

static struct bench_shared *map_shared(int *fd)
{
    if (*fd < 0) {
        *fd = memfd_create("llane-bench", 0); /* the ranks inherit it */
        if (*fd < 0 || ftruncate(*fd, sizeof(struct bench_shared))) {
            return NULL;
        }
    }
    void *shared =
        mmap(NULL, sizeof(struct bench_shared), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

/*
 * Where calls are timed one by one, rank 0 cannot write a line about each: routes and results come
 * from processes of their own, before those that are timed.
 */
static int run_phases(char **argv, const struct bench_options *options,
                      const struct rank_env *around, struct bench_shared *shared,
                      struct bench_log *log)
{
    if (options->does_overhead) {
        const struct bench_phase times = {.does_time = 1};
        return bench_ranks_run(argv, options, around, times, shared, log);
    }
    if (options->mode != BENCH_EAGER && !options->does_breakdown) {
        const struct bench_phase both = {.is_logged = 1, .does_check = 1, .does_time = 1};
        return bench_ranks_run(argv, options, around, both, shared, log);
    }
    const struct bench_phase results = {.is_logged = 1, .does_check = 1};
    const struct bench_phase times = {.does_time = 1};
    int status = bench_ranks_run(argv, options, around, results, shared, log);
    if (!status) {
        memset(shared->place, 0, sizeof shared->place);
        shared->is_id_ready = 0;
        shared->n_arrived = 0;
        status = bench_ranks_run(argv, options, around, times, shared, log);
    }
    return status;
}

/*
 * Processes without a log count: all calls must have reached llane, and where the lane carried calls
 * when results were checked, it must have done so when times were taken.
 */
static void look_at_stats(const struct bench_report *report)
{
    const struct bench_log *log = report->log;
    uint64_t n_calls = report->shared->result[0].n_lane_path_calls;
    uint64_t n_seen = log->lane_calls + log->nccl_calls;
    int has_lane = 0;
    for (int s = 0; s < report->options->n_sizes; s++) {
        has_lane |= report->is_lane[s];
    }
    if (report->options->does_overhead && n_seen != n_calls) {
        fprintf(stderr, "llane-bench: llane saw %llu of %llu calls: the figure says nothing\n",
                (unsigned long long)n_seen, (unsigned long long)n_calls);
    }
    if (has_lane && log->has_stats && !log->lane_calls) {
        fprintf(stderr, "llane-bench: the lane carried calls when results were checked, and none "
                        "when times were taken: the times are NCCL's\n");
    }
}

static int report_all(const struct bench_report *report)
{
    const struct bench_options *o = report->options;
    int status = 0;
    if (o->json && !strcmp(o->json, "-")) {
        status |= bench_report_json(report, stdout) != 0;
    } else {
        bench_report_text(report);
    }
    look_at_stats(report);
    status |= bench_report_files(report) != 0;
    uint64_t wrong = 0;
    for (int s = 0; s < o->n_sizes; s++) {
        wrong += report->wrong[s];
    }
    if (wrong) {
        fprintf(stderr, "llane-bench: %llu wrong elements\n", (unsigned long long)wrong);
        status = 1;
    }
    return status || !o->does_calibrate ? status : bench_calibrate(report);
}

static int run_parent(char **argv, const struct bench_options *options, struct bench_shared *shared)
{
    static struct bench_log log;
    static struct bench_report report;
    const struct rank_env_options env_options = {.tool = "llane-bench",
                                                 .n_ranks = options->n_ranks,
                                                 .n_gpus = options->n_gpus,
                                                 .starts_mps = options->starts_mps};
    struct rank_env around;
    if ((options->plot && !bench_report_can_plot()) || bench_report_try_files(options)) {
        return 1;
    }
    rank_env_catch_signals();
    int status = rank_env_prepare(&env_options, &around) ? 1 : 0;
    if (!status) {
        if (!options->json || strcmp(options->json, "-") != 0) {
            bench_report_head(options, &around);
        }
        status = run_phases(argv, options, &around, shared, &log);
        for (int i = 0; i < log.n_warnings; i++) {
            fprintf(stderr, "llane-bench: warning: %s\n", log.warning[i]);
        }
    }
    rank_env_restore();
    if (!status) {
        bench_report_make(options, &around, shared, &log, &report);
        status = report_all(&report);
    }
    return status;
}

int main(int argc, char **argv)
{
    static struct bench_options options;
    const char *rank_text = getenv("BENCH_RANK"), *fd_text = getenv("BENCH_FD");
    int rank, fd = fd_text && rank_text ? atoi(fd_text) : -1;
    struct bench_phase phase;
    char text[16];
    bench_options_parse(argc, argv, !strcmp(llane_gpu_runtime(), "emulation"), &options);
    struct bench_shared *shared = map_shared(&fd);
    if (!shared) {
        perror("llane-bench: shared memory");
        return 1;
    }
    if (rank_text) {
        if (sscanf(rank_text, "%d %d %d %d", &rank, &phase.is_logged, &phase.does_check,
                   &phase.does_time) != 4) {
            return 2;
        }
        return bench_rank_main(shared, &options, phase, rank);
    }
    snprintf(text, sizeof text, "%d", fd);
    setenv("BENCH_FD", text, 1);
    int status = run_parent(argv, &options, shared);
    rank_env_raise();
    return status;
}
