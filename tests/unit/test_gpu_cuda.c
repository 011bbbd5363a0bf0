// Proves that gpu_cuda.c finds what a captured stream comes after in graphs as CUDA describes them, edges
// of programmatic launch among them, keeps one record node behind all of a graph, launches a kernel early
// behind its lane's last one alone, tells that one to let it go where both fit and no other comes with it,
// and makes no context where it asks for one. Graphs and driver are made up: no GPU.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#if defined(HAVE_CUDA) && CUDART_VERSION >= 12030

#undef cudaStreamGetCaptureInfo
#undef cudaGraphNodeGetDependencies
#define cudaStreamGetCaptureInfo made_up_capture_info
#define cudaStreamGetCaptureInfo_v3 made_up_capture_info
#if CUDART_VERSION >= 13000
#define cudaGraphNodeGetDependencies made_up_dependencies
#else
#define cudaGraphNodeGetDependencies(node, list, n) made_up_dependencies(node, list, NULL, n)
#endif
#define cudaGraphNodeGetDependencies_v2 made_up_dependencies
#undef cudaGraphNodeGetDependentNodes
#define cudaGraphNodeGetDependentNodes made_up_dependents
#define cudaGraphNodeGetDependentNodes_v2 made_up_dependents
#undef cudaGraphAddDependencies
#undef cudaGraphRemoveDependencies
#if CUDART_VERSION >= 13000
#define cudaGraphAddDependencies made_up_add
#define cudaGraphRemoveDependencies made_up_remove
#else
#define cudaGraphAddDependencies(graph, from, to, n) made_up_add(graph, from, to, NULL, n)
#define cudaGraphRemoveDependencies(graph, from, to, n) made_up_remove(graph, from, to, NULL, n)
#endif
#define cudaGraphAddEventRecordNode made_up_add_record
#undef cudaLaunchKernelExC
#define cudaLaunchKernelExC made_up_launch
#define cudaGraphKernelNodeGetParams made_up_get_params
#define cudaGraphKernelNodeSetParams made_up_set_params
#undef cudaFuncGetAttributes
#define cudaFuncGetAttributes made_up_attributes
#undef cudaOccupancyMaxActiveBlocksPerMultiprocessor
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor made_up_occupancy
#undef cudaGetDriverEntryPoint
#define cudaGetDriverEntryPoint made_up_entry_point
#define cudaGetDriverEntryPointByVersion made_up_entry_point_by_version
#undef cudaThreadExchangeStreamCaptureMode
#define cudaThreadExchangeStreamCaptureMode made_up_runtime_exchange

enum { MAX = 600 };

/* Node i hangs on to[], each time at its end or, is_early, at its sign to dependents. */
static struct made_up {
    struct {
        int n, to[MAX], is_early[MAX];
    } nodes[MAX];
    int last[MAX], n_last; /* what the stream's next one hangs on */
    cudaGraphNode_t last_out[MAX];
    int next;       /* the node that a call makes */
    int has_memory; /* nodes that allocate or free: nothing of the graph may be removed */
} g;

static cudaGraphNode_t name(int node)
{
    return (cudaGraphNode_t)(uintptr_t)(node + 1);
}

static cudaError_t made_up_capture_info(cudaStream_t stream,
                                        enum cudaStreamCaptureStatus *status_out,
                                        unsigned long long *id_out, cudaGraph_t *graph_out,
                                        const cudaGraphNode_t **last_out,
                                        const cudaGraphEdgeData **edges_out, size_t *n_out)
{
    (void)stream;
    for (int i = 0; i < g.n_last; i++) {
        g.last_out[i] = name(g.last[i]);
    }
    *status_out = cudaStreamCaptureStatusActive;
    *id_out = 1;
    *graph_out = NULL;
    *last_out = g.last_out;
    *edges_out = NULL;
    *n_out = (size_t)g.n_last;
    return cudaSuccess;
}

