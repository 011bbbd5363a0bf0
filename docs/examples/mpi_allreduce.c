/*
 * A C program with MPI and NCCL: sums of growing size over all ranks, checked. It knows nothing of
 * llane, but for LLANE_STATS, which makes llane say at exit what it carried.
 *
 *   mpicc -O2 mpi_allreduce.c -o mpi_allreduce -lnccl -lcudart
 *   NCCL_TUNER_PLUGIN=llane mpiexec -n 4 ./mpi_allreduce
 */
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int result_ = (int)(call);                                                                 \
        if (result_ != 0) {                                                                        \
            fprintf(stderr, "%s: error %d\n", #call, result_);                                     \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

enum { MOST = 1 << 18, TIMES = 50 };

/* The rank among those of its host: which GPU it takes. */
static int local_rank(void)
{
    MPI_Comm host;
    int rank;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    return rank;
}

/* Elements of `count` that are not the sum of rank + i % 7 over all ranks. */
static int count_wrong(const float *host, size_t count, int n_ranks)
{
    int n_wrong = 0;
    for (size_t i = 0; i < count; i++) {
        float want = (float)(n_ranks * (n_ranks - 1) / 2 + n_ranks * (int)(i % 7));
        n_wrong += host[i] != want;
    }
    return n_wrong;
}

int main(int argc, char **argv)
{
    int rank, n_ranks, n_gpus, n_wrong = 0;
    setenv("LLANE_STATS", "1", 0);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    CHECK(cudaGetDeviceCount(&n_gpus));
    CHECK(cudaSetDevice(local_rank() % n_gpus));

    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id));
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(ncclCommInitRank(&comm, n_ranks, id, rank));
    CHECK(cudaStreamCreate(&stream));

    void *in, *out;
    float *host = malloc(MOST * sizeof *host);
    CHECK(cudaMalloc(&in, MOST * sizeof(float)));
    CHECK(cudaMalloc(&out, MOST * sizeof(float)));
    for (size_t i = 0; i < MOST; i++) {
        host[i] = (float)(rank + (int)(i % 7));
    }
    CHECK(cudaMemcpy(in, host, MOST * sizeof(float), cudaMemcpyHostToDevice));
    for (size_t count = 4; count <= MOST; count *= 8) {
        /* llane sets a communicator up beside its first calls: the lane comes in on the way. */
        for (int i = 0; i < TIMES; i++) {
            CHECK(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, comm, stream));
            CHECK(cudaStreamSynchronize(stream));
        }
        CHECK(cudaMemcpy(host, out, count * sizeof(float), cudaMemcpyDeviceToHost));
        n_wrong += count_wrong(host, count, n_ranks);
    }
    printf("rank %d of %d: %s\n", rank, n_ranks, n_wrong ? "WRONG" : "all sums right");
    fflush(stdout);
    CHECK(ncclCommDestroy(comm));
    cudaFree(in);
    cudaFree(out);
    free(host);
    MPI_Finalize();
    return n_wrong != 0;
}
