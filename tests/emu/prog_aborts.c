/* How soon kernels that wait end when a thread aborts their communicator. `prog_aborts --help`. */
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char g_help[] =
    "prog_aborts abort|revoke|shrink eager|graph|queue ROUNDS MOST_MS\n"
    "One rank of prog_ranks. Each round: a communicator, a right sum on it, then a sum that the "
    "last\n"
    "rank does not make; another thread of each of the others ends it after a random time. The "
    "worst\n"
    "time from there to the end of the kernel and of the call is told, and must not be above "
    "MOST_MS.\n"
    "  queue    many sums follow without a wait until then; not with abort, which ends the handle\n"
    "  shrink   the child without the last rank then makes a right sum\n";

enum { COUNT = 3000 };
static struct {
    int rank, n;
    const char *how, *where;
    struct CUstream_st *stream;
    float *in, *out;
    float host[COUNT];
    ncclComm_t comm, child;
    uint64_t n_sums;
    double worst_ms;
    _Atomic int is_aborted;
    double aborted_at_ms;
} g;

static void fill(int rank)
{
    values_fill(ncclFloat32, ncclSum, rank, ++g.n_sums, COUNT, g.host);
    RANKS_CHECK(llane_gpu_memcpy_async(g.in, g.host, sizeof(g.host), g.stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
}

static void check(int n)
{
    char words[160] = "";
    RANKS_CHECK(llane_gpu_memcpy_async(g.host, g.out, sizeof(g.host), g.stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
    if (values_check(ncclFloat32, ncclSum, n, g.n_sums, COUNT, g.host, words, sizeof(words)))
        ranks_die(__FILE__, __LINE__, words, 1);
}

static ncclResult_t call(ncclComm_t comm)
{
    return ncclAllReduce(g.in, g.out, COUNT, ncclFloat32, ncclSum, comm, g.stream);
}

static void *end_it(void *arg)
{
    int last = g.n - 1;
    ranks_sleep_ms(*(int *)arg);
    g.aborted_at_ms = ranks_now_ms();
    if (strcmp(g.how, "abort") == 0)
        RANKS_CHECK(ncclCommAbort(g.comm));
    else if (strcmp(g.how, "revoke") == 0)
        RANKS_CHECK(ncclCommRevoke(g.comm, 0));
    else
        RANKS_CHECK(ncclCommShrink(g.comm, &last, 1, &g.child, NULL, FAKE_SHRINK_ABORT));
    g.is_aborted = 1;
    return NULL;
}

static void note(double ms)
{
    g.worst_ms = ms > g.worst_ms ? ms : g.worst_ms;
}

static void make_sum_that_waits(struct CUgraphExec_st *graph)
{
    if (graph)
        RANKS_CHECK(llane_gpu_graph_launch(graph, g.stream));
    else
        RANKS_CHECK(call(g.comm));
}

static void queue_more(void)
{
    int n_left = strcmp(g.where, "queue") == 0 ? 200 : 0;
    while (n_left-- && !g.is_aborted && call(g.comm) == ncclSuccess) {
    }
}

static void see_it_end(struct CUgraphExec_st *graph)
{
    pthread_t thread;
    int delay_ms = rand() % 6;
    g.is_aborted = 0;
    make_sum_that_waits(graph); /* before the communicator ends, after which it is an error */
    RANKS_CHECK(pthread_create(&thread, NULL, end_it, &delay_ms));
    queue_more();
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
    note(ranks_now_ms() - g.aborted_at_ms);
    RANKS_CHECK(pthread_join(thread, NULL));
    note(ranks_now_ms() - g.aborted_at_ms);
}

static struct CUgraphExec_st *capture(void)
{
    struct CUgraphExec_st *graph;
    RANKS_CHECK(llane_gpu_capture_begin(g.stream));
    RANKS_CHECK(call(g.comm));
    RANKS_CHECK(llane_gpu_capture_end(g.stream, &graph));
    return graph;
}

static void run_round(int round)
{
    char name[32];
    ncclUniqueId id;
    struct CUgraphExec_st *graph = NULL;
    snprintf(name, sizeof(name), "id.%d", round);
    ranks_unique_id(name, ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&g.comm, g.n, id, g.rank));
    fill(g.rank);
    RANKS_CHECK(call(g.comm));
    check(g.n);
    if (strcmp(g.where, "graph") == 0)
        graph = capture();
    if (g.rank < g.n - 1)
        see_it_end(graph);
    if (g.rank < g.n - 1 && strcmp(g.how, "shrink") == 0) {
        fill(g.rank);
        RANKS_CHECK(call(g.child));
        check(g.n - 1);
        RANKS_CHECK(ncclCommDestroy(g.child));
    } else {
        g.n_sums += strcmp(g.how, "shrink") == 0; /* the sums are numbered alike */
    }
    if (graph)
        RANKS_CHECK(llane_gpu_graph_destroy(graph));
    if (g.rank == g.n - 1 || strcmp(g.how, "abort") != 0)
        RANKS_CHECK(ncclCommAbort(g.comm));
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fputs(g_help, stderr);
        return 2;
    }
    int n_rounds = atoi(argv[3]), n_devices;
    double most_ms = atof(argv[4]);
    g.how = argv[1];
    g.where = argv[2];
    g.rank = ranks_rank();
    g.n = ranks_size();
    srand((unsigned)g.rank + 1);
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    RANKS_CHECK(llane_gpu_device_set(g.rank % n_devices));
    RANKS_CHECK(llane_gpu_stream_create(&g.stream));
    RANKS_CHECK(llane_gpu_malloc(sizeof(g.host), (void **)&g.in));
    RANKS_CHECK(llane_gpu_malloc(sizeof(g.host), (void **)&g.out));
    for (int round = 0; round < n_rounds; round++)
        run_round(round);
    if (g.rank < g.n - 1)
        printf("rank %d: %s, %s: worst of %d: %.1f ms\n", g.rank, g.how, g.where, n_rounds,
               g.worst_ms);
    return g.worst_ms <= most_ms ? 0 : 1;
}
