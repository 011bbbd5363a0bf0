// ALSO: tsan asan
/*
 * Proves that the fake NCCL by itself gives NCCL's results and return codes: every type and
 * operation, groups, splits, shrinks, aborts. The ranks are threads; test_fake_nccl.sh has the same
 * library with processes and its loader.
 */
#include "gpu.h"
#include "nccl_client.h"
#include "values.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MAX_RANKS = 8, BUFFER_BYTES = 1 << 20 };

static ncclUniqueId g_id;
static atomic_int g_n_failures, g_arrived;
static int g_n_ranks;

/* cmocka's assertions belong to the main thread; ranks count their failures. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, me->rank, #condition);     \
            atomic_fetch_add(&g_n_failures, 1);                                                    \
        }                                                                                          \
    } while (0)
#define OK(call) EXPECT((call) == ncclSuccess)

struct rank {
    int rank, n;
    ncclComm_t comm;
    struct CUstream_st *stream;
    char *in, *out; /* the emulation's device memory: the host may look at it */
    char *want;
    void (*body)(struct rank *);
    pthread_t thread;
};

static void sync_stream(const struct rank *me)
{
    EXPECT(llane_gpu_stream_synchronize(me->stream) == 0);
}

static void meet(void)
{
    int round = atomic_fetch_add(&g_arrived, 1) / g_n_ranks;
    while (atomic_load(&g_arrived) < (round + 1) * g_n_ranks)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    EXPECT(llane_gpu_device_set(me->rank) == 0);
    OK(ncclCommInitRank(&me->comm, me->n, g_id, me->rank));
    EXPECT(llane_gpu_stream_create(&me->stream) == 0);
    EXPECT(llane_gpu_malloc(BUFFER_BYTES, (void **)&me->in) == 0);
    EXPECT(llane_gpu_malloc(BUFFER_BYTES, (void **)&me->out) == 0);
    me->want = malloc(BUFFER_BYTES);
    me->body(me);
    if (me->comm) /* a body that ended it says so */
        OK(ncclCommDestroy(me->comm));
    EXPECT(llane_gpu_free(me->in) == 0);
    EXPECT(llane_gpu_free(me->out) == 0);
    EXPECT(llane_gpu_stream_destroy(me->stream) == 0);
    free(me->want);
    return NULL;
}

