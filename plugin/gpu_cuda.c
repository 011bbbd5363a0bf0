/* gpu.h on the CUDA runtime, linked statically so that no version of it is asked of the user. */
#include <ctype.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAS_NVTX 1
#endif

#include "err.h"
#include "gpu.h"
#include "table.h"

_Static_assert(sizeof(struct llane_gpu_ipc_handle) == sizeof(cudaIpcMemHandle_t), "IPC handle");

static _Thread_local char last_error[256];

const char *llane_gpu_error(void)
{
    return last_error;
}

/* Notes a failure of this file's own call, and takes it back out of the runtime's memory. */
static int failed(const char *call, cudaError_t error)
{
    (void)cudaGetLastError();
    snprintf(last_error, sizeof(last_error), "%s: %s (%s)", call, cudaGetErrorString(error),
             cudaGetErrorName(error));
    return error == cudaErrorNotSupported || error == cudaErrorCallRequiresNewerDriver
               ? LLANE_ENOSYS
               : LLANE_EGPU;
}

static int done(const char *call, cudaError_t error)
{
    return error == cudaSuccess ? 0 : failed(call, error);
}

/*
 * Around a call that CUDA forbids while this thread captures, or any thread does in global mode: it
 * would fail, and end the capture. Gives this thread its mode back.
 */
static int relax(enum cudaStreamCaptureMode *mode_out)
{
    *mode_out = cudaStreamCaptureModeRelaxed;
    return done("cudaThreadExchangeStreamCaptureMode",
                cudaThreadExchangeStreamCaptureMode(mode_out));
}

static void restore(enum cudaStreamCaptureMode mode)
{
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess)
        (void)cudaGetLastError();
}

/* "Not ready" is an answer, but the runtime remembers it like an error. */
static int answer(const char *call, cudaError_t error, int *done_out)
{
    *done_out = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return 0;
    }
    return done(call, error);
}

int llane_gpu_is_emulated(void)
{
    return 0;
}

const char *llane_gpu_runtime(void)
{
    static _Thread_local char text[64];
    int runtime = 0, driver = 0;

    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess)
        (void)cudaGetLastError();
    snprintf(text, sizeof(text), "cuda %d.%d, driver %d.%d", runtime / 1000, runtime % 1000 / 10,
             driver / 1000, driver % 1000 / 10);
    return text;
}

/* ---- devices ---- */

int llane_gpu_device_count(int *n_out)
{
    cudaError_t error = cudaGetDeviceCount(n_out);

    if (error == cudaErrorNoDevice) {
        (void)cudaGetLastError();
        *n_out = 0;
        return 0;
    }
    return done("cudaGetDeviceCount", error);
}

int llane_gpu_device_get(int *device_out)
{
    return done("cudaGetDevice", cudaGetDevice(device_out));
}

int llane_gpu_device_set(int device)
{
    return done("cudaSetDevice", cudaSetDevice(device));
}

/* The runtime does not tell. */
static int numa_node_of(const char *pci)
{
    char path[64];
    int node = -1;

    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", pci);
    for (char *c = path; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    FILE *file = fopen(path, "re");

    if (file) {
        if (fscanf(file, "%d", &node) != 1)
            node = -1;
        fclose(file);
    }
    return node;
}

int llane_gpu_identify(int device, struct llane_gpu_identity *out)
{
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, device);

    if (error != cudaSuccess)
        return failed("cudaGetDeviceProperties", error);
    memset(out, 0, sizeof(*out));
    memcpy(out->uuid, prop.uuid.bytes, sizeof(out->uuid));
    out->cc_major = prop.major;
    out->cc_minor = prop.minor;
    out->n_sms = prop.multiProcessorCount;
    error = cudaDeviceGetPCIBusId(out->pci, (int)sizeof(out->pci), device);
    out->numa_node = error == cudaSuccess ? numa_node_of(out->pci) : -1;
    return done("cudaDeviceGetPCIBusId", error);
}

/* The driver's own calls, since the runtime has no word for contexts. */
static int driver_call(const char *name, unsigned version, void **out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, out, version, cudaEnableDefault, &found);
#else
    (void)version;
    cudaError_t error = cudaGetDriverEntryPoint(name, out, cudaEnableDefault, &found);
