/* See measure.h: one rank, which has one GPU. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "err.h"
#include "measure.h"
#include "measure_kernels.h"
#include "probe.h"
#include "staging.h"

enum {
    BARRIER_SECONDS = 30,
    COPY_BLOCKS = 64,
    COPY_THREADS = 512,
    REPEATS = 8,
    LOAD_SECONDS = 15,
};

struct rank {
    struct measure_shared *shared;
    int rank;
    struct llane_staging *staging;
    struct CUstream_st *stream;
    struct CUevent_st *from, *to;
    uint8_t *peers[LLANE_MAX_RANKS]; /* as this rank reaches them; NULL where it does not */
    uint64_t slot_bytes;
    uint32_t *host, *host_device; /* two words, 128 bytes apart, then the flag kernel's result */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int gpu_failed(const struct rank *r, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "GPU %d: %s: %.100s", r->rank, what, llane_gpu_error());
    return measure_fail(r->shared, text);
}

/* All ranks meet; fails when one has failed. */
static int barrier(const struct rank *r)
{
    struct measure_shared *s = r->shared;
    const struct timespec nap = {0, 50000};
    double end = now_s() + BARRIER_SECONDS;
    uint32_t turn = atomic_load(&s->turn);
    /* The last arrival opens the turn: pairs with the loads of those who wait for it. */
    if (atomic_fetch_add(&s->n_arrived, 1) + 1 == (uint32_t)s->n) {
        atomic_store(&s->n_arrived, 0);
        atomic_store(&s->turn, turn + 1);
    }
    while (atomic_load(&s->turn) == turn) {
        if (atomic_load(&s->has_failed) || now_s() > end) {
            return measure_fail(s, "a rank does not come to a barrier");
        }
        nanosleep(&nap, NULL);
    }
    return atomic_load(&s->has_failed);
}

static int launch(const struct rank *r, enum llane_measure_kernel kernel, const void *args,
                  size_t args_bytes, uint32_t n_blocks, uint32_t n_threads)
{
    const struct llane_gpu_launch request = {.kernel = llane_measure_kernels[kernel],
                                             .args = args,
                                             .args_bytes = args_bytes,
                                             .n_blocks = n_blocks,
                                             .n_threads = n_threads,
                                             .stream = r->stream};
    return llane_gpu_launch(&request);
}

/* Plain room for two ranks' traffic: the LL region of a lane's staging memory. */
static uint8_t *slot(const struct rank *r, uint8_t *base, uint32_t source)
{
    const uint64_t slot_bytes[LLANE_N_PACKETS] = {r->slot_bytes};
    return llane_staging_slot(base, 2, slot_bytes, LLANE_LL, source);
}

static int prepare(struct rank *r)
{
    const uint64_t slot_bytes[LLANE_N_PACKETS] = {r->slot_bytes};
    uint32_t blocks;
    void *host, *device;
    if (llane_gpu_device_set(r->rank) || llane_gpu_stream_create(&r->stream) ||
        llane_gpu_event_create(1, &r->from) || llane_gpu_event_create(1, &r->to) ||
        llane_staging_take(r->rank, llane_staging_bytes(2, slot_bytes, 0), 1ull << 30, r->stream,
                           &r->staging) ||
        llane_gpu_host_alloc(4096, &host, &device)) {
        return gpu_failed(r, "memory");
    }
    r->host = host;
    r->host_device = device;
    for (int k = 0; k < LLANE_MEASURE_N_KERNELS; k++) {
        if (llane_gpu_kernel_load(llane_measure_kernels[k], COPY_THREADS, &blocks)) {
            return gpu_failed(r, "kernels");
        }
    }
    struct llane_remote_memory *memory = &r->shared->gpus[r->rank].memory;
    *memory = (struct llane_remote_memory){.address = (uint64_t)(uintptr_t)r->staging->base,
                                           .device = r->rank,
                                           .is_exported = r->staging->is_exported,
                                           .handle = r->staging->handle};
    return llane_address_space_self(&memory->owner) ? measure_fail(r->shared, "no randomness") : 0;
}

static void open_peers(struct rank *r)
{
    for (int p = 0; p < r->shared->n; p++) {
        struct measure_pair *pair = &r->shared->pairs[r->rank][p];
        if (p == r->rank) {
            continue;
        }
        if (llane_peers_map(&r->shared->gpus[p].memory, r->rank, &r->peers[p])) {
            r->peers[p] = NULL;
            snprintf(pair->why, sizeof pair->why, "%.79s",
                     r->shared->gpus[p].memory.is_exported ? llane_gpu_error() : "not exported");
            for (char *c = pair->why; *c; c++) {
                *c = *c == '\n' ? ' ' : *c;
            }
        } else {
            pair->is_open = 1;
        }
    }
}

/* ---- one pair ---- */

