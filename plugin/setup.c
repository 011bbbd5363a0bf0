#include "setup.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "backoff.h"
#include "config.h"
#include "err.h"
#include "log.h"
#include "peers.h"
#include "probe.h"
#include "version.h"

/* Steps on the board after arrival; each ends with a verdict that all ranks read. */
enum { STEP_RESOURCES = LLANE_BOARD_ARRIVAL + 1, STEP_PEERS, STEP_PROBE };

/* What a rank tells with its arrival. */
struct identity {
    struct llane_gpu_identity gpu;
    struct llane_route_limits limits; /* the configuration in it; rank 0's holds */
    int32_t max_ctas;                 /* 0: no limit */
    int32_t has_checks,
        has_context; /* NCCL checks arguments; the caller's context is not primary */
};

/* What it tells with its vote on STEP_RESOURCES. */
struct resources {
    struct llane_remote_memory memory;
    uint64_t nonce; /* rank 0's is the probe's */
    uint32_t blocks_per_sm;
};

/* One set-up under way; what fails names its reason here, once. */
struct setup {
    struct llane_comm *comm;
    struct llane_board *board;
    struct CUstream_st *stream;
    struct llane_lane *lane;
    enum llane_inactive_reason readiness; /* of this rank's GPU */
    struct identity identity[LLANE_MAX_RANKS];
    struct resources resources[LLANE_MAX_RANKS];
    uint8_t *bases[LLANE_MAX_RANKS];
    uint64_t slot_bytes[LLANE_N_PACKETS];
};

static _Atomic int n_threads_running;
static _Atomic int is_leaving;

static enum llane_inactive_reason reason_of_verdict(const struct llane_verdict *verdict)
{
    switch (verdict->reason) {
    case LLANE_BOARD_DIED:
        return LLANE_INACTIVE_DIED;
    case LLANE_BOARD_LEFT:
        return LLANE_INACTIVE_LEFT;
    case LLANE_BOARD_BUILD:
        return LLANE_INACTIVE_BUILD;
    }
    uint32_t reason = verdict->reason - LLANE_BOARD_REASON_FIRST;
    return reason > LLANE_INACTIVE_NONE && reason < LLANE_N_INACTIVE_REASONS
               ? (enum llane_inactive_reason)reason
               : LLANE_INACTIVE_RECORD;
}

static uint32_t vote_of_reason(enum llane_inactive_reason reason)
{
    return reason == LLANE_INACTIVE_NONE ? LLANE_BOARD_AGREED
                                         : LLANE_BOARD_REASON_FIRST + (uint32_t)reason;
}

/* Votes, waits for the verdict and returns its reason, the same on every rank. */
static enum llane_inactive_reason conclude(struct setup *s, int step,
                                           enum llane_inactive_reason mine, const void *record,
                                           size_t record_bytes)
{
    struct llane_verdict verdict;
    if (step != LLANE_BOARD_ARRIVAL) {
        llane_board_vote(s->board, step, vote_of_reason(mine), record, record_bytes);
    }
    if (llane_board_wait(s->board, step, &s->comm->cancel, &verdict)) {
        return LLANE_INACTIVE_CANCELED;
    }
    if (verdict.is_yes) {
        return LLANE_INACTIVE_NONE;
    }
    enum llane_inactive_reason reason = reason_of_verdict(&verdict);
    if (verdict.rank != s->comm->rank) {
        LLANE_INFO("rank %d: rank %d refused the lane", s->comm->rank, verdict.rank);
    }
    return reason;
}

/* ---- step 0: who is where ---- */

/* 0 asks for nothing. */
static uint32_t whole_warps(uint32_t n_threads)
{
    return n_threads && n_threads < LLANE_MIN_THREADS ? LLANE_MIN_THREADS : n_threads / 32 * 32;
}

static struct llane_route_limits configured_limits(void)
{
    const struct llane_config *config = llane_config();
    return (struct llane_route_limits){
        .min_bytes = config->min_bytes,
        .max_bytes = config->max_bytes,
        .algorithm = (uint32_t)config->algo,
        .packet = (uint32_t)config->packet,
        .n_blocks = (uint32_t)config->blocks,
        .n_threads = whole_warps((uint32_t)config->threads),
    };
}

