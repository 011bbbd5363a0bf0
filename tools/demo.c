/*
 * llane-demo: N rank processes call ncclAllReduce from 8 B to 4 MiB with llane loaded by NCCL
 * itself, and a table shows what became of each size. The same source is linked with real NCCL and
 * CUDA, or with the emulated GPU and the tests' NCCL; it uses NCCL's API and plugin/gpu.h alone.
 *
 * The parent starts the ranks (this program again, DEMO_RANK set), shares a memfd with them and
 * reads rank 0's log, where llane says of each call which way it went.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "nccl_abi.h"
#include "rank_log.h"

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclCommDestroy(ncclComm_t comm);

enum { MAX_RANKS = 16, REPEATS = 5, CALLS = 20, TIME_LIMIT_S = 300 };

static const size_t sizes[] = {8,         32,        128,       512,     2 << 10, 8 << 10, 32 << 10,
                               128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* In the memfd that all processes map. */
struct shared {
    _Atomic int is_id_ready;
    _Atomic int nccl_version;
    ncclUniqueId id;
    float us[MAX_RANKS][N_SIZES]; /* median time of a call */
    uint64_t wrong[MAX_RANKS][N_SIZES];
    _Atomic int n_done[MAX_RANKS]; /* sizes finished */
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "llane-demo: %s: %s\n", what, why);
    exit(1);
}

static void check_gpu(int err, const char *what)
{
    if (err) {
        die(what, llane_gpu_error());
    }
}

static void check_nccl(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess) {
        char text[32];
        snprintf(text, sizeof text, "NCCL error %d", (int)result);
        die(what, text);
    }
}

/* ---- a rank ---- */

/* Small integers, so that float32 sums are exact in any order. */
static float input(int rank, size_t i, int round)
{
    return (float)((int)((i * 7 + (size_t)rank * 13 + (size_t)round * 5) % 17) - 8);
}

static float expected(int n_ranks, size_t i, int round)
{
    int sum = 0;
    for (int r = 0; r < n_ranks; r++) {
        sum += (int)input(r, i, round);
    }
    return (float)sum;
}

struct rank {
    struct shared *shared;
    int rank, n_ranks;
    ncclComm_t comm;
    struct CUstream_st *stream;
    void *in, *out;
    float *host;
};

static void reduce(const struct rank *r, size_t count)
{
    check_nccl(ncclAllReduce(r->in, r->out, count, ncclFloat32, ncclSum, r->comm, r->stream),
               "ncclAllReduce");
}

static void synchronize(const struct rank *r)
{
    check_gpu(llane_gpu_stream_synchronize(r->stream), "stream");
}

/* Two rounds with other inputs each and a poisoned output. */
static uint64_t count_wrong(const struct rank *r, size_t count)
{
    uint64_t wrong = 0;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < count; i++) {
            r->host[i] = input(r->rank, i, round);
        }
        check_gpu(llane_gpu_memcpy_async(r->in, r->host, count * sizeof(float), r->stream), "copy");
        check_gpu(llane_gpu_memset_async(r->out, 0xff, count * sizeof(float), r->stream), "poison");
        reduce(r, count);
        synchronize(r); /* the copy above read host[] */
        check_gpu(llane_gpu_memcpy_async(r->host, r->out, count * sizeof(float), r->stream),
                  "copy");
        synchronize(r);
        for (size_t i = 0; i < count; i++) {
            wrong += r->host[i] != expected(r->n_ranks, i, round);
        }
    }
    return wrong;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median_us(const struct rank *r, size_t count)
{
    float us[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        struct timespec from, to;
        synchronize(r);
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int call = 0; call < CALLS; call++) {
            reduce(r, count);
        }
        synchronize(r);
        clock_gettime(CLOCK_MONOTONIC, &to);
        us[i] = (float)((double)(to.tv_sec - from.tv_sec) * 1e6 +
                        (double)(to.tv_nsec - from.tv_nsec) / 1e3) /
                CALLS;
    }
    qsort(us, REPEATS, sizeof us[0], compare);
    return us[REPEATS / 2];
}