/* As the runtime's manual has it. */
static cudaError_t made_up_dependencies(cudaGraphNode_t of, cudaGraphNode_t *list,
                                        cudaGraphEdgeData *edges, size_t *n_inout)
{
    int node = (int)(uintptr_t)of - 1;
    size_t n = (size_t)g.nodes[node].n;
    for (size_t i = 0; i < n; i++) {
        if (!edges && g.nodes[node].is_early[i]) {
            return cudaErrorLossyQuery;
        }
    }
    n = list && *n_inout < n ? *n_inout : n;
    for (size_t i = 0; i < n && list; i++) {
        list[i] = name(g.nodes[node].to[i]);
        if (edges) {
            memset(&edges[i], 0, sizeof edges[i]);
            edges[i].type = g.nodes[node].is_early[i] ? cudaGraphDependencyTypeProgrammatic : 0;
            edges[i].from_port =
                g.nodes[node].is_early[i] ? cudaGraphKernelNodePortProgrammatic : 0;
        }
    }
    *n_inout = n;
    return cudaSuccess;
}

static cudaError_t made_up_dependents(cudaGraphNode_t of, cudaGraphNode_t *list,
                                      cudaGraphEdgeData *edges, size_t *n_inout)
{
    int node = (int)(uintptr_t)of - 1;
    size_t n = 0;
    for (int to = 0; to < MAX; to++) {
        for (int i = 0; i < g.nodes[to].n && n < *n_inout; i++) {
            if (g.nodes[to].to[i] != node) {
                continue;
            }
            if (!edges) {
                return cudaErrorLossyQuery;
            }
            memset(&edges[n], 0, sizeof edges[n]);
            edges[n].from_port = g.nodes[to].is_early[i] ? cudaGraphKernelNodePortProgrammatic : 0;
            list[n++] = name(to);
        }
    }
    *n_inout = n;
    return cudaSuccess;
}

static int number(cudaGraphNode_t node)
{
    return (int)(uintptr_t)node - 1;
}

static int find_edge(int from, int to)
{
    int i = 0;
    while (i < g.nodes[to].n && g.nodes[to].to[i] != from) {
        i++;
    }
    return i < g.nodes[to].n ? i : -1;
}

static void edge(int from, int to, int is_early)
{
    int i = g.nodes[to].n++;
    g.nodes[to].to[i] = from;
    g.nodes[to].is_early[i] = is_early;
}

static cudaError_t made_up_add(cudaGraph_t graph, const cudaGraphNode_t *from,
                               const cudaGraphNode_t *to, const cudaGraphEdgeData *data, size_t n)
{
    (void)graph;
    for (size_t i = 0; i < n; i++) {
        if (data || find_edge(number(from[i]), number(to[i])) >= 0) {
            return cudaErrorInvalidValue;
        }
        edge(number(from[i]), number(to[i]), 0);
    }
    return cudaSuccess;
}

static cudaError_t made_up_remove(cudaGraph_t graph, const cudaGraphNode_t *from,
                                  const cudaGraphNode_t *to, const cudaGraphEdgeData *data,
                                  size_t n)
{
    (void)graph;
    if (g.has_memory) {
        return cudaErrorNotSupported;
    }
    for (size_t i = 0; i < n; i++) {
        int of = number(to[i]), at = find_edge(number(from[i]), of);
        if (data || at < 0) {
            return cudaErrorInvalidValue;
        }
        g.nodes[of].to[at] = g.nodes[of].to[--g.nodes[of].n];
    }
    return cudaSuccess;
}

static cudaError_t made_up_add_record(cudaGraphNode_t *out, cudaGraph_t graph,
                                      const cudaGraphNode_t *list, size_t n, cudaEvent_t event)
{
    (void)graph;
    (void)event;
    for (size_t i = 0; i < n; i++) {
        edge(number(list[i]), g.next, 0);
    }
    *out = name(g.next++);
    return cudaSuccess;
}

/* Captured: a node behind what the stream stands at. */
static cudaError_t made_up_launch(const cudaLaunchConfig_t *config, const void *function,
                                  void **args)
{
    (void)function;
    (void)args;
    for (int i = 0; i < g.n_last; i++) {
        edge(g.last[i], g.next, config->numAttrs != 0);
    }
    g.n_last = 1;
    g.last[0] = g.next++;
    return cudaSuccess;
}

/* The one kernel node whose arguments anybody asks for, and what came of it. */
static struct {
    struct cudaKernelNodeParams params, set;
    void *list[1];
    unsigned char args[512], set_args[512];
    size_t args_bytes;
    int n_sets, ptx_version;
    cudaError_t get_error, set_error;
} kernel;

