// Proves that gpu_cuda.c finds what a captured stream comes after in graphs as CUDA describes them, edges
// of programmatic launch among them. The graphs are made up: no GPU, no driver.
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
#define cudaGraphNodeGetDependencies made_up_dependencies
#define cudaGraphNodeGetDependencies_v2 made_up_dependencies

enum { MAX = 600 };

/* Node i hangs on to[], each time at its end or, is_early, at its sign to dependents. */
static struct made_up {
    struct {
        int n, to[MAX], is_early[MAX];
    } nodes[MAX];
    int last[MAX], n_last; /* what the stream's next one hangs on */
    cudaGraphNode_t last_out[MAX];
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

#include "../../plugin/gpu_cuda.c"

static void edge(int from, int to, int is_early)
{
    int i = g.nodes[to].n++;
    g.nodes[to].to[i] = from;
    g.nodes[to].is_early[i] = is_early;
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
