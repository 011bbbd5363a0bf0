/*
 * Proves on a GPU with a real NCCL that all-reduces captured in child graphs, in a conditional graph's
 * body, in an updated graph, beside nodes that allocate and free memory, on two streams, on one of high
 * priority and by the relaxed, the thread's and the global capture mode do what NCCL does there, which may
 * be to refuse. RANK, WORLD_SIZE and RANKS_DIR (an empty folder) come from the caller, as does whether
 * llane is there: both runs must print the same.
 */
#include "emu/ranks.c"
#include "emu/values.c"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum { COUNT = 100, LARGE = 1 << 20 };

static struct {
    int rank, n, n_wrong, n_ids;
    cudaStream_t stream;
    char *in, *out, *host;
} g;

static void say(const char *what, int code)
{
    if (g.rank == 0)
        printf("graph: %s: %d\n", what, code);
}

static void fill(uint64_t call, size_t count)
{
    values_fill(ncclFloat32, ncclSum, g.rank, call, count, g.host);
    RANKS_CHECK(cudaMemcpyAsync(g.in, g.host, 4 * count, cudaMemcpyDefault, g.stream));
    RANKS_CHECK(cudaMemsetAsync(g.out, 0xa5, 4 * count, g.stream));
    RANKS_CHECK(cudaStreamSynchronize(g.stream));
}

static void check(const char *what, uint64_t call, size_t count)
{
    char words[160] = "";
    RANKS_CHECK(cudaMemcpyAsync(g.host, g.out, 4 * count, cudaMemcpyDefault, g.stream));
    RANKS_CHECK(cudaStreamSynchronize(g.stream));
    size_t n = values_check(ncclFloat32, ncclSum, g.n, call, count, g.host, words, sizeof(words));
    say(what, n != 0);
    if (n)
        printf("    WRONG rank %d, %s: %s\n", g.rank, what, words);
    g.n_wrong += n != 0;
}

static ncclResult_t sum(ncclComm_t comm, size_t count)
{
    return ncclAllReduce(g.in, g.out, count, ncclFloat32, ncclSum, comm, g.stream);
}

static ncclComm_t new_comm(void)
{
    char name[16];
    ncclUniqueId id;
    ncclComm_t comm;
    snprintf(name, sizeof(name), "id.%d", g.n_ids++);
    ranks_unique_id(name, ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&comm, g.n, id, g.rank));
    fill(1, COUNT);
    RANKS_CHECK(sum(comm, COUNT)); /* a lane, where there is one, is live from here on */
    check("eager", 1, COUNT);
    return comm;
}

static cudaGraph_t capture(ncclComm_t comm, size_t count, enum cudaStreamCaptureMode mode)
{
    cudaGraph_t graph;
    RANKS_CHECK(cudaStreamBeginCapture(g.stream, mode));
    /* Each comes early behind the one before, whose node learns of it then, and whose result it reads
     * (cases.md 13): the largest of equal sums. */
    RANKS_CHECK(sum(comm, count));
    for (int i = 0; i < 2; i++)
        RANKS_CHECK(ncclAllReduce(g.out, g.out, count, ncclFloat32, ncclMax, comm, g.stream));
    RANKS_CHECK(cudaStreamEndCapture(g.stream, &graph));
    return graph;
}

static void replay(const char *what, cudaGraphExec_t exec, size_t count)
{
    for (uint64_t call = 10; call < 13; call++) {
        fill(call, count);
        RANKS_CHECK(cudaGraphLaunch(exec, g.stream));
        check(what, call, count);
    }
}

static void modes(ncclComm_t comm)
{
    static const enum cudaStreamCaptureMode all[] = {cudaStreamCaptureModeGlobal,
                                                     cudaStreamCaptureModeThreadLocal,
                                                     cudaStreamCaptureModeRelaxed};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        cudaGraph_t graph = capture(comm, COUNT, all[i]);
        cudaGraphExec_t exec;
        RANKS_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        replay("capture mode", exec, COUNT);
        RANKS_CHECK(cudaGraphExecDestroy(exec));
        RANKS_CHECK(cudaGraphDestroy(graph));
    }
}