static cudaError_t made_up_get_params(cudaGraphNode_t node, struct cudaKernelNodeParams *out)
{
    (void)node;
    *out = kernel.params;
    return kernel.get_error;
}

static cudaError_t made_up_set_params(cudaGraphNode_t node,
                                      const struct cudaKernelNodeParams *params)
{
    (void)node;
    kernel.n_sets++;
    kernel.set = *params;
    memcpy(kernel.set_args, params->kernelParams[0], kernel.args_bytes);
    return kernel.set_error;
}

static cudaError_t made_up_attributes(struct cudaFuncAttributes *out, const void *function)
{
    (void)function;
    memset(out, 0, sizeof *out);
    out->ptxVersion = kernel.ptx_version;
    return cudaSuccess;
}

/* A multiprocessor with room for 1024 threads. */
static cudaError_t made_up_occupancy(int *out, const void *function, int n_threads, size_t memory)
{
    (void)function;
    (void)memory;
    *out = 1024 / n_threads;
    return cudaSuccess;
}

/* A driver whose device 1 has a context, or none. */
static struct {
    int is_active, mode, mode_when_asked, n_runtime_exchanges, n_retained;
} driver;

static int made_up_exchange(int *mode)
{
    int before = driver.mode;
    driver.mode = *mode;
    *mode = before;
    return 0;
}

static int made_up_get_state(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = device == 1 && driver.is_active;
    return 0;
}

static int made_up_retain(void **context, int device)
{
    *context = &driver;
    driver.mode_when_asked = driver.mode;
    driver.n_retained++;
    return device != 1;
}

static int made_up_release(int device)
{
    driver.n_retained--;
    return device != 1;
}

static int made_up_get_id(void *context, unsigned long long *id)
{
    *id = 77;
    return context != &driver;
}

/* The runtime's own would first make a context for the thread. */
static cudaError_t made_up_runtime_exchange(enum cudaStreamCaptureMode *mode)
{
    (void)mode;
    driver.n_runtime_exchanges++;
    return cudaSuccess;
}

static cudaError_t made_up_entry_point(const char *symbol, void **out, unsigned long long flags,
                                       enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *symbol;
        void (*call)(void);
    } calls[] = {
        {"cuThreadExchangeStreamCaptureMode", (void (*)(void))made_up_exchange},
        {"cuDevicePrimaryCtxGetState", (void (*)(void))made_up_get_state},
        {"cuDevicePrimaryCtxRetain", (void (*)(void))made_up_retain},
        {"cuDevicePrimaryCtxRelease", (void (*)(void))made_up_release},
        {"cuCtxGetId", (void (*)(void))made_up_get_id},
    };
    (void)flags;
    *found = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(symbol, calls[i].symbol) == 0) {
            memcpy(out, &calls[i].call, sizeof *out);
            *found = cudaDriverEntryPointSuccess;
        }
    }
    return cudaSuccess;
}

__attribute__((unused)) /* before CUDA 12.5 */
static cudaError_t
made_up_entry_point_by_version(const char *symbol, void **out, unsigned version,
                               unsigned long long flags,
                               enum cudaDriverEntryPointQueryResult *found)
{
    (void)version;
    return made_up_entry_point(symbol, out, flags, found);
}

#include "../../plugin/gpu_cuda.c"

static int is_behind(int node)
{
    int is_behind = -1;
    assert_int_equal(llane_gpu_capture_is_behind(NULL, name(node), &is_behind), 0);
    return is_behind;
}

static void stand_at(int node)
{
    g.last[g.n_last++] = node;
}

static int begin(void **state)
{
    (void)state;
    memset(&g, 0, sizeof g);
    return 0;
}

/* 0, 1 and 2 are a lane's, launched early one behind the other; the stream was forked after 1. */
static void behind__stream_forked_off_a_chain__is_not(void **state)
{
    (void)state;
    edge(0, 1, 1);
    edge(1, 2, 1);
    stand_at(1);
    assert_int_equal(is_behind(1), 1);
    assert_int_equal(is_behind(2), 0);
}

