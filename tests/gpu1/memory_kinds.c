/*
 * Proves on a GPU with a real NCCL that sums are right on every kind of memory that a program may pass,
 * also where it is freed and mapped anew between calls. RANK, WORLD_SIZE and RANKS_DIR (an empty
 * folder) come from the caller, as does whether llane is there: both runs must print the same.
 */
#include "emu/ranks.c"
#include "emu/values.c"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

enum { CHUNK = 2 << 20, ROOM = 3 * CHUNK, ROUNDS = 3 };

static struct {
    int rank, n, device, n_wrong;
    ncclComm_t comm;
    cudaStream_t stream;
    char *host;
} g;

/* One allocation of ROOM bytes; what a kind keeps beside the pointer. */
struct memory {
    char *pointer, *host;
    CUmemGenericAllocationHandle chunks[ROOM / CHUNK];
    void *handle; /* of a registration */
};

/* ---- kinds: 0, or an error that says that this machine or NCCL has none of it ---- */

static int plain_take(struct memory *m)
{
    return cudaMalloc((void **)&m->pointer, ROOM);
}

static void plain_give(struct memory *m)
{
    RANKS_CHECK(cudaFree(m->pointer));
}

static int pool_take(struct memory *m)
{
    return cudaMallocAsync((void **)&m->pointer, ROOM, g.stream);
}

static void pool_give(struct memory *m)
{
    RANKS_CHECK(cudaFreeAsync(m->pointer, g.stream));
}

static int managed_take(struct memory *m)
{
    return cudaMallocManaged((void **)&m->pointer, ROOM, cudaMemAttachGlobal);
}

static int mapped_take(struct memory *m)
{
    int err = cudaHostAlloc((void **)&m->host, ROOM, cudaHostAllocMapped);
    return err ? err : (int)cudaHostGetDevicePointer((void **)&m->pointer, m->host, 0);
}

static void mapped_give(struct memory *m)
{
    RANKS_CHECK(cudaFreeHost(m->host));
}

static int registered_host_take(struct memory *m)
{
    m->host = aligned_alloc(4096, ROOM);
    int err = cudaHostRegister(m->host, ROOM, cudaHostRegisterMapped);
    return err ? err : (int)cudaHostGetDevicePointer((void **)&m->pointer, m->host, 0);
}

static void registered_host_give(struct memory *m)
{
    RANKS_CHECK(cudaHostUnregister(m->host));
    free(m->host);
}

/* ---- as PyTorch's expandable segments: one address range, chunks mapped one by one ---- */

#define DRIVER_CALLS(X)                                                                            \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)
#define DRIVER_MEMBER(name) __typeof__(name) *name;
static struct {
    DRIVER_CALLS(DRIVER_MEMBER)
} driver;

static int find_call(const char *name, void **call_out)
{
    enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    return (int)cudaGetDriverEntryPointByVersion(name, call_out, 12000, cudaEnableDefault, &found);
#else
    return (int)cudaGetDriverEntryPoint(name, call_out, cudaEnableDefault, &found);
#endif
}

static int find_driver(void)
{
    void *call;
    int err = 0;
#define DRIVER_FIND(name)                                                                          \
    err = err ? err : find_call(#name, &call);                                                     \
    memcpy(&driver.name, &call, sizeof(call));
    DRIVER_CALLS(DRIVER_FIND)
    return err;
}

static int map_chunk(struct memory *m, int i)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g.device};
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    const CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->pointer + (size_t)i * CHUNK;
    int err = driver.cuMemCreate(&m->chunks[i], CHUNK, &prop, 0);
    err = err ? err : (int)driver.cuMemMap(at, CHUNK, 0, m->chunks[i], 0);
    return err ? err : (int)driver.cuMemSetAccess(at, CHUNK, &access, 1);
}

static void unmap_chunk(struct memory *m, int i)
{
    RANKS_CHECK(driver.cuMemUnmap((CUdeviceptr)(uintptr_t)m->pointer + (size_t)i * CHUNK, CHUNK));
    RANKS_CHECK(driver.cuMemRelease(m->chunks[i]));
}

static int segments_take(struct memory *m)
{
    CUdeviceptr at = 0;
    int err = find_driver();
    err = err ? err : (int)driver.cuMemAddressReserve(&at, ROOM, 0, 0, 0);
    m->pointer = (char *)(uintptr_t)at;
    for (int i = 0; i < ROOM / CHUNK && !err; i++)
        err = map_chunk(m, i);
    if (!err) { /* and one of them anew */
        unmap_chunk(m, 1);
        err = map_chunk(m, 1);
    }
    return err;
}

static void segments_give(struct memory *m)
{
    for (int i = 0; i < ROOM / CHUNK; i++)
        unmap_chunk(m, i);
    RANKS_CHECK(driver.cuMemAddressFree((CUdeviceptr)(uintptr_t)m->pointer, ROOM));
}

/* ---- NCCL's own ---- */

static int nccl_take(struct memory *m)
{
    return (int)ncclMemAlloc((void **)&m->pointer, ROOM);
}

static void nccl_give(struct memory *m)
{
    RANKS_CHECK(ncclMemFree(m->pointer));
}

