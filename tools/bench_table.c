/* The bench's table for people. */
#include <string.h>

#include "bench.h"
#include "gpu.h"

void bench_report_head(const struct bench_options *o, const struct rank_env *around)
{
    char version[32];
    bench_format_version(around->nccl_version, version, sizeof version);
    if (around->is_emulated) {
        printf("EMULATED: no GPU and not the real NCCL. Routes and results are real; times are the "
               "emulation's\nand say nothing about a GPU.\n");
    }
    printf("llane bench: %d rank%s on %d GPU%s%s (%s), NCCL %s, %s\n", o->n_ranks,
           o->n_ranks == 1 ? "" : "s", around->n_gpus, around->n_gpus == 1 ? "" : "s",
           !around->is_shared || around->is_emulated ? ""
           : around->has_mps                         ? " under MPS"
                                                     : " WITHOUT MPS",
           around->gpu, version, llane_gpu_runtime());
    fflush(stdout);
}

static void print_setting(const struct bench_report *report)
{
    const struct bench_options *o = report->options;
    const struct bench_log *log = report->log;
    char text[128];
    printf("%s\n", log->startup[0] ? log->startup : "llane was not loaded");
    printf("lane: %s\n", log->lane[0] ? log->lane : "none");
    if (log->placement[0]) {
        printf("host memory of rank 0: %s\n", log->placement);
    }
    if (report->floor_us > 0) {
        printf(
            "floor: %.2f us = empty kernel in a graph %.2f + one-way flag %.2f through %s memory\n",
            (double)report->floor_us, (double)report->shared->empty_us,
            (double)report->shared->flag_us,
            report->shared->is_flag_in_host_memory ? "host" : "peer");
    } else {
        printf("floor: not measured: %s\n",
               !(report->shared->empty_us > 0) ? "no times were taken"
               : report->shared->n_flag_refusals
                   ? "ranks 0 and 1 do not reach each other's memory"
                   : "the flag did not come in time (without MPS kernels take turns)");
    }
    bench_reference_describe(o->type, o->op, o->n_ranks, text, sizeof text);
    printf("%s %s, mode %s: %d operations a %s, %d samples; wrong: not %s\n\n", o->type->name,
           bench_op_name(o->op), bench_mode_name(o->mode), o->n_ops,
           o->mode == BENCH_EAGER ? "burst" : "graph", o->n_samples, text);
}

static void print_cell(float value, int is_known)
{
    if (is_known) {
        printf(" %8.2f", (double)value);
    } else {
        printf(" %8s", "-");
    }
}

static void print_row(const struct bench_report *report, int s)
{
    const struct bench_options *o = report->options;
    const struct bench_times *lane = &report->times[BENCH_LANE][s];
    const struct bench_times *nccl = &report->times[BENCH_NCCL][s];
    int is_lane = report->is_lane[s], is_nccl = !o->skips_nccl;
    int has_ratio = is_lane && is_nccl && lane->median > 0;
    int has_floor = is_lane && report->floor_us > 0;
    printf("%10zu ", o->sizes[s]);
    print_cell(lane->median, is_lane);
    print_cell(lane->p99, is_lane);
    print_cell(lane->min, is_lane);
    printf(" ");
    print_cell(nccl->median, is_nccl);
    print_cell(nccl->p99, is_nccl);
    print_cell(nccl->min, is_nccl);
    printf(" ");
    print_cell(has_ratio ? nccl->median / lane->median : 0, has_ratio);
    print_cell(has_floor ? lane->median / report->floor_us : 0, has_floor);
    printf(" %7llu  %s", (unsigned long long)report->wrong[s],
           report->log->route[s][0] ? report->log->route[s] : "NCCL, no llane");
    const struct bench_link_bytes link = bench_report_link_bytes(report, s);
    if (link.out) {
        printf("; over the link %llu out, %llu in", (unsigned long long)link.out,
               (unsigned long long)link.in);
    }
    printf("\n");
}

