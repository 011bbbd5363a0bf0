/* A rank: NCCL's communicator, the lane on it, then size by size check, time, check. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "gpu.h"

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);

enum {
    ALIGNMENT = 256,
    WARM_UPS = 4,
    N_ROUNDS = 2,             /* checks: before the times are taken and after */
    MAX_SLOTS = 4,            /* different contributions that buffers hold */
    SLOT_ELEMENTS = 1 << 20,  /* beyond, all buffers hold the same */
    CHECK_ELEMENTS = 8 << 20, /* about as many a way, size and round */
};
static const size_t REGION_BYTES = 1u << 30, EMULATED_REGION_BYTES = 64u << 20;

static uint64_t n_lane_path_calls;

/* ---- what the other files use ---- */

_Noreturn void bench_rank_die(const struct bench_rank *r, const char *what, const char *why)
{
    fprintf(stderr, "llane-bench: rank %d: %s: %s\n", r->rank, what, why);
    fflush(NULL);
    _exit(1);
}

void bench_check_gpu(const struct bench_rank *r, int err, const char *what)
{
    if (err) {
        bench_rank_die(r, what, llane_gpu_error());
    }
}

void bench_check_nccl(const struct bench_rank *r, ncclResult_t result, const char *what)
{
    if (result != ncclSuccess) {
        bench_rank_die(r, what, ncclGetErrorString(result));
    }
}

double bench_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void bench_at(const struct bench_rank *r, enum bench_stage stage)
{
    struct bench_place *place = &r->shared->place[r->rank];
    /* All of a place is read by the parent at its leisure. */
    atomic_store_explicit(&place->stage, (int)stage, memory_order_relaxed);
    atomic_fetch_add_explicit(&place->n_steps, 1, memory_order_relaxed);
}

void bench_barrier(const struct bench_rank *r)
{
    struct bench_shared *shared = r->shared;
    uint32_t number = atomic_load(&shared->n_barriers);
    unsigned n_polls = 0;
    /* Sequentially consistent: the last rank clears the count before it lets the others go. */
    if (atomic_fetch_add(&shared->n_arrived, 1) + 1 == (uint32_t)r->options->n_ranks) {
        atomic_store(&shared->n_arrived, 0);
        atomic_fetch_add(&shared->n_barriers, 1);
        return;
    }
    while (atomic_load(&shared->n_barriers) == number) {
        if (++n_polls > 2000) {
            sched_yield();
        }
    }
}

void bench_all_reduce(const struct bench_rank *r, enum bench_path path, const void *in, void *out,
                      size_t count)
{
    const struct bench_options *o = r->options;
    if (path == BENCH_LANE) {
        n_lane_path_calls++;
        bench_check_nccl(r, ncclAllReduce(in, out, count, o->type->nccl, o->op, r->comm, r->stream),
                         "ncclAllReduce");
    } else {
        bench_check_nccl(r,
                         pncclAllReduce(in, out, count, o->type->nccl, o->op, r->comm, r->stream),
                         "pncclAllReduce");
    }
}

/* ---- buffers ---- */

static void synchronize(const struct bench_rank *r)
{
    bench_check_gpu(r, llane_gpu_stream_synchronize(r->stream), "stream");
}

/* As many buffers as operations, unless they do not fit. */
static void lay_out(const struct bench_rank *r, size_t bytes, struct bench_work *work)
{
    size_t region = r->is_emulated ? EMULATED_REGION_BYTES : REGION_BYTES;
    size_t stride = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t fit = region / stride ? region / stride : 1;
    int n_ops = r->options->n_ops;
    work->bytes = bytes;
    work->count = bytes / r->options->type->bytes;
    work->stride = stride;
    work->n_buffers = fit < (size_t)n_ops ? (int)fit : n_ops;
    work->n_slots = work->count > SLOT_ELEMENTS        ? 1
                    : work->n_buffers < (int)MAX_SLOTS ? work->n_buffers
                                                       : MAX_SLOTS;
}

struct memory {
    size_t region; /* bytes of source, in and out */
    void *host;    /* pinned, one buffer */
    struct bench_reference reference;
};