#endif

    if (error != cudaSuccess)
        return failed("cudaGetDriverEntryPoint", error);
    if (found != cudaDriverEntryPointSuccess || !*out) {
        snprintf(last_error, sizeof(last_error), "the driver has no %s", name);
        return LLANE_ENOSYS;
    }
    return 0;
}

/* The primary context if there is one: asking for it would make one. */
static int find_primary(int device, void **primary_out)
{
    int (*get_state)(int device, unsigned *flags, int *active) = NULL;
    int (*retain)(void **context, int device) = NULL;
    int (*release)(int device) = NULL;
    unsigned flags = 0;
    int active = 0, failure, rc;
    void *call;

    *primary_out = NULL;
    if ((rc = driver_call("cuDevicePrimaryCtxGetState", 11000, &call)))
        return rc;
    memcpy(&get_state, &call, sizeof(call));
    if ((rc = driver_call("cuDevicePrimaryCtxRetain", 11000, &call)))
        return rc;
    memcpy(&retain, &call, sizeof(call));
    if ((rc = driver_call("cuDevicePrimaryCtxRelease", 11000, &call)))
        return rc;
    memcpy(&release, &call, sizeof(call));
    failure = get_state(device, &flags, &active);
    if (!failure && active && !(failure = retain(primary_out, device)))
        release(device);
    if (failure)
        snprintf(last_error, sizeof(last_error), "the driver does not tell the primary context");
    return failure ? LLANE_EGPU : 0;
}

/* Runtime ordinals are driver ordinals: both count the visible devices. No current context: the
 * runtime will make the primary one current. */
int llane_gpu_context_is_primary(int *primary_out)
{
    int (*get_current)(void **context) = NULL;
    void *current = NULL, *primary = NULL, *call;
    enum cudaStreamCaptureMode mode;
    int device, rc;

    if ((rc = driver_call("cuCtxGetCurrent", 11000, &call)))
        return rc;
    memcpy(&get_current, &call, sizeof(call));
    if (get_current(&current)) {
        snprintf(last_error, sizeof(last_error), "the driver does not tell the current context");
        return LLANE_EGPU;
    }
    if (!current) {
        *primary_out = 1;
        return 0;
    }
    if ((rc = llane_gpu_device_get(&device)) || (rc = relax(&mode)))
        return rc;
    rc = find_primary(device, &primary);
    restore(mode);
    *primary_out = current == primary;
    return rc;
}

/* Any thread asks, perhaps after a reset: the runtime's own call for the mode would make a context. */
uint64_t llane_gpu_context_id(int device)
{
    int (*get_id)(void *context, unsigned long long *id) = NULL;
    int (*exchange)(int *mode) = NULL;
    int mode = cudaStreamCaptureModeRelaxed, is_relaxed;
    unsigned long long id = 0;
    void *primary = NULL, *call;

    if (driver_call("cuThreadExchangeStreamCaptureMode", 11000, &call))
        return 0;
    memcpy(&exchange, &call, sizeof(call));
    if (driver_call("cuCtxGetId", 12000, &call))
        return 0;
    memcpy(&get_id, &call, sizeof(call));
    is_relaxed = exchange(&mode) == 0;
    if (find_primary(device, &primary) || !primary || get_id(primary, &id))
        id = 0;
    if (is_relaxed)
        (void)exchange(&mode);
    return id;
}

int llane_gpu_device_reset(void)
{
    return done("cudaDeviceReset", cudaDeviceReset());
}

/* ---- memory ---- */

int llane_gpu_malloc(size_t bytes, void **out)
{
    return done("cudaMalloc", cudaMalloc(out, bytes));
}

int llane_gpu_free(void *p)
{
    return done("cudaFree", cudaFree(p));
}

int llane_gpu_ipc_export(void *base, struct llane_gpu_ipc_handle *out)
{
    cudaIpcMemHandle_t handle;
    cudaError_t error = cudaIpcGetMemHandle(&handle, base);

    if (error != cudaSuccess)
        return failed("cudaIpcGetMemHandle", error);
    memcpy(out->bytes, &handle, sizeof(handle));
    return 0;
}