static void in_ranks(int n, void (*body)(struct rank *))
{
    struct rank ranks[MAX_RANKS] = {{0}};
    g_n_ranks = n;
    atomic_store(&g_n_failures, 0);
    atomic_store(&g_arrived, 0);
    assert_int_equal(ncclGetUniqueId(&g_id), ncclSuccess);
    for (int r = 0; r < n; r++) {
        ranks[r] = (struct rank){.rank = r, .n = n, .body = body};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
    assert_int_equal(atomic_load(&g_n_failures), 0);
}

/* ---- results ---- */
static void expect_values(struct rank *me, ncclDataType_t type, ncclRedOp_t op, size_t count,
                          const void *got, const char *what)
{
    char words[160] = "";
    if (values_check(type, op, me->n, 7, count, got, words, sizeof(words)) == 0)
        return;
    fprintf(stderr, "rank %d: %s of %s, %s: %s\n", me->rank, what, values_type_name(type),
            values_op_name(op), words);
    atomic_fetch_add(&g_n_failures, 1);
}

/* Reduce + Broadcast, and ReduceScatter + AllGather, are an all-reduce each. */
static void every_collective(struct rank *me)
{
    enum { EACH = 333 };
    size_t count = (size_t)EACH * (size_t)me->n;
    for (ncclDataType_t t = ncclInt8; t <= ncclFloat8e5m2; t++) {
        for (ncclRedOp_t op = ncclSum; op <= ncclAvg; op++) {
            size_t part = EACH * values_type_bytes(t);
            values_fill(t, op, me->rank, 7, count, me->in);
            memset(me->out, 0xa5, count * 8);
            OK(ncclAllReduce(me->in, me->out, count, t, op, me->comm, me->stream));
            sync_stream(me);
            expect_values(me, t, op, count, me->out, "AllReduce");

            memset(me->out, 0xa5, count * 8);
            OK(ncclReduce(me->in, me->out, count, t, op, 1, me->comm, me->stream));
            OK(ncclBroadcast(me->out, me->out, count, t, 1, me->comm, me->stream));
            sync_stream(me);
            expect_values(me, t, op, count, me->out, "Reduce and Broadcast");

            memset(me->out, 0xa5, count * 8);
            OK(ncclReduceScatter(me->in, me->out + (size_t)me->rank * part, EACH, t, op, me->comm,
                                 me->stream));
            OK(ncclAllGather(me->out + (size_t)me->rank * part, me->out, EACH, t, me->comm,
                             me->stream));
            sync_stream(me);
            expect_values(me, t, op, count, me->out, "ReduceScatter and AllGather");
        }
    }
}

static void collectives__every_type_and_operation__right(void **state)
{
    (void)state;
    in_ranks(3, every_collective);
}

static uint16_t reduce_halves(struct rank *me, ncclDataType_t t, ncclRedOp_t op, uint16_t a,
                              uint16_t b)
{
    uint16_t mine = me->rank == 0 ? a : b, got;
    size_t bytes = values_type_bytes(t);
    memcpy(me->in, &mine, bytes);
    OK(ncclAllReduce(me->in, me->out, 1, t, op, me->comm, me->stream));
    sync_stream(me);
    got = 0;
    memcpy(&got, me->out, bytes);
    return got;
}

static void narrow_floats(struct rank *me)
{
    /* float16: 2048 + 1 is a tie and goes to even, 2048 + 3 rounds up to 2052; beyond 65504 infinity */
    EXPECT(reduce_halves(me, ncclFloat16, ncclSum, 0x6800, 0x3c00) == 0x6800);
    EXPECT(reduce_halves(me, ncclFloat16, ncclSum, 0x6800, 0x4200) == 0x6802);
    EXPECT(reduce_halves(me, ncclFloat16, ncclSum, 0x7bff, 0x7bff) == 0x7c00);
    EXPECT(reduce_halves(me, ncclFloat16, ncclSum, 0x0001, 0x0001) == 0x0002); /* subnormal */
    EXPECT(reduce_halves(me, ncclFloat16, ncclSum, 0x03ff, 0x0001) == 0x0400); /* becomes normal */
    /* bfloat16: 256 + 1 is a tie */
    EXPECT(reduce_halves(me, ncclBfloat16, ncclSum, 0x4380, 0x3f80) == 0x4380);
    EXPECT(reduce_halves(me, ncclBfloat16, ncclSum, 0x4380, 0x4040) == 0x4382);
    /* float8 saturates to the largest finite number: 448 and 57344 */
    EXPECT(reduce_halves(me, ncclFloat8e4m3, ncclSum, 0x7e, 0x7e) == 0x7e);
    EXPECT(reduce_halves(me, ncclFloat8e5m2, ncclSum, 0x7b, 0x7b) == 0x7b);
    EXPECT(reduce_halves(me, ncclFloat8e4m3, ncclSum, 0xfe, 0xfe) == 0xfe);
    EXPECT(reduce_halves(me, ncclFloat8e4m3, ncclSum, 0x7f, 0x38) == 0x7f); /* NaN */
    /* a number beats a NaN */
    EXPECT(reduce_halves(me, ncclFloat16, ncclMax, 0x7e00, 0x3c00) == 0x3c00);
    EXPECT(reduce_halves(me, ncclFloat16, ncclMin, 0x3c00, 0x7e00) == 0x3c00);
    /* (-3 + 0) / 2 truncates to -1; 200 + 100 wraps to 44 in uint8, half of it is 22 */
    EXPECT(reduce_halves(me, ncclInt8, ncclAvg, 0xfd, 0) == 0xff);
    EXPECT(reduce_halves(me, ncclUint8, ncclAvg, 200, 100) == 22);
}

static void all_reduce__narrow_floats__round_once_and_saturate(void **state)
{
    (void)state;
    in_ranks(2, narrow_floats);
}

static void scaled_sums(struct rank *me)
{
    ncclRedOp_t op;
    float x[4] = {1, 2, 3, (float)me->rank}, scalar = 0.5f * (float)(me->rank + 1);
    float sum = 0, *out = (float *)(void *)me->out;
    for (int r = 0; r < me->n; r++)
        sum += 0.5f * (float)(r + 1);
    memcpy(me->in, x, sizeof(x));
    OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, me->comm));
    EXPECT(ncclAllReduce(me->in, me->out, 4, ncclInt32, op, me->comm, me->stream) ==
           ncclInvalidArgument); /* an operator of another type */
    OK(ncclAllReduce(me->in, me->out, 4, ncclFloat32, op, me->comm, me->stream));
    OK(ncclRedOpDestroy(op, me->comm));
    sync_stream(me);
    EXPECT(out[0] == sum && out[1] == 2 * sum && out[2] == 3 * sum);
    EXPECT(ncclAllReduce(me->in, me->out, 4, ncclFloat32, op, me->comm, me->stream) ==
           ncclInvalidArgument); /* destroyed */

    float *scalar_device = (float *)(void *)(me->in + 4096);
    *scalar_device = scalar;
    OK(ncclRedOpCreatePreMulSum(&op, scalar_device, ncclFloat32, ncclScalarDevice, me->comm));
    OK(ncclAllReduce(me->in, me->out, 4, ncclFloat32, op, me->comm, me->stream));
    OK(ncclRedOpDestroy(op, me->comm));
    sync_stream(me);
    EXPECT(out[0] == sum && out[2] == 3 * sum);
}

