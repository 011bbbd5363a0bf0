/* What the others see when a rank dies while the lane is being set up. `prog_setup_deaths --help`. */
#include "gpu.h"
#include "ranks.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char g_help[] =
    "prog_setup_deaths MS|call|idle\n"
    "One rank of prog_ranks -g, LLANE_WAIT=0 or 1. All ranks make sums one after the other until "
    "rank\n"
    "LLANE_TEST_VICTIM=1 dies: MS milliseconds after its first call; call: in the call of the "
    "GPU's\n"
    "that EMU_KILL names; idle: after one sum, once set-up waits for its next one, while the "
    "others go\n"
    "on. The others then look for an error for a while, tell each other what they saw, go on, and "
    "abort. Status 0: all saw\n"
    "the same, an error goes with a refusal of the next call, and no call hung.\n";

enum { COUNT = 64, LIMIT_MS = 5000, SET_UP_MS = 2000, QUIET_MS = 400, IDLE_MS = 500 };
static struct {
    int rank, n, victim;
    pid_t victim_pid;
    ncclComm_t comm;
    struct CUstream_st *stream;
    float *in, *out;
} g;

static void expect(int is_right, const char *words)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: WRONG: %s\n", g.rank, words);
    fflush(NULL);
    _exit(1);
}

static void open_all(void)
{
    ncclUniqueId id;
    int n_devices;
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    RANKS_CHECK(llane_gpu_device_set(g.rank % n_devices));
    RANKS_CHECK(llane_gpu_stream_create(&g.stream));
    RANKS_CHECK(llane_gpu_malloc(COUNT * sizeof(float), (void **)&g.in));
    RANKS_CHECK(llane_gpu_malloc(COUNT * sizeof(float), (void **)&g.out));
    ranks_unique_id("id", ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&g.comm, g.n, id, g.rank));
    if (g.rank == g.victim) {
        g.victim_pid = getpid();
        ranks_publish("pid", &g.victim_pid, sizeof(g.victim_pid));
    } else {
        ranks_fetch("pid", &g.victim_pid, sizeof(g.victim_pid));
    }
}

static ncclResult_t call(void)
{
    return ncclAllReduce(g.in, g.out, COUNT, ncclFloat32, ncclSum, g.comm, g.stream);
}

static ncclResult_t error(void)
{
    ncclResult_t result = ncclSuccess;
    RANKS_CHECK(ncclCommGetAsyncError(g.comm, &result));
    return result;
}

static void *die_later(void *ms)
{
    ranks_sleep_ms(*(int *)ms);
    raise(SIGKILL);
    return NULL;
}

/* prog_ranks waits for its children: the pid is gone soon after. */
static int is_victim_dead(void)
{
    return kill(g.victim_pid, 0) != 0 && errno == ESRCH;
}

/* One at a time, so that the ranks are in step. */
static void make_sums(void)
{
    double start_ms = ranks_now_ms();
    int is_done = 1;
    while (!is_victim_dead() && error() == ncclSuccess) {
        expect(ranks_now_ms() - start_ms < LIMIT_MS, "the victim lives on");
        RANKS_CHECK(llane_gpu_stream_query(g.stream, &is_done));
        if (is_done && call() != ncclSuccess)
            break;
        ranks_sleep_ms(1);
    }
}

static int has_set_up(void)
{
    char path[300], name[32];
    DIR *dir = opendir("/proc/self/task");
    int is_found = 0;
    for (const struct dirent *e; dir && (e = readdir(dir)) && !is_found;) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        FILE *file = fopen(path, "r");
        if (file) {
            is_found = fgets(name, sizeof(name), file) && strcmp(name, "llane-setup\n") == 0;
            fclose(file);
        }
    }
    if (dir)
        closedir(dir);
    return is_found;
}

static void tell_and_compare(int mine)
{
    char name[32];
    snprintf(name, sizeof(name), "saw.%d", g.rank);
    ranks_publish(name, &mine, sizeof(mine));
    for (int r = 0; r < g.n; r++) {
        int theirs = mine;
        snprintf(name, sizeof(name), "saw.%d", r);
        if (r != g.victim)
            ranks_fetch(name, &theirs, sizeof(theirs));
        expect(theirs == mine, "the ranks saw different errors");
    }
}

static void look(void)
{
    double start_ms = ranks_now_ms();
    /* Longer where a step waits for NCCL's kernel, which waits for the dead rank until the abort. */
    while (has_set_up() && ranks_now_ms() - start_ms < SET_UP_MS)
        ranks_sleep_ms(5);
    double end_ms = ranks_now_ms();
    ranks_sleep_ms(QUIET_MS); /* some looks of whoever would still see something */
    ncclResult_t mine = error();
    expect(mine == ncclSuccess || mine == ncclRemoteError, "another error");
    tell_and_compare((int)mine);
    expect(call() == mine, "the next call does not go by what the communicator reports");
    printf("rank %d: saw %s\n", g.rank, mine == ncclSuccess ? "nothing" : "ncclRemoteError");
    printf("# rank %d: set-up over after %.0f ms\n", g.rank, end_ms - start_ms);
}

static void abort_all(void)
{
    double start_ms = ranks_now_ms();
    int is_done = 0;
    RANKS_CHECK(ncclCommAbort(g.comm));
    while (!is_done && ranks_now_ms() - start_ms < LIMIT_MS) {
        RANKS_CHECK(llane_gpu_stream_query(g.stream, &is_done));
        ranks_sleep_ms(1);
    }
    expect(is_done, "the stream does not end after the abort");
}

int main(int argc, char **argv)
{
    const char *victim = getenv("LLANE_TEST_VICTIM");
    if (argc != 2) {
        fputs(g_help, stderr);
        return 2;
    }
    int after_ms = atoi(argv[1]), is_idle = strcmp(argv[1], "idle") == 0;
    pthread_t thread;
    g.rank = ranks_rank();
    g.n = ranks_size();
    g.victim = victim ? atoi(victim) : 1;
    open_all();
    ranks_barrier("open");
    double start_ms = ranks_now_ms();
    if (g.rank == g.victim && strcmp(argv[1], "call") != 0 && !is_idle)
        RANKS_CHECK(pthread_create(&thread, NULL, die_later, &after_ms));
    RANKS_CHECK(call());
    expect(ranks_now_ms() - start_ms < LIMIT_MS, "the first call hung");
    if (is_idle)
        ranks_sleep_ms(IDLE_MS);
    if (g.rank == g.victim && is_idle) {
        ranks_sleep_ms(IDLE_MS);
        raise(SIGKILL);
    }
    make_sums();
    if (g.rank == g.victim)
        ranks_sleep_ms(2 * LIMIT_MS);
    look();
    abort_all();
    return 0;
}
