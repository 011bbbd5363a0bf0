// Proves that order.c runs the operations of one communicator in the order of the calls, over streams,
// captures and graphs, with two nodes a graph, and that a graph's memory is held as long as the graph.
// ALSO: tsan
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "emu.h"
#include "order.h"

enum { MAX = 64, N_STREAMS = 3, N_JOINS = 3 };

#define CUDA_STREAM_PER_THREAD ((struct CUstream_st *)(uintptr_t)2) /* as the runtime spells it */

static struct {
    struct llane_order order;
    struct CUstream_st *streams[N_STREAMS];
    struct CUevent_st *fork, *joins[N_JOINS];
    _Atomic int n_running, n_overlaps, n_ended, n_done;
    int done[MAX]; /* numbers of operations in the order they ran */
    struct llane_order_events *events;
} g;
static int numbers[MAX];

static void begin(int is_graph_ordered)
{
    llane_order_events_give(g.events); /* the last test's */
    memset(&g, 0, sizeof g);
    assert_int_equal(llane_order_events_take(0, &g.events), 0);
    assert_int_equal(llane_gpu_event_create(0, &g.fork), 0);
    for (int i = 0; i < N_STREAMS; i++) {
        assert_int_equal(llane_gpu_stream_create(&g.streams[i]), 0);
    }
    for (int i = 0; i < MAX; i++) {
        numbers[i] = i;
    }
    llane_order_init(&g.order, g.events, is_graph_ordered);
}

/* Takes a while, the earlier ones longer, so that later ones would overtake. */
static void work(void *number)
{
    int n = *(int *)number;
    if (atomic_fetch_add(&g.n_running, 1)) {
        atomic_fetch_add(&g.n_overlaps, 1);
    }
    struct timespec t = {.tv_nsec = (n % 3 == 0 ? 4 : 1) * 1000000L};
    nanosleep(&t, NULL);
    g.done[atomic_fetch_add(&g.n_ended, 1) % MAX] = n;
    atomic_fetch_sub(&g.n_running, 1);
    atomic_fetch_add(&g.n_done, 1); /* last: pairs with whoever counts to n */
}

static void issue(int number, struct CUstream_st *stream)
{
    assert_int_equal(llane_order_before(&g.order, stream), 0);
    assert_int_equal(llane_emu_host_call(stream, work, &numbers[number]), 0);
    assert_int_equal(llane_order_after(&g.order, stream), 0);
}

static void drain(void)
{
    for (int i = 0; i < N_STREAMS; i++) {
        assert_int_equal(llane_gpu_stream_synchronize(g.streams[i]), 0);
    }
}

static void assert_ran(const int *expected, int n)
{
    drain();
    assert_int_equal(g.n_done, n);
    assert_int_equal(g.n_overlaps, 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(g.done[i], expected[i]);
    }
    g.n_ended = 0;
    g.n_done = 0;
}

static void follow(int from, int to)
{
    assert_int_equal(llane_gpu_event_record(g.fork, g.streams[from]), 0);
    assert_int_equal(llane_gpu_stream_wait_event(g.streams[to], g.fork), 0);
}

/* n operations from `first` on, over the first and second stream, begun and ended on the first. */
static struct CUgraphExec_st *capture(int first, int n)
{
    struct CUgraphExec_st *graph = NULL;
    assert_int_equal(llane_gpu_capture_begin(g.streams[0]), 0);
    follow(0, 1);
    for (int i = 0; i < n; i++) {
        issue(first + i, g.streams[i % 2]);
    }
    follow(1, 0);
    assert_int_equal(llane_gpu_capture_end(g.streams[0], &graph), 0);
    return graph;
}

static void eager__streams_in_turns__issue_order(void **state)
{
    (void)state;
    begin(1);
    for (int i = 0; i < 12; i++) {
        issue(i, g.streams[i % N_STREAMS]);
    }
    assert_ran(numbers, 12);
}

