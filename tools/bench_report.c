/* What came out, for people (text), programs (JSON, CSV) and the eye (a plot of the JSON). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "gpu.h"
#include "table.h"

static float larger(float a, float b)
{
    return a > b ? a : b;
}

/* Each figure is the slowest rank's. */
static void take_rank(struct bench_report *report, const struct bench_result *result, int s)
{
    for (int path = 0; path < BENCH_N_PATHS; path++) {
        const struct bench_times *from = &result->times[path][s];
        struct bench_times *to = &report->times[path][s];
        to->median = larger(to->median, from->median);
        to->p99 = larger(to->p99, from->p99);
        to->min = larger(to->min, from->min);
        report->cpu_us[path][s] = larger(report->cpu_us[path][s], result->cpu_us[path][s]);
        report->wrong[s] += result->wrong[path][s];
        report->checked[s] += result->checked[path][s];
    }
    report->producer_us[s] = larger(report->producer_us[s], result->producer_us[s]);
}

/* From the lane's own line, "... 0 to 262144 bytes ..."; else the largest size that it carried. */
static size_t threshold_of(const struct bench_report *report)
{
    size_t min, max, largest = 0;
    for (const char *at = report->log->lane; *at; at += strcspn(at, " "), at += *at == ' ') {
        int end = 0;
        if (sscanf(at, "%zu to %zu bytes%n", &min, &max, &end) == 2 && end) {
            return max;
        }
    }
    for (int s = 0; s < report->options->n_sizes; s++) {
        largest = report->is_lane[s] ? report->options->sizes[s] : largest;
    }
    return largest;
}

void bench_report_make(const struct bench_options *options, const struct rank_env *around,
                       const struct bench_shared *shared, const struct bench_log *log,
                       struct bench_report *out)
{
    *out =
        (struct bench_report){.options = options, .around = around, .shared = shared, .log = log};
    for (int s = 0; s < options->n_sizes; s++) {
        for (int r = 0; r < options->n_ranks; r++) {
            take_rank(out, &shared->result[r], s);
        }
        out->is_lane[s] = !strncmp(log->route[s], "lane", 4);
    }
    out->threshold = threshold_of(out);
    out->cpu_launch_us = shared->result[0].cpu_launch_us;
    if (shared->empty_us > 0 && shared->flag_us > 0) {
        out->floor_us = shared->empty_us + shared->flag_us;
    }
}

struct bench_inside bench_report_inside(const struct bench_report *report, int poll, int size)
{
    int n = report->options->n_ranks;
    struct bench_inside sum = {0};
    for (int r = 0; r < n; r++) {
        const struct bench_inside *one = &report->shared->result[r].inside[poll][size];
        sum.op_us += one->op_us / (float)n;
        sum.launch_us += one->launch_us / (float)n;
        sum.push_us += one->push_us / (float)n;
        sum.poll_us += one->poll_us / (float)n;
        sum.reduce_us += one->reduce_us / (float)n;
        sum.end_us += one->end_us / (float)n;
    }
    return sum;
}

/*
 * A rank stores its packets once, whoever reads them, and small messages of one-shot once for each reader
 * (if all copies fit, as they do but for the smallest LLANE_MAX_BYTES); it re-arms sentinel packets, with
 * what fills up the copies' lines, and reads each packet that is for it once. One-shot: all of every
 * peer; two-shot: of every peer a shard of contributions and a shard of results.
 */
struct bench_link_bytes bench_report_link_bytes(const struct bench_report *report, int s)
{
    const char *route = report->log->route[s];
    uint64_t n = (uint64_t)report->options->n_ranks;
    int is_sentinel = strstr(route, "sentinel") != NULL;
    uint64_t payload = is_sentinel ? 16 : 8;
    uint64_t packets = (report->options->sizes[s] + payload - 1) / payload;
    uint64_t shard = (packets + n - 1) / n, stored, armed, taken;
    if (!report->is_lane[s] || !strstr(report->log->lane, "over host memory,")) {
        return (struct bench_link_bytes){0};
    }
    if (strstr(route, "one-shot")) {
        int is_copied = n > 2 && packets <= LLANE_COPIED_PACKETS;
        stored = is_copied ? (n - 1) * packets : packets;
        armed = is_copied ? (n - 1) * ((packets + LLANE_LINE_PACKETS - 1) / LLANE_LINE_PACKETS *
                                       LLANE_LINE_PACKETS)
                          : packets;
        taken = (n - 1) * packets;
    } else {
        stored = armed = n * shard;
        taken = 2 * (n - 1) * shard;
    }
    return (struct bench_link_bytes){.out = 16 * (stored + (is_sentinel ? armed : 0)),
                                     .in = 16 * taken};
}

void bench_format_version(int version, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* ---- JSON ---- */

static void json_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\') {
            fprintf(file, "\\%c", c);
        } else if (c < 0x20 || c > 0x7e) {
            fprintf(file, "\\u%04x", c);
        } else {
            fputc(c, file);
        }
    }
    fputc('"', file);
}

static void json_text(FILE *file, const char *name, const char *text)
{
    fprintf(file, "  \"%s\": ", name);
    json_string(file, text);
    fprintf(file, ",\n");
}

