/*
 * llane-soak: all-reduces of random size, type and operation for a set time, every word compared with
 * the one right result; stops at the first wrong one and says how to run that case again. The parent is
 * here; see soak.h.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "rank_env.h"
#include "rank_log.h"
#include "soak.h"

static const char help_text[] =
    "llane soak: all-reduces of random size, type and operation, eager and in graphs; every word "
    "is\n"
    "compared with the one right result. Stops at the first wrong word.\n"
    "\n"
    "  --seconds S     how long (60)\n"
    "  --ranks N       rank processes, 2 to 16 (2)\n"
    "  --gpus N        GPUs to spread them over (all); several ranks may share one\n"
    "  --mps           start a private MPS daemon for ranks that share a GPU, and stop it\n"
    "  --memory M      auto, p2p or host: LLANE_MEMORY for the ranks\n"
    "  --max-bytes B   largest message (262144; emulated 16384)\n"
    "  --seed N        another run of cases (drawn anew each time)\n"
    "  --from N        begin at this case\n"
    "  --cases N       that many instead of --seconds\n"
    "  --timeout S     end the ranks after S seconds without progress (60)\n"
    "  --emulate       on the emulated GPU\n"
    "Status: 0 all right and carried by the lane, 1 a wrong word, 2 it could not run to its end, 3 "
    "all\n"
    "right, but the lane carried nothing.\n";

static int timeout_s = 60;

static uint64_t parse(const char *option, const char *text, uint64_t min, uint64_t max)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 0);
    if (errno || end == text || *end || *text == '-' || value < min || value > max) {
        fprintf(stderr, "llane-soak: --%s %s: a number from %" PRIu64 " to %" PRIu64 "\n", option,
                text, min, max);
        exit(2);
    }
    return value;
}

static void set_memory(const char *text)
{
    if (strcmp(text, "auto") != 0 && strcmp(text, "p2p") != 0 && strcmp(text, "host") != 0) {
        fprintf(stderr, "llane-soak: --memory %s: auto, p2p or host\n", text);
        exit(2);
    }
    setenv("LLANE_MEMORY", text, 1);
}

static void parse_options(int argc, char **argv, struct soak_options *out)
{
    static const struct option options[] = {
        {"seconds", required_argument, NULL, 's'},
        {"ranks", required_argument, NULL, 'r'},
        {"gpus", required_argument, NULL, 'g'},
        {"mps", no_argument, NULL, 'M'},
        {"memory", required_argument, NULL, 'm'},
        {"max-bytes", required_argument, NULL, 'b'},
        {"seed", required_argument, NULL, 'S'},
        {"from", required_argument, NULL, 'f'},
        {"cases", required_argument, NULL, 'c'},
        {"timeout", required_argument, NULL, 't'},
        {"emulate", no_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},
        {"plant-error", required_argument, NULL, 'p'}, /* for the tests */
        {NULL, 0, NULL, 0},
    };
    int o, i = 0;
    *out = (struct soak_options){.n_ranks = 2,
                                 .seconds = 60,
                                 .max_bytes = !strcmp(llane_gpu_runtime(), "emulation") ? 16 << 10
                                                                                        : 256 << 10,
                                 .seed = (uint64_t)time(NULL) << 16 ^ (uint64_t)getpid(),
                                 .plant_rank = -1};
    while ((o = getopt_long(argc, argv, "", options, &i)) != -1) {
        switch (o) {
        case 's':
            out->seconds = (int)parse("seconds", optarg, 1, 1000000);
            break;
        case 'r':
            out->n_ranks = (int)parse("ranks", optarg, 2, SOAK_MAX_RANKS);
            break;
        case 'g':
            out->n_gpus = (int)parse("gpus", optarg, 1, 1024);
            break;
        case 'M':
            out->starts_mps = 1;
            break;
        case 'm':
            set_memory(optarg);
            break;
        case 'b':
            out->max_bytes = parse("max-bytes", optarg, 1, 64 << 20);
            break;
        case 'S':
            out->seed = parse("seed", optarg, 0, UINT64_MAX);
            break;
        case 'f':
            out->from = parse("from", optarg, 0, UINT64_MAX / 2);
            break;
        case 'c':
            out->n_cases = parse("cases", optarg, 1, UINT64_MAX / 2);
            break;
        case 't':
            timeout_s = (int)parse("timeout", optarg, 1, 86400);
            break;
        case 'p':
            out->plant_rank = (int)parse("plant-error", optarg, 0, SOAK_MAX_RANKS - 1);
            break;
        case 'e':
            if (strcmp(llane_gpu_runtime(), "emulation") != 0) {
                fprintf(stderr, "llane-soak: this is the program for GPUs; start it as `llane "
                                "soak`\n");
                exit(2);
            }
            break;
        case 'h':
            fputs(help_text, stdout);
            exit(0);
        default:
            fprintf(stderr, "llane-soak: `llane soak --help` lists the options\n");
            exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "llane-soak: %s is not expected\n", argv[optind]);
        exit(2);
    }
}