int llane_gpu_ipc_open(const struct llane_gpu_ipc_handle *handle, void **out)
{
    cudaIpcMemHandle_t copy;

    memcpy(&copy, handle->bytes, sizeof(copy));
    return done("cudaIpcOpenMemHandle",
                cudaIpcOpenMemHandle(out, copy, cudaIpcMemLazyEnablePeerAccess));
}

int llane_gpu_peer_enable(int peer_device)
{
    cudaError_t error = cudaDeviceEnablePeerAccess(peer_device, 0);

    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return 0;
    }
    return done("cudaDeviceEnablePeerAccess", error);
}

int llane_gpu_host_alloc(size_t bytes, void **host_out, void **device_out)
{
    cudaError_t error = cudaHostAlloc(host_out, bytes, cudaHostAllocPortable | cudaHostAllocMapped);

    if (error != cudaSuccess)
        return failed("cudaHostAlloc", error);
    memset(*host_out, 0, bytes);
    return done("cudaHostGetDevicePointer", cudaHostGetDevicePointer(device_out, *host_out, 0));
}

int llane_gpu_host_register(void *host, size_t bytes, void **device_out)
{
    cudaError_t error =
        cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);

    if (error != cudaSuccess)
        return failed("cudaHostRegister", error);
    error = cudaHostGetDevicePointer(device_out, host, 0);
    if (error != cudaSuccess)
        (void)cudaHostUnregister(host); /* the caller unmaps it */
    return done("cudaHostGetDevicePointer", error);
}

int llane_gpu_memset_async(void *p, int byte, size_t bytes, struct CUstream_st *stream)
{
    return done("cudaMemsetAsync", cudaMemsetAsync(p, byte, bytes, stream));
}