static void pre_mul_sum__scalar_on_host_or_device__scales(void **state)
{
    (void)state;
    in_ranks(3, scaled_sums);
}

/* ---- checks and groups ---- */
static void bad_arguments(struct rank *me)
{
    ncclComm_t comm = me->comm;
    cudaStream_t s = me->stream;
    char *in = me->in, *out = me->out;
    int bogus[1024] = {0};
    EXPECT(ncclAllReduce(in, out, 1, ncclInt8, ncclSum, NULL, s) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 1, ncclInt8, ncclSum, (ncclComm_t)bogus, s) ==
           ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 1, (ncclDataType_t)12, ncclSum, comm, s) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 1, (ncclDataType_t)-1, ncclSum, comm, s) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 1, ncclInt8, (ncclRedOp_t)-1, comm, s) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, out, 0, ncclInt8, (ncclRedOp_t)9, comm, s) == ncclInvalidArgument);
    EXPECT(ncclBroadcast(in, out, 1, ncclInt8, me->n, comm, s) == ncclInvalidArgument);
    EXPECT(ncclSend(in, 1, ncclInt8, -1, comm, s) == ncclInvalidArgument);
    OK(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, comm, s)); /* nothing to do */
    EXPECT(ncclGroupEnd() == ncclInvalidUsage);
    EXPECT(ncclCommInitRank(NULL, 1, g_id, 0) == ncclInvalidArgument);
    EXPECT(ncclCommInitRank(&comm, 1, g_id, 1) == ncclInvalidArgument);
    EXPECT(ncclCommInitRank(&comm, 0, g_id, 0) == ncclInvalidArgument);
    meet();
    if (me->rank == 0)
        setenv("NCCL_CHECK_POINTERS", "1", 1);
    meet();
    EXPECT(ncclAllReduce(NULL, out, 1, ncclInt8, ncclSum, me->comm, s) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(in, NULL, 0, ncclInt8, ncclSum, me->comm, s) == ncclInvalidArgument);
    meet();
    if (me->rank == 0)
        unsetenv("NCCL_CHECK_POINTERS");
}

static void all_reduce__bad_arguments__refused_in_nccl_order(void **state)
{
    (void)state;
    in_ranks(2, bad_arguments);
}

static void poisoned_group(struct rank *me)
{
    memset(me->in, 1, 64);
    memset(me->out, 9, 64);
    OK(ncclGroupStart());
    OK(ncclAllReduce(me->in, me->out, 64, ncclInt8, ncclSum, me->comm, me->stream));
    EXPECT(ncclAllReduce(me->in, me->out, 64, (ncclDataType_t)77, ncclSum, me->comm, me->stream) ==
           ncclInvalidArgument);
    OK(ncclGroupStart());
    OK(ncclGroupEnd()); /* an inner end runs nothing */
    EXPECT(ncclGroupEnd() == ncclInvalidArgument);
    sync_stream(me);
    EXPECT(me->out[0] == 9);

    OK(ncclGroupStart());
    OK(ncclAllReduce(me->in, me->out, 64, ncclInt8, ncclSum, me->comm, me->stream));
    ncclSimInfo_t info = {.size = sizeof(info)};
    OK(ncclGroupSimulateEnd(&info));
    EXPECT(info.estimated_time > 0);
    sync_stream(me);
    EXPECT(me->out[0] == 9);

    OK(ncclGroupStart()); /* and the next group is a clean one */
    OK(ncclAllReduce(me->in, me->out, 64, ncclInt8, ncclSum, me->comm, me->stream));
    EXPECT(me->out[0] == 9);
    OK(ncclGroupEnd());
    sync_stream(me);
    EXPECT(me->out[0] == me->n);
}

static void group__error_or_simulation__launches_nothing(void **state)
{
    (void)state;
    in_ranks(2, poisoned_group);
}

