/*
 * Rank processes from the parent's side: started, listened to, and ended whatever happens: a rank
 * that fails, a run that gets nowhere, Ctrl-C. A parent that is killed takes its ranks along.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "rank_log.h"

enum { LOOK_MS = 100, LAST_LINES = 12, LONGEST_LINE = 4096 };

/* ---- the log ---- */

struct reader {
    const struct bench_options *options;
    struct bench_log *log;
    char line[LONGEST_LINE]; /* what has come of the line under way */
    size_t n;
    char last[LAST_LINES][BENCH_LINE_BYTES]; /* for the day when it goes wrong */
    unsigned n_lines;
};

static void keep(char *to, const char *from)
{
    snprintf(to, BENCH_LINE_BYTES, "%.*s", BENCH_LINE_BYTES - 1, from);
}

static void read_call(struct reader *reader, const char *call)
{
    size_t count;
    const char *route = strstr(call, ": ");
    const char *at = strstr(call, " count ");
    if (!route || !at || sscanf(at, " count %zu", &count) != 1) {
        return;
    }
    for (int s = 0; s < reader->options->n_sizes; s++) {
        if (reader->options->sizes[s] == count * reader->options->type->bytes) {
            keep(reader->log->route[s], route + 2);
        }
    }
}

static void read_stats(struct bench_log *log, const char *stats)
{
    unsigned long long lane, nccl;
    const char *at = strstr(stats, ": lane "), *and = strstr(stats, "; NCCL ");
    if (at && and&&sscanf(at, ": lane %llu", &lane) == 1 &&
        sscanf(and, "; NCCL %llu", &nccl) == 1) {
        log->lane_calls += lane;
        log->nccl_calls += nccl;
        log->has_stats = 1;
    }
}

/* Through NCCL's logger, or llane's own line before there is one: once, however many ranks say it. */
static void read_warning(struct bench_log *log, const char *line)
{
    const char *text = strstr(line, "NCCL WARN LLANE ");
    if (text) {
        text += strlen("NCCL WARN LLANE ");
    } else if (!strncmp(line, "llane [", 7) && (text = strstr(line, "] WARN "))) {
        text += strlen("] WARN ");
    } else {
        return;
    }
    for (int i = 0; i < log->n_warnings; i++) {
        if (!strncmp(log->warning[i], text, BENCH_LINE_BYTES - 1)) {
            return;
        }
    }
    if (log->n_warnings < BENCH_MAX_WARNINGS) {
        keep(log->warning[log->n_warnings++], text);
    }
}

static void read_line(struct reader *reader, const char *line)
{
    struct bench_log *log = reader->log;
    const char *ours = strstr(line, "LLANE "), *stats = strstr(line, "llane stats: ");
    if (stats) {
        read_stats(log, stats);
        return;
    }
    read_warning(log, line);
    if (ours) {
        ours += strlen("LLANE ");
        if (!strncmp(ours, "AllReduce call ", 15)) {
            read_call(reader, ours);
            return;
        }
        if (!strncmp(ours, "llane ", 6)) {
            keep(log->startup, ours);
        }
        const char *placement = strstr(ours, "of host memory, ");
        if (placement) {
            keep(log->placement, placement + strlen("of host memory, "));
        }
        if (!strncmp(ours, "calibration: /", 14)) {
            keep(log->table, ours + 13);
        }
        const char *active = strstr(ours, "active from "), *inactive = strstr(ours, "inactive: ");
        if (active || inactive) {
            keep(log->lane, inactive ? inactive : active);
        }
    }
    keep(reader->last[reader->n_lines++ % LAST_LINES], line);
}

/* False at the end of the file. */
static int read_some(struct reader *reader, int fd)
{
    char chunk[LONGEST_LINE];
    ssize_t n = read(fd, chunk, sizeof chunk);
    if (n <= 0) {
        return n < 0 && errno == EINTR;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (chunk[i] != '\n' && reader->n < sizeof reader->line - 1) {
            reader->line[reader->n++] = chunk[i];
        } else if (chunk[i] == '\n') {
            reader->line[reader->n] = '\0';
            reader->n = 0;
            read_line(reader, reader->line);
        }
    }
    return 1;
}