static int registered_take(struct memory *m)
{
    int err = nccl_take(m);
    return err ? err : (int)ncclCommRegister(g.comm, m->pointer, ROOM, &m->handle);
}

static void registered_give(struct memory *m)
{
    RANKS_CHECK(ncclCommDeregister(g.comm, m->handle));
    nccl_give(m);
}

/* From 2.27 on. */
static ncclResult_t (*window_register)(ncclComm_t, void *, size_t, void **, int);
static ncclResult_t (*window_deregister)(ncclComm_t, void *);

static int window_take(struct memory *m)
{
    void *calls[] = {dlsym(RTLD_DEFAULT, "ncclCommWindowRegister"),
                     dlsym(RTLD_DEFAULT, "ncclCommWindowDeregister")};
    memcpy(&window_register, &calls[0], sizeof(calls[0]));
    memcpy(&window_deregister, &calls[1], sizeof(calls[1]));
    int err = calls[0] && calls[1] ? nccl_take(m) : -1;
    return err ? err : (int)window_register(g.comm, m->pointer, ROOM, &m->handle, 1);
}

static void window_give(struct memory *m)
{
    if (m->handle) /* NULL: NCCL has windows only where all GPUs reach each other */
        RANKS_CHECK(window_deregister(g.comm, m->handle));
    nccl_give(m);
}

static const struct kind {
    const char *name;
    int (*take)(struct memory *m);
    void (*give)(struct memory *m);
} g_kinds[] = {
    {"cudaMalloc", plain_take, plain_give},
    {"stream-ordered pool", pool_take, pool_give},
    {"expandable segments", segments_take, segments_give},
    {"managed", managed_take, plain_give},
    {"mapped host", mapped_take, mapped_give},
    {"registered host", registered_host_take, registered_host_give},
    {"ncclMemAlloc", nccl_take, nccl_give},
    {"ncclMemAlloc, registered", registered_take, registered_give},
    {"ncclMemAlloc, window", window_take, window_give},
};
enum { N_KINDS = sizeof(g_kinds) / sizeof(*g_kinds) };

/* ---- the sums ---- */

static uint64_t g_call;

/* From `from` to `to`, both within one allocation; prints what came of it. */
static void sum(const char *kind, const char *how, char *from, char *to, size_t count)
{
    char words[160] = "";
    values_fill(ncclFloat32, ncclSum, g.rank, ++g_call, count, g.host);
    RANKS_CHECK(cudaMemcpyAsync(from, g.host, 4 * count, cudaMemcpyDefault, g.stream));
    RANKS_CHECK(cudaStreamSynchronize(g.stream));
    int code = (int)ncclAllReduce(from, to, count, ncclFloat32, ncclSum, g.comm, g.stream);
    RANKS_CHECK(cudaMemcpyAsync(g.host, to, 4 * count, cudaMemcpyDefault, g.stream));
    RANKS_CHECK(cudaStreamSynchronize(g.stream));
    size_t n =
        code ? count
             : values_check(ncclFloat32, ncclSum, g.n, g_call, count, g.host, words, sizeof(words));
    if (g.rank == 0 || n)
        printf("kind: %s, %s, %zu: code %d, %zu wrong\n", kind, how, count, code, n);
    if (n)
        printf("    WRONG rank %d: %s\n", g.rank, words);
    g.n_wrong += n != 0;
}

static void try_kind(const struct kind *kind)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct memory m = {0};
        int err = kind->take(&m), all_err = err;
        char name[64];
        for (int r = 0; r < g.n; r++) { /* all ranks have it, or none uses it */
            int theirs = err;
            snprintf(name, sizeof(name), "%s.%d.%d", kind->name, round, r);
            if (r == g.rank)
                ranks_publish(name, &err, sizeof(err));
            ranks_fetch(name, &theirs, sizeof(theirs));
            all_err = all_err ? all_err : theirs;
        }
        if (all_err) {
            (void)cudaGetLastError();
            if (g.rank == 0)
                printf("kind: %s: not here\n", kind->name);
            return;
        }
        for (size_t count = 100; count <= 250000; count *= 50) {
            sum(kind->name, "in place", m.pointer, m.pointer, count);
            sum(kind->name, "apart", m.pointer, m.pointer + ROOM / 2, count);
        }
        sum(kind->name, "over a chunk's end", m.pointer + CHUNK - 200, m.pointer + 2 * CHUNK - 200,
            100);
        RANKS_CHECK(cudaStreamSynchronize(g.stream));
        kind->give(&m);
    }
}

int main(void)
{
    ncclUniqueId id;
    int n_devices = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    g.rank = ranks_rank();
    g.n = ranks_size();
    RANKS_CHECK(cudaGetDeviceCount(&n_devices));
    g.device = g.rank % n_devices;
    RANKS_CHECK(cudaSetDevice(g.device));
    RANKS_CHECK(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    g.host = malloc(ROOM);
    ranks_unique_id("id", ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&g.comm, g.n, id, g.rank));
    for (int i = 0; i < N_KINDS; i++)
        try_kind(&g_kinds[i]);
    RANKS_CHECK(ncclCommDestroy(g.comm));
    printf("rank %d: %s\n", g.rank, g.n_wrong ? "WRONG" : "ok");
    return g.n_wrong ? 1 : 0;
}