static int run_rank(struct shared *shared, int rank, int n_ranks, int is_timed)
{
    struct rank r = {.shared = shared, .rank = rank, .n_ranks = n_ranks};
    int n_devices;
    check_gpu(llane_gpu_device_count(&n_devices), "devices");
    check_gpu(llane_gpu_device_set(rank % n_devices), "device");
    check_gpu(llane_gpu_stream_create(&r.stream), "stream");
    check_gpu(llane_gpu_malloc(sizes[N_SIZES - 1], &r.in), "memory");
    check_gpu(llane_gpu_malloc(sizes[N_SIZES - 1], &r.out), "memory");
    r.host = malloc(sizes[N_SIZES - 1]);
    if (!r.host) {
        die("memory", "out of it");
    }
    if (rank == 0) {
        int version = 0;
        check_nccl(ncclGetVersion(&version), "ncclGetVersion");
        atomic_store(&shared->nccl_version, version);
        check_nccl(ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
        atomic_store(&shared->is_id_ready, 1);
    }
    while (!atomic_load(&shared->is_id_ready)) {
        usleep(1000);
    }
    check_nccl(ncclCommInitRank(&r.comm, n_ranks, shared->id, rank), "ncclCommInitRank");
    for (int s = 0; s < N_SIZES; s++) {
        size_t count = sizes[s] / sizeof(float);
        shared->wrong[rank][s] = count_wrong(&r, count);
        if (is_timed) {
            shared->us[rank][s] = median_us(&r, count);
        }
        atomic_store(&shared->n_done[rank], s + 1);
    }
    check_nccl(ncclCommDestroy(r.comm), "ncclCommDestroy");
    free(r.host);
    return 0;
}

/* ---- the parent ---- */

static pid_t start_rank(char **argv, int rank, int log_fd)
{
    pid_t pid = fork();
    if (pid) {
        return pid;
    }
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("DEMO_RANK", text, 1);
    setenv("NCCL_HOSTID", text, 0); /* NCCL < 2.30 refuses two ranks on one GPU of one host */
    if (rank) {
        rank_log_is_quiet();
    } else {
        rank_log_is_read("INIT,COLL", 0);
        dup2(log_fd, STDOUT_FILENO);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* Rank 0's log, read until it closes. */
struct route_log {
    char route[N_SIZES][128]; /* of the last call of each size */
    char startup[256];
    char active[256];
};

static void keep_tail(char *to, size_t bytes, const char *from)
{
    snprintf(to, bytes, "%s", from);
    to[strcspn(to, "\n")] = '\0';
}

static void read_line(const char *line, struct route_log *log)
{
    const char *ours = strstr(line, "LLANE ");
    size_t count;
    if (!ours) {
        return;
    }
    ours += strlen("LLANE ");
    const char *call = strstr(ours, " count ");
    if (!strncmp(ours, "AllReduce", 9) && call && sscanf(call, " count %zu", &count) == 1) {
        const char *route = strstr(call, ": ");
        for (int s = 0; s < N_SIZES && route; s++) {
            if (sizes[s] == count * sizeof(float)) {
                keep_tail(log->route[s], sizeof log->route[s], route + 2);
            }
        }
    } else if (!strncmp(ours, "llane ", 6)) {
        keep_tail(log->startup, sizeof log->startup, ours);
    } else if (strstr(ours, "active")) {
        keep_tail(log->active, sizeof log->active, ours);
    }
}

static void read_log(int fd, struct route_log *log)
{
    char line[2048];
    FILE *file = fdopen(fd, "r");
    while (file && fgets(line, sizeof line, file)) {
        read_line(line, log);
    }
}

static int print_table(const struct shared *shared, const struct route_log *log, int n_ranks,
                       int is_timed)
{
    int version = shared->nccl_version, is_bad = 0;
    printf("%s\nNCCL %d.%d.%d; %s\n\n",
           log->startup[0] ? log->startup : "llane is off (LLANE_ENABLE=0) or was not loaded",
           version / 10000, version / 100 % 100, version % 100,
           log->active[0] ? log->active : "no lane");
    printf("%9s  %s%-6s  %s\n", "bytes", is_timed ? "  us/call  " : "", "result", "route");
    for (int s = 0; s < N_SIZES; s++) {
        float slowest = 0;
        uint64_t wrong = 0;
        int is_missing = 0;
        for (int r = 0; r < n_ranks; r++) {
            slowest = shared->us[r][s] > slowest ? shared->us[r][s] : slowest;
            wrong += shared->wrong[r][s];
            is_missing |= shared->n_done[r] <= s;
        }
        if (is_missing && !wrong) {
            printf("%9zu  a rank did not come to its end\n", sizes[s]);
            return 1;
        }
        printf("%9zu  ", sizes[s]);
        if (is_timed) {
            printf("%9.1f  ", slowest);
        }
        printf("%-6s  %s\n", wrong ? "WRONG" : "ok", log->route[s][0] ? log->route[s] : "NCCL");
        is_bad |= wrong != 0;
    }
    return is_bad;
}

static void on_alarm(int signal)
{
    static const char text[] = "llane-demo: time limit reached\n";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) {
        _exit(1);
    }
    kill(0, SIGKILL);
}

static int run_parent(char **argv, struct shared *shared, int n_ranks, int is_timed)
{
    struct route_log log = {0};
    pid_t pids[MAX_RANKS];
    int pipe_fds[2], status, is_bad = 0;
    setpgid(0, 0); /* the alarm ends the ranks with us */
    signal(SIGALRM, on_alarm);
    alarm(TIME_LIMIT_S);
    if (pipe2(pipe_fds, O_CLOEXEC)) {
        die("pipe", "refused");
    }
    for (int r = 0; r < n_ranks; r++) {
        pids[r] = start_rank(argv, r, pipe_fds[1]);
    }
    close(pipe_fds[1]);
    read_log(pipe_fds[0], &log);
    for (int r = 0; r < n_ranks; r++) {
        waitpid(pids[r], &status, 0);
        is_bad |= status != 0;
    }
    is_bad |= print_table(shared, &log, n_ranks, is_timed);
    return is_bad;
}

int main(int argc, char **argv)
{
    const char *rank_text = getenv("DEMO_RANK"), *fd_text = getenv("DEMO_FD");
    int n_ranks = argc > 1 ? atoi(argv[1]) : 4;
    int is_emulated = !strcmp(llane_gpu_runtime(), "emulation");
    if (n_ranks < 1 || n_ranks > MAX_RANKS || argc > 2) {
        fprintf(stderr, "usage: %s [RANKS]   (1 to %d, 4 by default)\n", argv[0], MAX_RANKS);
        return 2;
    }
    int fd = fd_text ? atoi(fd_text) : memfd_create("llane-demo", 0);
    if (fd < 0 || (!fd_text && ftruncate(fd, sizeof(struct shared)))) {
        die("memfd", "refused");
    }
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        die("memfd", "not mapped");
    }
    if (rank_text) {
        return run_rank(shared, atoi(rank_text), n_ranks, !is_emulated);
    }
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    setenv("DEMO_FD", text, 1);
    setenv("LLANE_WAIT", "1", 0);
    printf("llane demo: %d ranks, float32 sum, on %s\n", n_ranks,
           is_emulated ? "the emulated GPU and the tests' NCCL: routes and results are real, times "
                         "are not shown because they would say nothing about a GPU"
                       : llane_gpu_runtime());
    fflush(stdout);
    return run_parent(argv, shared, n_ranks, !is_emulated);
}