static void behind__chain_beside_a_way_of_ends__is(void **state)
{
    (void)state;
    edge(0, 1, 1); /* another's chain */
    edge(1, 3, 0);
    edge(2, 3, 0);
    stand_at(3);
    assert_int_equal(is_behind(2), 1);
}

/* 1 is a kernel of the program's that may end before 0 does. */
static void behind__early_launch_alone__is_not(void **state)
{
    (void)state;
    edge(0, 1, 1);
    edge(1, 2, 0);
    stand_at(2);
    assert_int_equal(is_behind(0), 0);
}

static void behind__early_and_late_edges_of_one_node__follows_the_late(void **state)
{
    (void)state;
    edge(0, 3, 1);
    edge(1, 3, 0);
    edge(2, 3, 1);
    stand_at(3);
    assert_int_equal(is_behind(0), 0);
    assert_int_equal(is_behind(1), 1);
    assert_int_equal(is_behind(2), 0);
}

static void behind__too_far_to_search__is_not(void **state)
{
    (void)state;
    for (int i = 0; i + 1 < MAX; i++) {
        edge(i, i + 1, 0);
    }
    stand_at(MAX - 1);
    assert_int_equal(is_behind(MAX - 200), 1);
    assert_int_equal(is_behind(0), 0);
}

static void behind__too_wide_to_search__is_not(void **state)
{
    (void)state;
    for (int i = 0; i + 1 < MAX; i++) {
        edge(i, MAX - 1, 0);
    }
    stand_at(MAX - 1);
    assert_int_equal(is_behind(MAX - 2), 0);
}

static void move_to(int node)
{
    g.n_last = 0;
    stand_at(node);
}

/* The record node of a graph of which the stream has captured node 0, and then one more each time. */
static int extend(void *record, int to)
{
    edge(to - 1, to, 0);
    move_to(to);
    return llane_gpu_capture_record_extend(NULL, record);
}

static void record__extended__hangs_on_what_was_captured_last_alone(void **state)
{
    void *record = NULL;
    (void)state;
    g.next = 100;
    stand_at(0);
    assert_int_equal(llane_gpu_capture_record_external(NULL, NULL, &record), 0);
    assert_int_equal(find_edge(0, 100), 0);
    assert_int_equal(g.last[0], 0); /* nothing comes behind the record */
    assert_int_equal(extend(record, 1), 0);
    assert_int_equal(extend(record, 2), 0);
    assert_int_equal(llane_gpu_capture_record_extend(NULL, record), 0); /* it does already */
    assert_int_equal(g.nodes[100].n, 1);
    assert_int_equal(find_edge(2, 100), 0);
    stand_at(1);
    assert_int_equal(llane_gpu_capture_record_extend(NULL, record), 0);
    assert_int_equal(g.nodes[100].n, 2);
}

/* A program that allocates in its capture: CUDA removes no edge of such a graph. */
static void record__edges_cannot_be_removed__hangs_on_all(void **state)
{
    void *record = NULL;
    (void)state;
    g.next = 100;
    g.has_memory = 1;
    stand_at(0);
    assert_int_equal(llane_gpu_capture_record_external(NULL, NULL, &record), 0);
    for (int i = 1; i < 40; i++) {
        assert_int_equal(extend(record, i), 0);
        assert_int_equal(find_edge(i, 100), i);
    }
}

/* Whether the kernel that was captured last came early. */
static int came_early(void)
{
    return g.nodes[g.last[0]].is_early[0];
}

static int launch_in(void **chain)
{
    static const struct llane_all_reduce_args args;
    static const uint32_t fit[4];
    const struct llane_gpu_launch launch = {.kernel = &kernel,
                                            .args = &args,
                                            .args_bytes = sizeof args,
                                            .n_blocks = 1,
                                            .n_threads = 64,
                                            .chain = chain,
                                            .fit = fit};
    return llane_gpu_launch(&launch);
}