static int32_t own_max_ctas(const struct llane_comm *comm)
{
    uint64_t own = llane_config()->max_ctas;
    return own ? (int32_t)own : comm->options.max_ctas;
}

/* What one rank's environment asks for holds for all: each of them reads the same records. */
static enum llane_inactive_reason look_at_settings(const struct setup *s)
{
    int has_checks = 0, has_context = 0;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        has_checks |= s->identity[r].has_checks != 0;
        has_context |= s->identity[r].has_context != 0;
    }
    return has_checks    ? LLANE_INACTIVE_CHECKS
           : has_context ? LLANE_INACTIVE_CONTEXT
                         : LLANE_INACTIVE_NONE;
}

/* This rank's GPU and what the set-up needs of it. */
static enum llane_inactive_reason get_ready(struct setup *s, struct llane_gpu_identity *gpu_out)
{
    if (llane_gpu_device_set(s->comm->device) || llane_gpu_capture_mode_relax() ||
        llane_gpu_stream_create(&s->stream) || llane_gpu_identify(s->comm->device, gpu_out)) {
        LLANE_INFO("rank %d: %s", s->comm->rank, llane_gpu_error());
        return LLANE_INACTIVE_GPU;
    }
    return LLANE_INACTIVE_NONE;
}

/* A rank that is not ready comes all the same, and says so in the next step: the others learn why. */
static enum llane_inactive_reason arrive(struct setup *s)
{
    struct llane_comm *comm = s->comm;
    struct identity mine = {
        .limits = configured_limits(),
        .max_ctas = own_max_ctas(comm),
        .has_checks = comm->has_checks,
        .has_context = comm->has_own_context,
    };
    s->readiness = get_ready(s, &mine.gpu);
    char first_of_build[17];
    snprintf(first_of_build, sizeof first_of_build, "%.16s", llane_build_id());
    const struct llane_board_args args = {
        .key = comm->key,
        .build = strtoull(first_of_build, NULL, 16),
        .n_ranks = comm->n_ranks,
        .rank = comm->rank,
        .record = &mine,
        .record_bytes = sizeof mine,
    };
    int err = llane_board_join(&args, &comm->cancel, &s->board);
    if (err == LLANE_ESYS) {
        LLANE_INFO("rank %d: memory and socket for the ranks to meet: %s", comm->rank,
                   strerror(errno));
    }
    if (err) {
        return err == LLANE_ECANCELED ? LLANE_INACTIVE_CANCELED : LLANE_INACTIVE_BOARD;
    }
    comm->board = s->board;
    enum llane_inactive_reason reason = conclude(s, LLANE_BOARD_ARRIVAL, 0, NULL, 0);
    for (int r = 0; r < comm->n_ranks && !reason; r++) {
        if (llane_board_record(s->board, LLANE_BOARD_ARRIVAL, r, &s->identity[r],
                               sizeof s->identity[r])) {
            reason = LLANE_INACTIVE_RECORD;
        }
    }
    return reason ? reason : look_at_settings(s);
}

/* ---- step 1: kernels loaded, staging memory taken ---- */

static int is_sane(const struct llane_route_limits *limits)
{
    return limits->max_bytes <= LLANE_MAX_BYTES_MOST && limits->algorithm <= LLANE_N_ALGORITHMS &&
           limits->packet <= LLANE_N_PACKETS && limits->n_blocks <= LLANE_MAX_BLOCKS &&
           limits->n_threads <= LLANE_MAX_THREADS && limits->n_threads % 32 == 0 &&
           (!limits->n_threads || limits->n_threads >= LLANE_MIN_THREADS);
}

