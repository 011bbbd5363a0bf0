#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm.h"
#include "config.h"
#include "err.h"

/* What is reported of one communicator. */
struct record {
    struct record *next;
    int rank, n_ranks, inactive_reason;
    uint32_t id;
    int64_t setup_ms;
    struct llane_stats stats;
    uint64_t launched[LLANE_SIZE_BUCKETS][LLANE_N_ALGORITHMS][LLANE_N_PACKETS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over the list, newest first */
static struct record *records;

void llane_stats_count(struct llane_stats *stats, enum llane_route route, uint64_t bytes)
{
    int bucket = llane_size_bucket(bytes);
    stats->routes[bucket][route].calls++;
    stats->routes[bucket][route].bytes += bytes;
}

static void take(const struct llane_comm *comm, struct record *out)
{
    const struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    *out = (struct record){
        .rank = comm->rank,
        .n_ranks = comm->n_ranks,
        .inactive_reason = atomic_load_explicit(&comm->inactive_reason, memory_order_relaxed),
        .id = (uint32_t)(comm->key.comm_id[0] >> 32),
        .setup_ms = atomic_load_explicit(&comm->setup_ms, memory_order_relaxed),
        .stats = comm->stats,
    };
    if (lane) {
        memcpy(out->launched, lane->n_launched, sizeof out->launched);
    }
}

/* ---- text ---- */

struct sum {
    uint64_t calls, bytes;
};

static void add_route(const struct record *r, int route, struct sum *sum)
{
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        sum->calls += r->stats.routes[b][route].calls;
        sum->bytes += r->stats.routes[b][route].bytes;
    }
}

static void sum_up(const struct record *r, struct sum *lane, struct sum *nccl)
{
    *lane = *nccl = (struct sum){0};
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        add_route(r, route, route == LLANE_ROUTE_LANE ? lane : nccl);
    }
}

static void print_route(const struct record *r, int route, FILE *file)
{
    int is_inactive = route == LLANE_ROUTE_INACTIVE;
    fprintf(file, "%s%s%s", llane_route_text((enum llane_route)route), is_inactive ? ", " : "",
            is_inactive ? llane_inactive_text(r->inactive_reason) : "");
}

/* " (reason: C, ...)" */
static void print_reasons(const struct record *r, FILE *file)
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

static void print_bucket(const struct record *r, int bucket, FILE *file)
{
    uint64_t calls = 0;
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        calls += r->stats.routes[bucket][route].calls;
    }
    if (!calls) {
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

/* The first line is the one that other programs read. */
static void print_record(const struct record *r, FILE *file)
{
    struct sum lane, nccl;
    sum_up(r, &lane, &nccl);
    fprintf(file,
            "llane stats: pid %d rank %d/%d id %08" PRIx32 ": lane %" PRIu64 " calls %" PRIu64
            " bytes; NCCL %" PRIu64 " calls %" PRIu64 " bytes",
            (int)getpid(), r->rank, r->n_ranks, r->id, lane.calls, lane.bytes, nccl.calls,
            nccl.bytes);
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

static void print_process(FILE *file)
{
    uint64_t bytes = llane_staging_total_bytes();
    if (bytes) {
        fprintf(file, "llane stats: pid %d: %" PRIu64 " KiB of staging memory\n", (int)getpid(),
                bytes >> 10);
    }
}

/* In one piece, so that ranks' lines do not mix. */
static void to_stderr(const struct record *r)
{
    char *text = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory) {
        return;
    }
    if (r) {
        print_record(r, memory);
    } else {
        print_process(memory);
    }
    if (!fclose(memory) && write(STDERR_FILENO, text, bytes) < 0) {
        errno = 0; /* nobody reads */
    }
    free(text);
}

static void write_text(FILE *file)
{
    for (const struct record *r = records; r; r = r->next) {
        print_record(r, file);
    }
    print_process(file);
}

/* ---- JSON ---- */

static void json_bucket(const struct record *r, int bucket, int is_first, FILE *file)
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

static int is_used(const struct record *r, int bucket)
{
    uint64_t calls = 0;
    for (int route = 0; route < LLANE_N_ROUTES; route++) {
        calls += r->stats.routes[bucket][route].calls;
    }
    return calls != 0;
}

static void json_record(const struct record *r, FILE *file)
{
    struct sum lane, nccl;
    int is_first = 1;
    sum_up(r, &lane, &nccl);
    fprintf(file,
            "    {\"id\": \"%08" PRIx32 "\", \"rank\": %d, \"ranks\": %d, \"inactive\": \"%s\",\n"
            "     \"setup_ms\": %" PRId64 ", \"errors\": %" PRIu64 ",\n"
            "     \"lane\": {\"calls\": %" PRIu64 ", \"bytes\": %" PRIu64 "},\n"
            "     \"nccl\": {\"calls\": %" PRIu64 ", \"bytes\": %" PRIu64 "},\n"
            "     \"sizes\": [",
            r->id, r->rank, r->n_ranks, llane_inactive_text(r->inactive_reason), r->setup_ms,
            r->stats.n_errors, lane.calls, lane.bytes, nccl.calls, nccl.bytes);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        if (is_used(r, b)) {
            json_bucket(r, b, is_first, file);
            is_first = 0;
        }
    }
    fprintf(file, "]}%s\n", r->next ? "," : "");
}