static void *issue_on_own_stream(void *number)
{
    issue(*(int *)number, CUDA_STREAM_PER_THREAD);
    return NULL;
}

/* One handle, a stream for each thread. The first operation takes longest. */
static void eager__threads_on_their_own_default_stream__issue_order(void **state)
{
    (void)state;
    begin(1);
    for (int i = 0; i < 6; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, issue_on_own_stream, &numbers[i]), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    while (g.n_done < 6) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_ran(numbers, 6);
}

static void graph__many_operations__two_nodes_more(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n += 4) {
        begin(1);
        struct CUgraphExec_st *graph = capture(0, n);
        assert_int_equal(llane_emu_graph_nodes(graph), n + 2);
        assert_int_equal(llane_gpu_graph_launch(graph, g.streams[0]), 0);
        assert_ran(numbers, n);
        assert_int_equal(llane_gpu_graph_destroy(graph), 0);
    }
}

static void graph__order_off__no_nodes_more_and_inner_order_kept(void **state)
{
    (void)state;
    begin(0);
    struct CUgraphExec_st *graph = capture(0, 6);
    assert_int_equal(llane_emu_graph_nodes(graph), 6);
    assert_int_equal(llane_gpu_graph_launch(graph, g.streams[2]), 0);
    assert_ran(numbers, 6);
    assert_int_equal(llane_gpu_graph_destroy(graph), 0);
}

/* As a model has it, with kernels of its own between the all-reduces of one stream. */
static void capture__one_stream__no_edges_more(void **state)
{
    (void)state;
    begin(1);
    struct CUgraphExec_st *graph = NULL;
    assert_int_equal(llane_gpu_capture_begin(g.streams[0]), 0);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(llane_emu_host_call(g.streams[0], work, &numbers[20 + i]), 0);
        issue(i, g.streams[0]);
    }
    assert_int_equal(llane_gpu_capture_end(g.streams[0], &graph), 0);
    assert_int_equal(llane_emu_graph_waits(graph), 0);
    assert_int_equal(llane_gpu_graph_destroy(graph), 0);
}

/* A branch of the capture under way, on this thread's default stream: it begins where g.fork was. */
static void *issue_on_own_branch(void *number)
{
    assert_int_equal(llane_gpu_stream_wait_event(CUDA_STREAM_PER_THREAD, g.fork), 0);
    issue(*(int *)number, CUDA_STREAM_PER_THREAD);
    assert_int_equal(llane_gpu_event_record(g.joins[*(int *)number], CUDA_STREAM_PER_THREAD), 0);
    return NULL;
}

