/* What a rank sees when another one dies, leaves, stops or is late. `prog_deaths --help`. */
#include "gpu.h"
#include "ranks.h"
#include "values.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char g_help[] =
    "prog_deaths WHAT\n"
    "One rank of prog_ranks -g; LLANE_TEST_VICTIM=1 is the rank to which it happens, after a "
    "first\n"
    "sum. The others make a sum that needs it. Status 0: all they saw was right.\n"
    "  kill crash quit      SIGKILL, abort, _exit: ncclRemoteError while kernels wait, then abort\n"
    "  children             as kill, with a child that goes on with all it inherited\n"
    "  stopped              as kill, LLANE_ON_DEATH=stop: kernels end\n"
    "  end_destroy          as kill, while the others wait in ncclCommDestroy: it returns\n"
    "  end_finalize         the same with ncclCommFinalize\n"
    "  pause                SIGSTOP for a while: no error, the right sum\n"
    "  exit_idle            a regular exit that nobody needs: no error\n"
    "  exit_eager           a regular exit before a sum that needs it: ncclRemoteError\n"
    "  exit_graph           the same, the sum being a graph's\n"
    "  destroy              ncclCommDestroy before a sum that needs it: ncclRemoteError\n"
    "  abort                ncclCommAbort in the middle of a sum: ncclRemoteError\n"
    "  late                 LLANE_TIMEOUT_S=1, it comes too late: ncclRemoteError\n"
    "  late_graph           the same, the sum being a graph's\n"
    "  free_kill free_late free_graph   as kill, late, exit_graph, and one more thread of the "
    "others "
    "frees\n"
    "                       device memory meanwhile, which waits for the kernel; with a second "
    "communicator,\n"
    "                       aborted first\n"
    "  free_shadow          as free_kill, LLANE_AB=shadow, and one more thread is in a call: the "
    "shrink "
    "returns\n"
    "  free_wait            nobody is gone, it only never comes: no error, the aborts end the "
    "kernel\n"
    "  none                 sums for longer than LLANE_TIMEOUT_S=1: no error\n"
    "  check_count check_type check_op check_route   LLANE_CHECK=1, LLANE_MAX_BYTES=256, it makes "
    "the\n"
    "                       sum otherwise than the others: ncclInvalidUsage on all\n"
    "  check_group          as check_op, in a group\n"
    "  check_route_group    as check_route, in a group\n"
    "  term                 SIGTERM to a rank whose kernel waits: it ends\n";

enum { COUNT = 64, LIMIT_MS = 3000, QUIET_MS = 1300 };
static struct {
    int rank, n, victim, device;
    const char *what;
    ncclComm_t comm, other; /* other: of the free_* alone */
    struct CUstream_st *stream;
    void *freed;
    _Atomic int is_freed;
    struct CUgraphExec_st *graph;
    float *in, *out;
    float host[COUNT];
    uint64_t n_sums;
} g;

static int is(const char *what)
{
    return strcmp(g.what, what) == 0;
}

static void expect(int is_right, const char *words)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", g.rank, g.what, words);
    fflush(NULL);
    _exit(1);
}