/* Rank 0's configuration holds for all. */
static enum llane_inactive_reason adopt_limits(struct setup *s)
{
    struct llane_route_limits agreed = s->identity[0].limits;
    struct llane_route_limits *mine = &s->identity[s->comm->rank].limits;
    if (!is_sane(&agreed)) {
        return LLANE_INACTIVE_RECORD;
    }
    if (memcmp(&agreed, mine, sizeof agreed) != 0) {
        LLANE_WARN(
            "rank %d: LLANE_MIN_BYTES=%" PRIu64 " LLANE_MAX_BYTES=%" PRIu64
            " (or algorithm, packets, blocks, threads) here differ from rank 0's, whose %" PRIu64
            " and %" PRIu64 " hold for its communicator",
            s->comm->rank, mine->min_bytes, mine->max_bytes, agreed.min_bytes, agreed.max_bytes);
    }
    agreed.n_ranks = (uint32_t)s->comm->n_ranks;
    agreed.has_float8 = 1;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        agreed.has_float8 &= s->identity[r].gpu.cc_major >= 9;
    }
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        s->slot_bytes[p] = llane_route_slot_bytes(&agreed, (enum llane_packet)p);
    }
    s->lane->limits = agreed;
    return LLANE_INACTIVE_NONE;
}

/* All kernels now: loading one later could wait for a kernel that spins on this device. */
static int load(struct setup *s, const void *kernel, uint32_t *blocks_per_sm)
{
    uint32_t blocks = *blocks_per_sm;
    int err = kernel ? llane_gpu_kernel_load(kernel, LLANE_MAX_THREADS, &blocks) : 0;
    if (err) {
        LLANE_INFO("rank %d: a kernel does not load: %s", s->comm->rank, llane_gpu_error());
    }
    *blocks_per_sm = blocks < *blocks_per_sm ? blocks : *blocks_per_sm;
    return err;
}

static enum llane_inactive_reason load_kernels(struct setup *s, uint32_t *blocks_per_sm_out)
{
    int err = 0;
    *blocks_per_sm_out = UINT32_MAX;
    for (int k = 0; k < LLANE_N_KERNELS && !err; k++) {
        err = load(s, llane_kernel_table[k], blocks_per_sm_out);
    }
    for (int t = 0; t < LLANE_N_TYPES; t++) {
        for (int a = 0; a < LLANE_N_ALGORITHMS; a++) {
            for (int p = 0; p < LLANE_N_PACKETS && !err; p++) {
                err = load(s, llane_all_reduce_table[t][a][p], blocks_per_sm_out);
            }
        }
    }
    return err ? LLANE_INACTIVE_KERNEL : LLANE_INACTIVE_NONE;
}

static enum llane_inactive_reason take_staging(struct setup *s, struct resources *mine)
{
    struct llane_comm *comm = s->comm;
    uint64_t bytes = llane_staging_bytes((uint32_t)comm->n_ranks, s->slot_bytes);
    int err = llane_staging_take(comm->device, bytes, llane_config()->max_staging_bytes, s->stream,
                                 &s->lane->staging);
    if (err) {
        LLANE_INFO("rank %d: staging memory of %" PRIu64 " bytes: %s", comm->rank, bytes,
                   err == LLANE_EGPU ? llane_gpu_error() : "beyond LLANE_MAX_STAGING");
        return err == LLANE_EGPU ? LLANE_INACTIVE_STAGING : LLANE_INACTIVE_STAGING_CAP;
    }
    mine->memory.address = (uint64_t)(uintptr_t)s->lane->staging->base;
    mine->memory.device = comm->device;
    mine->memory.handle = s->lane->staging->handle;
    if (llane_address_space_self(&mine->memory.owner) ||
        getrandom(&mine->nonce, sizeof mine->nonce, 0) != (ssize_t)sizeof mine->nonce) {
        return LLANE_INACTIVE_INTERNAL;
    }
    return LLANE_INACTIVE_NONE;
}

/*
 * All ranks have come and have what they need. From here on the user's calls are kept in order with
 * the lane's, which belongs to the communicator: its last reference buries it.
 */
static void keep_order(struct setup *s)
{
    struct llane_comm *comm = s->comm;
    struct llane_staging *staging = s->lane->staging;
    struct llane_order_keeper keeper = llane_staging_keeper(staging);
    llane_order_init(&s->lane->order, staging->last_op, staging->captured_ops,
                     comm->is_graph_ordered, &keeper);
    s->lane->device = comm->device;
    llane_comm_set_switching(comm, s->lane, llane_board_switch(s->board));
}

