#include "stats_write.h"

#include <inttypes.h>
#include <unistd.h>

#include "comm.h"
#include "route.h"
#include "staging.h"

/* ---- text ---- */

struct sum {
    uint64_t calls, bytes;
};

static void add_route(const struct llane_stats_record *r, int route, struct sum *sum)
{
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        sum->calls += r->stats.routes[b][route].calls;
        sum->bytes += r->stats.routes[b][route].bytes;
    }
}

static void sum_up(const struct llane_stats_record *r, struct sum *lane, struct sum *nccl)
{
    *lane = *nccl = (struct sum){0};
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        add_route(r, route, route == LLANE_ROUTE_LANE ? lane : nccl);
    }
}

static void print_route(const struct llane_stats_record *r, int route, FILE *file)
{
    int is_inactive = route == LLANE_ROUTE_INACTIVE;
    fprintf(file, "%s%s%s", llane_route_text((enum llane_route)route), is_inactive ? ", " : "",
            is_inactive ? llane_inactive_text(r->inactive_reason) : "");
}

/* " (reason: C, ...)" */
static void print_reasons(const struct llane_stats_record *r, FILE *file)
{
    const char *before = " (";
    for (int route = LLANE_ROUTE_LANE + 1; route < LLANE_N_ROUTES; route++) {
        struct sum sum = {0};
        add_route(r, route, &sum);
        if (sum.calls) {
            fputs(before, file);
            print_route(r, route, file);
            fprintf(file, ": %" PRIu64, sum.calls);
            before = ", ";
        }
    }
    fputs(*before == ' ' ? "" : ")", file);
}

static void print_size(int bucket, FILE *file)
{
    static const char *const units[] = {"", "K", "M", "G"};
    if (bucket == LLANE_SIZE_BUCKETS - 1) {
        fprintf(file, "over %" PRIu64 "G", llane_size_most_bytes(bucket - 1) >> 30);
    } else {
        fprintf(file, "to %d%s", 1 << bucket % 10, units[bucket / 10]);
    }
}

static const char *kernel_text(int algorithm, int packet)
{
    const struct llane_plan plan = {.algorithm = (enum llane_algorithm)algorithm,
                                    .packet = (enum llane_packet)packet};
    return llane_plan_text(&plan);
}

static int is_used(const struct llane_stats_record *r, int bucket)
{
    uint64_t calls = 0;
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        calls += r->stats.routes[bucket][route].calls;
    }
    return calls != 0;
}

static void print_bucket(const struct llane_stats_record *r, int bucket, FILE *file)
{
    if (!is_used(r, bucket)) {
        return;
    }
    fprintf(file, "llane stats: pid %d,   ", (int)getpid());
    print_size(bucket, file);
    fprintf(file, " bytes,");
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        if (r->stats.routes[bucket][route].calls) {
            fputc(' ', file);
            print_route(r, route, file);
            fprintf(file, " %" PRIu64 ";", r->stats.routes[bucket][route].calls);
        }
    }
    for (int a = 0; a < LLANE_N_ALGORITHMS; a++) {
        for (int p = 0; p < LLANE_N_PACKETS; p++) {
            if (r->launched[bucket][a][p]) {
                fprintf(file, " launched %s %" PRIu64 ";", kernel_text(a, p),
                        r->launched[bucket][a][p]);
            }
        }
    }
    fputc('\n', file);
}

static void print_comm(const struct llane_stats_record *r, const char *what, FILE *file)
{
    int has_name = r->name[0] != 0;
    fprintf(file, "llane %s: pid %d rank %d/%d id %08" PRIx32 "%s%s%s: ", what, (int)getpid(),
            r->rank, r->n_ranks, r->id, has_name ? " \"" : "", r->name, has_name ? "\"" : "");
}

void llane_stats_print(const struct llane_stats_record *r, FILE *file)
{
    struct sum lane, nccl;
    sum_up(r, &lane, &nccl);
    print_comm(r, "stats", file);
    fprintf(file,
            "lane %" PRIu64 " calls %" PRIu64 " bytes; NCCL %" PRIu64 " calls %" PRIu64 " bytes",
            lane.calls, lane.bytes, nccl.calls, nccl.bytes);
    print_reasons(r, file);
    fputc('\n', file);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        print_bucket(r, b, file);
    }
    if (r->setup_ms || r->stats.n_errors) {
        fprintf(file, "llane stats: pid %d,   set-up %" PRId64 " ms, errors %" PRIu64 "\n",
                (int)getpid(), r->setup_ms, r->stats.n_errors);
    }
}

/* ---- LLANE_AB ---- */

