/*
 * One rank of prog_ranks. The lane is live; then rank 0 calls an all-reduce that nobody else makes,
 * its kernel waits, and rank 0 aborts the communicator: how long that takes. `prog_abort --help`.
 */
#include "gpu.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char g_help[] =
    "prog_abort [TIMES [LIMIT_MS]]\n"
    "Each time (5): a child of one communicator, ten sums, an all-reduce of rank 0 alone,\n"
    "ncclCommAbort a fifth of a second later on rank 0 and then on the others. Rank 0 prints the\n"
    "worst and the median time until the abort has returned and its stream is idle. Status 1 if\n"
    "one was LIMIT_MS (1000) or more.\n";

enum { COUNT = 1024, WARM_UP = 10, MAX_TIMES = 1000 };

/* Milliseconds that the abort took; 0 on other ranks than 0. */
static double abort_once(ncclComm_t parent, int round, void *buffer, struct CUstream_st *stream)
{
    char name[32];
    ncclComm_t comm;
    double took_ms = 0;
    RANKS_CHECK(ncclCommSplit(parent, 0, ranks_rank(), &comm, NULL));
    for (int i = 0; i < WARM_UP; i++) {
        RANKS_CHECK(
            ncclAllReduce(buffer, buffer, COUNT, ncclFloat32, ncclSum, comm, (cudaStream_t)stream));
    }
    RANKS_CHECK(llane_gpu_stream_synchronize(stream));
    snprintf(name, sizeof name, "warm-%d", round);
    ranks_barrier(name);
    if (ranks_rank() == 0) {
        RANKS_CHECK(
            ncclAllReduce(buffer, buffer, COUNT, ncclFloat32, ncclSum, comm, (cudaStream_t)stream));
        ranks_sleep_ms(200);
        double start_ms = ranks_now_ms();
        RANKS_CHECK(ncclCommAbort(comm));
        RANKS_CHECK(llane_gpu_stream_synchronize(stream));
        took_ms = ranks_now_ms() - start_ms;
    }
    snprintf(name, sizeof name, "aborted-%d", round);
    ranks_barrier(name);
    if (ranks_rank() != 0) {
        RANKS_CHECK(ncclCommAbort(comm));
    }
    return took_ms;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(g_help, stdout);
        return 0;
    }
    int times = argc > 1 ? atoi(argv[1]) : 5, limit_ms = argc > 2 ? atoi(argv[2]) : 1000, n_devices;
    double took_ms[MAX_TIMES];
    ncclUniqueId id;
    ncclComm_t parent;
    void *buffer;
    struct CUstream_st *stream;
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    RANKS_CHECK(llane_gpu_device_set(ranks_rank() % n_devices));
    RANKS_CHECK(llane_gpu_stream_create(&stream));
    RANKS_CHECK(llane_gpu_malloc(COUNT * sizeof(float), &buffer));
    times = times < 1 ? 1 : times < MAX_TIMES ? times : MAX_TIMES;
    ranks_unique_id("id", ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&parent, ranks_size(), id, ranks_rank()));
    for (int round = 0; round < times; round++) {
        took_ms[round] = abort_once(parent, round, buffer, stream);
    }
    RANKS_CHECK(ncclCommDestroy(parent));
    qsort(took_ms, (size_t)times, sizeof *took_ms, compare);
    double worst_ms = took_ms[times - 1];
    if (ranks_rank() == 0) {
        printf("abort: %d times: worst %.1f ms, median %.1f ms\n", times, worst_ms,
               took_ms[times / 2]);
    }
    return worst_ms < limit_ms ? 0 : 1;
}