static void print_last_lines(const struct reader *reader)
{
    unsigned n = reader->n_lines < LAST_LINES ? reader->n_lines : LAST_LINES;
    for (unsigned i = reader->n_lines - n; i != reader->n_lines; i++) {
        fprintf(stderr, "  | %s\n", reader->last[i % LAST_LINES]);
    }
}

/* ---- processes ---- */

struct ranks {
    const struct bench_options *options;
    const struct bench_shared *shared;
    pid_t pids[BENCH_MAX_RANKS]; /* 0: has ended */
    int n_left;
    struct reader reader;
    double moved_at_us; /* when n_steps was last seen to grow */
    uint32_t n_steps;
    int has_progress_line;
};

/* What the options ask for, --env last, but for rank_log.h. */
static void set_environment(const struct bench_options *options)
{
    if (options->memory) {
        setenv("LLANE_MEMORY", options->memory, 1);
    }
    for (int i = 0; i < options->n_env; i++) {
        const char *equals = strchr(options->env[i], '=');
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(equals - options->env[i]), options->env[i]);
        setenv(name, equals + 1, 1);
    }
}

static _Noreturn void become_rank(char **argv, const struct bench_options *options,
                                  const struct rank_env *around, struct bench_phase phase, int rank,
                                  pid_t parent, int log_fd)
{
    char text[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1); /* it died before the line above */
    }
    snprintf(text, sizeof text, "%d %d %d %d", rank, phase.is_logged, phase.does_check,
             phase.does_time);
    setenv("BENCH_RANK", text, 1);
    rank_env_of_rank(around, rank);
    set_environment(options);
    if (rank == 0) {
        rank_log_is_read(phase.is_logged ? "INIT,COLL" : "INIT", !phase.is_logged);
    } else {
        rank_log_is_quiet();
    }
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static void end_all(struct ranks *ranks)
{
    for (int r = 0; r < ranks->options->n_ranks; r++) {
        if (ranks->pids[r]) {
            kill(ranks->pids[r], SIGKILL);
        }
    }
    for (int r = 0; r < ranks->options->n_ranks; r++) {
        while (ranks->pids[r] && waitpid(ranks->pids[r], NULL, 0) < 0 && errno == EINTR) {
        }
        ranks->pids[r] = 0;
    }
    ranks->n_left = 0;
}

static const char *stage_name(int stage)
{
    static const char *const names[] = {
        "starting",  "creating the communicator", "setting up a lane", "measuring the floor",
        "capturing", "checking results",          "measuring",         "done"};
    return names[stage];
}

static void describe_place(const struct ranks *ranks, int rank, char *text, size_t text_bytes)
{
    const struct bench_place *place = &ranks->shared->place[rank];
    int stage = atomic_load(&place->stage);
    char bytes[16];
    bench_format_bytes(ranks->options->sizes[atomic_load(&place->size)], bytes, sizeof bytes);
    if (stage < BENCH_STAGE_CAPTURE || stage == BENCH_STAGE_DONE) {
        snprintf(text, text_bytes, "%s", stage_name(stage));
    } else {
        snprintf(text, text_bytes, "%s, %s bytes, %s", stage_name(stage), bytes,
                 stage == BENCH_STAGE_CAPTURE              ? "both ways"
                 : atomic_load(&place->path) == BENCH_LANE ? "through llane"
                                                           : "NCCL");
    }
}

/* Only on a terminal, and off it again before anything else is printed. */
static void show_progress(struct ranks *ranks, int is_last)
{
    char text[128];
    if (!isatty(STDERR_FILENO) || (is_last && !ranks->has_progress_line)) {
        return;
    }
    describe_place(ranks, 0, text, sizeof text);
    int size = atomic_load(&ranks->shared->place[0].size);
    fprintf(stderr, "\r\033[K");
    if (!is_last) {
        fprintf(stderr, "size %d of %d: %s", size + 1, ranks->options->n_sizes, text);
    }
    fflush(stderr);
    ranks->has_progress_line = !is_last;
}

