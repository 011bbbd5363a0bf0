/*
 * Two ranks of prog_ranks. An operation of rank 0 is queued behind other work when rank 1 destroys the
 * communicator without having made it. Whatever rank 1 does with its memory meanwhile, the operation
 * stores into it when its turn comes, abort or not: sums on a new communicator stay right.
 */
#include "emu.h"
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { COUNT = 1000, SUMS = 200 };
static struct {
    int rank;
    struct CUstream_st *streams[2]; /* of the first communicator, of the others */
    float *in, *out, *in_late, *out_late;
    float host[COUNT];
    uint64_t n_sums;
    atomic_int may_go_on;
} g;

static ncclComm_t create(const char *name)
{
    ncclComm_t comm;
    ncclUniqueId id;
    ranks_unique_id(name, ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&comm, 2, id, g.rank));
    return comm;
}

static void sum(ncclComm_t comm, struct CUstream_st *stream)
{
    char words[160] = "";
    values_fill(ncclFloat32, ncclSum, g.rank, ++g.n_sums, COUNT, g.host);
    RANKS_CHECK(llane_gpu_memcpy_async(g.in, g.host, sizeof(g.host), stream));
    RANKS_CHECK(ncclAllReduce(g.in, g.out, COUNT, ncclFloat32, ncclSum, comm, stream));
    RANKS_CHECK(llane_gpu_memcpy_async(g.host, g.out, sizeof(g.host), stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(stream));
    if (values_check(ncclFloat32, ncclSum, 2, g.n_sums, COUNT, g.host, words, sizeof(words)))
        ranks_die(__FILE__, __LINE__, words, 1);
}

static void wait_to_go_on(void *unused)
{
    (void)unused;
    while (!atomic_load(&g.may_go_on)) {
        struct timespec t = {.tv_nsec = 1000000};
        nanosleep(&t, NULL);
    }
}

int main(void)
{
    g.rank = ranks_rank();
    RANKS_CHECK(llane_gpu_device_set(g.rank));
    for (int i = 0; i < 2; i++)
        RANKS_CHECK(llane_gpu_stream_create(&g.streams[i]));
    float **buffers[] = {&g.in, &g.out, &g.in_late, &g.out_late};
    for (int i = 0; i < 4; i++)
        RANKS_CHECK(llane_gpu_malloc(sizeof(g.host), (void **)buffers[i]));
    ncclComm_t first = create("first");
    sum(first, g.streams[0]);
    if (g.rank == 0) {
        RANKS_CHECK(llane_emu_host_call(g.streams[0], wait_to_go_on, NULL));
        RANKS_CHECK(
            ncclAllReduce(g.in_late, g.out_late, COUNT, ncclFloat32, ncclSum, first, g.streams[0]));
    }
    ranks_barrier("queued");
    if (g.rank == 1)
        RANKS_CHECK(ncclCommDestroy(first));
    ranks_barrier("destroyed");
    ncclComm_t second = create("second");
    for (int i = 0; i < SUMS; i++) {
        sum(second, g.streams[1]);
        if (i == SUMS / 2)
            atomic_store(&g.may_go_on, 1);
    }
    if (g.rank == 0) {
        RANKS_CHECK(ncclCommAbort(first));
        RANKS_CHECK(llane_gpu_stream_synchronize(g.streams[0]));
    }
    ranks_barrier("aborted");
    for (int i = 0; i < SUMS; i++)
        sum(second, g.streams[1]);
    RANKS_CHECK(ncclCommDestroy(second));
    ncclComm_t third = create("third"); /* in memory of the first or the second */
    sum(third, g.streams[1]);
    RANKS_CHECK(ncclCommDestroy(third));
    return 0;
}