static void launch__behind_the_lanes_last__comes_early(void **state)
{
    void *chain = NULL;
    (void)state;
    g.next = 10;
    stand_at(0);
    kernel.ptx_version = 90;
    assert_int_equal(launch_in(&chain), 0); /* the first one: behind somebody else's */
    assert_int_equal(came_early(), 0);
    assert_ptr_equal(chain, name(10));
    assert_int_equal(launch_in(&chain), 0);
    assert_int_equal(came_early(), 1);
    assert_ptr_equal(chain, name(11));
    kernel.ptx_version = 89; /* its code does not wait */
    assert_int_equal(launch_in(&chain), 0);
    assert_int_equal(came_early(), 0);
    kernel.ptx_version = 90;
    assert_int_equal(launch_in(NULL), 0);
    assert_int_equal(came_early(), 0);
}

/* Two communicators' all-reduces by turns, and one of the lane's beside another stream's work. */
static void launch__behind_anything_else__does_not(void **state)
{
    void *chain[2] = {NULL, NULL};
    (void)state;
    g.next = 10;
    stand_at(0);
    kernel.ptx_version = 90;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(launch_in(&chain[i % 2]), 0);
        assert_int_equal(came_early(), 0);
    }
    assert_int_equal(launch_in(&chain[1]), 0);
    assert_int_equal(came_early(), 1);
    stand_at(0);
    assert_int_equal(launch_in(&chain[1]), 0);
    assert_int_equal(came_early(), 0);
    g.n_last = 0; /* the program took all away that the stream stood at */
    assert_int_equal(launch_in(&chain[1]), 0);
    assert_int_equal(g.nodes[g.last[0]].n, 0);
}

/* Kernel 0 has 3 blocks of before threads; how often its arguments were changed when 1, of 5 blocks of
 * n_threads, came early behind it. */
static int n_told_wide(uint32_t before, uint32_t n_threads, const uint32_t fit[4])
{
    struct llane_all_reduce_args *args = (struct llane_all_reduce_args *)(void *)kernel.args;
    const struct llane_gpu_launch launch = {
        .args_bytes = sizeof *args, .n_blocks = 5, .n_threads = n_threads, .fit = fit};
    memset(kernel.args, 0x5a, sizeof kernel.args);
    args->flags = LLANE_FLAG_PLAIN;
    kernel.args_bytes = sizeof *args;
    kernel.list[0] = kernel.args;
    kernel.params = (struct cudaKernelNodeParams){
        .func = kernel.list, .gridDim = {3, 1, 1}, .blockDim = {before, 1, 1}};
    kernel.params.kernelParams = kernel.list;
    kernel.n_sets = 0;
    let_go_early(name(0), &launch);
    return kernel.n_sets;
}

static int n_told(uint32_t n_fitting)
{
    return n_told_wide(64, 64, (const uint32_t[]){n_fitting, 0, 0, 0});
}

static int begin_early(void **state)
{
    (void)begin(state);
    memset(&kernel, 0, sizeof kernel);
    edge(0, 1, 1);
    edge(0, 2, 0); /* the record of the graph's end, say */
    return 0;
}

static void early__both_fit__one_flag_is_all_that_changes(void **state)
{
    struct llane_all_reduce_args args;
    (void)state;
    assert_int_equal(n_told(8), 1);
    assert_ptr_equal(kernel.set.func, kernel.params.func);
    assert_memory_equal(&kernel.set.gridDim, &kernel.params.gridDim, sizeof(dim3));
    assert_memory_equal(&kernel.set.blockDim, &kernel.params.blockDim, sizeof(dim3));
    assert_null(kernel.set.extra);
    memcpy(&args, kernel.set_args, sizeof args);
    assert_int_equal(args.flags, LLANE_FLAG_PLAIN | LLANE_FLAG_EARLY);
    args.flags = LLANE_FLAG_PLAIN;
    assert_memory_equal(&args, kernel.args, sizeof args);
}

static void early__too_many_blocks__is_not_told(void **state)
{
    (void)state;
    assert_int_equal(n_told(7), 0);
    assert_int_equal(n_told(0), 0);
}

/* Of narrow blocks more fit; of two widths, as many as of the wider one. */
static void early__blocks_are_counted_as_wide_as_they_are(void **state)
{
    (void)state;
    const uint32_t fit[] = {16, 8, 7, 7};
    assert_int_equal(n_told_wide(64, 65, fit), 1);
    assert_int_equal(n_told_wide(64, 128, fit), 1);
    assert_int_equal(n_told_wide(64, 129, fit), 0);
    assert_int_equal(n_told_wide(129, 64, fit), 0);
    assert_int_equal(n_told_wide(512, 512, (const uint32_t[]){16, 16, 16, 7}), 0);
    assert_int_equal(n_told_wide(512, 512, (const uint32_t[]){0, 0, 0, 8}), 1);
}

