/* Runs N copies of a command, one a rank, and returns the worst status. `prog_ranks --help`. */
#include "shm_sweep.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

static const char g_help[] =
    "prog_ranks [options] N command [args...]\n"
    "Starts N processes with RANK, WORLD_SIZE and RANKS_DIR (an empty folder for their "
    "rendezvous).\n"
    "When one fails the others have a second to end, then all are killed; so at the time limit.\n"
    "Status: the worst of the ranks', 128 + signal for a killed one, 124 at the time limit.\n"
    "  -t SECONDS       time limit (60); five times as long in a sanitizer's build\n"
    "  -k RANK:MS       kill -9 this rank after so many milliseconds; its status does not count\n"
    "  -K RANK:FILE     kill -9 this rank as soon as RANKS_DIR/FILE exists (ranks_publish)\n"
    "  -e RANK:NAME=VAL set a variable for one rank (\"*\": for all)\n"
    "  -u RANK:NAME     unset a variable for one rank\n"
    "  -v               each rank sees one GPU, its own: CUDA_VISIBLE_DEVICES=RANK\n"
    "  -g               go on when a rank fails: the others run to their end\n";

enum { MAX_RANKS = 64, MAX_SETTINGS = 64 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWNESS = 5 };
#else
enum { SLOWNESS = 1 };
#endif
static struct {
    double limit_s;
    int n_ranks, kill_rank;
    double kill_after_s;
    const char *kill_file;
    bool sees_own, goes_on;
    const char *settings[MAX_SETTINGS];
    bool is_unset[MAX_SETTINGS];
    int n_settings;
} g = {.limit_s = 60, .kill_rank = -1};

static pid_t g_pids[MAX_RANKS];
static char g_dir[64];
static volatile sig_atomic_t g_signal; /* one that asks this program to end */

static void on_signal(int number)
{
    g_signal = number;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void usage(const char *why)
{
    fprintf(stderr, "prog_ranks: %s\n%s", why, g_help);
    exit(2);
}

/* The part behind "RANK:" if the setting is meant for this rank. */
static const char *setting_for(const char *setting, int rank)
{
    const char *colon = strchr(setting, ':');
    if (!colon)
        usage("-e and -u want RANK:NAME");
    return *setting == '*' || atoi(setting) == rank ? colon + 1 : NULL;
}

static pid_t start(int rank, char **command)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a killed harness leaves no ranks behind */
    if (getppid() != parent)
        _exit(1);
    char text[16];
    snprintf(text, sizeof(text), "%d", rank);
    setenv("RANK", text, 1);
    if (g.sees_own)
        setenv("CUDA_VISIBLE_DEVICES", text, 1);
    snprintf(text, sizeof(text), "%d", g.n_ranks);
    setenv("WORLD_SIZE", text, 1);
    setenv("RANKS_DIR", g_dir, 1);
    for (int i = 0; i < g.n_settings; i++) {
        const char *what = setting_for(g.settings[i], rank);
        if (what && g.is_unset[i])
            unsetenv(what);
        else if (what)
            putenv((char *)what);
    }
    execvp(command[0], command);
    fprintf(stderr, "prog_ranks: %s: %s\n", command[0], strerror(errno));
    _exit(127);
}

static void remove_dir(void)
{
    DIR *dir = opendir(g_dir);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));)
        unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    rmdir(g_dir);
}

static void kill_all(void)
{
    for (int r = 0; r < g.n_ranks; r++) {
        if (g_pids[r] > 0)
            kill(g_pids[r], SIGKILL);
    }
}

static bool is_time_to_kill(double since_start_s)
{
    if (g.kill_rank < 0 || g_pids[g.kill_rank] <= 0)
        return false;
    if (!g.kill_file)
        return since_start_s >= g.kill_after_s;
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", g_dir, g.kill_file);
    return access(path, F_OK) == 0;
}

/* Waits for all; the worst status. */
static int watch(void)
{
    double start_s = now_s(), limit_s = g.limit_s * SLOWNESS, deadline_s = start_s + limit_s;
    int n_left = g.n_ranks, worst = 0;
    bool is_killed = false, is_failing = false;
    while (n_left > 0) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0) {
            if (is_time_to_kill(now_s() - start_s)) {
                kill(g_pids[g.kill_rank], SIGKILL);
                g.kill_file = NULL;
                g.kill_after_s = 1e9; /* once */
            }
            if (!is_killed && g_signal) {
                worst = 128 + g_signal;
                kill_all();
                is_killed = true;
            }
            if (!is_killed && now_s() > deadline_s) {
                if (!is_failing) {
                    fprintf(stderr, "prog_ranks: no end within %g s\n", limit_s);
                    worst = 124;
                }
                kill_all();
                is_killed = true;
            }
            struct timespec t = {.tv_nsec = 2000000};
            nanosleep(&t, NULL);
            continue;
        }
        int rank = 0;
        while (rank < g.n_ranks && g_pids[rank] != pid)
            rank++;
        if (rank == g.n_ranks)
            continue;
        g_pids[rank] = 0;
        n_left--;
        int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (code == 0 || rank == g.kill_rank || is_killed)
            continue;
        fprintf(stderr, "prog_ranks: rank %d ended with %s %d\n", rank,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : code);
        if (!g.goes_on && !is_failing && code != 77) {
            is_failing = true;
            deadline_s = now_s() + 1;
        }
        worst = code > worst ? code : worst;
    }
    return worst;
}

int main(int argc, char **argv)
{
    int option;
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(g_help, stdout);
        return 0;
    }
    while ((option = getopt(argc, argv, "+t:k:K:e:u:vg")) != -1) {
        const char *colon = optarg ? strchr(optarg, ':') : NULL;
        if (strchr("kK", option) && !colon)
            usage("-k and -K want RANK:...");
        switch (option) {
        case 't':
            g.limit_s = atof(optarg);
            break;
        case 'k':
            g.kill_rank = atoi(optarg);
            g.kill_after_s = atof(colon + 1) / 1000;
            break;
        case 'K':
            g.kill_rank = atoi(optarg);
            g.kill_file = colon + 1;
            break;
        case 'e':
        case 'u':
            if (g.n_settings == MAX_SETTINGS)
                usage("too many settings");
            g.is_unset[g.n_settings] = option == 'u';
            g.settings[g.n_settings++] = optarg;
            break;
        case 'v':
            g.sees_own = true;
            break;
        case 'g':
            g.goes_on = true;
            break;
        default:
            usage("unknown option");
        }
    }
    if (argc - optind < 2 || (g.n_ranks = atoi(argv[optind])) < 1 || g.n_ranks > MAX_RANKS)
        usage("want N and a command");
    if (g.kill_rank >= g.n_ranks)
        usage("no such rank to kill");
    const char *tmp = getenv("TMPDIR");
    snprintf(g_dir, sizeof(g_dir), "%s/llane-ranks-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    if (!mkdtemp(g_dir)) {
        perror("mkdtemp");
        return 1;
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    for (int r = 0; r < g.n_ranks; r++)
        g_pids[r] = start(r, argv + optind + 1);
    int worst = watch();
    remove_dir();
    fake_shm_sweep(); /* what killed ranks left of a rendezvous */
    return worst;
}