static void allocate(const struct bench_rank *r, struct bench_work *work, struct memory *memory)
{
    const struct bench_options *o = r->options;
    void *device;
    for (int s = 0; s < o->n_sizes; s++) {
        lay_out(r, o->sizes[s], work);
        size_t region = work->stride * (size_t)work->n_buffers;
        memory->region = region > memory->region ? region : memory->region;
    }
    size_t largest = o->sizes[o->n_sizes - 1];
    bench_check_gpu(r, llane_gpu_malloc(memory->region, (void **)&work->in), "inputs");
    bench_check_gpu(r, llane_gpu_malloc(memory->region, (void **)&work->out), "outputs");
    if (o->mode == BENCH_PRODUCER) {
        bench_check_gpu(r, llane_gpu_malloc(memory->region, (void **)&work->source), "sources");
    }
    bench_check_gpu(r, llane_gpu_host_alloc(largest, &memory->host, &device), "host buffer");
    if (bench_reference_open(&memory->reference, o->type, o->op, o->n_ranks,
                             largest / o->type->bytes)) {
        bench_rank_die(r, "reference", "out of host memory");
    }
}

/* ---- results ---- */

static uint64_t seed_of(int size, int round, int slot)
{
    return ((uint64_t)size * N_ROUNDS + (uint64_t)round) * MAX_SLOTS + (uint64_t)slot + 1;
}

/* New contributions into every buffer. */
static void fill(const struct bench_rank *r, const struct bench_work *work,
                 const struct memory *memory, int size, int round)
{
    uint8_t *to = work->source ? work->source : work->in;
    for (int slot = 0; slot < work->n_slots; slot++) {
        bench_reference_fill(&memory->reference, r->rank, seed_of(size, round, slot), memory->host,
                             work->count);
        for (int b = slot; b < work->n_buffers; b += work->n_slots) {
            bench_check_gpu(r,
                            llane_gpu_memcpy_async(to + (size_t)b * work->stride, memory->host,
                                                   work->bytes, r->stream),
                            "copy");
        }
        synchronize(r); /* the copies read host */
    }
}

/* One buffer's output; damaged first where a test asks for it. */
static uint64_t wrong_of_buffer(const struct bench_rank *r, const struct bench_work *work,
                                const struct memory *memory, int buffer)
{
    uint8_t *host = memory->host;
    bench_check_gpu(r,
                    llane_gpu_memcpy_async(host, work->out + (size_t)buffer * work->stride,
                                           work->bytes, r->stream),
                    "copy");
    synchronize(r);
    if (r->options->plant_rank == r->rank && buffer == work->n_buffers - 1) {
        host[work->bytes - 1] ^= 0x40; /* of the last element: an exponent's or a high bit */
    }
    return bench_reference_count_wrong(&memory->reference, host, work->count);
}

static void poison(const struct bench_rank *r, const struct bench_work *work,
                   const struct memory *memory)
{
    bench_check_gpu(r, llane_gpu_memset_async(work->out, 0xff, memory->region, r->stream),
                    "poison");
    if (work->source) {
        bench_check_gpu(r, llane_gpu_memset_async(work->in, 0xff, memory->region, r->stream),
                        "poison");
    }
}

/*
 * All buffers, or as many as CHECK_ELEMENTS allows, the last among them: from the last one back in
 * equal steps. The path's outputs are compared slot by slot, each slot's reference made once.
 */
static void check_path(struct bench_rank *r, struct bench_work *work, struct memory *memory,
                       int size, int round, int path)
{
    struct bench_result *result = &r->shared->result[r->rank];
    size_t fit = CHECK_ELEMENTS / work->count + 1;
    int step = (int)(((size_t)work->n_buffers + fit - 1) / fit);
    atomic_store(&r->shared->place[r->rank].path, path);
    bench_at(r, BENCH_STAGE_CHECK);
    poison(r, work, memory);
    bench_measure_run_once(r, work, (enum bench_path)path);
    for (int slot = 0; slot < work->n_slots; slot++) {
        bench_reference_compute(&memory->reference, seed_of(size, round, slot), work->count);
        for (int b = work->n_buffers - 1; b >= 0; b -= step) {
            if (b % work->n_slots == slot) {
                result->wrong[path][size] += wrong_of_buffer(r, work, memory, b);
                result->checked[path][size] += work->count;
            }
        }
    }
}