static enum llane_inactive_reason take_resources(struct setup *s)
{
    struct llane_comm *comm = s->comm;
    struct resources mine = {0};
    enum llane_inactive_reason reason = s->readiness;
    if (!reason) {
        reason = adopt_limits(s);
    }
    if (!reason) {
        reason = load_kernels(s, &mine.blocks_per_sm);
    }
    if (!reason) {
        reason = take_staging(s, &mine);
    }
    reason = conclude(s, STEP_RESOURCES, reason, &mine, sizeof mine);
    for (int r = 0; r < comm->n_ranks && !reason; r++) {
        if (llane_board_record(s->board, STEP_RESOURCES, r, &s->resources[r],
                               sizeof s->resources[r])) {
            reason = LLANE_INACTIVE_RECORD;
        }
    }
    if (!reason) {
        keep_order(s);
    }
    return reason;
}

/* ---- step 2: peers' memory mapped, geometry agreed ---- */

static uint32_t ranks_on_gpu_of(const struct setup *s, int rank)
{
    uint32_t n = 0;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        n += !memcmp(s->identity[r].gpu.uuid, s->identity[rank].gpu.uuid,
                     sizeof s->identity[r].gpu.uuid);
    }
    return n;
}

/*
 * The widest launch: blocks of all ranks that share a GPU have to be on it at once, since they wait
 * for each other. From exchanged numbers alone, so equal on all ranks.
 */
static enum llane_inactive_reason agree_on_width(struct setup *s)
{
    struct llane_route_limits *limits = &s->lane->limits;
    limits->max_blocks = LLANE_MAX_BLOCKS;
    limits->max_threads = LLANE_MAX_BLOCKS * LLANE_MAX_THREADS;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        uint32_t sms = s->identity[r].gpu.n_sms > 0 ? (uint32_t)s->identity[r].gpu.n_sms : 0;
        uint64_t fit = (uint64_t)sms * s->resources[r].blocks_per_sm * LLANE_MAX_THREADS /
                       ranks_on_gpu_of(s, r);
        uint32_t ctas =
            s->identity[r].max_ctas > 0 ? (uint32_t)s->identity[r].max_ctas : LLANE_MAX_BLOCKS;
        limits->max_threads = fit < limits->max_threads ? (uint32_t)fit : limits->max_threads;
        limits->max_blocks = ctas < limits->max_blocks ? ctas : limits->max_blocks;
    }
    return limits->max_threads >= LLANE_MAX_THREADS ? LLANE_INACTIVE_NONE
                                                    : LLANE_INACTIVE_NO_BLOCKS;
}

static enum llane_inactive_reason map_peers(struct setup *s)
{
    enum llane_inactive_reason reason = agree_on_width(s);
    for (int r = 0; r < s->comm->n_ranks && !reason; r++) {
        if (r == s->comm->rank) {
            s->bases[r] = s->lane->staging->base;
        } else if (llane_peers_map(&s->resources[r].memory, s->comm->device, &s->bases[r])) {
            LLANE_INFO("rank %d: memory of rank %d: %s", s->comm->rank, r, llane_gpu_error());
            reason = LLANE_INACTIVE_PEER;
        }
    }
    s->lane->is_probed = !reason; /* with this vote, peers may go on to it */
    return conclude(s, STEP_PEERS, reason, NULL, 0);
}

/* ---- step 3: what is written arrives; the lane is published ---- */

static void fill_args(struct setup *s)
{
    struct llane_staging *staging = s->lane->staging;
    uint32_t rank = (uint32_t)s->comm->rank, n_ranks = (uint32_t)s->comm->n_ranks;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        enum llane_packet packet = (enum llane_packet)p;
        struct llane_all_reduce_args *args = &s->lane->args[p];
        args->slot_bytes = s->slot_bytes[p];
        args->rank = rank;
        args->n_ranks = n_ranks;
        args->spins_per_look = LLANE_SPINS_PER_LOOK;
        args->cells = llane_staging_cells(staging->base);
        args->words = &staging->mapped_device->words;
        for (uint32_t r = 0; r < n_ranks; r++) {
            args->recv[r] = llane_staging_slot(staging->base, n_ranks, s->slot_bytes, packet, r);
        }
        for (uint32_t i = 0; i + 1 < n_ranks; i++) {
            uint32_t peer = (rank + 1 + i) % n_ranks;
            args->send[i] =
                llane_staging_slot(s->bases[peer], n_ranks, s->slot_bytes, packet, rank);
        }
    }
}