static int zero(const struct rank *r)
{
    uint8_t *area = llane_staging_probe_area(r->staging->base, 0);
    return llane_gpu_memset_async(area, 0, (size_t)LLANE_MAX_RANKS * LLANE_PROBE_BYTES,
                                  r->stream) ||
           llane_gpu_memset_async(slot(r, r->staging->base, 0), 0, 256, r->stream) ||
           llane_gpu_stream_synchronize(r->stream);
}

/* As ranks 0 and 1 of a lane of two; the owner of the memory is who judges. */
static int probe(const struct rank *r, int peer, int is_first, uint64_t nonce)
{
    const _Atomic int never = 0;
    int self = is_first ? 0 : 1, other = 1 - self;
    uint32_t results[LLANE_MAX_RANKS] = {0};
    struct llane_probe how = {
        .staging = r->staging, .peers = 1u << other, .rank = self, .n_ranks = 2, .nonce = nonce};
    how.send[other] = llane_staging_probe_area(r->peers[peer], (uint32_t)self);
    how.recv[other] = llane_staging_probe_area(r->staging->base, (uint32_t)other);
    if (llane_probe_run(&how, r->stream, &never, results) == LLANE_EGPU) {
        return gpu_failed(r, "probe");
    }
    r->shared->pairs[peer][r->rank].probe = results[other];
    return 0;
}

static int flag(const struct rank *r, uint32_t *own, uint32_t *peer, int is_first)
{
    uint32_t n_rounds = r->shared->is_emulated ? 20 : 1000;
    uint64_t *result = (uint64_t *)(void *)(r->host + 64);
    const struct llane_measure_flag_args args = {
        .own = own,
        .peer = peer,
        .result_ns = (uint64_t *)(void *)(r->host_device + 64),
        .timeout_ns = 1000000000u,
        .n_warm = 10,
        .n_rounds = n_rounds,
        .is_first = (uint32_t)is_first,
    };
    *result = 0;
    if (launch(r, LLANE_MEASURE_FLAG, &args, sizeof args, 1, 32)) {
        return gpu_failed(r, "flag kernel");
    }
    return 0;
}

static float flag_result(const struct rank *r)
{
    uint32_t n_rounds = r->shared->is_emulated ? 20 : 1000;
    return (float)*(const uint64_t *)(const void *)(r->host + 64) / 1e3f / (float)(2 * n_rounds);
}

/* GB/s of a kernel that copies; the first copy is not timed. */
static int copy(const struct rank *r, uint8_t *to, const uint8_t *from, float *gbs_out)
{
    const struct llane_measure_copy_args args = {from, to, r->slot_bytes / 16};
    uint32_t blocks = r->shared->is_emulated ? 1 : COPY_BLOCKS;
    uint32_t threads = r->shared->is_emulated ? 32 : COPY_THREADS;
    float us = 0;
    for (int i = 0; i <= REPEATS; i++) {
        if ((i == 1 && llane_gpu_event_record(r->from, r->stream)) ||
            launch(r, LLANE_MEASURE_COPY, &args, sizeof args, blocks, threads)) {
            return gpu_failed(r, "copy kernel");
        }
    }
    if (llane_gpu_event_record(r->to, r->stream) || llane_gpu_stream_synchronize(r->stream) ||
        llane_gpu_event_elapsed_us(r->from, r->to, &us)) {
        return gpu_failed(r, "copy kernel");
    }
    *gbs_out = us > 0 ? (float)r->slot_bytes * REPEATS / us / 1e3f : 0;
    return 0;
}

/* One rank at a time, so that neither disturbs the other. */
static int speeds(const struct rank *r, int peer)
{
    struct measure_pair *pair = &r->shared->pairs[r->rank][peer];
    uint8_t *there = slot(r, r->peers[peer], 0) + 256;
    uint8_t *here = slot(r, r->staging->base, 1);
    return copy(r, there, here, &pair->write_gbs) || copy(r, here, there, &pair->read_gbs);
}

static int measure_pairs(struct rank *r)
{
    const struct measure_shared *s = r->shared;
    for (int a = 0; a < s->n; a++) {
        for (int b = a + 1; b < s->n; b++) {
            int is_mine = r->rank == a || r->rank == b, peer = r->rank == a ? b : a;
            int is_open = s->pairs[a][b].is_open && s->pairs[b][a].is_open;
            if (!is_open) {
                continue; /* every rank reads the same: written before the barrier in front */
            }
            if (is_mine && zero(r)) {
                return gpu_failed(r, "memory");
            }
            if (barrier(r) ||
                (is_mine &&
                 probe(r, peer, r->rank == a, 0x9e3779b97f4a7c15u * (uint64_t)(a * 64 + b + 1)))) {
                return 1;
            }
            if (barrier(r)) {
                return 1;
            }
            int is_good = s->pairs[a][b].probe == LLANE_PROBE_GOOD &&
                          s->pairs[b][a].probe == LLANE_PROBE_GOOD;
            if (is_mine && is_good) {
                uint32_t *own = (uint32_t *)(void *)slot(r, r->staging->base, 0);
                uint32_t *theirs = (uint32_t *)(void *)slot(r, r->peers[peer], 0);
                if (flag(r, own, theirs, r->rank == a)) {
                    return 1;
                }
                if (llane_gpu_stream_synchronize(r->stream)) {
                    return gpu_failed(r, "flag kernel");
                }
                r->shared->pairs[r->rank][peer].latency_us = flag_result(r);
            }
            for (int turn = 0; turn < 2; turn++) {
                if (barrier(r) ||
                    (is_mine && is_good && r->rank == (turn ? b : a) && speeds(r, peer))) {
                    return 1;
                }
            }
            if (barrier(r)) {
                return 1;
            }
        }
    }
    return 0;
}