static void json_number(FILE *file, const char *name, float value, int is_known)
{
    fprintf(file, "\"%s\": ", name);
    if (is_known) {
        fprintf(file, "%.4f", (double)value);
    } else {
        fprintf(file, "null");
    }
}

static void json_times(FILE *file, const char *name, const struct bench_times *times, int is_known)
{
    fprintf(file, "\"%s\": ", name);
    if (!is_known) {
        fprintf(file, "null");
        return;
    }
    fprintf(file, "{\"median\": %.4f, \"p99\": %.4f, \"min\": %.4f}", (double)times->median,
            (double)times->p99, (double)times->min);
}

/* null for what was not traced */
static void json_inside(const struct bench_report *report, FILE *file, int s)
{
    static const char *const polls[BENCH_N_POLLS] = {"spin", "sleep"};
    for (int poll = 0; poll < BENCH_N_POLLS; poll++) {
        const struct bench_inside inside = bench_report_inside(report, poll, s);
        fprintf(file, ", \"inside_%s\": ", polls[poll]);
        if (inside.op_us > 0) {
            fprintf(file,
                    "{\"all_us\": %.3f, \"launch_us\": %.3f, \"push_us\": %.3f, "
                    "\"polling_us\": %.3f, \"reduce_us\": %.3f, \"end_us\": %.3f}",
                    (double)inside.op_us, (double)inside.launch_us, (double)inside.push_us,
                    (double)inside.poll_us, (double)inside.reduce_us, (double)inside.end_us);
        } else {
            fprintf(file, "null");
        }
    }
}

static void json_size(const struct bench_report *report, FILE *file, int s)
{
    const struct bench_options *o = report->options;
    const struct bench_times *lane = &report->times[BENCH_LANE][s];
    const struct bench_times *nccl = &report->times[BENCH_NCCL][s];
    int is_lane = report->is_lane[s], is_both = is_lane && !o->skips_nccl;
    fprintf(file, "    {\"bytes\": %zu, \"count\": %zu, \"is_lane\": %s, \"route\": ", o->sizes[s],
            o->sizes[s] / o->type->bytes, is_lane ? "true" : "false");
    json_string(file, report->log->route[s]);
    fprintf(file, ", ");
    json_times(file, "lane_us", lane, is_lane);
    fprintf(file, ", ");
    json_times(file, "nccl_us", nccl, !o->skips_nccl);
    fprintf(file, ", ");
    json_number(file, "ratio", lane->median > 0 ? nccl->median / lane->median : 0,
                is_both && lane->median > 0);
    fprintf(file, ", ");
    const struct bench_link_bytes link = bench_report_link_bytes(report, s);
    if (link.out) {
        fprintf(file, "\"link_bytes\": {\"out\": %llu, \"in\": %llu}, ",
                (unsigned long long)link.out, (unsigned long long)link.in);
    } else {
        fprintf(file, "\"link_bytes\": null, ");
    }
    json_number(file, "lane_over_floor", report->floor_us > 0 ? lane->median / report->floor_us : 0,
                is_lane && report->floor_us > 0);
    fprintf(file, ", ");
    json_number(file, "producer_us", report->producer_us[s], o->mode == BENCH_PRODUCER);
    fprintf(file, ", ");
    json_number(file, "cpu_lane_us", report->cpu_us[BENCH_LANE][s], o->does_breakdown && is_lane);
    fprintf(file, ", ");
    json_number(file, "cpu_nccl_us", report->cpu_us[BENCH_NCCL][s],
                o->does_breakdown && !o->skips_nccl);
    json_inside(report, file, s);
    fprintf(file, ", \"wrong\": %llu, \"checked\": %llu}%s\n", (unsigned long long)report->wrong[s],
            (unsigned long long)report->checked[s], s + 1 < o->n_sizes ? "," : "");
}