/* ---- ranks ---- */

struct log {
    char lane[512]; /* what rank 0 said of its lane */
    unsigned long long lane_calls, nccl_calls;
};

static _Noreturn void become_rank(char **argv, const struct soak_options *o,
                                  const struct rank_env *env, int rank, pid_t parent, int log_fd)
{
    char text[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(2);
    }
    snprintf(text, sizeof text, "%d", rank);
    setenv("SOAK_RANK", text, 1);
    snprintf(text, sizeof text, "%" PRIu64, o->seed); /* where the parent drew it */
    setenv("SOAK_SEED", text, 1);
    snprintf(text, sizeof text, "%zu", o->max_bytes);
    setenv("LLANE_MAX_BYTES", text, 0);
    rank_env_of_rank(env, rank);
    if (rank == 0) {
        rank_log_is_read("INIT", 1);
        dup2(log_fd, STDOUT_FILENO);
        dup2(log_fd, STDERR_FILENO);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

static void read_log_line(struct log *log, const char *line)
{
    const char *ours = strstr(line, "LLANE "), *stats = strstr(line, "llane stats: ");
    const char *lane = stats ? strstr(stats, ": lane ") : NULL;
    const char *nccl = stats ? strstr(stats, "; NCCL ") : NULL;
    if (lane && nccl) {
        (void)sscanf(lane, ": lane %llu", &log->lane_calls);
        (void)sscanf(nccl, "; NCCL %llu", &log->nccl_calls);
    } else if (ours && (strstr(ours, "active from") || strstr(ours, "inactive: "))) {
        snprintf(log->lane, sizeof log->lane, "%.*s", (int)strcspn(ours, "\n"), ours);
    } else if (strstr(line, "llane-soak: ") || strstr(line, " WARN ")) {
        fputs(line, stderr);
    }
}

static uint64_t n_done(const struct soak_shared *shared, int n_ranks)
{
    uint64_t n = 0;
    for (int r = 0; r < n_ranks; r++) {
        n += atomic_load(&shared->n_done[r]);
    }
    return n;
}

static void end_all(const struct soak_options *o, const pid_t *pids)
{
    for (int r = 0; r < o->n_ranks; r++) {
        if (pids[r] > 0) {
            kill(pids[r], SIGKILL);
            waitpid(pids[r], NULL, 0);
        }
    }
}

/* Until all have ended, or one found a wrong word or failed, or none gets on; the status. */
static int watch(const struct soak_options *o, struct soak_shared *shared, pid_t *pids)
{
    int n_left = o->n_ranks, status = 0;
    uint64_t seen = 0;
    time_t moved_at = time(NULL);
    while (n_left && !status) {
        int how;
        pid_t pid = waitpid(-1, &how, WNOHANG);
        if (pid > 0) {
            for (int r = 0; r < o->n_ranks; r++) {
                pids[r] = pids[r] == pid ? 0 : pids[r];
            }
            n_left--;
            status = WIFEXITED(how) ? WEXITSTATUS(how) : 2;
            if (WIFSIGNALED(how) && !rank_env_signal()) {
                fprintf(stderr, "llane-soak: a rank was killed by signal %d (%s)\n", WTERMSIG(how),
                        strsignal(WTERMSIG(how)));
            }
            continue;
        }
        if (n_done(shared, o->n_ranks) != seen) {
            seen = n_done(shared, o->n_ranks);
            moved_at = time(NULL);
        }
        if (time(NULL) - moved_at > timeout_s) {
            fprintf(stderr,
                    "llane-soak: no progress for %d s in case %" PRIu64 " of seed %" PRIu64 "\n",
                    timeout_s, o->from + atomic_load(&shared->n_done[0]), o->seed);
            status = 2;
        }
        if (rank_env_signal()) {
            status = 2;
        }
        usleep(10000);
    }
    return status;
}

/* ---- report ---- */

static void report_failure(const struct soak_options *o, const struct soak_failure *f)
{
    const struct soak_case c = soak_case_of(o->seed, f->number, o->max_bytes, o->n_ranks);
    uint64_t seed = soak_case_seed(&c, f->op, f->replay);
    int digits = 2 * (int)c.type->bytes;
    const char *memory = getenv("LLANE_MEMORY");
    printf("WRONG: rank %d of %d, element %zu of %zu: 0x%0*" PRIx64 ", not 0x%0*" PRIx64 "\n",
           f->rank, o->n_ranks, f->index, c.count, digits, f->got, digits, f->expected);
    printf("  case %" PRIu64 " of seed %" PRIu64 ": %s %s, %zu bytes, %s, %s, operation %d of %d, "
           "%s %d of %d\n",
           f->number, o->seed, c.type->name, soak_op_name(c.op), c.count * c.type->bytes,
           c.is_in_place ? "in place" : "out of place", c.is_graph ? "graph" : "eager", f->op + 1,
           c.n_ops, c.is_graph ? "replay" : "round", f->replay + 1, c.n_replays);
    for (int r = 0; r < o->n_ranks; r++) {
        printf("  rank %d: contribution 0x%0*" PRIx64 ", buffers shifted by %zu and %zu elements\n",
               r, digits, soak_contribution(&c, seed, o->n_ranks, r, f->index),
               soak_case_shift(&c, r, f->op, 0),
               c.is_in_place ? soak_case_shift(&c, r, f->op, 0) : soak_case_shift(&c, r, f->op, 1));
    }
    printf("  again: llane soak%s --ranks %d",
           !strcmp(llane_gpu_runtime(), "emulation") ? " --emulate" : "", o->n_ranks);
    if (o->n_gpus) {
        printf(" --gpus %d", o->n_gpus);
    }
    printf("%s%s%s --max-bytes %zu --seed %" PRIu64 " --from %" PRIu64 " --cases 1\n",
           o->starts_mps ? " --mps" : "", memory ? " --memory " : "", memory ? memory : "",
           o->max_bytes, o->seed, f->number);
}

static int report(const struct soak_options *o, struct soak_shared *shared, const struct log *log,
                  int status)
{
    struct soak_failure *f = &shared->failure;
    if (log->lane[0]) {
        printf("%s\n", log->lane);
    }
    if (atomic_load(&f->is_described)) {
        report_failure(o, f);
        return 1;
    }
    if (status) {
        return 2;
    }
    printf("%" PRIu64 " cases, %" PRIu64 " elements on %d ranks compared, none wrong (seed %" PRIu64
           "); calls of rank 0: lane %llu, NCCL %llu\n",
           atomic_load(&shared->n_done[0]), atomic_load(&shared->n_words), o->n_ranks, o->seed,
           log->lane_calls, log->nccl_calls);
    return log->lane_calls ? 0 : 3;
}

static struct soak_shared *map_shared(int *fd)
{
    if (*fd < 0) {
        *fd = memfd_create("llane-soak", 0); /* the ranks inherit it */
        if (*fd < 0 || ftruncate(*fd, sizeof(struct soak_shared))) {
            return NULL;
        }
    }
    void *p = mmap(NULL, sizeof(struct soak_shared), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int run_ranks(char **argv, const struct soak_options *o, const struct rank_env *env,
                     struct soak_shared *shared)
{
    static struct log log;
    pid_t pids[SOAK_MAX_RANKS] = {0}, parent = getpid();
    FILE *file = tmpfile(); /* rank 0's output */
    char line[1024];
    if (!file) {
        perror("llane-soak: temporary file");
        return 2;
    }
    int status = 0;
    for (int r = 0; r < o->n_ranks && !status; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            become_rank(argv, o, env, r, parent, fileno(file));
        }
        if (pids[r] < 0) {
            perror("llane-soak: fork");
            status = 2;
        }
    }
    status = status ? status : watch(o, shared, pids);
    end_all(o, pids);
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        read_log_line(&log, line);
    }
    fclose(file);
    return report(o, shared, &log, status);
}

static int run_parent(char **argv, const struct soak_options *o, struct soak_shared *shared)
{
    const struct rank_env_options env_options = {.tool = "llane-soak",
                                                 .n_ranks = o->n_ranks,
                                                 .n_gpus = o->n_gpus,
                                                 .starts_mps = o->starts_mps};
    struct rank_env env;
    rank_env_catch_signals(); /* MPS ends with us */
    int status = rank_env_prepare(&env_options, &env) ? 2 : run_ranks(argv, o, &env, shared);
    rank_env_restore();
    rank_env_raise();
    return status;
}

int main(int argc, char **argv)
{
    struct soak_options options;
    const char *rank = getenv("SOAK_RANK"), *seed = getenv("SOAK_SEED");
    const char *fd_text = getenv("SOAK_FD");
    int fd = rank && fd_text ? atoi(fd_text) : -1;
    char text[16];
    parse_options(argc, argv, &options);
    struct soak_shared *shared = map_shared(&fd);
    if (!shared) {
        perror("llane-soak: shared memory");
        return 2;
    }
    if (rank && seed) {
        options.seed = strtoull(seed, NULL, 10);
        return soak_rank_main(shared, &options, atoi(rank));
    }
    snprintf(text, sizeof text, "%d", fd);
    setenv("SOAK_FD", text, 1);
    return run_parent(argv, &options, shared);
}