static void print_breakdown(const struct bench_report *report)
{
    const struct bench_options *o = report->options;
    const struct bench_shared *shared = report->shared;
    float launch_us = report->cpu_launch_us, floor_us = report->floor_us;
    printf("\nWhere the time goes, us. CPU: an eager call until it returns, beside a bare kernel "
           "launch (%.2f).\nGPU: an operation of the graph; what the floor leaves is the message's "
           "way, reducing and waiting.\n\n%10s  %8s %8s %8s  %8s %8s %8s %8s\n",
           (double)launch_us, "bytes", "CPU lane", "/launch", "CPU NCCL", "GPU lane", "empty",
           "flag", "rest");
    for (int s = 0; s < o->n_sizes; s++) {
        int is_lane = report->is_lane[s], has_floor = is_lane && floor_us > 0;
        float cpu_us = report->cpu_us[BENCH_LANE][s], us = report->times[BENCH_LANE][s].median;
        printf("%10zu ", o->sizes[s]);
        print_cell(cpu_us, is_lane);
        print_cell(is_lane ? cpu_us / launch_us : 0, is_lane);
        print_cell(report->cpu_us[BENCH_NCCL][s], !o->skips_nccl);
        printf(" ");
        print_cell(us, is_lane);
        print_cell(shared->empty_us, has_floor);
        print_cell(shared->flag_us, has_floor);
        print_cell(us - floor_us, has_floor);
        printf("\n");
    }
}

static void print_inside(const struct bench_report *report)
{
    static const char *const polls[BENCH_N_POLLS] = {"spin", "sleep"};
    const struct bench_options *o = report->options;
    printf(
        "\nInside the lane's kernels, us an operation: float32 sums with time stamps by each "
        "block's first thread,\nmeans over blocks, operations and ranks; launch is what the rest "
        "leaves of the graph's time.\n\n%10s  %5s %8s %8s %8s %8s %8s %8s %8s\n",
        "bytes", "polls", "all", "launch", "push", "polling", "of all", "reduce", "end");
    for (int s = 0; s < o->n_sizes; s++) {
        for (int poll = 0; poll < BENCH_N_POLLS; poll++) {
            const struct bench_inside inside = bench_report_inside(report, poll, s);
            if (inside.op_us > 0) {
                printf("%10zu  %5s %8.2f %8.2f %8.2f %8.2f %7.0f%% %8.2f %8.2f\n", o->sizes[s],
                       polls[poll], (double)inside.op_us, (double)inside.launch_us,
                       (double)inside.push_us, (double)inside.poll_us,
                       100 * (double)(inside.poll_us / inside.op_us), (double)inside.reduce_us,
                       (double)inside.end_us);
            }
        }
    }
}

static void print_overhead(const struct bench_report *report)
{
    const struct bench_shared *shared = report->shared;
    printf("%s\n\nCPU time of a call that NCCL carries (count 0, communicator of one rank), median "
           "of %s:\nNCCL directly %.0f ns, through llane %.0f ns, added %.0f ns "
           "(median of the differences)\n",
           report->log->startup, "101 x 10000 calls", shared->direct_ns, shared->through_ns,
           shared->added_ns);
}

void bench_report_text(const struct bench_report *report)
{
    const struct bench_options *o = report->options;
    if (o->does_overhead) {
        print_overhead(report);
        return;
    }
    print_setting(report);
    if (o->mode == BENCH_PRODUCER) {
        printf("Times are what an operation adds to a graph of plain producer kernels.\n");
    }
    printf("%10s   %-27s  %-26s\n", "",
           report->around->is_emulated ? "lane, emulated us" : "lane, us",
           report->around->is_emulated ? "NCCL, emulated us" : "NCCL, us");
    printf("%10s  %8s %8s %8s  %8s %8s %8s  %8s %8s %7s  %s\n", "bytes", "median", "p99", "min",
           "median", "p99", "min", "ratio", "/floor", "wrong", "route");
    for (int s = 0; s < o->n_sizes; s++) {
        print_row(report, s);
    }
    if (o->does_breakdown) {
        print_breakdown(report);
        print_inside(report);
    }
}