static void fill(void)
{
    values_fill(ncclFloat32, ncclSum, g.rank, ++g.n_sums, COUNT, g.host);
    RANKS_CHECK(llane_gpu_memcpy_async(g.in, g.host, sizeof(g.host), g.stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
}

static ncclResult_t call(void)
{
    return ncclAllReduce(g.in, g.out, COUNT, ncclFloat32, ncclSum, g.comm, g.stream);
}

static ncclResult_t call_wrongly(void)
{
    size_t count = is("check_count") ? COUNT / 2 : strstr(g.what, "route") ? COUNT + 1 : COUNT;
    return ncclAllReduce(g.in, g.out, count, is("check_type") ? ncclInt32 : ncclFloat32,
                         is("check_op") || is("check_group") ? ncclMax : ncclSum, g.comm, g.stream);
}

static void check(void)
{
    char words[160] = "";
    RANKS_CHECK(llane_gpu_memcpy_async(g.host, g.out, sizeof(g.host), g.stream));
    RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
    expect(!values_check(ncclFloat32, ncclSum, g.n, g.n_sums, COUNT, g.host, words, sizeof(words)),
           words);
}

static void sum(void)
{
    fill();
    RANKS_CHECK(call());
    check();
}

static int is_graph(void)
{
    return is("exit_graph") || is("late_graph") || is("free_graph");
}

static int is_free(void)
{
    return strncmp(g.what, "free_", 5) == 0;
}

static int is_end(void)
{
    return strncmp(g.what, "end_", 4) == 0;
}

/* While the others' kernels wait. */
static int is_death(void)
{
    return is("kill") || is("crash") || is("quit") || is("children") || is("stopped") || is_end();
}

/* Its sum is the communicator's only one. */
static void open_other(void)
{
    ncclUniqueId id;
    ncclComm_t first = g.comm;
    ranks_unique_id("other", ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&g.other, g.n, id, g.rank));
    g.comm = g.other;
    sum();
    g.comm = first;
    RANKS_CHECK(llane_gpu_malloc(sizeof(g.host), &g.freed));
}

static void open_all(void)
{
    ncclUniqueId id;
    int n_devices;
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    g.device = g.rank % n_devices;
    RANKS_CHECK(llane_gpu_device_set(g.device));
    RANKS_CHECK(llane_gpu_stream_create(&g.stream));
    RANKS_CHECK(llane_gpu_malloc(2 * sizeof(g.host), (void **)&g.in));
    RANKS_CHECK(llane_gpu_malloc(2 * sizeof(g.host), (void **)&g.out));
    ranks_unique_id("id", ncclGetUniqueId, &id);
    RANKS_CHECK(ncclCommInitRank(&g.comm, g.n, id, g.rank));
    sum();
    if (is_graph()) {
        RANKS_CHECK(llane_gpu_capture_begin(g.stream));
        RANKS_CHECK(call());
        RANKS_CHECK(llane_gpu_capture_end(g.stream, &g.graph));
        fill();
        RANKS_CHECK(llane_gpu_graph_launch(g.graph, g.stream));
        check();
    }
    if (is_free())
        open_other();
}

/* ---- the victim ---- */

static void say_when(void)
{
    double now = ranks_now_ms();
    ranks_publish("when", &now, sizeof(now));
}

static void leave_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        ranks_sleep_ms(2 * LIMIT_MS);
        _exit(0);
    }
    ranks_publish("child", &child, sizeof(child));
}

static void suffer(void)
{
    pid_t pid = getpid();
    if (is("children"))
        leave_child();
    if (is("abort") || is_free() || is_death()) {
        ranks_barrier("called");
        ranks_sleep_ms(50 + getpid() % 100); /* at any moment between two looks of the others */
    }
    ranks_publish("pid", &pid, sizeof(pid));
    say_when();
    if (is("kill") || is("free_kill") || is("free_shadow") || is("children") || is("stopped") ||
        is_end())
        raise(SIGKILL);
    if (is("crash"))
        abort();
    if (is("quit"))
        _exit(0);
    if (strncmp(g.what, "exit_", 5) == 0 || is("free_graph"))
        exit(0);
    if (is("pause")) {
        raise(SIGSTOP);
        sum();
    }
    if (is("destroy"))
        RANKS_CHECK(ncclCommDestroy(g.comm));
    if (is("abort"))
        RANKS_CHECK(ncclCommAbort(g.comm));
    ranks_barrier("end");
    if (is("pause"))
        RANKS_CHECK(ncclCommDestroy(g.comm));
    exit(0);
}

/* ---- the others ---- */

static ncclResult_t error(void)
{
    ncclResult_t result = ncclSuccess;
    RANKS_CHECK(ncclCommGetAsyncError(g.comm, &result));
    return result;
}

static void stay_quiet(void)
{
    for (double start = ranks_now_ms(); ranks_now_ms() - start < QUIET_MS; ranks_sleep_ms(5))
        expect(error() == ncclSuccess, "an error where there is none");
}

static double await_error(double from_ms)
{
    ncclResult_t result;
    while ((result = error()) == ncclSuccess && ranks_now_ms() - from_ms < LIMIT_MS)
        ranks_sleep_ms(1);
    expect(result == ncclRemoteError, "no ncclRemoteError in time");
    return ranks_now_ms() - from_ms;
}

static void await_end(double from_ms)
{
    int is_done = 0;
    while (!is_done && ranks_now_ms() - from_ms < LIMIT_MS) {
        RANKS_CHECK(llane_gpu_stream_query(g.stream, &is_done));
        ranks_sleep_ms(1);
    }
    expect(is_done, "the kernel goes on");
}

static void make_needing_call(void)
{
    fill();
    if (is_graph())
        RANKS_CHECK(llane_gpu_graph_launch(g.graph, g.stream));
    else
        RANKS_CHECK(call());
}

static double when(void)
{
    double ms;
    ranks_fetch("when", &ms, sizeof(ms));
    return ms;
}

static void *free_memory(void *unused)
{
    RANKS_CHECK(llane_gpu_device_set(g.device));
    RANKS_CHECK(llane_gpu_free(g.freed));
    g.is_freed = 1;
    return unused;
}

