/* Random communicators, sums and ends, while ranks may be killed. `prog_mayhem --help`. */
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char g_help[] =
    "prog_mayhem SEED CYCLES\n"
    "One rank of prog_ranks, LLANE_WAIT=1. Each cycle: a communicator, sums of random sizes, "
    "types,\n"
    "operations, streams, groups and graphs, all compared, and one of several ends; the same on "
    "all\n"
    "ranks. A thread looks for errors: when a rank was killed it aborts the communicator, and the\n"
    "program ends well. LLANE_TEST_KILL_MS=n kills this rank n ms after all have started.\n"
    "Files, threads and memory are counted after a third of the cycles and at the end. Status 0: "
    "all\n"
    "was right, 1: it was not.\n";

enum { MOST_COUNT = 30000, N_STREAMS = 3, LIMIT_MS = 10000 };
/* What can be known when a rank is gone: before LIVE only NCCL waits for it, and says nothing. */
enum phase { MEETING, LIVE, OVER };
static struct {
    int rank, n;
    uint64_t random; /* alike on all ranks */
    struct CUstream_st *streams[N_STREAMS];
    uint8_t *in, *out, *host;
    uint64_t n_sums, n_aborts;
    atomic_int phase;
    pid_t pids[16];
    pthread_mutex_t lock; /* over the two below: the handle is not used while it is aborted */
    ncclComm_t comm;
    atomic_int is_failed;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned draw(unsigned below)
{
    g.random = g.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(g.random >> 33) % below;
}

/* ---- a rank is gone ---- */

__attribute__((noreturn)) static void end_well(const char *words)
{
    printf("rank %d: %llu sums, %llu aborts; %s\n", g.rank, (unsigned long long)g.n_sums,
           (unsigned long long)g.n_aborts, words);
    fflush(NULL);
    _exit(0);
}

static int is_someone_gone(void)
{
    for (int r = 0; r < g.n; r++) {
        if (kill(g.pids[r], 0) != 0)
            return 1;
    }
    return 0;
}

/* As PyTorch's watchdog. In phase OVER an abort of another rank is part of the game. */
static int abort_if_failed(void)
{
    ncclResult_t error = ncclSuccess;
    pthread_mutex_lock(&g.lock);
    if (g.comm && g.phase != OVER && ncclCommGetAsyncError(g.comm, &error) == ncclSuccess &&
        error == ncclRemoteError) {
        g.is_failed = 1; /* before a kernel that is ended lets anybody read what it left */
        ncclCommAbort(g.comm);
        g.comm = NULL;
    }
    pthread_mutex_unlock(&g.lock);
    return g.is_failed;
}

static void *look_after(void *unused)
{
    double gone_at_ms = 0;
    (void)unused;
    for (; !abort_if_failed(); ranks_sleep_ms(5)) {
        if (g.phase == OVER || !is_someone_gone()) {
            gone_at_ms = 0;
            continue;
        }
        gone_at_ms = gone_at_ms != 0 ? gone_at_ms : ranks_now_ms();
        if (g.phase == MEETING && ranks_now_ms() - gone_at_ms > 1500)
            end_well("a rank was killed while they met");
        if (ranks_now_ms() - gone_at_ms > LIMIT_MS)
            ranks_die(__FILE__, __LINE__, "a death was not noticed", 1);
    }
    return NULL;
}

/* After a call or a wait: with a failed communicator all is over, once no kernel waits any more. */
static void go_on_if(ncclResult_t result)
{
    if (result == ncclSuccess && !g.is_failed)
        return;
    for (double start = ranks_now_ms(); !g.is_failed && ranks_now_ms() - start < LIMIT_MS;
         ranks_sleep_ms(1)) {
    }
    if (!g.is_failed)
        ranks_die(__FILE__, __LINE__, "a call failed, but not the communicator", (int)result);
    double start = ranks_now_ms();
    for (int s = 0; s < N_STREAMS; s++)
        RANKS_CHECK(llane_gpu_stream_synchronize(g.streams[s]));
    if (ranks_now_ms() - start > LIMIT_MS)
        ranks_die(__FILE__, __LINE__, "kernels did not end", 1);
    end_well("a rank was killed, and noticed");
}

#define CALL(expression)                                                                           \
    do {                                                                                           \
        pthread_mutex_lock(&g.lock);                                                               \
        ncclResult_t result_ = g.comm ? (expression) : ncclRemoteError;                            \
        pthread_mutex_unlock(&g.lock);                                                             \
        go_on_if(result_);                                                                         \
    } while (0)

/* ---- sums ---- */

struct sum {
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t count;
    struct CUstream_st *stream;
};

static struct sum draw_sum(void)
{
    static const ncclDataType_t types[] = {ncclFloat32, ncclInt32, ncclBfloat16, ncclFloat64,
                                           ncclUint8};
    static const ncclRedOp_t ops[] = {ncclSum, ncclMax, ncclMin};
    struct sum sum = {types[draw(5)], ops[draw(3)], 0, g.streams[draw(N_STREAMS)]};
    sum.count = 1 + draw(draw(3) ? 600 : MOST_COUNT);
    return sum;
}

static void fill(const struct sum *sum, int lane)
{
    size_t bytes = sum->count * values_type_bytes(sum->type);
    values_fill(sum->type, sum->op, g.rank, g.n_sums + (uint64_t)lane, sum->count, g.host);
    RANKS_CHECK(llane_gpu_memcpy_async(g.in + lane * MOST_COUNT * 8, g.host, bytes, sum->stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(sum->stream));
}

static void check(const struct sum *sum, int lane)
{
    char words[160] = "";
    size_t bytes = sum->count * values_type_bytes(sum->type);
    RANKS_CHECK(llane_gpu_memcpy_async(g.host, g.out + lane * MOST_COUNT * 8, bytes, sum->stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(sum->stream));
    abort_if_failed(); /* LLANE_ON_DEATH=stop: a kernel that ended by itself, too, left garbage */
    go_on_if(ncclSuccess);
    if (values_check(sum->type, sum->op, g.n, g.n_sums + (uint64_t)lane, sum->count, g.host, words,
                     sizeof(words)))
        ranks_die(__FILE__, __LINE__, words, 1);
}

static void call(const struct sum *sum, int lane)
{
    CALL(ncclAllReduce(g.in + lane * MOST_COUNT * 8, g.out + lane * MOST_COUNT * 8, sum->count,
                       sum->type, sum->op, g.comm, sum->stream));
}

/* One to three sums on streams of their own, in a group or not. */
static void make_sums(void)
{
    struct sum sums[3];
    int n = 1 + (int)draw(3), is_group = (int)draw(3) == 0;
    for (int i = 0; i < n; i++) {
        sums[i] = draw_sum();
        fill(&sums[i], i);
    }
    if (is_group)
        RANKS_CHECK(ncclGroupStart());
    for (int i = 0; i < n; i++)
        call(&sums[i], i);
    if (is_group)
        CALL(ncclGroupEnd());
    for (int i = 0; i < n; i++)
        check(&sums[i], i);
    g.n_sums += (uint64_t)n;
}

static void make_replays(void)
{
    struct CUgraphExec_st *graph;
    struct sum sum = draw_sum();
    RANKS_CHECK(llane_gpu_capture_begin(sum.stream));
    call(&sum, 0);
    RANKS_CHECK(llane_gpu_capture_end(sum.stream, &graph));
    for (unsigned i = draw(4); i < 4; i++) {
        fill(&sum, 0);
        RANKS_CHECK(llane_gpu_graph_launch(graph, sum.stream));
        check(&sum, 0);
        g.n_sums++;
    }
    RANKS_CHECK(llane_gpu_graph_destroy(graph));
}

/* ---- cycles ---- */

static void *die_later(void *ms)
{
    ranks_sleep_ms(*(int *)ms);
    raise(SIGKILL);
    return NULL;
}

static void create(int cycle)
{
    char name[32];
    ncclComm_t comm;
    ncclUniqueId id;
    snprintf(name, sizeof(name), "id.%d", cycle);
    ranks_unique_id(name, ncclGetUniqueId, &id);
    ncclResult_t result = ncclCommInitRank(&comm, g.n, id, g.rank);
    if (result == ncclRemoteError)
        end_well("a rank was killed while they met");
    RANKS_CHECK(result);
    pthread_mutex_lock(&g.lock);
    g.comm = comm;
    pthread_mutex_unlock(&g.lock);
}

static void end_by(ncclResult_t (*end)(ncclComm_t comm))
{
    pthread_mutex_lock(&g.lock);
    ncclResult_t result = g.comm ? end(g.comm) : ncclRemoteError;
    g.comm = NULL;
    pthread_mutex_unlock(&g.lock);
    go_on_if(result);
}

static void *abort_later(void *unused)
{
    (void)unused;
    ranks_sleep_ms((int)(g.n_sums % 7));
    pthread_mutex_lock(&g.lock);
    if (g.comm)
        ncclCommAbort(g.comm);
    g.comm = NULL;
    pthread_mutex_unlock(&g.lock);
    return NULL;
}

/* One rank does not come to the last sum; all abort, the others from another thread. */
static void end_in_mid_sum(void)
{
    int missing = (int)draw((unsigned)g.n);
    struct sum sum = draw_sum();
    pthread_t thread;
    g.phase =
        OVER; /* whoever is done first is the first to abort: an error for the others, or not */
    if (g.rank != missing) {
        pthread_mutex_lock(&g.lock);
        if (g.comm)
            (void)ncclAllReduce(g.in, g.out, sum.count, sum.type, sum.op, g.comm, sum.stream);
        pthread_mutex_unlock(&g.lock);
    }
    RANKS_CHECK(pthread_create(&thread, NULL, abort_later, NULL));
    double start = ranks_now_ms();
    RANKS_CHECK(llane_gpu_stream_synchronize(sum.stream));
    RANKS_CHECK(pthread_join(thread, NULL));
    if (ranks_now_ms() - start > LIMIT_MS)
        ranks_die(__FILE__, __LINE__, "an abort took too long", 1);
    g.n_aborts++;
}

static void run_cycle(int cycle)
{
    g.phase = MEETING;
    create(cycle);
    /* Twice: a first group is NCCL's, and its end waits for the lane when all of its sums were issued. Who
     * dies in that wait is missed by NCCL's next sum alone. */
    make_sums();
    make_sums();
    g.phase = LIVE;
    for (unsigned i = draw(8); i < 8; i++)
        make_sums();
    if (draw(3) == 0)
        make_replays();
    switch (draw(4)) {
    case 0:
        end_in_mid_sum();
        break;
    case 1:
        end_by(ncclCommAbort);
        break;
    default:
        end_by(ncclCommDestroy);
    }
    g.phase = MEETING;
}

/* ---- growth ---- */

static int count_entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static long resident_kib(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

struct usage {
    int n_files, n_threads;
    long kib;
};

/* Helper threads end shortly after what they waited for. */
static struct usage count(void)
{
    struct usage usage = {.kib = resident_kib()};
    int before = -1;
    for (int i = 0; i < 100 && usage.n_threads != before; i++) {
        before = usage.n_threads;
        ranks_sleep_ms(20);
        usage.n_threads = count_entries("/proc/self/task");
    }
    usage.n_files = count_entries("/proc/self/fd");
    return usage;
}

static void open_all(void)
{
    int n_devices;
    pid_t pid = getpid();
    char name[32];
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    RANKS_CHECK(llane_gpu_device_set(g.rank % n_devices));
    for (int s = 0; s < N_STREAMS; s++)
        RANKS_CHECK(llane_gpu_stream_create(&g.streams[s]));
    size_t bytes = (size_t)3 * MOST_COUNT * 8;
    RANKS_CHECK(llane_gpu_malloc(bytes, (void **)&g.in));
    RANKS_CHECK(llane_gpu_malloc(bytes, (void **)&g.out));
    g.host = malloc(bytes);
    snprintf(name, sizeof(name), "pid.%d", g.rank);
    ranks_publish(name, &pid, sizeof(pid));
    for (int r = 0; r < g.n; r++) {
        snprintf(name, sizeof(name), "pid.%d", r);
        ranks_fetch(name, &g.pids[r], sizeof(pid));
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs(g_help, stderr);
        return 2;
    }
    int n_cycles = atoi(argv[2]);
    pthread_t thread;
    struct usage first = {0};
    g.random = strtoull(argv[1], NULL, 10);
    g.rank = ranks_rank();
    g.n = ranks_size();
    open_all();
    RANKS_CHECK(pthread_create(&thread, NULL, look_after, NULL));
    const char *kill_ms = getenv("LLANE_TEST_KILL_MS");
    int ms = kill_ms ? atoi(kill_ms) : 0;
    if (kill_ms)
        RANKS_CHECK(pthread_create(&thread, NULL, die_later, &ms));
    for (int cycle = 0; cycle < n_cycles; cycle++) {
        run_cycle(cycle);
        if (cycle == n_cycles / 3)
            first = count();
    }
    struct usage last = count();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    last.kib = first.kib; /* they keep what was freed */
#endif
    /* A staging area that is lost is 2 MiB or more; so many may be in use as the last ranks left. */
    if (last.n_files > first.n_files + 3 || last.n_threads > first.n_threads + 2 ||
        last.kib > first.kib + 40 * 1024) {
        fprintf(stderr, "rank %d: grown: files %d to %d, threads %d to %d, KiB %ld to %ld\n",
                g.rank, first.n_files, last.n_files, first.n_threads, last.n_threads, first.kib,
                last.kib);
        return 1;
    }
    ranks_barrier("end");
    g.phase = OVER;
    end_well("to the end");
}
