// LDADD: -Wl,--as-needed
/*
 * An NCCL client in the manner of ctypes: opens a library by path with RTLD_LOCAL and finds every
 * call with dlsym. It is not linked with libnccl. `prog_dlopen --help`.
 */
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char g_help[] =
    "prog_dlopen LIBRARY [COUNT [ITERATIONS [late|early]]]\n"
    "Opens LIBRARY (libnccl.so.2 or the drop-in libnccl-llane.so) RTLD_NOW | RTLD_LOCAL and makes\n"
    "float32 sums of COUNT (1024) elements ITERATIONS (3) times, one rank of prog_ranks or alone.\n"
    "`early` (the default) finds ncclAllReduce before the communicator is created, `late` after.\n"
    "Rank 0 prints the file that each call it found comes from: `ncclAllReduce from FILE`.\n";

static void *g_library;

static void find(const char *name, void *function_out)
{
    void *symbol = dlsym(g_library, name);
    Dl_info info;
    if (!symbol) {
        fprintf(stderr, "rank %d: %s\n", ranks_rank(), dlerror());
        exit(1);
    }
    if (ranks_rank() == 0 && dladdr(symbol, &info))
        printf("%s from %s\n", name, info.dli_fname);
    memcpy(function_out, &symbol, sizeof(symbol));
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(g_help, argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    size_t count = argc > 2 ? (size_t)atol(argv[2]) : 1024;
    int n_iterations = argc > 3 ? atoi(argv[3]) : 3;
    int is_late = argc > 4 && strcmp(argv[4], "late") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    g_library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!g_library) {
        fprintf(stderr, "rank %d: %s\n", ranks_rank(), dlerror());
        return 1;
    }
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
    ncclResult_t (*destroy)(ncclComm_t);
    find("ncclGetUniqueId", &get_unique_id);
    find("ncclCommInitRank", &init);
    find("ncclCommDestroy", &destroy);
    if (!is_late)
        find("ncclAllReduce", &all_reduce);

    int n_devices, rank = ranks_rank(), n_ranks = ranks_size();
    ncclUniqueId id;
    ncclComm_t comm;
    struct CUstream_st *stream;
    void *in, *out, *host = malloc(count * 4);
    char words[160] = "";
    size_t n_wrong = 0;
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    RANKS_CHECK(llane_gpu_device_set(rank % n_devices));
    ranks_unique_id("id", get_unique_id, &id);
    RANKS_CHECK(init(&comm, n_ranks, id, rank));
    if (is_late)
        find("ncclAllReduce", &all_reduce);
    RANKS_CHECK(llane_gpu_stream_create(&stream));
    RANKS_CHECK(llane_gpu_malloc(count * 4, &in));
    RANKS_CHECK(llane_gpu_malloc(count * 4, &out));
    for (int k = 0; k < n_iterations && n_wrong == 0; k++) {
        values_fill(ncclFloat32, ncclSum, rank, (uint64_t)k, count, host);
        RANKS_CHECK(llane_gpu_memset_async(out, 0xa5, count * 4, stream));
        RANKS_CHECK(llane_gpu_memcpy_async(in, host, count * 4, stream));
        RANKS_CHECK(llane_gpu_stream_synchronize(stream));
        RANKS_CHECK(all_reduce(in, out, count, ncclFloat32, ncclSum, comm, stream));
        RANKS_CHECK(llane_gpu_memcpy_async(host, out, count * 4, stream));
        RANKS_CHECK(llane_gpu_stream_synchronize(stream));
        n_wrong = values_check(ncclFloat32, ncclSum, n_ranks, (uint64_t)k, count, host, words,
                               sizeof(words));
    }
    RANKS_CHECK(destroy(comm));
    printf("rank %d of %d: %d calls, %s %s\n", rank, n_ranks, n_iterations,
           n_wrong ? "WRONG" : "ok", words);
    RANKS_CHECK(llane_gpu_free(in));
    RANKS_CHECK(llane_gpu_free(out));
    RANKS_CHECK(llane_gpu_stream_destroy(stream));
    free(host);
    return n_wrong ? 1 : 0;
}