static void write_json(FILE *file)
{
    fprintf(file,
            "{\"llane\": \"%s\", \"pid\": %d, \"staging_bytes\": %" PRIu64
            ",\n \"communicators\": [\n",
            LLANE_VERSION, (int)getpid(), llane_staging_total_bytes());
    for (const struct record *r = records; r; r = r->next) {
        json_record(r, file);
    }
    fputs(" ]}\n", file);
}

/* ---- the file ---- */

int llane_stats_file_name(const char *pattern, int rank, char *out, size_t bytes)
{
    size_t used = 0;
    char host[HOST_NAME_MAX + 1] = "host", part[HOST_NAME_MAX + 1];
    (void)gethostname(host, sizeof host - 1);
    for (const char *c = pattern; *c; c++) {
        char kind = *c == '%' ? c[1] : '\0';
        snprintf(part, sizeof part, "%c", *c);
        if (kind == 'p') {
            snprintf(part, sizeof part, "%d", (int)getpid());
        } else if (kind == 'r') {
            snprintf(part, sizeof part, "%d", rank);
        } else if (kind == 'h') {
            snprintf(part, sizeof part, "%s", host);
        }
        c += kind == 'p' || kind == 'r' || kind == 'h' || kind == '%';
        size_t length = strlen(part);
        if (used + length >= bytes) {
            return LLANE_EINVAL;
        }
        memcpy(out + used, part, length + 1);
        used += length;
    }
    return used ? 0 : LLANE_EINVAL;
}

static int give_up(const char *path, int fd)
{
    int saved_errno = errno;
    if (fd >= 0) {
        close(fd);
    }
    unlink(path);
    errno = saved_errno;
    return LLANE_ESYS;
}

int llane_stats_write_file(const char *path, void (*write)(FILE *file))
{
    char beside[PATH_MAX];
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0) {
        random = (uint32_t)getpid();
    }
    if (snprintf(beside, sizeof beside, "%s.%08" PRIx32, path, random) >= (int)sizeof beside) {
        errno = ENAMETOOLONG;
        return LLANE_ESYS;
    }
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) {
        return LLANE_ESYS;
    }
    FILE *file = fdopen(fd, "w");
    if (!file) {
        return give_up(beside, fd);
    }
    write(file);
    int is_bad = ferror(file);
    return fclose(file) || is_bad || rename(beside, path) ? give_up(beside, -1) : 0;
}

static int is_json(const char *path)
{
    size_t length = strlen(path);
    return length >= 5 && !strcmp(path + length - 5, ".json");
}

/* Not by NCCL's logger, which is silent by default: somebody asked for these numbers. */
static void complain(const char *pattern, const char *why)
{
    dprintf(STDERR_FILENO, "llane stats: pid %d: LLANE_STATS=%s: %s\n", (int)getpid(), pattern,
            why);
}

/* records is not empty: a process that never reduced (a launcher, a shell) leaves no file. */
static void to_file(const char *pattern)
{
    const struct record *first = records;
    while (first->next) {
        first = first->next;
    }
    char path[PATH_MAX];
    if (llane_stats_file_name(pattern, first->rank, path, sizeof path)) {
        complain(pattern, "too long for the name of a file");
        return;
    }
    if (first->n_ranks > 1 && !strcmp(path, pattern)) {
        complain(pattern, "every rank writes this file, the last one's stays; %r in its name keeps "
                          "them apart");
    }
    if (llane_stats_write_file(path, is_json(path) ? write_json : write_text)) {
        complain(pattern, strerror(errno));
    }
}

/* ---- ends ---- */

static int is_for_stderr(const char *where)
{
    return !strcmp(where, "1");
}

static const char *asked(void)
{
    const char *where = llane_config()->stats;
    return where && strcmp(where, "0") != 0 ? where : NULL;
}

void llane_stats_end(struct llane_comm *comm)
{
    const char *where = asked();
    struct record *r = where && comm->n_ranks ? malloc(sizeof *r) : NULL;
    if (!r) {
        return; /* not asked, it never reduced, or there is no memory for it */
    }
    take(comm, r);
    if (is_for_stderr(where)) {
        to_stderr(r);
        free(r);
        return;
    }
    pthread_mutex_lock(&lock);
    r->next = records;
    records = r;
    pthread_mutex_unlock(&lock);
}

void llane_stats_end_process(void)
{
    const char *where = asked();
    if (where && is_for_stderr(where)) {
        to_stderr(NULL);
    } else if (where && records) {
        pthread_mutex_lock(&lock);
        to_file(where);
        pthread_mutex_unlock(&lock);
    }
}