static enum llane_inactive_reason prove(struct setup *s)
{
    struct llane_comm *comm = s->comm;
    enum llane_inactive_reason reason = LLANE_INACTIVE_NONE;
    int peer = -1;
    uint32_t result = LLANE_PROBE_PENDING;
    int err = llane_probe_run(s->lane->staging, s->bases, comm->rank, comm->n_ranks,
                              s->resources[0].nonce, s->stream, &comm->cancel, &peer, &result);
    if (err) {
        reason = err == LLANE_ECANCELED ? LLANE_INACTIVE_CANCELED : LLANE_INACTIVE_PROBE;
        if (err == LLANE_EREFUSED) {
            LLANE_WARN("rank %d: probe of memory written by rank %d: %s", comm->rank, peer,
                       llane_probe_text(result));
        } else if (err == LLANE_EGPU) {
            LLANE_INFO("rank %d: probe: %s", comm->rank, llane_gpu_error());
        }
    }
    if (!reason &&
        llane_staging_arm(s->lane->staging, (uint32_t)comm->n_ranks, s->slot_bytes, s->stream)) {
        LLANE_INFO("rank %d: arming the slots: %s", comm->rank, llane_gpu_error());
        reason = LLANE_INACTIVE_STAGING;
    }
    if (!reason) {
        fill_args(s); /* before the vote: whoever sees the switch confirmed sees it */
    }
    reason = conclude(s, STEP_PROBE, reason, NULL, 0);
    s->lane->is_proven = !reason;
    if (reason) {
        /* Our own probe may still run: the event tells when it has ended, the word ends it. */
        (void)llane_gpu_event_record(s->lane->staging->last_op, s->stream);
        llane_lane_abort(s->lane);
    }
    return reason;
}

/* ---- all of it ---- */

static enum llane_inactive_reason run_steps(struct setup *s)
{
    s->lane = calloc(1, sizeof *s->lane);
    if (!s->lane) {
        return LLANE_INACTIVE_INTERNAL;
    }
    enum llane_inactive_reason reason = arrive(s);
    reason = reason ? reason : take_resources(s);
    reason = reason ? reason : map_peers(s);
    return reason ? reason : prove(s);
}

/* Rank 0 finds the number; the others wait until it is final, for LLANE_WAIT and the log. */
static int go_live(struct setup *s, uint64_t *number_out)
{
    struct llane_comm *comm = s->comm;
    struct llane_switch *sw = llane_board_switch(s->board);
    if (comm->rank == 0) {
        return llane_switch_propose(sw, comm->n_ranks, &comm->cancel, number_out);
    }
    struct llane_backoff backoff = {0};
    while (!llane_switch_is_confirmed(sw, number_out)) {
        if (llane_is_canceled(&comm->cancel)) {
            return LLANE_ECANCELED;
        }
        llane_backoff_sleep(&backoff);
    }
    return 0;
}

static void log_active(const struct setup *s, const struct llane_lane *lane, uint64_t number)
{
    LLANE_INFO("rank %d of %d: active from all-reduce %" PRIu64 " over %s, %" PRIu64 " to %" PRIu64
               " bytes, at most %u blocks, %" PRIu64 " KiB of staging memory",
               s->comm->rank, s->comm->n_ranks, number,
               ranks_on_gpu_of(s, s->comm->rank) == (uint32_t)s->comm->n_ranks
                   ? "device memory of one GPU"
                   : "peer memory",
               lane->limits.min_bytes, lane->limits.max_bytes, lane->limits.max_blocks,
               lane->staging->bytes >> 10);
}