static int has_ab(const struct llane_stats_record *r, int bucket)
{
    const uint64_t *calls = r->ab.sizes[bucket].calls;
    return r->has_ab && calls[LLANE_AB_LANE] + calls[LLANE_AB_NCCL] != 0;
}

static double ratio_of(const struct llane_stats_record *r, int bucket)
{
    const double *median = r->ab.sizes[bucket].median_us;
    return median[LLANE_AB_LANE] > 0 ? median[LLANE_AB_NCCL] / median[LLANE_AB_LANE] : 0;
}

static void print_ab_path(const struct llane_stats_record *r, int bucket, int path, FILE *file)
{
    static const char *const names[LLANE_AB_N_PATHS] = {"lane", "NCCL"};
    uint64_t timed = r->ab.sizes[bucket].timed[path];
    fprintf(file, " %s %" PRIu64 " calls,", names[path], r->ab.sizes[bucket].calls[path]);
    if (timed) {
        fprintf(file, " %" PRIu64 " timed, median %.2f us, p99 %.2f us;", timed,
                r->ab.sizes[bucket].median_us[path], r->ab.sizes[bucket].p99_us[path]);
    } else {
        fputs(" none timed;", file);
    }
}

static void print_ab_bucket(const struct llane_stats_record *r, int bucket, FILE *file)
{
    fprintf(file, "llane ab: pid %d,   ", (int)getpid());
    print_size(bucket, file);
    fputs(" bytes:", file);
    print_ab_path(r, bucket, LLANE_AB_LANE, file);
    print_ab_path(r, bucket, LLANE_AB_NCCL, file);
    const uint64_t *timed = r->ab.sizes[bucket].timed;
    if (timed[LLANE_AB_LANE] && timed[LLANE_AB_NCCL]) {
        fprintf(file, " NCCL/lane %.2f, saved %.3f ms\n", ratio_of(r, bucket),
                llane_ab_saved_us(&r->ab, bucket) / 1000);
    } else {
        fputs(" nothing to compare\n", file);
    }
}

static void print_shadow(const struct llane_stats_record *r, FILE *file)
{
    uint64_t beyond = 0;
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        if (r->shadow.sizes[b].calls) {
            fprintf(file, "llane ab: pid %d,   ", (int)getpid());
            print_size(b, file);
            fprintf(file,
                    " bytes: %" PRIu64 " calls, %" PRIu64 " compared: %" PRIu64
                    " the same in every bit, %" PRIu64 " up to rounding, %" PRIu64 " beyond it\n",
                    r->shadow.sizes[b].calls, r->shadow.sizes[b].compared, r->shadow.sizes[b].same,
                    r->shadow.sizes[b].within, r->shadow.sizes[b].beyond);
            beyond += r->shadow.sizes[b].beyond;
        }
    }
    print_comm(r, "ab", file);
    fprintf(file, "%" PRIu64 " results differ by more than rounding in all\n", beyond);
}

void llane_stats_print_ab(const struct llane_stats_record *r, FILE *file)
{
    if (r->has_shadow) {
        print_shadow(r, file);
    }
    double saved_us = 0;
    int is_any = 0;
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        if (has_ab(r, b)) {
            print_ab_bucket(r, b, file);
            saved_us += llane_ab_saved_us(&r->ab, b);
            is_any = 1;
        }
    }
    if (is_any) {
        print_comm(r, "ab", file);
        fprintf(file, "saved %.3f ms in all\n", saved_us / 1000);
    }
}

void llane_stats_print_process(FILE *file)
{
    uint64_t bytes = llane_staging_total_bytes();
    if (bytes) {
        fprintf(file, "llane stats: pid %d: %" PRIu64 " KiB of staging memory\n", (int)getpid(),
                bytes >> 10);
    }
}

void llane_stats_write_text(const struct llane_stats_record *first, FILE *file)
{
    for (const struct llane_stats_record *r = first; r; r = r->next) {
        llane_stats_print(r, file);
        llane_stats_print_ab(r, file);
    }
    llane_stats_print_process(file);
}

/* ---- JSON ---- */