int bench_report_json(const struct bench_report *report, FILE *file)
{
    const struct bench_options *o = report->options;
    const struct rank_env *around = report->around;
    char version[32], tolerance[128];
    bench_format_version(around->nccl_version, version, sizeof version);
    bench_reference_describe(o->type, o->op, o->n_ranks, tolerance, sizeof tolerance);
    fprintf(file, "{\n  \"format\": 1,\n  \"emulated\": %s,\n",
            around->is_emulated ? "true" : "false");
    json_text(file, "llane", report->log->startup);
    json_text(file, "lane", report->log->lane);
    json_text(file, "placement", report->log->placement);
    json_text(file, "nccl", version);
    json_text(file, "runtime", llane_gpu_runtime());
    json_text(file, "gpu", around->gpu);
    json_text(file, "mode", o->does_overhead ? "overhead" : bench_mode_name(o->mode));
    json_text(file, "type", o->type->name);
    json_text(file, "op", bench_op_name(o->op));
    json_text(file, "tolerance", tolerance);
    fprintf(file, "  \"ranks\": %d,\n  \"gpus\": %d,\n  \"mps\": %s,\n", o->n_ranks, around->n_gpus,
            around->has_mps ? "true" : "false");
    fprintf(file, "  \"operations\": %d,\n  \"samples\": %d,\n", o->n_ops, o->n_samples);
    if (o->does_overhead) {
        fprintf(file,
                "  \"overhead_ns\": {\"direct\": %.1f, \"through\": %.1f, \"added\": %.1f, "
                "\"calls_seen\": %llu}\n}\n",
                report->shared->direct_ns, report->shared->through_ns, report->shared->added_ns,
                (unsigned long long)report->log->nccl_calls);
        return ferror(file) ? -1 : 0;
    }
    fprintf(file, "  \"floor_us\": {");
    json_number(file, "empty", report->shared->empty_us, report->shared->empty_us > 0);
    fprintf(file, ", ");
    json_number(file, "flag", report->shared->flag_us, report->shared->flag_us > 0);
    fprintf(file, ", \"memory\": \"%s\", ",
            report->shared->is_flag_in_host_memory ? "host" : "peer");
    json_number(file, "sum", report->floor_us, report->floor_us > 0);
    fprintf(file, "},\n  ");
    json_number(file, "cpu_launch_us", report->cpu_launch_us, o->does_breakdown);
    fprintf(file, ",\n  \"threshold_bytes\": %zu,\n  \"sizes\": [\n", report->threshold);
    for (int s = 0; s < o->n_sizes; s++) {
        json_size(report, file, s);
    }
    fprintf(file, "  ]\n}\n");
    return ferror(file) ? -1 : 0;
}

/* ---- CSV ---- */

static void csv_times(FILE *file, const struct bench_times *times, int is_known)
{
    if (is_known) {
        fprintf(file, ",%.4f,%.4f,%.4f", (double)times->median, (double)times->p99,
                (double)times->min);
    } else {
        fprintf(file, ",,,");
    }
}

int bench_report_csv(const struct bench_report *report, FILE *file)
{
    const struct bench_options *o = report->options;
    fprintf(file, "emulated,ranks,gpus,type,op,mode,bytes,lane_median_us,lane_p99_us,lane_min_us,"
                  "nccl_median_us,nccl_p99_us,nccl_min_us,floor_us,wrong,checked,route\n");
    for (int s = 0; s < o->n_sizes; s++) {
        fprintf(file, "%d,%d,%d,%s,%s,%s,%zu", report->around->is_emulated, o->n_ranks,
                report->around->n_gpus, o->type->name, bench_op_name(o->op),
                bench_mode_name(o->mode), o->sizes[s]);
        csv_times(file, &report->times[BENCH_LANE][s], report->is_lane[s]);
        csv_times(file, &report->times[BENCH_NCCL][s], !o->skips_nccl);
        if (report->floor_us > 0) {
            fprintf(file, ",%.4f", (double)report->floor_us);
        } else {
            fprintf(file, ",");
        }
        fprintf(file, ",%llu,%llu,\"%s\"\n", (unsigned long long)report->wrong[s],
                (unsigned long long)report->checked[s], report->log->route[s]);
    }
    return ferror(file) ? -1 : 0;
}

/* ---- files ---- */

static int run_plot(const char *first, const char *second)
{
    const char *plot = getenv("BENCH_PLOT");
    int status;
    if (!plot) {
        fprintf(stderr, "llane-bench: --plot needs the plot script: start this as `llane bench`\n");
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        execlp(plot, plot, first, second, (char *)NULL);
        fprintf(stderr, "llane-bench: %s: %s\n", plot, strerror(errno));
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && status == 0 ? 0 : -1;
}

int bench_report_can_plot(void)
{
    return run_plot("--check", NULL) == 0;
}

int bench_report_try_files(const struct bench_options *options)
{
    const char *names[] = {options->json, options->csv, options->plot};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!names[i] || (names[i] == options->json && !strcmp(names[i], "-"))) {
            continue;
        }
        FILE *file = fopen(names[i], "a"); /* what is there stays until there is a result */
        if (!file) {
            fprintf(stderr, "llane-bench: %s: %s\n", names[i], strerror(errno));
            return -1;
        }
        fclose(file);
    }
    return 0;
}

static int write_file(const struct bench_report *report, const char *name,
                      int (*write)(const struct bench_report *, FILE *))
{
    FILE *file = fopen(name, "w");
    int err = !file || write(report, file);
    err |= file && fclose(file);
    if (err) {
        fprintf(stderr, "llane-bench: %s: %s\n", name, strerror(errno));
    }
    return err ? -1 : 0;
}

static int plot(const struct bench_report *report)
{
    char name[] = "/tmp/llane-bench-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0) {
        perror("llane-bench: temporary file");
        return -1;
    }
    close(fd);
    int err = write_file(report, name, bench_report_json);
    err = err ? err : run_plot(name, report->options->plot);
    unlink(name);
    return err;
}

int bench_report_files(const struct bench_report *report)
{
    const struct bench_options *o = report->options;
    int err = 0;
    if (o->json && strcmp(o->json, "-") != 0) {
        err |= write_file(report, o->json, bench_report_json);
    }
    if (o->csv) {
        err |= write_file(report, o->csv, bench_report_csv);
    }
    if (o->plot) {
        err |= plot(report);
    }
    return err;
}
