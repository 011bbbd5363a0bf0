/* See measure.h: the parent, which never touches a GPU itself. */
#include <errno.h>
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
#include "measure.h"
#include "probe.h"

enum { RUN_SECONDS = 75, GRACE_SECONDS = 3 };

int measure_fail(struct measure_shared *shared, const char *what)
{
    /* Pairs with the barrier's and the parent's loads: who moves it from 0 writes the words. */
    if (!atomic_exchange(&shared->has_failed, 1)) {
        snprintf(shared->trouble, sizeof shared->trouble, "%s", what);
    }
    return 1;
}

/* Which GPUs there are and what CUDA claims of them: in a process that ends before the others start. */
static int look(struct measure_shared *shared)
{
    struct llane_gpu_identity identity;
    int n = 0;
    if (llane_gpu_device_count(&n)) {
        return measure_fail(shared, llane_gpu_error());
    }
    shared->n = n < LLANE_MAX_RANKS ? n : LLANE_MAX_RANKS;
    snprintf(shared->runtime, sizeof shared->runtime, "%s", llane_gpu_runtime());
    shared->is_emulated = !strcmp(shared->runtime, "emulation");
    for (int a = 0; a < shared->n; a++) {
        if (llane_gpu_identify(a, &identity) || llane_gpu_device_set(a)) {
            return measure_fail(shared, llane_gpu_error());
        }
        memcpy(shared->gpus[a].pci, identity.pci, sizeof shared->gpus[a].pci);
        for (int b = 0; b < shared->n; b++) {
            shared->pairs[a][b].is_claimed = a != b && !llane_gpu_peer_enable(b);
        }
    }
    return 0;
}

typedef int work(struct measure_shared *shared, int rank);

static int look_work(struct measure_shared *shared, int rank)
{
    (void)rank;
    return look(shared);
}

static pid_t start(struct measure_shared *shared, work *do_work, int rank)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        /* No exit handlers: they belong to the parent. */
        _exit(do_work(shared, rank));
    }
    return pid;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void end_all(const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++) {
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
        }
    }
}

/* A rank that ended by a signal has a reason to be told. */
static void note_end(struct measure_shared *shared, int rank, int status)
{
    char text[80];
    if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "GPU %d's process was killed by signal %d", rank,
                 WTERMSIG(status));
        measure_fail(shared, text);
    }
}

/*
 * Until all have ended. Once the run has failed they get GRACE_SECONDS, then SIGKILL, then as long
 * again; a process stuck in a driver is left behind.
 */
static void await(struct measure_shared *shared, pid_t *pids, int n, double seconds)
{
    const struct timespec nap = {0, 5000000};
    double end = now_s() + seconds, limit = 0;
    int is_killed = 0;
    for (int left = n; left;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0) {
            return;
        }
        for (int i = 0; i < n && pid > 0; i++) {
            if (pids[i] == pid) {
                pids[i] = 0;
                left--;
                note_end(shared, i, status);
            }
        }
        if (now_s() > end && !limit) {
            measure_fail(shared, "no end in time: a kernel or the driver hangs");
        }
        if (atomic_load(&shared->has_failed) && !limit) {
            limit = now_s() + GRACE_SECONDS;
        }
        if (limit && now_s() > limit) {
            if (is_killed) {
                return;
            }
            end_all(pids, n);
            is_killed = 1;
            limit = now_s() + GRACE_SECONDS;
        }
        if (!pid) {
            nanosleep(&nap, NULL);
        }
    }
}

static void print_results(const struct measure_shared *s)
{
    printf("measured-by %s\n%s", s->runtime[0] ? s->runtime : "nothing",
           s->is_emulated ? "emulated\n" : "");
    for (int a = 0; a < s->n; a++) {
        printf("gpu %d %s\n", a, s->gpus[a].pci);
    }
    for (int a = 0; a < s->n; a++) {
        const struct measure_gpu *g = &s->gpus[a];
        printf("host %d %.3f %.2f %.2f\n", a, (double)g->host_latency_us, (double)g->to_gbs,
               (double)g->from_gbs);
        for (int b = 0; b < s->n; b++) {
            const struct measure_pair *p = &s->pairs[a][b];
            if (a == b) {
                continue;
            }
            printf("claim %d %d %s\nipc %d %d %s%s%s\nprobe %d %d %s\n", a, b,
                   p->is_claimed ? "yes" : "no", a, b, p->is_open ? "yes" : "no",
                   p->why[0] ? " " : "", p->why, a, b,
                   p->probe == LLANE_PROBE_GOOD      ? "good"
                   : p->probe == LLANE_PROBE_MISSING ? "missing"
                   : p->probe == LLANE_PROBE_WRONG   ? "wrong"
                                                     : "unchecked");
            printf("pair %d %d %.3f %.2f %.2f\n", a, b, (double)p->latency_us, (double)p->write_gbs,
                   (double)p->read_gbs);
        }
    }
    if (s->trouble[0]) {
        printf("trouble %s\n", s->trouble);
    }
    printf("\nend\n");
}

static int run(struct measure_shared *shared, work *do_work, double seconds)
{
    pid_t pids[LLANE_MAX_RANKS] = {0};
    for (int r = 0; r < shared->n; r++) {
        pids[r] = start(shared, do_work, r);
        if (pids[r] < 0) {
            measure_fail(shared, strerror(errno));
            pids[r] = 0;
            end_all(pids, r);
            return 1;
        }
    }
    if (do_work == measure_load) {
        /* Pairs with the ranks' increments. */
        for (double end = now_s() + 15; atomic_load(&shared->n_loading) < (uint32_t)shared->n &&
                                        now_s() < end && !atomic_load(&shared->has_failed);) {
            usleep(2000);
        }
        if (atomic_load(&shared->n_loading) == (uint32_t)shared->n) {
            printf("loading\n");
            fflush(stdout);
        }
    }
    await(shared, pids, shared->n, seconds);
    return atomic_load(&shared->has_failed);
}

int main(int argc, char **argv)
{
    int is_load = argc == 2 && !strcmp(argv[1], "--load");
    if (!is_load && (argc != 2 || strcmp(argv[1], "--pairs") != 0)) {
        fprintf(stderr,
                "llane-measure --pairs | --load\n"
                "  what GPUs do with each other's memory, or keep every link busy for a while;\n"
                "  llane doctor starts it and reads what it prints\n");
        return 2;
    }
    /* A pair that loses bytes is known at once; set before the plugin's table is read. */
    setenv("LLANE_PROBE_TIMEOUT_MS", "300", 0);
    struct measure_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("llane-measure");
        return 2;
    }
    pid_t first = start(shared, look_work, 0);
    if (first < 0) {
        perror("llane-measure");
        return 2;
    }
    await(shared, &first, 1, 30);
    int failed = atomic_load(&shared->has_failed);
    if (!failed && shared->n) {
        failed = run(shared, is_load ? measure_load : measure_rank, is_load ? 20 : RUN_SECONDS);
    }
    if (!is_load) {
        print_results(shared);
    }
    return failed;
}