/* Returns the exit status that a failed rank asks for, or 0. */
static int reap(struct ranks *ranks)
{
    int status;
    for (int r = 0; r < ranks->options->n_ranks; r++) {
        if (!ranks->pids[r] || waitpid(ranks->pids[r], &status, WNOHANG) != ranks->pids[r]) {
            continue;
        }
        ranks->pids[r] = 0;
        ranks->n_left--;
        if (status == 0 || rank_env_signal()) {
            continue;
        }
        show_progress(ranks, 1);
        if (WIFSIGNALED(status)) {
            fprintf(stderr,
                    "llane-bench: rank %d was killed by signal %d (%s); ending the others\n", r,
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
        } else {
            fprintf(stderr, "llane-bench: rank %d ended with status %d; ending the others\n", r,
                    WEXITSTATUS(status));
        }
        return 1;
    }
    return 0;
}

static int is_stuck(struct ranks *ranks)
{
    uint32_t n_steps = 0;
    for (int r = 0; r < ranks->options->n_ranks; r++) {
        n_steps += atomic_load(&ranks->shared->place[r].n_steps);
    }
    if (n_steps != ranks->n_steps) {
        ranks->n_steps = n_steps;
        ranks->moved_at_us = bench_now_us();
    }
    return bench_now_us() - ranks->moved_at_us > ranks->options->timeout_s * 1e6;
}

static void report_stuck(struct ranks *ranks)
{
    char text[128];
    show_progress(ranks, 1);
    fprintf(stderr, "llane-bench: no progress for %d s (--timeout); ending the ranks:\n",
            ranks->options->timeout_s);
    for (int r = 0; r < ranks->options->n_ranks; r++) {
        describe_place(ranks, r, text, sizeof text);
        fprintf(stderr, "  rank %d: %s\n", r, text);
    }
}

/* Until all have ended well (0), or there is a reason to stop. */
static int listen_to(struct ranks *ranks, int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    int is_open = 1;
    while (ranks->n_left || is_open) {
        if (rank_env_signal()) {
            return 128 + rank_env_signal();
        }
        if (poll(&look, 1, LOOK_MS) > 0) {
            is_open = read_some(&ranks->reader, fd);
            if (is_open) {
                continue; /* drain it before a look at anything else */
            }
            look.fd = -1;
        }
        if (reap(ranks)) {
            return 1;
        }
        if (is_stuck(ranks)) {
            report_stuck(ranks);
            return 1;
        }
        show_progress(ranks, 0);
        if (!ranks->n_left && is_open) {
            break; /* someone else holds the pipe */
        }
    }
    return 0;
}

/* What ranks said before they were ended. */
static void drain(struct ranks *ranks, int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    while (poll(&look, 1, 0) > 0 && read_some(&ranks->reader, fd)) {
    }
}

int bench_ranks_run(char **argv, const struct bench_options *options, const struct rank_env *around,
                    struct bench_phase phase, struct bench_shared *shared, struct bench_log *log)
{
    static struct ranks ranks;
    int fds[2];
    pid_t parent = getpid();
    memset(&ranks, 0, sizeof ranks);
    ranks.options = options;
    ranks.shared = shared;
    ranks.reader.options = options;
    ranks.reader.log = log;
    ranks.moved_at_us = bench_now_us();
    if (pipe2(fds, O_CLOEXEC)) {
        fprintf(stderr, "llane-bench: pipe: %s\n", strerror(errno));
        return 1;
    }
    for (int r = 0; r < options->n_ranks; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            become_rank(argv, options, around, phase, r, parent, fds[1]);
        }
        if (pid < 0) {
            fprintf(stderr, "llane-bench: fork: %s\n", strerror(errno));
            end_all(&ranks);
            return 1;
        }
        ranks.pids[r] = pid;
        ranks.n_left++;
    }
    close(fds[1]);
    int status = listen_to(&ranks, fds[0]);
    end_all(&ranks);
    show_progress(&ranks, 1);
    if (status) {
        drain(&ranks, fds[0]);
        if (status == 1) {
            print_last_lines(&ranks.reader);
        }
    }
    close(fds[0]);
    return status;
}