static void check(struct bench_rank *r, struct bench_work *work, struct memory *memory, int size,
                  int round)
{
    fill(r, work, memory, size, round);
    for (int path = 0; path < (r->options->skips_nccl ? BENCH_NCCL : BENCH_N_PATHS); path++) {
        check_path(r, work, memory, size, round, path);
    }
}

/* ---- the whole of it ---- */

static void join(struct bench_rank *r)
{
    struct bench_shared *shared = r->shared;
    bench_at(r, BENCH_STAGE_NCCL);
    if (r->rank == 0) {
        bench_check_nccl(r, ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
        atomic_store(&shared->is_id_ready, 1);
    }
    while (!atomic_load(&shared->is_id_ready)) {
        usleep(500);
    }
    bench_check_nccl(r, ncclCommInitRank(&r->comm, r->options->n_ranks, shared->id, r->rank),
                     "ncclCommInitRank");
    bench_at(r, BENCH_STAGE_NCCL);
}

/* The first call waits for the lane (LLANE_WAIT), the later ones take it. */
static void warm_up(struct bench_rank *r, const struct bench_work *work)
{
    bench_at(r, BENCH_STAGE_LANE);
    for (int i = 0; i < WARM_UPS; i++) {
        bench_all_reduce(r, BENCH_LANE, work->in, work->out,
                         r->options->sizes[0] / r->options->type->bytes);
        synchronize(r);
    }
}

static void run_sizes(struct bench_rank *r, struct bench_work *work, struct memory *memory)
{
    const struct bench_options *o = r->options;
    struct bench_place *place = &r->shared->place[r->rank];
    if (o->does_breakdown && r->rank == 0) {
        r->shared->result[0].cpu_launch_us = bench_floor_launch_us(r);
    }
    int is_traced =
        o->does_breakdown && r->phase.does_time && o->n_ranks > 1 && bench_trace_open(r);
    for (int s = 0; s < o->n_sizes; s++) {
        atomic_store(&place->size, s);
        lay_out(r, o->sizes[s], work);
        bench_measure_open(r, work);
        if (r->phase.does_check) {
            check(r, work, memory, s, 0);
        } else {
            fill(r, work, memory, s, 0); /* real numbers: other ones may take other paths */
        }
        if (r->phase.does_time) {
            bench_measure_times(r, work, s);
        }
        if (is_traced) {
            bench_trace_size(r, work, s);
        }
        if (r->phase.does_check && r->phase.does_time) {
            check(r, work, memory, s, 1);
        }
        bench_barrier(r); /* no rank destroys a graph that another one's kernels still need */
        bench_measure_close(r, work);
    }
}

int bench_rank_main(struct bench_shared *shared, const struct bench_options *options,
                    struct bench_phase phase, int rank)
{
    struct bench_rank r = {.shared = shared,
                           .options = options,
                           .phase = phase,
                           .rank = rank,
                           .is_emulated = !strcmp(llane_gpu_runtime(), "emulation")};
    struct bench_work work = {0};
    struct memory memory = {0};
    int n_devices;
    setvbuf(stdout, NULL, _IOLBF, 0); /* NCCL logs to it: whole lines, at once */
    bench_at(&r, BENCH_STAGE_START);
    bench_check_gpu(&r, llane_gpu_device_count(&n_devices), "devices");
    if (options->n_gpus && options->n_gpus < n_devices) {
        n_devices = options->n_gpus;
    }
    bench_check_gpu(&r, llane_gpu_device_set(rank % n_devices), "device");
    bench_check_gpu(&r, llane_gpu_stream_create(&r.stream), "stream");
    join(&r);
    if (options->does_overhead) {
        bench_overhead_measure(&r);
    } else {
        allocate(&r, &work, &memory);
        warm_up(&r, &work);
        if (phase.does_time) {
            bench_floor_measure(&r);
        }
        run_sizes(&r, &work, &memory);
        bench_reference_close(&memory.reference);
    }
    shared->result[rank].n_lane_path_calls = n_lane_path_calls;
    bench_check_nccl(&r, ncclCommDestroy(r.comm), "ncclCommDestroy");
    shared->result[rank].is_done = 1;
    bench_at(&r, BENCH_STAGE_DONE);
    return 0;
}
