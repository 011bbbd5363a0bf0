/* A rank of the soak: one communicator, case after case. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "soak.h"

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);

struct rank {
    struct soak_shared *shared;
    const struct soak_options *options;
    int rank;
    ncclComm_t comm;
    struct CUstream_st *stream;
    size_t stride;               /* from one operation's buffer to the next */
    uint8_t *in, *out;           /* device */
    uint8_t *host, *host_device; /* pinned, one buffer */
};

static _Noreturn void die(const struct rank *r, const char *what, const char *why)
{
    fprintf(stderr, "llane-soak: rank %d: %s: %s\n", r->rank, what, why);
    fflush(NULL);
    _exit(2);
}

static void check_gpu(const struct rank *r, int err, const char *what)
{
    if (err) {
        die(r, what, llane_gpu_error());
    }
}

static void check_nccl(const struct rank *r, ncclResult_t result, const char *what)
{
    if (result != ncclSuccess) {
        die(r, what, ncclGetErrorString(result));
    }
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_a_little(void)
{
    const struct timespec t = {.tv_nsec = 20000};
    nanosleep(&t, NULL);
}

static void synchronize(const struct rank *r)
{
    check_gpu(r, llane_gpu_stream_synchronize(r->stream), "stream");
}

/* ---- one case ---- */

static uint8_t *in_of(const struct rank *r, const struct soak_case *c, int op)
{
    return r->in + (size_t)op * r->stride + soak_case_shift(c, r->rank, op, 0) * c->type->bytes;
}

static uint8_t *out_of(const struct rank *r, const struct soak_case *c, int op)
{
    return c->is_in_place ? in_of(r, c, op)
                          : r->out + (size_t)op * r->stride +
                                soak_case_shift(c, r->rank, op, 1) * c->type->bytes;
}

static void fill(const struct rank *r, const struct soak_case *c, int replay)
{
    size_t bytes = c->count * c->type->bytes;
    for (int op = 0; op < c->n_ops; op++) {
        uint64_t seed = soak_case_seed(c, op, replay);
        for (size_t i = 0; i < c->count; i++) {
            soak_store(r->host, c->type->bytes, i,
                       soak_contribution(c, seed, r->options->n_ranks, r->rank, i));
        }
        check_gpu(r, llane_gpu_memcpy_async(in_of(r, c, op), r->host, bytes, r->stream), "copy");
        if (!c->is_in_place) {
            check_gpu(r, llane_gpu_memset_async(out_of(r, c, op), 0xa5, bytes, r->stream), "set");
        }
        synchronize(r);
    }
}

static void describe(const struct rank *r, const struct soak_case *c, int op, int replay, size_t i,
                     uint64_t got, uint64_t expected)
{
    struct soak_failure *f = &r->shared->failure;
    if (atomic_exchange(&f->is_claimed, 1)) {
        return;
    }
    f->rank = r->rank;
    f->op = op;
    f->replay = replay;
    f->number = c->number;
    f->index = i;
    f->got = got;
    f->expected = expected;
    atomic_store(&f->is_described, 1);
}

/* 0, or -1 at a wrong word. */
static int compare(const struct rank *r, const struct soak_case *c, int replay)
{
    size_t bytes = c->count * c->type->bytes;
    for (int op = 0; op < c->n_ops; op++) {
        uint64_t seed = soak_case_seed(c, op, replay);
        check_gpu(r, llane_gpu_memcpy_async(r->host, out_of(r, c, op), bytes, r->stream), "copy");
        synchronize(r);
        if (r->options->plant_rank == r->rank && c->number == r->options->from + 1) {
            r->host[bytes / 2] ^= 1;
        }
        for (size_t i = 0; i < c->count; i++) {
            uint64_t got = soak_load(r->host, c->type->bytes, i);
            uint64_t expected = soak_expected(c, seed, r->options->n_ranks, i);
            if (got != expected) {
                describe(r, c, op, replay, i, got, expected);
                return -1;
            }
        }
        atomic_fetch_add(&r->shared->n_words, c->count);
    }
    return 0;
}

static void issue(const struct rank *r, const struct soak_case *c)
{
    for (int op = 0; op < c->n_ops; op++) {
        check_nccl(r,
                   ncclAllReduce(in_of(r, c, op), out_of(r, c, op), c->count, c->type->nccl, c->op,
                                 r->comm, r->stream),
                   "ncclAllReduce");
    }
}

static int run_case(const struct rank *r, const struct soak_case *c)
{
    struct CUgraphExec_st *graph = NULL;
    int status = 0;
    if (c->is_graph) {
        check_gpu(r, llane_gpu_capture_begin(r->stream), "capture");
        issue(r, c);
        check_gpu(r, llane_gpu_capture_end(r->stream, &graph), "end of capture");
    }
    for (int replay = 0; replay < c->n_replays && !status; replay++) {
        fill(r, c, replay);
        if (graph) {
            check_gpu(r, llane_gpu_graph_launch(graph, r->stream), "graph launch");
        } else {
            issue(r, c);
        }
        synchronize(r);
        status = compare(r, c, replay);
    }
    if (graph) {
        check_gpu(r, llane_gpu_graph_destroy(graph), "graph");
    }
    return status;
}

/* ---- all of them ---- */

static void start_up(struct rank *r)
{
    int n_devices;
    void *p, *device;
    const struct soak_options *o = r->options;
    check_gpu(r, llane_gpu_device_count(&n_devices), "devices");
    if (!n_devices) {
        die(r, "devices", "no GPU is visible");
    }
    n_devices = o->n_gpus && o->n_gpus < n_devices ? o->n_gpus : n_devices;
    check_gpu(r, llane_gpu_device_set(r->rank % n_devices), "device");
    check_gpu(r, llane_gpu_stream_create(&r->stream), "stream");
    r->stride = (o->max_bytes + 1024) / 256 * 256;
    check_gpu(r, llane_gpu_malloc(SOAK_MAX_OPS * r->stride, &p), "memory");
    r->in = p;
    check_gpu(r, llane_gpu_malloc(SOAK_MAX_OPS * r->stride, &p), "memory");
    r->out = p;
    check_gpu(r, llane_gpu_host_alloc(r->stride, &p, &device), "host memory");
    r->host = p;
    if (r->rank == 0) {
        check_nccl(r, ncclGetUniqueId(&r->shared->id), "ncclGetUniqueId");
        atomic_store(&r->shared->is_id_ready, 1);
    }
    while (!atomic_load(&r->shared->is_id_ready)) {
        pause_a_little();
    }
    check_nccl(r, ncclCommInitRank(&r->comm, o->n_ranks, r->shared->id, r->rank),
               "ncclCommInitRank");
}

/* Rank 0 decides whether there is another case. No case begins while another rank compares: a rank that
 * found a wrong word would leave the others waiting for it. */
static int may_begin(const struct rank *r, uint64_t number, double until_s)
{
    struct soak_shared *shared = r->shared;
    const struct soak_options *o = r->options;
    uint64_t n_before = number - o->from;
    for (int other = 0; other < o->n_ranks; other++) {
        while (atomic_load(&shared->n_done[other]) < n_before) {
            if (atomic_load(&shared->failure.is_claimed)) {
                return 0;
            }
            pause_a_little();
        }
    }
    if (r->rank == 0) {
        int is_over = atomic_load(&shared->failure.is_claimed) ||
                      (o->n_cases ? n_before >= o->n_cases : now_s() >= until_s);
        if (is_over) {
            atomic_store(&shared->is_over, 1);
        } else {
            atomic_store(&shared->n_allowed, number + 1);
        }
        return !is_over;
    }
    while (atomic_load(&shared->n_allowed) <= number) {
        if (atomic_load(&shared->is_over)) {
            return 0;
        }
        pause_a_little();
    }
    return 1;
}

int soak_rank_main(struct soak_shared *shared, const struct soak_options *options, int rank)
{
    struct rank r = {.shared = shared, .options = options, .rank = rank};
    uint64_t number = options->from;
    start_up(&r);
    double until_s = now_s() + options->seconds;
    for (; may_begin(&r, number, until_s); number++) {
        const struct soak_case c =
            soak_case_of(options->seed, number, options->max_bytes, options->n_ranks);
        if (run_case(&r, &c)) {
            fflush(NULL);
            _exit(1); /* the others are ended by the parent */
        }
        atomic_fetch_add(&shared->n_done[rank], 1);
    }
    if (atomic_load(&shared->failure.is_claimed)) {
        _exit(1);
    }
    check_nccl(&r, ncclCommDestroy(r.comm), "ncclCommDestroy");
    return 0;
}