/* ---- host memory ---- */

static int copy_host(const struct rank *r, void *to, const void *from, float *gbs_out)
{
    float us = 0;
    for (int i = 0; i <= REPEATS; i++) {
        if ((i == 1 && llane_gpu_event_record(r->from, r->stream)) ||
            llane_gpu_memcpy_async(to, from, r->slot_bytes, r->stream)) {
            return gpu_failed(r, "copy of host memory");
        }
    }
    if (llane_gpu_event_record(r->to, r->stream) || llane_gpu_stream_synchronize(r->stream) ||
        llane_gpu_event_elapsed_us(r->from, r->to, &us)) {
        return gpu_failed(r, "copy of host memory");
    }
    *gbs_out = us > 0 ? (float)r->slot_bytes * REPEATS / us / 1e3f : 0;
    return 0;
}

static int measure_host(struct rank *r)
{
    struct measure_gpu *gpu = &r->shared->gpus[r->rank];
    void *host, *device;
    uint8_t *here = slot(r, r->staging->base, 1);
    if (llane_gpu_host_alloc(r->slot_bytes, &host, &device)) {
        return gpu_failed(r, "host memory");
    }
    if (copy_host(r, here, host, &gpu->to_gbs) || copy_host(r, host, here, &gpu->from_gbs)) {
        return 1;
    }
    /* The host answers the kernel's numbers: word 0 is the kernel's, word 32 is this side's. */
    uint32_t *from_gpu = r->host, *to_gpu = r->host + 32;
    __atomic_store_n(from_gpu, 0, __ATOMIC_RELEASE);
    __atomic_store_n(to_gpu, 0, __ATOMIC_RELEASE);
    if (flag(r, r->host_device + 32, r->host_device, 1)) {
        return 1;
    }
    double end = now_s() + 3;
    for (int is_done = 0; !is_done && now_s() < end;) {
        for (int spin = 0; spin < 1000; spin++) {
            /* Pairs with the flag kernel's store and its await_number. */
            __atomic_store_n(to_gpu, __atomic_load_n(from_gpu, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
        }
        if (llane_gpu_stream_query(r->stream, &is_done)) {
            return gpu_failed(r, "flag kernel");
        }
    }
    if (llane_gpu_stream_synchronize(r->stream)) {
        return gpu_failed(r, "flag kernel");
    }
    gpu->host_latency_us = flag_result(r);
    return 0;
}

int measure_rank(struct measure_shared *shared, int rank)
{
    struct rank r = {
        .shared = shared, .rank = rank, .slot_bytes = shared->is_emulated ? 64u << 10 : 16u << 20};
    if (prepare(&r)) {
        return 1;
    }
    /* One GPU after another: they may share an uplink. */
    for (int turn = 0; turn < shared->n; turn++) {
        if ((turn == rank && measure_host(&r)) || barrier(&r)) {
            return 1;
        }
    }
    open_peers(&r);
    if (barrier(&r) || measure_pairs(&r)) {
        return 1;
    }
    return barrier(&r); /* nobody leaves while a peer may still look at its memory */
}

int measure_load(struct measure_shared *shared, int rank)
{
    struct rank r = {
        .shared = shared, .rank = rank, .slot_bytes = shared->is_emulated ? 64u << 10 : 16u << 20};
    void *host, *device;
    double end = now_s() + LOAD_SECONDS;
    if (prepare(&r) || !r.staging || llane_gpu_host_alloc(r.slot_bytes, &host, &device)) {
        return gpu_failed(&r, "host memory");
    }
    uint8_t *here = slot(&r, r.staging->base, 1);
    for (int i = 0; now_s() < end; i++) {
        if (llane_gpu_memcpy_async(here, host, r.slot_bytes, r.stream) ||
            llane_gpu_memcpy_async(host, here, r.slot_bytes, r.stream) ||
            llane_gpu_stream_synchronize(r.stream)) {
            return gpu_failed(&r, "copy of host memory");
        }
        if (i == 0) {
            atomic_fetch_add(&shared->n_loading, 1); /* pairs with the parent's load */
        }
    }
    return 0;
}