static void *abort_all(void *is_aborted)
{
    RANKS_CHECK(ncclCommAbort(g.other));
    RANKS_CHECK(ncclCommAbort(g.comm));
    *(_Atomic int *)is_aborted = 1;
    return NULL;
}

static void await_flag(const _Atomic int *flag, double from_ms, const char *words)
{
    while (!*flag && ranks_now_ms() - from_ms < LIMIT_MS)
        ranks_sleep_ms(1);
    expect(*flag, words);
}

/* A hang would be the aborts': they are another thread's. */
static void see_all_end(double noticed_ms)
{
    static _Atomic int is_aborted;
    pthread_t thread;
    double start = ranks_now_ms();
    expect(!g.is_freed, "the memory is freed while the kernel waits");
    RANKS_CHECK(pthread_create(&thread, NULL, abort_all, &is_aborted));
    await_flag(&is_aborted, start, "ncclCommAbort does not come back");
    await_end(start);
    await_flag(&g.is_freed, start, "the memory is not freed");
    RANKS_CHECK(pthread_join(thread, NULL));
    printf("rank %d: noticed after %.1f ms, ended after %.1f ms more\n", g.rank, noticed_ms,
           ranks_now_ms() - start);
}

static void *call_again(void *unused)
{
    (void)call();
    return unused;
}

static void *shrink(void *is_back)
{
    ncclComm_t child;
    RANKS_CHECK(ncclCommShrink(g.comm, &g.victim, 1, &child, NULL, FAKE_SHRINK_ABORT));
    *(_Atomic int *)is_back = 1;
    return NULL;
}

/* The next call copies its input for the lane, which waits for the one that frees. What becomes of it
 * is not asked. */
static void shrink_beside_a_call(void)
{
    static _Atomic int is_back;
    pthread_t thread;
    RANKS_CHECK(pthread_create(&thread, NULL, call_again, NULL));
    ranks_sleep_ms(50);
    expect(error() == ncclSuccess, "an error where there is none");
    ranks_barrier("called");
    double noticed_ms = await_error(when()), start = ranks_now_ms();
    RANKS_CHECK(pthread_create(&thread, NULL, shrink, &is_back));
    await_flag(&is_back, start, "ncclCommShrink does not come back");
    printf("rank %d: ended after %.1f ms, noticed after %.1f ms\n", g.rank, ranks_now_ms() - start,
           noticed_ms);
    fflush(NULL);
    _exit(0);
}

static void free_and_abort(void)
{
    pthread_t thread;
    double from_ms = ranks_now_ms();
    make_needing_call();
    RANKS_CHECK(pthread_create(&thread, NULL, free_memory, NULL));
    if (is("free_shadow")) {
        ranks_sleep_ms(50);
        shrink_beside_a_call();
    }
    ranks_barrier("called");
    if (is("free_kill") || is("free_graph"))
        from_ms = when();
    if (is("free_wait"))
        stay_quiet();
    see_all_end(is("free_wait") ? 0 : await_error(from_ms));
    RANKS_CHECK(pthread_join(thread, NULL));
    if (is("free_wait") || is("free_late"))
        ranks_barrier("end");
}

static void see_error_and_abort(double from_ms)
{
    double noticed_ms = await_error(from_ms);
    int is_done = 0;
    if (!is("stopped")) {
        RANKS_CHECK(llane_gpu_stream_query(g.stream, &is_done));
        expect(!is_done, "the kernel ended by itself");
    }
    expect(call() == ncclRemoteError, "the next call is taken");
    expect(ncclAllGather(g.in, g.out, 1, ncclFloat32, g.comm, g.stream) == ncclRemoteError,
           "the next call of NCCL's is taken");
    double start = ranks_now_ms();
    if (is("stopped"))
        await_end(start);
    RANKS_CHECK(ncclCommAbort(g.comm));
    await_end(start);
    printf("rank %d: noticed after %.1f ms, ended after %.1f ms more\n", g.rank, noticed_ms,
           ranks_now_ms() - start);
}

static void let_go_on(void)
{
    pid_t pid;
    ranks_fetch("pid", &pid, sizeof(pid));
    fill();
    RANKS_CHECK(call());
    stay_quiet();
    if (g.rank == (g.victim == 0))
        kill(pid, SIGCONT);
    check();
    ranks_barrier("end");
    RANKS_CHECK(ncclCommDestroy(g.comm));
}