/* cases.md 32: the group's collective goes first, or this never ends. */
static void receive_beside_sum(struct rank *me)
{
    memset(me->in, 3, 64);
    if (me->rank == 0) {
        OK(ncclGroupStart());
        OK(ncclRecv(me->out + 64, 64, ncclInt8, 1, me->comm, me->stream));
        OK(ncclAllReduce(me->in, me->out, 64, ncclInt8, ncclSum, me->comm, me->stream));
        OK(ncclGroupEnd());
    } else {
        OK(ncclAllReduce(me->in, me->out, 64, ncclInt8, ncclSum, me->comm, me->stream));
        OK(ncclSend(me->in, 64, ncclInt8, 0, me->comm, me->stream));
    }
    sync_stream(me);
    EXPECT(me->out[63] == 6);
    EXPECT(me->rank == 1 || me->out[127] == 3);
}

static void group__receive_before_sum__sum_goes_first(void **state)
{
    (void)state;
    in_ranks(2, receive_beside_sum);
}

static void everyone_to_everyone(struct rank *me)
{
    size_t part = BUFFER_BYTES / (size_t)me->n;
    for (int r = 0; r < me->n; r++)
        memset(me->in + (size_t)r * part, 10 * me->rank + r, part);
    OK(ncclGroupStart());
    for (int r = 0; r < me->n; r++) {
        OK(ncclRecv(me->out + (size_t)r * part, part, ncclUint8, r, me->comm, me->stream));
        OK(ncclSend(me->in + (size_t)r * part, part, ncclUint8, r, me->comm, me->stream));
    }
    OK(ncclGroupEnd());
    sync_stream(me);
    for (int r = 0; r < me->n; r++) {
        memset(me->want, 10 * r + me->rank, part);
        EXPECT(memcmp(me->out + (size_t)r * part, me->want, part) == 0);
    }
}

static void send_receive__all_pairs_and_self__delivered(void **state)
{
    (void)state;
    in_ranks(4, everyone_to_everyone);
}

/* ---- communicators ---- */
static int sum_of_ones(struct rank *me, ncclComm_t comm)
{
    me->in[0] = 1;
    me->out[0] = 0;
    ncclResult_t result = ncclAllReduce(me->in, me->out, 1, ncclInt8, ncclSum, comm, me->stream);
    EXPECT(result == ncclSuccess || result == ncclInProgress);
    while (result == ncclInProgress)
        OK(ncclCommGetAsyncError(comm, &result));
    OK(result);
    sync_stream(me);
    return me->out[0];
}

static void splits(struct rank *me)
{
    ncclComm_t child = NULL, other = NULL;
    int rank, n;
    /* rank 3 stays out; the keys turn the order round */
    OK(ncclCommSplit(me->comm, me->rank == 3 ? NCCL_SPLIT_NOCOLOR : 5, -me->rank, &child, NULL));
    EXPECT((child == NULL) == (me->rank == 3));
    if (child) {
        OK(ncclCommCount(child, &n));
        OK(ncclCommUserRank(child, &rank));
        EXPECT(n == 3 && rank == 2 - me->rank);
        EXPECT(sum_of_ones(me, child) == 3);
    }
    /* two splits in one group */
    ncclComm_t pair = NULL;
    OK(ncclGroupStart());
    OK(ncclCommSplit(me->comm, me->rank % 2, 0, &pair, NULL));
    OK(ncclCommSplit(me->comm, 0, 0, &other, NULL));
    OK(ncclGroupEnd());
    EXPECT(sum_of_ones(me, pair) == 2 && sum_of_ones(me, other) == 4);
    OK(ncclCommUserRank(other, &rank));
    EXPECT(rank == me->rank); /* equal keys keep the order */
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(pair));
    OK(ncclCommDestroy(other));
}

static void split__colors_and_keys__order_the_children(void **state)
{
    (void)state;
    in_ranks(4, splits);
}

static void shrinks(struct rank *me)
{
    ncclComm_t child;
    int excluded[] = {1}, n;
    if (me->rank == 1) {
        EXPECT(ncclCommShrink(me->comm, excluded, 1, &child, NULL, 0) == ncclInvalidArgument);
        meet();
        return;
    }
    /* An all-reduce that rank 1 never joins is ended by the shrink. */
    OK(ncclAllReduce(me->in, me->out, 1, ncclInt8, ncclSum, me->comm, me->stream));
    double start = seconds();
    OK(ncclCommShrink(me->comm, excluded, 1, &child, NULL, FAKE_SHRINK_ABORT));
    sync_stream(me);
    EXPECT(seconds() - start < 2);
    OK(ncclCommCount(child, &n));
    EXPECT(n == 2 && sum_of_ones(me, child) == 2);
    OK(ncclCommDestroy(child));
    meet();
}