static void child_graph(ncclComm_t comm, size_t count)
{
    cudaGraph_t child = capture(comm, count, cudaStreamCaptureModeRelaxed), parent;
    cudaGraphNode_t node;
    cudaGraphExec_t exec = NULL;
    RANKS_CHECK(cudaGraphCreate(&parent, 0));
    int code = (int)cudaGraphAddChildGraphNode(&node, parent, NULL, 0, child);
    say("child graph: added", code);
    code = code ? code : (int)cudaGraphInstantiate(&exec, parent, 0);
    say("child graph: instantiated", code);
    RANKS_CHECK(cudaGraphDestroy(child)); /* the parent has its own */
    if (!code) {
        replay("child graph: replayed", exec, count);
        RANKS_CHECK(cudaGraphExecDestroy(exec));
    }
    RANKS_CHECK(cudaGraphDestroy(parent));
    (void)cudaGetLastError();
}

/* Calls in turns on two streams of one capture: their order is that of the calls. */
static void forked_graph(ncclComm_t comm)
{
    cudaStream_t other;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    RANKS_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    RANKS_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    RANKS_CHECK(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeRelaxed));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(cudaEventRecord(event, g.stream));
    RANKS_CHECK(cudaStreamWaitEvent(other, event, 0));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(ncclAllReduce(g.in, g.out, COUNT, ncclFloat32, ncclSum, comm, other));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(cudaEventRecord(event, other));
    RANKS_CHECK(cudaStreamWaitEvent(g.stream, event, 0));
    RANKS_CHECK(cudaStreamEndCapture(g.stream, &graph));
    RANKS_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    replay("forked graph", exec, COUNT);
    RANKS_CHECK(cudaGraphExecDestroy(exec));
    RANKS_CHECK(cudaGraphDestroy(graph));
    RANKS_CHECK(cudaEventDestroy(event));
    RANKS_CHECK(cudaStreamDestroy(other));
}

/* CUDA removes no node and no edge of a graph that allocates or frees memory. */
static void memory_graph(ncclComm_t comm)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *memory;
    RANKS_CHECK(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeRelaxed));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(cudaMallocAsync(&memory, 4 * COUNT, g.stream));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(cudaMemcpyAsync(memory, g.out, 4 * COUNT, cudaMemcpyDefault, g.stream));
    RANKS_CHECK(cudaMemsetAsync(g.out, 0xa5, 4 * COUNT, g.stream));
    RANKS_CHECK(cudaMemcpyAsync(g.out, memory, 4 * COUNT, cudaMemcpyDefault, g.stream));
    RANKS_CHECK(cudaFreeAsync(memory, g.stream));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(sum(comm, COUNT));
    RANKS_CHECK(cudaStreamEndCapture(g.stream, &graph));
    RANKS_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    replay("graph with memory", exec, COUNT);
    RANKS_CHECK(cudaGraphExecDestroy(exec));
    RANKS_CHECK(cudaGraphDestroy(graph));
}

/* Kernels keep the priority of the stream that captured them. */
static void priorities(ncclComm_t comm)
{
    enum { MOST = 64 };
    int least, greatest, n_others = 0;
    cudaStream_t before = g.stream;
    cudaGraphNode_t nodes[MOST];
    size_t n = MOST;
    RANKS_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    RANKS_CHECK(cudaStreamCreateWithPriority(&g.stream, cudaStreamNonBlocking, greatest));
    cudaGraph_t graph = capture(comm, COUNT, cudaStreamCaptureModeRelaxed);
    RANKS_CHECK(cudaGraphGetNodes(graph, nodes, &n));
    for (size_t i = 0; i < n; i++) {
        enum cudaGraphNodeType type;
        union cudaLaunchAttributeValue value = {0};
        RANKS_CHECK(cudaGraphNodeGetType(nodes[i], &type));
        if (type == cudaGraphNodeTypeKernel) {
            RANKS_CHECK(
                cudaGraphKernelNodeGetAttribute(nodes[i], cudaLaunchAttributePriority, &value));
            n_others += value.priority != greatest;
        }
    }
    say("priorities: kernels of another", n_others);
    RANKS_CHECK(cudaGraphDestroy(graph));
    RANKS_CHECK(cudaStreamDestroy(g.stream));
    g.stream = before;
}