/* The kernel waits on: no more than that is to be seen. */
static void end_though_dead(void)
{
    make_needing_call();
    ranks_barrier("called");
    RANKS_CHECK(is("end_destroy") ? ncclCommDestroy(g.comm) : ncclCommFinalize(g.comm));
    int is_done = 0;
    RANKS_CHECK(llane_gpu_stream_query(g.stream, &is_done));
    expect(!is_done, "the kernel ended by itself");
    printf("rank %d: ended after %.1f ms\n", g.rank, ranks_now_ms() - when());
    if (is("end_finalize"))
        RANKS_CHECK(ncclCommAbort(g.comm));
    fflush(NULL);
    _exit(0);
}

static void live_on(void)
{
    double from_ms = ranks_now_ms();
    if (is_end())
        end_though_dead();
    if (is_free()) {
        free_and_abort();
        return;
    }
    if (is("pause")) {
        let_go_on();
        return;
    }
    if (is("exit_idle")) {
        when();
        stay_quiet();
        RANKS_CHECK(ncclCommDestroy(g.comm));
        return;
    }
    if (strncmp(g.what, "exit_", 5) == 0 || is("destroy")) {
        when();
        ranks_sleep_ms(50);
        from_ms = ranks_now_ms();
    }
    make_needing_call();
    if (is("abort") || is_death())
        ranks_barrier("called");
    if (is("late") || is("late_graph")) {
        ranks_sleep_ms(500);
        expect(error() == ncclSuccess, "an error before LLANE_TIMEOUT_S");
    }
    see_error_and_abort(is_death() || is("abort") ? when() : from_ms);
    if (is("children")) {
        pid_t child;
        ranks_fetch("child", &child, sizeof(child));
        kill(child, SIGKILL);
    }
    if (is("destroy") || is("abort") || is("late") || is("late_graph"))
        ranks_barrier("end");
}

static void go_without_error(void)
{
    for (int i = 0; i < 20; i++) {
        sum();
        ranks_sleep_ms(QUIET_MS / 10);
    }
    expect(error() == ncclSuccess, "an error where there is none");
    ranks_barrier("end");
    RANKS_CHECK(ncclCommDestroy(g.comm));
}

/* Whoever is first launches, and its kernel is ended; whoever sees the difference does not. */
static void differ(void)
{
    ncclResult_t result = ncclSuccess;
    fill();
    if (strstr(g.what, "group"))
        RANKS_CHECK(ncclGroupStart());
    result = g.rank == g.victim ? call_wrongly() : call();
    if (strstr(g.what, "group"))
        result = ncclGroupEnd();
    expect(result == ncclSuccess || result == ncclInvalidUsage, "another error from the call");
    for (double start = ranks_now_ms();
         error() == ncclSuccess && ranks_now_ms() - start < LIMIT_MS;)
        ranks_sleep_ms(1);
    expect(error() == ncclInvalidUsage, "no ncclInvalidUsage in time");
    expect(call() == ncclInvalidUsage, "the next call is taken");
    double start = ranks_now_ms();
    if (!(strstr(g.what, "route") && g.rank == g.victim)) /* NCCL's kernel waits until the abort */
        await_end(start);
    RANKS_CHECK(ncclCommAbort(g.comm));
    await_end(start);
}

/* Rank 0 waits in a kernel and for its stream; another one sends the signal. */
static void end_by_signal(void)
{
    pid_t pid = getpid();
    if (g.rank == 0) {
        make_needing_call();
        ranks_publish("pid", &pid, sizeof(pid));
        RANKS_CHECK(llane_gpu_stream_synchronize(g.stream));
        expect(0, "the sum came to an end");
    }
    ranks_fetch("pid", &pid, sizeof(pid));
    ranks_sleep_ms(50);
    double start = ranks_now_ms();
    kill(pid, SIGTERM);
    while (kill(pid, 0) == 0 && ranks_now_ms() - start < LIMIT_MS)
        ranks_sleep_ms(1);
    expect(errno == ESRCH, "it lives on");
}

int main(int argc, char **argv)
{
    const char *victim = getenv("LLANE_TEST_VICTIM");
    if (argc != 2 || strcmp(argv[1], "--help") == 0) {
        fputs(g_help, stderr);
        return 2;
    }
    g.what = argv[1];
    g.rank = ranks_rank();
    g.n = ranks_size();
    g.victim = victim ? atoi(victim) : 1;
    open_all();
    ranks_barrier("open");
    if (is("none"))
        go_without_error();
    else if (strncmp(g.what, "check_", 6) == 0)
        differ();
    else if (is("term"))
        end_by_signal();
    else if (g.rank == g.victim)
        suffer();
    else
        live_on();
    return 0;
}