int llane_gpu_memcpy_async(void *to, const void *from, size_t bytes, struct CUstream_st *stream)
{
    return done("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

/* ---- streams and events ---- */

int llane_gpu_stream_create(struct CUstream_st **out)
{
    return done("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(out, cudaStreamNonBlocking));
}

int llane_gpu_stream_destroy(struct CUstream_st *stream)
{
    return done("cudaStreamDestroy", cudaStreamDestroy(stream));
}

int llane_gpu_stream_synchronize(struct CUstream_st *stream)
{
    return done("cudaStreamSynchronize", cudaStreamSynchronize(stream));
}

uint64_t llane_gpu_stream_id(struct CUstream_st *stream)
{
    unsigned long long id = 0;

    return done("cudaStreamGetId", cudaStreamGetId(stream, &id)) ? 0 : id;
}

int llane_gpu_stream_query(struct CUstream_st *stream, int *done_out)
{
    enum cudaStreamCaptureMode mode;
    int rc = relax(&mode);

    if (rc)
        return rc;
    rc = answer("cudaStreamQuery", cudaStreamQuery(stream), done_out);
    restore(mode);
    return rc;
}

int llane_gpu_event_create(int timed, struct CUevent_st **out)
{
    return done("cudaEventCreateWithFlags",
                cudaEventCreateWithFlags(out, timed ? cudaEventDefault : cudaEventDisableTiming));
}

int llane_gpu_event_destroy(struct CUevent_st *event)
{
    return done("cudaEventDestroy", cudaEventDestroy(event));
}

int llane_gpu_event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
    return done("cudaEventRecord", cudaEventRecord(event, stream));
}

int llane_gpu_event_query(struct CUevent_st *event, int *done_out)
{
    enum cudaStreamCaptureMode mode;
    int rc = relax(&mode);

    if (rc)
        return rc;
    rc = answer("cudaEventQuery", cudaEventQuery(event), done_out);
    restore(mode);
    return rc;
}

int llane_gpu_event_elapsed_us(struct CUevent_st *from, struct CUevent_st *to, float *us_out)
{
    float ms = 0;
    enum cudaStreamCaptureMode mode;
    int rc = relax(&mode);

    if (rc)
        return rc;
    rc = done("cudaEventElapsedTime", cudaEventElapsedTime(&ms, from, to));
    restore(mode);
    *us_out = ms * 1000;
    return rc;
}

int llane_gpu_stream_wait_event(struct CUstream_st *stream, struct CUevent_st *event)
{
    return done("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
}

/* ---- stream capture and graphs ---- */

/* What a capturing stream stands at: the next node it captures will depend on `last`. */
struct capture {
    enum cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph;
    const cudaGraphNode_t *last; /* the driver's array, valid until the stream's next call */
    size_t n_last;
};

/* From 12.3 on edges carry data, and the calls that do not ask for it may refuse to answer. What this
 * file adds are full dependencies, whatever the stream's own next edges would be. */
static cudaError_t capture_look(cudaStream_t stream, struct capture *out)
{
#if CUDART_VERSION >= 12030
    const cudaGraphEdgeData *edges = NULL;
#endif

    memset(out, 0, sizeof(*out));
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(stream, &out->status, &out->id, &out->graph, &out->last, &edges,
                                    &out->n_last);
#elif CUDART_VERSION >= 12030
    return cudaStreamGetCaptureInfo_v3(stream, &out->status, &out->id, &out->graph, &out->last,
                                       &edges, &out->n_last);
#else
    return cudaStreamGetCaptureInfo_v2(stream, &out->status, &out->id, &out->graph, &out->last,
                                       &out->n_last);
#endif
}

static cudaError_t node_dependencies(cudaGraphNode_t node, cudaGraphNode_t *list, size_t *n)
{
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependencies(node, list, NULL, n);
#else
    return cudaGraphNodeGetDependencies(node, list, n);
#endif
}

static cudaError_t add_dependency(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to)
{
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, NULL, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

static cudaError_t remove_dependency(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to)
{
#if CUDART_VERSION >= 13000
    return cudaGraphRemoveDependencies(graph, &from, &to, NULL, 1);
#else
    return cudaGraphRemoveDependencies(graph, &from, &to, 1);
#endif
}

static int has_node(const cudaGraphNode_t *list, size_t n, cudaGraphNode_t node)
{
    while (n && list[n - 1] != node)
        n--;
    return n != 0;
}

/* As capture_look, and the stream must be capturing. */
static int capture_require(cudaStream_t stream, struct capture *out)
{
    cudaError_t error = capture_look(stream, out);

    if (error != cudaSuccess)
        return failed("cudaStreamGetCaptureInfo", error);
    if (out->status != cudaStreamCaptureStatusActive) {
        snprintf(last_error, sizeof(last_error), "the stream is not capturing, or no longer can");
        return LLANE_EGPU;
    }
    return 0;
}

int llane_gpu_capture_mode_relax(void)
{
    enum cudaStreamCaptureMode mode;

    return relax(&mode);
}

int llane_gpu_capture_id(struct CUstream_st *stream, uint64_t *id_out)
{
    struct capture capture;
    cudaError_t error = capture_look(stream, &capture);

    if (error != cudaSuccess)
        return failed("cudaStreamGetCaptureInfo", error);
    if (capture.status == cudaStreamCaptureStatusInvalidated)
        return failed("cudaStreamGetCaptureInfo", cudaErrorStreamCaptureInvalidated);
    *id_out = capture.status == cudaStreamCaptureStatusActive ? capture.id : 0;
    return 0;
}

/* The one node that the stream's next one will depend on, NULL if there is none or are several. */
static cudaError_t capture_only_node(cudaStream_t stream, cudaGraphNode_t *out)
{
    struct capture capture;
    cudaError_t error = capture_look(stream, &capture);

    *out = error == cudaSuccess && capture.status == cudaStreamCaptureStatusActive &&
                   capture.n_last == 1
               ? capture.last[0]
               : NULL;
    return error;
}

int llane_gpu_capture_node(struct CUstream_st *stream, void **node_out)
{
    cudaGraphNode_t node;
    cudaError_t error = capture_only_node(stream, &node);

    *node_out = node;
    return done("cudaStreamGetCaptureInfo", error);
}

enum { MAX_SEARCHED = 256 };

/*
 * The nodes that the node begins behind the end of: an edge of programmatic launch does not promise
 * that, and a kernel that comes by one need not wait. As many as there is room for: perhaps not all.
 */
static cudaError_t node_waits_for(cudaGraphNode_t node, cudaGraphNode_t *list, size_t *n)
{
#if CUDART_VERSION >= 12030
    cudaGraphEdgeData edges[MAX_SEARCHED];
    size_t n_edges = *n, n_kept = 0;
    /* Not asked for the edges' data, it fails where there are any such edges. */
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaGraphNodeGetDependencies(node, list, edges, &n_edges);
#else
    cudaError_t error = cudaGraphNodeGetDependencies_v2(node, list, edges, &n_edges);
#endif

    for (size_t i = 0; error == cudaSuccess && i < n_edges; i++)
        if (edges[i].from_port == cudaGraphKernelNodePortDefault)
            list[n_kept++] = list[i];
    *n = n_kept;
    return error;
#else
    return node_dependencies(node, list, n);
#endif
}

/* Nodes to look at, each once. */
struct search {
    cudaGraphNode_t nodes[MAX_SEARCHED];
    size_t n;
};

/* 0 if they are too many. */
static int search_add(struct search *search, const cudaGraphNode_t *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (has_node(search->nodes, search->n, nodes[i]))
            continue;
        if (search->n == MAX_SEARCHED)
            return 0;
        search->nodes[search->n++] = nodes[i];
    }
    return 1;
}

int llane_gpu_capture_is_behind(struct CUstream_st *stream, const void *node, int *is_behind_out)
{
    struct capture capture;
    struct search search;
    cudaGraphNode_t before[MAX_SEARCHED];
    int rc = capture_require(stream, &capture);

    *is_behind_out = 0;
    search.n = 0;
    if (rc || !search_add(&search, capture.last, capture.n_last))
        return rc;
    for (size_t i = 0; i < search.n; i++) {
        size_t n = MAX_SEARCHED;
        cudaError_t error;

        if (search.nodes[i] == node) {
            *is_behind_out = 1;
            return 0;
        }
        error = node_waits_for(search.nodes[i], before, &n);
        if (error != cudaSuccess)
            return failed("cudaGraphNodeGetDependencies", error);
        if (!search_add(&search, before, n))
            return 0;
    }
    return 0;
}

int llane_gpu_capture_wait_external(struct CUstream_st *stream, struct CUevent_st *event)
{
    return done("cudaStreamWaitEvent(external)",
                cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
}

/*
 * A node added by hand records at every launch of the graph, which is what "external" means, and is
 * not in the set that the stream's next node will depend on. That it never joins the stream is
 * allowed for nodes that were added by hand.
 */
int llane_gpu_capture_record_external(struct CUstream_st *stream, struct CUevent_st *event,
                                      void **node_out)
{
    struct capture capture;
    cudaGraphNode_t node = NULL;
    cudaError_t error;
    int rc = capture_require(stream, &capture);

    if (rc)
        return rc;
    error = cudaGraphAddEventRecordNode(&node, capture.graph, capture.last, capture.n_last, event);
    if (error != cudaSuccess)
        return failed("cudaGraphAddEventRecordNode", error);
    *node_out = node;
    return 0;
}

/*
 * Moves the node's edges to what the stream stands at. Those it had came before that: only a longer way
 * to the same order, and edges that would keep the graph's kernels from being launched early. They stay
 * where the program allocates or frees memory in its capture: CUDA removes no edge of such a graph.
 */
int llane_gpu_capture_record_extend(struct CUstream_st *stream, void *node)
{
    struct capture capture;
    cudaGraphNode_t *old;
    size_t n_old = 0;
    cudaError_t error;
    int rc = capture_require(stream, &capture);

    if (rc)
        return rc;
    error = node_dependencies(node, NULL, &n_old);
    if (error != cudaSuccess)
        return failed("cudaGraphNodeGetDependencies", error);
    old = calloc(n_old + 1, sizeof(*old));
    if (!old)
        return LLANE_ENOMEM;
    error = n_old ? node_dependencies(node, old, &n_old) : cudaSuccess;
    if (error != cudaSuccess) {
        rc = failed("cudaGraphNodeGetDependencies", error);
        goto undo_old;
    }
    for (size_t i = 0; i < capture.n_last && !rc; i++)
        if (!has_node(old, n_old, capture.last[i])) /* the driver refuses an edge twice */
            rc = done("cudaGraphAddDependencies",
                      add_dependency(capture.graph, capture.last[i], node));
    for (size_t i = 0; i < n_old && !rc; i++)
        if (!has_node(capture.last, capture.n_last, old[i]) &&
            remove_dependency(capture.graph, old[i], node) != cudaSuccess)
            (void)cudaGetLastError();
undo_old:
    free(old);
    return rc;
}

int llane_gpu_capture_retain(struct CUstream_st *stream, void (*release)(void *arg), void *arg)
{
    struct capture capture;
    cudaUserObject_t object;
    cudaError_t error;
    int rc = capture_require(stream, &capture);

    if (rc)
        return rc;
    error = cudaUserObjectCreate(&object, arg, release, 1, cudaUserObjectNoDestructorSync);
    if (error != cudaSuccess)
        return failed("cudaUserObjectCreate", error);
    error = cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove);
    return done("cudaGraphRetainUserObject", error);
}

int llane_gpu_capture_begin(struct CUstream_st *stream)
{
    return done("cudaStreamBeginCapture",
                cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

int llane_gpu_capture_end_graph(struct CUstream_st *stream, struct CUgraph_st **graph_out)
{
    return done("cudaStreamEndCapture", cudaStreamEndCapture(stream, graph_out));
}

int llane_gpu_graph_instantiate(struct CUgraph_st *graph, struct CUgraphExec_st **exec_out)
{
    int rc = done("cudaGraphInstantiate", cudaGraphInstantiate(exec_out, graph, 0));

    (void)cudaGraphDestroy(graph);
    return rc;
}

int llane_gpu_capture_end(struct CUstream_st *stream, struct CUgraphExec_st **exec_out)
{
    struct CUgraph_st *graph = NULL;
    int rc = llane_gpu_capture_end_graph(stream, &graph);

    return rc ? rc : llane_gpu_graph_instantiate(graph, exec_out);
}

int llane_gpu_graph_launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
    return done("cudaGraphLaunch", cudaGraphLaunch(exec, stream));
}

int llane_gpu_graph_destroy(struct CUgraphExec_st *exec)
{
    return done("cudaGraphExecDestroy", cudaGraphExecDestroy(exec));
}

/* ---- kernels ---- */

/* Kernels wait for their predecessor from 9.0 on (device.cuh). What counts is what the code that runs
 * was compiled for: a newer GPU may run PTX of an older one, in which there is no wait. */
static int waits_by_itself(const void *kernel)
{
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);

    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess && attributes.ptxVersion >= 90;
}

uint32_t llane_gpu_spins_per_look(void)
{
    return 1024;
}

/*
 * Whether no more than one kernel is to come as soon as the node lets go, as far as the capture has come. A
 * program may fork another one off it, which comes with ours then, and whose blocks nobody has counted.
 */
static int has_one_early(cudaGraphNode_t node)
{
#if CUDART_VERSION >= 12030
    enum { MOST = 16 };
    cudaGraphNode_t list[MOST];
    cudaGraphEdgeData edges[MOST];
    size_t n = MOST, n_early = 0;
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaGraphNodeGetDependentNodes(node, list, edges, &n);
#else
    cudaError_t error = cudaGraphNodeGetDependentNodes_v2(node, list, edges, &n);
#endif

    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    if (n == MOST)
        return 0;
    for (size_t i = 0; i < n; i++)
        n_early += edges[i].from_port != cudaGraphKernelNodePortDefault;
    return n_early <= 1;
#else
    (void)node;
    return 0;
#endif
}

static int both_fit(const struct cudaKernelNodeParams *before,
                    const struct llane_gpu_launch *launch)
{
    uint32_t n_threads =
        before->blockDim.x > launch->n_threads ? before->blockDim.x : launch->n_threads;

    return before->gridDim.x + launch->n_blocks <= launch->fit[llane_width_of(n_threads)];
}

/*
 * The lane's kernel that the launch comes early behind learns that it may let it go at once: no graph
 * node knows what will depend on it. Where that fails, it lets it go after its last poll, as ever.
 */
static void let_go_early(cudaGraphNode_t before, const struct llane_gpu_launch *launch)
{
    struct cudaKernelNodeParams params;
    _Alignas(16) unsigned char args[sizeof(struct llane_all_reduce_args) + 256];
    void *list[1] = {args};
    uint32_t *flags = (uint32_t *)(void *)(args + offsetof(struct llane_all_reduce_args, flags));
    cudaError_t error = cudaGraphKernelNodeGetParams(before, &params);

    if (error == cudaSuccess && params.kernelParams && launch->args_bytes <= sizeof(args) &&
        both_fit(&params, launch) && has_one_early(before)) {
        /* Launches of one chain have arguments of one kind. */
        memcpy(args, params.kernelParams[0], launch->args_bytes);
        *flags |= LLANE_FLAG_EARLY;
        params.kernelParams = list;
        error = cudaGraphKernelNodeSetParams(before, &params);
    }
    if (error != cudaSuccess)
        (void)cudaGetLastError();
}

int llane_gpu_launch(const struct llane_gpu_launch *launch)
{
    void *args[1];
    cudaGraphNode_t before = NULL, after = NULL;
    cudaError_t error = launch->chain ? capture_only_node(launch->stream, &before) : cudaSuccess;
    cudaLaunchAttribute early = {
        .id = cudaLaunchAttributeProgrammaticStreamSerialization,
        .val.programmaticStreamSerializationAllowed = 1,
    };
    const cudaLaunchConfig_t config = {
        .gridDim = {launch->n_blocks, 1, 1},
        .blockDim = {launch->n_threads, 1, 1},
        .stream = launch->stream,
        .attrs = &early,
        .numAttrs = before && before == *launch->chain && waits_by_itself(launch->kernel),
    };

    if (error != cudaSuccess)
        return failed("cudaStreamGetCaptureInfo", error);
    /* The runtime knows the struct's size from the kernel and only reads it. */
    memcpy(args, &launch->args, sizeof(args));
    error = cudaLaunchKernelExC(&config, launch->kernel, args);
    if (error == cudaSuccess && config.numAttrs != 0)
        let_go_early(before, launch);
    if (error == cudaSuccess && launch->chain) {
        error = capture_only_node(launch->stream, &after);
        *launch->chain = after;
    }
    return done("cudaLaunchKernelExC", error);
}

#ifdef HAS_NVTX
static nvtxDomainHandle_t range_domain;
static pthread_once_t range_once = PTHREAD_ONCE_INIT;

static void create_range_domain(void)
{
    range_domain = nvtxDomainCreateA("llane");
}

void llane_gpu_range_begin(const char *name)
{
    const nvtxEventAttributes_t attributes = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };
    pthread_once(&range_once, create_range_domain);
    (void)nvtxDomainRangePushEx(range_domain, &attributes);
}

void llane_gpu_range_end(void)
{
    (void)nvtxDomainRangePop(range_domain);
}
#else
void llane_gpu_range_begin(const char *name)
{
    (void)name;
}

void llane_gpu_range_end(void)
{
}
#endif

/* A multiprocessor has four parts. Blocks of fewer warps fill them unevenly as they come and go, so that
 * fewer fit than the driver says: 8 ranks with two launches of 64 blocks of 64 threads each, which it had
 * room for, hung on one H200. */
enum { EVEN_THREADS = 128 };

int llane_gpu_kernel_load(const void *kernel, uint32_t n_threads, uint32_t *blocks_per_sm_out)
{
    struct cudaFuncAttributes attributes;
    int counted = n_threads > EVEN_THREADS ? (int)n_threads : EVEN_THREADS;
    int n_blocks = 0;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); /* this loads it */

    if (error != cudaSuccess)
        return failed("cudaFuncGetAttributes", error);
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n_blocks, kernel, counted, 0);
    if (error != cudaSuccess)
        return failed("cudaOccupancyMaxActiveBlocksPerMultiprocessor", error);
    *blocks_per_sm_out = (uint32_t)n_blocks;
    return 0;
}