/* A second capture of the same calls updates what the first became, as programs do whose shapes vary. */
static void updated_graph(ncclComm_t comm)
{
    cudaGraph_t first = capture(comm, COUNT, cudaStreamCaptureModeRelaxed);
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo info;
    RANKS_CHECK(cudaGraphInstantiate(&exec, first, 0));
    cudaGraph_t second = capture(comm, COUNT, cudaStreamCaptureModeRelaxed);
    say("updated graph: updated", (int)cudaGraphExecUpdate(exec, second, &info));
    (void)cudaGetLastError();
    RANKS_CHECK(cudaGraphDestroy(first));
    replay("updated graph: replayed", exec, COUNT);
    RANKS_CHECK(cudaGraphExecDestroy(exec));
    RANKS_CHECK(cudaGraphDestroy(second));
}

#if CUDART_VERSION >= 12040
static cudaError_t add_if(cudaGraph_t graph, cudaGraph_t *body_out)
{
    cudaGraphConditionalHandle handle;
    cudaGraphNode_t node;
    struct cudaGraphNodeParams params = {.type = cudaGraphNodeTypeConditional};
    cudaError_t error =
        cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault);
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeIf;
    params.conditional.size = 1;
    if (error == cudaSuccess) {
#if CUDART_VERSION >= 13000
        error = cudaGraphAddNode(&node, graph, NULL, NULL, 0, &params);
#else
        error = cudaGraphAddNode(&node, graph, NULL, 0, &params);
#endif
    }
    *body_out = error == cudaSuccess ? params.conditional.phGraph_out[0] : NULL;
    return error;
}

/* Events have no place in a conditional body, so NCCL may refuse: whether it does is compared. Last, since
 * a communicator that refused a launch is of no more use. */
static void conditional_graph(void)
{
    ncclComm_t comm = new_comm();
    cudaGraph_t graph, body, same;
    cudaGraphExec_t exec = NULL;
    RANKS_CHECK(cudaGraphCreate(&graph, 0));
    int code = (int)add_if(graph, &body);
    say("conditional graph: made", code);
    if (!code) {
        RANKS_CHECK(cudaStreamBeginCaptureToGraph(g.stream, body, NULL, NULL, 0,
                                                  cudaStreamCaptureModeRelaxed));
        int refused = sum(comm, COUNT) != ncclSuccess;
        say("conditional graph: all-reduce refused", refused);
        code = (int)cudaStreamEndCapture(g.stream, &same);
        say("conditional graph: capture failed", code != 0);
        code = code || refused ? 1 : (int)cudaGraphInstantiate(&exec, graph, 0);
        say("conditional graph: instantiated", code);
    }
    if (!code) {
        replay("conditional graph: replayed", exec, COUNT);
        RANKS_CHECK(cudaGraphExecDestroy(exec));
    }
    RANKS_CHECK(cudaGraphDestroy(graph));
    (void)cudaGetLastError();
    ranks_barrier("conditional");
    (void)ncclCommAbort(comm);
}
#else
static void conditional_graph(void)
{
    say("conditional graph: not in this CUDA", 0);
}
#endif

int main(void)
{
    int n_devices = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    g.rank = ranks_rank();
    g.n = ranks_size();
    RANKS_CHECK(cudaGetDeviceCount(&n_devices));
    RANKS_CHECK(cudaSetDevice(g.rank % n_devices));
    RANKS_CHECK(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    RANKS_CHECK(cudaMalloc((void **)&g.in, 4 * LARGE));
    RANKS_CHECK(cudaMalloc((void **)&g.out, 4 * LARGE));
    g.host = malloc(4 * LARGE);
    ncclComm_t comm = new_comm();
    modes(comm);
    child_graph(comm, COUNT);
    child_graph(comm, LARGE);
    updated_graph(comm);
    forked_graph(comm);
    memory_graph(comm);
    priorities(comm);
    RANKS_CHECK(ncclCommDestroy(comm));
    conditional_graph();
    printf("rank %d: %s\n", g.rank, g.n_wrong ? "WRONG" : "ok");
    return g.n_wrong ? 1 : 0;
}