static void shrink__one_rank_gone__others_go_on(void **state)
{
    (void)state;
    in_ranks(3, shrinks);
}

static void aborts(struct rank *me)
{
    if (me->rank == 0)
        OK(ncclAllReduce(me->in, me->out, 4096, ncclInt8, ncclSum, me->comm, me->stream));
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    int is_done = 1;
    EXPECT(llane_gpu_stream_query(me->stream, &is_done) == 0);
    EXPECT(me->rank != 0 || !is_done); /* it waits for the others, and for ever */
    meet();
    double start = seconds();
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
    sync_stream(me);
    EXPECT(seconds() - start < 1);
}

static void abort__while_work_waits__returns_at_once(void **state)
{
    (void)state;
    in_ranks(2, aborts);
}

static void revokes(struct rank *me)
{
    ncclComm_t child;
    if (me->rank == 0)
        OK(ncclAllReduce(me->in, me->out, 1, ncclInt8, ncclSum, me->comm, me->stream));
    OK(ncclCommRevoke(me->comm, 0));
    sync_stream(me);
    EXPECT(ncclAllReduce(me->in, me->out, 1, ncclInt8, ncclSum, me->comm, me->stream) ==
           ncclInvalidUsage);
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    EXPECT(sum_of_ones(me, child) == me->n);
    OK(ncclCommDestroy(child));
}

static void revoke__then__calls_refused_and_split_allowed(void **state)
{
    (void)state;
    in_ranks(2, revokes);
}

static void not_blocking(struct rank *me)
{
    ncclConfig_t config = FAKE_CONFIG_INIT;
    ncclResult_t state = ncclInProgress;
    ncclComm_t late, lonely;
    ncclUniqueId id;
    config.blocking = 0;
    if (me->rank == 1)
        meet();
    EXPECT(ncclCommSplit(me->comm, 0, me->rank, &late, &config) == ncclInProgress);
    if (me->rank == 0) { /* the other rank has not called yet */
        OK(ncclCommGetAsyncError(late, &state));
        EXPECT(state == ncclInProgress);
        EXPECT(ncclAllReduce(me->in, me->out, 1, ncclInt8, ncclSum, late, me->stream) ==
               ncclInvalidArgument);
        meet();
    }
    while (ncclCommGetAsyncError(late, &state) == ncclSuccess && state == ncclInProgress)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    EXPECT(state == ncclSuccess && sum_of_ones(me, late) == me->n);
    OK(ncclCommDestroy(late));
    /* a creation that can never end is ended by abort */
    OK(ncclGetUniqueId(&id));
    EXPECT(ncclCommInitRankConfig(&lonely, 2, id, 0, &config) == ncclInProgress);
    OK(ncclCommAbort(lonely));
}

static void init__non_blocking__in_progress_until_all_came(void **state)
{
    (void)state;
    in_ranks(2, not_blocking);
}

static void symbols__weak_and_global__one_address(void **state)
{
    static const char *const names[] = {"AllReduce", "GroupStart", "GroupEnd",   "CommInitRank",
                                        "CommSplit", "CommAbort",  "CommRevoke", "GetUniqueId"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char weak[64], global[64];
        snprintf(weak, sizeof(weak), "nccl%s", names[i]);
        snprintf(global, sizeof(global), "pnccl%s", names[i]);
        assert_non_null(dlsym(RTLD_DEFAULT, weak));
        assert_ptr_equal(dlsym(RTLD_DEFAULT, weak), dlsym(RTLD_DEFAULT, global));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives__every_type_and_operation__right),
        cmocka_unit_test(all_reduce__narrow_floats__round_once_and_saturate),
        cmocka_unit_test(pre_mul_sum__scalar_on_host_or_device__scales),
        cmocka_unit_test(all_reduce__bad_arguments__refused_in_nccl_order),
        cmocka_unit_test(group__error_or_simulation__launches_nothing),
        cmocka_unit_test(group__receive_before_sum__sum_goes_first),
        cmocka_unit_test(send_receive__all_pairs_and_self__delivered),
        cmocka_unit_test(split__colors_and_keys__order_the_children),
        cmocka_unit_test(shrink__one_rank_gone__others_go_on),
        cmocka_unit_test(abort__while_work_waits__returns_at_once),
        cmocka_unit_test(revoke__then__calls_refused_and_split_allowed),
        cmocka_unit_test(init__non_blocking__in_progress_until_all_came),
        cmocka_unit_test(symbols__weak_and_global__one_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
