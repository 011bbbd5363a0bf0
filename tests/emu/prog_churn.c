/*
 * Communicators created, used and destroyed over and over: what the process has after a warm-up, it
 * has at the end. `prog_churn --help`.
 */
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char g_help[] =
    "prog_churn CYCLES [graph|pairs|many|slow]\n"
    "One rank of prog_ranks. Each cycle: a communicator, sums on it, its end. Files, threads and\n"
    "memory are counted after a fifth of the cycles and at the end. Status 0: they stayed,\n"
    "3: they grew, 1: a sum is wrong.\n"
    "  graph   a sum is captured, replayed, and its graph destroyed, before the communicator is\n"
    "  pairs   sends and receives instead of sums\n"
    "  slow    a few milliseconds between a communicator's first sum and its end\n"
    "  many    one communicator, and each cycle is a capture of its own\n";

enum { COUNT = 64 };
static struct {
    int rank, n;
    struct CUstream_st *stream;
    float *in, *out;
    float host[COUNT];
    int n_wrong;
} g;

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

/* Helper threads end shortly after what they waited for. */
static int count_threads(void)
{
    int n = 0, before = -1;
    for (int i = 0; i < 50 && n != before; i++) {
        struct timespec t = {.tv_nsec = 20000000};
        nanosleep(&t, NULL);
        before = n;
        n = count_entries("/proc/self/task");
    }
    return n;
}

static void fill(uint64_t call)
{
    values_fill(ncclFloat32, ncclSum, g.rank, call, COUNT, g.host);
    RANKS_CHECK(llane_gpu_memcpy_async(g.in, g.host, sizeof(g.host), g.stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
}

static void check(uint64_t call)
{
    char words[160] = "";
    RANKS_CHECK(llane_gpu_memcpy_async(g.host, g.out, sizeof(g.host), g.stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
    if (values_check(ncclFloat32, ncclSum, g.n, call, COUNT, g.host, words, sizeof(words))) {
        printf("rank %d: call %llu: %s\n", g.rank, (unsigned long long)call, words);
        g.n_wrong++;
    }
}

static void sum(ncclComm_t comm)
{
    RANKS_CHECK(ncclAllReduce(g.in, g.out, COUNT, ncclFloat32, ncclSum, comm, g.stream));
}

static void captured_sum(ncclComm_t comm, uint64_t call)
{
    struct CUgraphExec_st *graph;
    RANKS_CHECK(llane_gpu_capture_begin(g.stream));
    sum(comm);
    RANKS_CHECK(llane_gpu_capture_end(g.stream, &graph));
    fill(call);
    RANKS_CHECK(llane_gpu_graph_launch(graph, g.stream));
    check(call);
    RANKS_CHECK(llane_gpu_graph_destroy(graph));
}

static ncclComm_t create(int cycle)
{
    char name[32];
    ncclComm_t comm;
    ncclUniqueId id;
    snprintf(name, sizeof(name), "id.%d", cycle);
    ranks_unique_id(name, ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&comm, g.n, id, g.rank));
    return comm;
}

static void run_cycle(int cycle, const char *kind, ncclComm_t many)
{
    if (many) {
        captured_sum(many, (uint64_t)cycle);
        return;
    }
    ncclComm_t comm = create(cycle);
    if (strcmp(kind, "pairs") == 0) {
        RANKS_CHECK(ncclGroupStart());
        RANKS_CHECK(ncclSend(g.in, COUNT, ncclFloat32, (g.rank + 1) % g.n, comm, g.stream));
        RANKS_CHECK(ncclRecv(g.out, COUNT, ncclFloat32, (g.rank + g.n - 1) % g.n, comm, g.stream));
        RANKS_CHECK(ncclGroupEnd());
        RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
    } else {
        fill((uint64_t)cycle);
        sum(comm);
        check((uint64_t)cycle);
        if (strcmp(kind, "graph") == 0)
            captured_sum(comm, (uint64_t)cycle);
        struct timespec t = {.tv_nsec = strcmp(kind, "slow") == 0 ? 8000000 : 0};
        nanosleep(&t, NULL);
    }
    RANKS_CHECK(ncclCommDestroy(comm));
}

int main(int argc, char **argv)
{
    int n_cycles = argc > 1 ? atoi(argv[1]) : 0;
    const char *kind = argc > 2 ? argv[2] : "";
    if (n_cycles < 5) {
        fputs(g_help, stderr);
        return 2;
    }
    g.rank = ranks_rank();
    g.n = ranks_size();
    RANKS_CHECK(llane_gpu_device_set(g.rank));
    RANKS_CHECK(llane_gpu_stream_create(&g.stream));
    RANKS_CHECK(llane_gpu_malloc(sizeof(g.host), (void **)&g.in));
    RANKS_CHECK(llane_gpu_malloc(sizeof(g.host), (void **)&g.out));
    ncclComm_t many = NULL;
    if (strcmp(kind, "many") == 0) {
        many = create(0);
        fill(0);
        sum(many);
        check(0);
    }
    int n_files = 0, n_threads = 0;
    long kib = 0;
    for (int cycle = 1; cycle <= n_cycles; cycle++) {
        run_cycle(cycle, kind, many);
        if (cycle == n_cycles / 5) {
            n_threads = count_threads();
            n_files = count_entries("/proc/self/fd");
            kib = resident_kib();
        }
    }
    int threads_more = count_threads() - n_threads;
    int files_more = count_entries("/proc/self/fd") - n_files;
    long kib_more = resident_kib() - kib;
    printf("rank %d: %d cycles: %+d files, %+d threads, %+ld KiB resident since the first %d\n",
           g.rank, n_cycles, files_more, threads_more, kib_more, n_cycles / 5);
    if (many)
        RANKS_CHECK(ncclCommDestroy(many));
    /* A 4 MiB staging area each would be far more; so would 4 KiB of host memory a cycle. */
    int has_grown = files_more > 2 || threads_more > 2 || kib_more > 1024 + 3 * n_cycles;
    return g.n_wrong ? 1 : has_grown ? 3 : 0;
}