static void json_bucket(const struct llane_stats_record *r, int bucket, int is_first, FILE *file)
{
    const char *comma = "";
    fprintf(file, "%s\n      {\"up_to_bytes\": ", is_first ? "" : ",");
    if (bucket < LLANE_SIZE_BUCKETS - 1) {
        fprintf(file, "%" PRIu64, llane_size_most_bytes(bucket));
    } else {
        fputs("null", file);
    }
    fputs(", \"routes\": [", file);
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        if (r->stats.routes[bucket][route].calls) {
            fprintf(file, "%s{\"route\": \"", comma);
            print_route(r, route, file);
            fprintf(file, "\", \"calls\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
                    r->stats.routes[bucket][route].calls, r->stats.routes[bucket][route].bytes);
            comma = ", ";
        }
    }
    fputs("], \"kernels\": [", file);
    comma = "";
    for (int a = 0; a < LLANE_N_ALGORITHMS; a++) {
        for (int p = 0; p < LLANE_N_PACKETS; p++) {
            if (r->launched[bucket][a][p]) {
                fprintf(file, "%s{\"kernel\": \"%s\", \"launches\": %" PRIu64 "}", comma,
                        kernel_text(a, p), r->launched[bucket][a][p]);
                comma = ", ";
            }
        }
    }
    fputs("]}", file);
}

static void json_ab_path(const struct llane_stats_record *r, int bucket, int path, FILE *file)
{
    fprintf(file,
            "{\"calls\": %" PRIu64 ", \"timed\": %" PRIu64
            ", \"median_us\": %.3f, \"p99_us\": %.3f}",
            r->ab.sizes[bucket].calls[path], r->ab.sizes[bucket].timed[path],
            r->ab.sizes[bucket].median_us[path], r->ab.sizes[bucket].p99_us[path]);
}

static void json_ab(const struct llane_stats_record *r, FILE *file)
{
    const char *comma = "";
    fputs(",\n     \"ab\": [", file);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        if (!has_ab(r, b)) {
            continue;
        }
        fprintf(file, "%s\n      {\"up_to_bytes\": %" PRIu64 ", \"lane\": ", comma,
                llane_size_most_bytes(b));
        json_ab_path(r, b, LLANE_AB_LANE, file);
        fputs(", \"nccl\": ", file);
        json_ab_path(r, b, LLANE_AB_NCCL, file);
        fprintf(file, ", \"ratio\": %.4f, \"saved_us\": %.1f}", ratio_of(r, b),
                llane_ab_saved_us(&r->ab, b));
        comma = ",";
    }
    fputs("]", file);
}

static void json_shadow(const struct llane_stats_record *r, FILE *file)
{
    const char *comma = "";
    fputs(",\n     \"shadow\": [", file);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        if (r->shadow.sizes[b].calls) {
            fprintf(file,
                    "%s\n      {\"up_to_bytes\": %" PRIu64 ", \"calls\": %" PRIu64
                    ", \"compared\": %" PRIu64 ", \"same\": %" PRIu64 ", \"within\": %" PRIu64
                    ", \"beyond\": %" PRIu64 "}",
                    comma, llane_size_most_bytes(b), r->shadow.sizes[b].calls,
                    r->shadow.sizes[b].compared, r->shadow.sizes[b].same, r->shadow.sizes[b].within,
                    r->shadow.sizes[b].beyond);
            comma = ",";
        }
    }
    fputs("]", file);
}

static void json_record(const struct llane_stats_record *r, FILE *file)
{
    struct sum lane, nccl;
    int is_first = 1;
    sum_up(r, &lane, &nccl);
    fprintf(file,
            "    {\"id\": \"%08" PRIx32 "\", \"name\": \"%s\", \"rank\": %d, \"ranks\": %d,\n"
            "     \"inactive\": \"%s\",\n"
            "     \"setup_ms\": %" PRId64 ", \"errors\": %" PRIu64 ",\n"
            "     \"lane\": {\"calls\": %" PRIu64 ", \"bytes\": %" PRIu64 "},\n"
            "     \"nccl\": {\"calls\": %" PRIu64 ", \"bytes\": %" PRIu64 "},\n"
            "     \"sizes\": [",
            r->id, r->name, r->rank, r->n_ranks, llane_inactive_text(r->inactive_reason),
            r->setup_ms, r->stats.n_errors, lane.calls, lane.bytes, nccl.calls, nccl.bytes);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        if (is_used(r, b)) {
            json_bucket(r, b, is_first, file);
            is_first = 0;
        }
    }
    fputs("]", file);
    if (r->has_ab) {
        json_ab(r, file);
    }
    if (r->has_shadow) {
        json_shadow(r, file);
    }
    fprintf(file, "}%s\n", r->next ? "," : "");
}

void llane_stats_write_json(const struct llane_stats_record *first, FILE *file)
{
    fprintf(file,
            "{\"llane\": \"%s\", \"pid\": %d, \"staging_bytes\": %" PRIu64
            ",\n \"communicators\": [\n",
            LLANE_VERSION, (int)getpid(), llane_staging_total_bytes());
    for (const struct llane_stats_record *r = first; r; r = r->next) {
        json_record(r, file);
    }
    fputs(" ]}\n", file);
}