/* 3 was forked off 0 by the program, which asked for programmatic launch: nobody knows how wide it is. */
static void early__another_comes_with_it__is_not_told(void **state)
{
    (void)state;
    edge(0, 3, 1);
    assert_int_equal(n_told(8), 0);
}

static void early__more_dependents_than_it_looks_at__is_not_told(void **state)
{
    (void)state;
    for (int i = 3; i < 30; i++) {
        edge(0, i, 0);
    }
    assert_int_equal(n_told(8), 0);
}

static void early__driver_refuses__nothing_comes_of_it(void **state)
{
    (void)state;
    kernel.get_error = cudaErrorInvalidDeviceFunction;
    assert_int_equal(n_told(8), 0);
    kernel.get_error = cudaSuccess;
    kernel.set_error = cudaErrorInvalidValue;
    assert_int_equal(n_told(8), 1);
}

/* Asked by threads that may have no context, of a device that may have none: none is made. */
static void context_id__asked__makes_no_context_and_keeps_the_mode(void **state)
{
    (void)state;
    memset(&driver, 0, sizeof driver);
    driver.mode = cudaStreamCaptureModeThreadLocal;
    assert_int_equal(llane_gpu_context_id(1), 0);
    driver.is_active = 1;
    assert_int_equal(llane_gpu_context_id(1), 77);
    assert_int_equal(llane_gpu_context_id(0), 0);
    assert_int_equal(driver.mode_when_asked, cudaStreamCaptureModeRelaxed);
    assert_int_equal(driver.mode, cudaStreamCaptureModeThreadLocal);
    assert_int_equal(driver.n_retained, 0);
    assert_int_equal(driver.n_runtime_exchanges, 0);
}

static void kernel_load__narrow_blocks__take_a_warp_of_each_part(void **state)
{
    static const uint32_t want[][2] = {{32, 8}, {64, 8}, {128, 8}, {256, 4}, {512, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        uint32_t n_blocks = 0;
        assert_int_equal(llane_gpu_kernel_load(&kernel, want[i][0], &n_blocks), 0);
        assert_int_equal(n_blocks, want[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernel_load__narrow_blocks__take_a_warp_of_each_part),
        cmocka_unit_test(context_id__asked__makes_no_context_and_keeps_the_mode),
        cmocka_unit_test_setup(record__extended__hangs_on_what_was_captured_last_alone, begin),
        cmocka_unit_test_setup(record__edges_cannot_be_removed__hangs_on_all, begin),
        cmocka_unit_test_setup(launch__behind_the_lanes_last__comes_early, begin_early),
        cmocka_unit_test_setup(launch__behind_anything_else__does_not, begin_early),
        cmocka_unit_test_setup(early__both_fit__one_flag_is_all_that_changes, begin_early),
        cmocka_unit_test_setup(early__too_many_blocks__is_not_told, begin_early),
        cmocka_unit_test_setup(early__blocks_are_counted_as_wide_as_they_are, begin_early),
        cmocka_unit_test_setup(early__another_comes_with_it__is_not_told, begin_early),
        cmocka_unit_test_setup(early__more_dependents_than_it_looks_at__is_not_told, begin_early),
        cmocka_unit_test_setup(early__driver_refuses__nothing_comes_of_it, begin_early),
        cmocka_unit_test_setup(behind__stream_forked_off_a_chain__is_not, begin),
        cmocka_unit_test_setup(behind__chain_beside_a_way_of_ends__is, begin),
        cmocka_unit_test_setup(behind__early_launch_alone__is_not, begin),
        cmocka_unit_test_setup(behind__early_and_late_edges_of_one_node__follows_the_late, begin),
        cmocka_unit_test_setup(behind__too_far_to_search__is_not, begin),
        cmocka_unit_test_setup(behind__too_wide_to_search__is_not, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("skip: no CUDA headers, or older than graphs with programmatic launch (12.3)");
    return 77;
}

#endif
