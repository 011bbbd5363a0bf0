#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backoff.h"
#include "comm.h"
#include "config.h"
#include "err.h"
#include "stats_write.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over the list, newest first */
static struct llane_stats_record *records;

void llane_stats_count(struct llane_stats *stats, enum llane_route route, uint64_t bytes)
{
    int bucket = llane_size_bucket(bytes);
    stats->routes[bucket][route].calls++;
    stats->routes[bucket][route].bytes += bytes;
}

/* lock_ms: how long a call under way may hold up what is to be right: it may wait in the driver, or be
 * what ends the process. */
static void take(struct llane_comm *comm, long lock_ms, struct llane_stats_record *out)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    int is_locked = !llane_lock_within(&comm->lock, lock_ms);
    *out = (struct llane_stats_record){
        .rank = comm->rank,
        .n_ranks = comm->n_ranks,
        .inactive_reason = atomic_load_explicit(&comm->inactive_reason, memory_order_relaxed),
        .id = (uint32_t)(comm->key.comm_id[0] >> 32),
        .setup_ms = atomic_load_explicit(&comm->setup_ms, memory_order_relaxed),
        .stats = comm->stats,
    };
    memcpy(out->name, comm->options.name, sizeof out->name);
    if (lane) {
        memcpy(out->launched, lane->n_launched, sizeof out->launched);
        out->has_ab = lane->ab != NULL;
        out->has_shadow = lane->shadow != NULL;
    }
    if (is_locked) {
        pthread_mutex_unlock(&comm->lock);
    }
    if (out->has_ab) {
        llane_ab_summarize(lane->ab, &out->ab);
    }
    if (out->has_shadow) {
        llane_shadow_summarize(lane->shadow, &out->shadow);
    }
}

/* In one piece, so that ranks' lines do not mix. r NULL: the process. */
static void to_stderr(const struct llane_stats_record *r, int has_stats)
{
    char *text = NULL;
    size_t bytes;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory) {
        return;
    }
    if (!r) {
        llane_stats_print_process(memory);
    } else {
        if (has_stats) {
            llane_stats_print(r, memory);
        }
        llane_stats_print_ab(r, memory);
    }
    if (!fclose(memory) && write(STDERR_FILENO, text, bytes) < 0) {
        errno = 0; /* nobody reads */
    }
    free(text);
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

/* A device, a pipe, or a link to one or to a descriptor, as /dev/stderr: the name is not ours to take. */
static int stands_for_another(const char *path)
{
    static const char descriptors[] = "/proc/";
    char target[sizeof descriptors] = "";
    struct stat info;
    if (lstat(path, &info)) {
        return 0;
    }
    if (S_ISLNK(info.st_mode)) {
        if (readlink(path, target, sizeof target - 1) > 0 && !strcmp(target, descriptors)) {
            return 1;
        }
        if (stat(path, &info)) {
            return 0;
        }
    }
    return !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static int write_and_close(int fd, void (*write)(FILE *file))
{
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return LLANE_ESYS;
    }
    write(file);
    int is_bad = ferror(file);
    return fclose(file) || is_bad ? LLANE_ESYS : 0;
}

/* A pipe that nobody reads is an error, not a wait. */
static int write_into(const char *path, void (*write)(FILE *file))
{
    int fd = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? LLANE_ESYS : write_and_close(fd, write);
}

static int write_beside(const char *path, void (*write)(FILE *file))
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
    if (write_and_close(fd, write) || rename(beside, path)) {
        int saved_errno = errno;
        unlink(beside);
        errno = saved_errno;
        return LLANE_ESYS;
    }
    return 0;
}

int llane_stats_write_file(const char *path, void (*write)(FILE *file))
{
    return stands_for_another(path) ? write_into(path, write) : write_beside(path, write);
}

static void write_text(FILE *file)
{
    llane_stats_write_text(records, file);
}

static void write_json(FILE *file)
{
    llane_stats_write_json(records, file);
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
    const struct llane_stats_record *first = records;
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

static int has_report(const struct llane_comm *comm)
{
    const struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    /* Acquire: NEW is left when the number of ranks is there; retired, it may have none. */
    int state = atomic_load_explicit(&comm->state, memory_order_acquire);
    return state != LLANE_COMM_NEW && comm->n_ranks &&
           (asked() || (lane && (lane->ab || lane->shadow)));
}

static void print(struct llane_comm *comm, long lock_ms)
{
    struct llane_stats_record *r = has_report(comm) ? malloc(sizeof *r) : NULL;
    if (r) {
        take(comm, lock_ms, r);
        to_stderr(r, asked() != NULL);
        free(r);
    }
}

void llane_stats_print_now(struct llane_comm *comm)
{
    print(comm, 1000); /* beside the program's calls */
}

void llane_stats_end(struct llane_comm *comm)
{
    const char *where = asked();
    struct llane_stats_record *r =
        where && !is_for_stderr(where) && has_report(comm) ? malloc(sizeof *r) : NULL;
    if (!r) {
        print(comm, 0);
        return;
    }
    take(comm, 0, r);
    pthread_mutex_lock(&lock);
    r->next = records;
    records = r;
    pthread_mutex_unlock(&lock);
}

void llane_stats_end_process(void)
{
    const char *where = asked();
    if (where && is_for_stderr(where)) {
        to_stderr(NULL, 1);
    } else if (where && records) {
        pthread_mutex_lock(&lock);
        to_file(where);
        pthread_mutex_unlock(&lock);
    }
}