static void finish(struct setup *s, enum llane_inactive_reason reason)
{
    struct llane_comm *comm = s->comm;
    if (s->stream) {
        llane_gpu_stream_destroy(s->stream);
    }
    if (reason) {
        if (atomic_load_explicit(&comm->lane, memory_order_relaxed) != s->lane) {
            llane_lane_bury(s->lane); /* not published: nobody else's */
        }
        llane_comm_set_inactive(comm, reason);
        if (reason != LLANE_INACTIVE_CANCELED) {
            LLANE_INFO("rank %d of %d: inactive: %s", comm->rank, comm->n_ranks,
                       llane_inactive_text((int)reason));
        }
        if (s->board) {
            llane_board_linger(s->board, &comm->cancel);
        }
        return;
    }
    uint64_t number;
    if (!go_live(s, &number)) {
        log_active(s, atomic_load_explicit(&comm->lane, memory_order_relaxed), number);
    }
    atomic_store_explicit(&comm->is_settled, 1, memory_order_release);
}

static void *thread_main(void *arg)
{
    struct setup s = {.comm = arg};
    struct llane_comm *comm = arg;
    (void)pthread_setname_np(pthread_self(), "llane-setup");
    finish(&s, run_steps(&s));
    llane_comm_release(comm);
    atomic_fetch_sub_explicit(&n_threads_running, 1, memory_order_release);
    return NULL;
}

/* The program's signals are for its own threads: a handler may count on where it runs. */
static int start_thread(struct llane_comm *comm)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&thread, &attr, thread_main, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return err;
}

void llane_setup_start(struct llane_comm *comm)
{
    llane_comm_hold(comm);
    atomic_fetch_add_explicit(&n_threads_running, 1, memory_order_relaxed);
    int is_late = atomic_load_explicit(&is_leaving, memory_order_relaxed);
    int err = is_late ? 0 : start_thread(comm);
    if (err) {
        LLANE_INFO("rank %d of %d: inactive: no thread for its set-up: %s", comm->rank,
                   comm->n_ranks, strerror(err));
    }
    if (err || is_late) {
        atomic_fetch_sub_explicit(&n_threads_running, 1, memory_order_relaxed);
        llane_comm_set_inactive(comm, LLANE_INACTIVE_INTERNAL);
        llane_comm_release(comm);
    }
}

/* This rank's user thread waits: S may be chosen without another call of its. 1 once done. */
static int stand_by(struct llane_comm *comm)
{
    struct llane_switch *sw = atomic_load_explicit(&comm->switch_word, memory_order_acquire);
    if (sw) {
        pthread_mutex_lock(&comm->lock);
        comm->has_posted = 1;
        llane_switch_stand_by(sw, comm->rank, comm->n_all_reduces + (uint64_t)comm->leaves_first);
        pthread_mutex_unlock(&comm->lock);
    }
    return sw != NULL;
}

void llane_setup_wait(struct llane_comm *const *comms, size_t n)
{
    int64_t deadline = llane_now_ms() + (int64_t)llane_config()->wait_timeout_ms;
    struct llane_backoff backoff = {0};
    size_t n_settled = 0;
    char *has_stood_by = calloc(n, 1);
    while (has_stood_by && n_settled < n) {
        n_settled = 0;
        for (size_t i = 0; i < n; i++) {
            has_stood_by[i] = has_stood_by[i] || stand_by(comms[i]);
            n_settled += atomic_load_explicit(&comms[i]->is_settled, memory_order_acquire) != 0;
        }
        if (n_settled < n && llane_now_ms() > deadline) {
            LLANE_WARN("rank %d: LLANE_WAIT: no verdict within %" PRIu64
                       " ms: not all ranks have come with their first all-reduce; NCCL carries on",
                       comms[0]->rank, llane_config()->wait_timeout_ms);
            break;
        }
        if (n_settled < n) {
            llane_backoff_sleep(&backoff);
        }
    }
    free(has_stood_by);
}

static void cancel(struct llane_comm *comm)
{
    atomic_store_explicit(&comm->cancel, 1, memory_order_relaxed);
}

void llane_setup_end_all(void)
{
    atomic_store_explicit(&is_leaving, 1, memory_order_relaxed);
    llane_comm_for_all(cancel);
    int64_t deadline = llane_now_ms() + 1000;
    struct llane_backoff backoff = {0};
    while (atomic_load_explicit(&n_threads_running, memory_order_acquire) &&
           llane_now_ms() < deadline) {
        llane_backoff_sleep(&backoff);
    }
}