/* One handle for streams that branch off before the first operation, which takes longest. */
static void capture__threads_on_their_own_default_stream__issue_order(void **state)
{
    (void)state;
    begin(1);
    struct CUgraphExec_st *graph = NULL;
    pthread_t thread;
    assert_int_equal(llane_gpu_capture_begin(g.streams[0]), 0);
    assert_int_equal(llane_gpu_event_record(g.fork, g.streams[0]), 0);
    for (int i = 0; i < N_JOINS; i++) {
        assert_int_equal(llane_gpu_event_create(0, &g.joins[i]), 0);
        assert_int_equal(pthread_create(&thread, NULL, issue_on_own_branch, &numbers[i]), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    for (int i = 0; i < N_JOINS; i++) {
        assert_int_equal(llane_gpu_stream_wait_event(g.streams[0], g.joins[i]), 0);
    }
    assert_int_equal(llane_gpu_capture_end(g.streams[0], &graph), 0);
    assert_int_equal(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    assert_ran(numbers, N_JOINS);
    assert_int_equal(llane_gpu_graph_destroy(graph), 0);
}

/* A group: NCCL launches its operations on both streams at once, and joins the streams itself. */
static void capture__two_streams_before_either_is_done__one_graph(void **state)
{
    (void)state;
    for (int is_graph_ordered = 0; is_graph_ordered < 2; is_graph_ordered++) {
        begin(is_graph_ordered);
        struct CUgraphExec_st *graph = NULL;
        for (int round = 0; round < 6; round++) { /* entries are used again */
            assert_int_equal(llane_gpu_capture_begin(g.streams[0]), 0);
            follow(0, 1);
            for (int s = 0; s < 2; s++) {
                assert_int_equal(llane_order_before(&g.order, g.streams[s]), 0);
            }
            assert_int_equal(llane_emu_host_call(g.streams[0], work, &numbers[0]), 0);
            follow(0, 1);
            for (int s = 0; s < 2; s++) {
                assert_int_equal(llane_order_after_nccl(&g.order, g.streams[s]), 0);
            }
            issue(1, g.streams[0]);
            follow(1, 0);
            assert_int_equal(llane_gpu_capture_end(g.streams[0], &graph), 0);
            assert_int_equal(llane_emu_graph_nodes(graph), 2 + 2 * is_graph_ordered);
            assert_int_equal(llane_gpu_graph_launch(graph, g.streams[0]), 0);
            assert_ran(numbers, 2);
            assert_int_equal(llane_gpu_graph_destroy(graph), 0);
        }
    }
}

static void graphs_and_eager__many_streams__launch_order(void **state)
{
    (void)state;
    static const int expected[] = {20, 0, 1, 2, 21, 10, 11, 0, 1, 2, 22};
    begin(1);
    struct CUgraphExec_st *a = capture(0, 3), *b = capture(10, 2);
    issue(20, g.streams[2]);
    assert_int_equal(llane_gpu_graph_launch(a, g.streams[0]), 0);
    issue(21, g.streams[2]);
    assert_int_equal(llane_gpu_graph_launch(b, g.streams[1]), 0);
    assert_int_equal(llane_gpu_graph_launch(a, g.streams[2]), 0);
    issue(22, g.streams[0]);
    assert_ran(expected, 11);
    assert_int_equal(llane_gpu_graph_destroy(a), 0);
    assert_int_equal(llane_gpu_graph_destroy(b), 0);
}

/* As many as may be under way at once, their operations in turns: each stays ordered in itself. */
static void captures__under_way_at_once__each_in_order(void **state)
{
    (void)state;
    struct CUgraph_st *ended[LLANE_ORDER_CAPTURES];
    struct CUgraphExec_st *graphs[LLANE_ORDER_CAPTURES];
    struct CUstream_st *streams[LLANE_ORDER_CAPTURES][2];
    begin(1);
    for (int c = 0; c < LLANE_ORDER_CAPTURES; c++) {
        for (int s = 0; s < 2; s++) {
            assert_int_equal(llane_gpu_stream_create(&streams[c][s]), 0);
        }
        assert_int_equal(llane_gpu_capture_begin(streams[c][0]), 0);
        assert_int_equal(llane_gpu_event_record(g.fork, streams[c][0]), 0);
        assert_int_equal(llane_gpu_stream_wait_event(streams[c][1], g.fork), 0);
    }
    for (int i = 0; i < 4; i++) {
        for (int c = 0; c < LLANE_ORDER_CAPTURES; c++) {
            issue(10 * c + i, streams[c][i % 2]);
        }
    }
    for (int c = LLANE_ORDER_CAPTURES - 1; c >= 0; c--) {
        assert_int_equal(llane_gpu_event_record(g.fork, streams[c][1]), 0);
        assert_int_equal(llane_gpu_stream_wait_event(streams[c][0], g.fork), 0);
        assert_int_equal(llane_gpu_capture_end_graph(streams[c][0], &ended[c]), 0);
    }
    for (int c = 0; c < LLANE_ORDER_CAPTURES; c++) {
        assert_int_equal(llane_gpu_graph_instantiate(ended[c], &graphs[c]), 0);
        assert_int_equal(llane_emu_graph_nodes(graphs[c]), 4 + 2);
        const int expected[] = {10 * c, 10 * c + 1, 10 * c + 2, 10 * c + 3};
        assert_int_equal(llane_gpu_graph_launch(graphs[c], g.streams[0]), 0);
        assert_ran(expected, 4);
        assert_int_equal(llane_gpu_graph_destroy(graphs[c]), 0);
    }
    assert_int_equal(g.events->n_graphs, 0);
}

/* A long one, and beside it more short ones than are kept, one at a time. */
static void captures__one_after_another_beside_a_long_one__it_stays_in_order(void **state)
{
    enum { N_SHORT = 2 * LLANE_ORDER_CAPTURES };
    (void)state;
    struct CUgraph_st *short_ones[N_SHORT], *ended;
    struct CUgraphExec_st *graph;
    begin(1);
    assert_int_equal(llane_gpu_capture_begin(g.streams[0]), 0);
    follow(0, 1);
    for (int i = 0; i < N_SHORT; i++) {
        issue(i, g.streams[i % 2]);
        assert_int_equal(llane_gpu_capture_begin(g.streams[2]), 0);
        issue(20 + i, g.streams[2]);
        assert_int_equal(llane_gpu_capture_end_graph(g.streams[2], &short_ones[i]), 0);
    }
    follow(1, 0);
    assert_int_equal(llane_gpu_capture_end_graph(g.streams[0], &ended), 0);
    assert_int_equal(llane_gpu_graph_instantiate(ended, &graph), 0);
    assert_int_equal(llane_emu_graph_nodes(graph), N_SHORT + 2);
    assert_int_equal(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    assert_ran(numbers, N_SHORT);
    assert_int_equal(llane_gpu_graph_destroy(graph), 0);
    for (int i = 0; i < N_SHORT; i++) {
        assert_int_equal(llane_gpu_graph_instantiate(short_ones[i], &graph), 0);
        assert_int_equal(llane_gpu_graph_destroy(graph), 0);
    }
    assert_int_equal(g.events->n_graphs, 0);
}

static void capture__graph_gone_or_abandoned__memory_released(void **state)
{
    (void)state;
    begin(1);
    struct CUgraphExec_st *graph = capture(0, 3);
    assert_int_equal(g.events->n_graphs, 1);
    assert_int_equal(llane_gpu_graph_launch(graph, g.streams[0]), 0);
    drain();
    assert_int_equal(g.events->n_graphs, 1);
    assert_int_equal(llane_gpu_graph_destroy(graph), 0);
    assert_int_equal(g.events->n_graphs, 0);
    /* a fork that is not joined: no graph comes of it */
    assert_int_equal(llane_gpu_capture_begin(g.streams[0]), 0);
    follow(0, 1);
    issue(0, g.streams[1]);
    assert_int_equal(g.events->n_graphs, 1);
    assert_int_not_equal(llane_gpu_capture_end(g.streams[0], &graph), 0);
    assert_int_equal(g.events->n_graphs, 0);
    g.n_ended = 0;
    g.n_done = 0;
    issue(1, g.streams[0]);
    issue(2, g.streams[1]);
    assert_ran(numbers + 1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eager__streams_in_turns__issue_order),
        cmocka_unit_test(eager__threads_on_their_own_default_stream__issue_order),
        cmocka_unit_test(graph__many_operations__two_nodes_more),
        cmocka_unit_test(graph__order_off__no_nodes_more_and_inner_order_kept),
        cmocka_unit_test(capture__one_stream__no_edges_more),
        cmocka_unit_test(capture__threads_on_their_own_default_stream__issue_order),
        cmocka_unit_test(capture__two_streams_before_either_is_done__one_graph),
        cmocka_unit_test(graphs_and_eager__many_streams__launch_order),
        cmocka_unit_test(captures__under_way_at_once__each_in_order),
        cmocka_unit_test(captures__one_after_another_beside_a_long_one__it_stays_in_order),
        cmocka_unit_test(capture__graph_gone_or_abandoned__memory_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
