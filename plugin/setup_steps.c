#include "setup_steps.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ab.h"
#include "backoff.h"
#include "config.h"
#include "err.h"
#include "log.h"
#include "report.h"
#include "version.h"

static enum llane_inactive_reason reason_of(const struct llane_verdict *verdict)
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

uint32_t llane_setup_vote_of(enum llane_inactive_reason reason)
{
    return reason == LLANE_INACTIVE_NONE ? LLANE_BOARD_AGREED
                                         : LLANE_BOARD_REASON_FIRST + (uint32_t)reason;
}

enum llane_inactive_reason llane_setup_reason_of(const struct llane_setup *s,
                                                 const struct llane_verdict *verdict)
{
    if (verdict->rank != s->comm->rank) {
        LLANE_INFO("rank %d: rank %d %s", s->comm->rank, verdict->rank,
                   verdict->reason == LLANE_BOARD_DIED ? "is gone" : "refused the lane");
    }
    return reason_of(verdict);
}

enum llane_inactive_reason llane_setup_conclude(struct llane_setup *s, int step,
                                                enum llane_inactive_reason mine, const void *record,
                                                size_t record_bytes)
{
    struct llane_verdict verdict;
    if (step != LLANE_BOARD_ARRIVAL) {
        llane_board_vote(s->board, step, llane_setup_vote_of(mine), record, record_bytes);
    }
    if (llane_board_wait(s->board, step, &s->comm->cancel, &verdict)) {
        return LLANE_INACTIVE_CANCELED;
    }
    return verdict.is_yes ? LLANE_INACTIVE_NONE : llane_setup_reason_of(s, &verdict);
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
        .sleeps = config->poll != 0,
        .chunk_bytes = config->chunk_bytes,
        .memory_mode = (uint32_t)config->memory,
        .n_blocks = (uint32_t)config->blocks,
        .n_threads = whole_warps((uint32_t)config->threads),
        .ab = (uint32_t)config->ab,
    };
}

static int32_t own_max_ctas(const struct llane_comm *comm)
{
    uint64_t own = llane_config()->max_ctas;
    return own ? (int32_t)own : comm->options.max_ctas;
}

/* What one rank's environment asks for holds for all: each of them reads the same records. */
static enum llane_inactive_reason look_at_settings(const struct llane_setup *s)
{
    for (int r = 0; r < s->comm->n_ranks; r++) {
        int32_t objection = s->identity[r].objection;
        if (objection) {
            return objection > 0 && objection < LLANE_N_INACTIVE_REASONS
                       ? (enum llane_inactive_reason)objection
                       : LLANE_INACTIVE_RECORD;
        }
    }
    return LLANE_INACTIVE_NONE;
}

/* This rank's GPU and what the set-up needs of it. */
static enum llane_inactive_reason get_ready(struct llane_setup *s,
                                            struct llane_gpu_identity *gpu_out)
{
    if (llane_gpu_device_set(s->comm->device) || llane_gpu_capture_mode_relax() ||
        llane_gpu_stream_create(&s->stream) || llane_gpu_identify(s->comm->device, gpu_out)) {
        LLANE_INFO("rank %d: %s", s->comm->rank, llane_gpu_error());
        return LLANE_INACTIVE_GPU;
    }
    return LLANE_INACTIVE_NONE;
}

/* A rank that is not ready comes all the same, and says so in the next step: the others learn why. */
static enum llane_inactive_reason arrive(struct llane_setup *s)
{
    struct llane_comm *comm = s->comm;
    struct llane_setup_identity mine = {
        .limits = configured_limits(),
        .max_ctas = own_max_ctas(comm),
        .objection = (int32_t)comm->objection,
        .wants_check = llane_config()->check != 0,
    };
    s->readiness = get_ready(s, &mine.gpu);
    mine.pcie_generation = llane_setup_pcie_generation(&mine.gpu);
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
    llane_watch_start();
    int err = llane_board_join(&args, &comm->cancel, &s->board);
    if (err == LLANE_ESYS) {
        LLANE_INFO("rank %d: memory and socket for the ranks to meet: %s", comm->rank,
                   strerror(errno));
    }
    if (err) {
        return err == LLANE_ECANCELED  ? LLANE_INACTIVE_CANCELED
               : err == LLANE_EREFUSED ? LLANE_INACTIVE_BUILD
                                       : LLANE_INACTIVE_BOARD;
    }
    comm->board = s->lane->board = s->board;
    s->lane->rank = comm->rank;
    enum llane_inactive_reason reason = llane_setup_conclude(s, LLANE_BOARD_ARRIVAL, 0, NULL, 0);
    for (int r = 0; r < comm->n_ranks && !reason; r++) {
        if (llane_board_record(s->board, LLANE_BOARD_ARRIVAL, r, &s->identity[r],
                               sizeof s->identity[r])) {
            reason = LLANE_INACTIVE_RECORD;
        }
        s->lane->is_checked |= s->identity[r].wants_check != 0;
    }
    return reason ? reason : look_at_settings(s);
}

/* ---- step 1: kernels loaded, staging memory taken ---- */

static int is_sane(const struct llane_route_limits *limits)
{
    return limits->max_bytes <= LLANE_MAX_BYTES_MOST && limits->algorithm <= LLANE_N_ALGORITHMS &&
           limits->packet <= LLANE_N_PACKETS && limits->sleeps <= 1 &&
           limits->memory_mode <= LLANE_MEMORY_HOST_ALONE &&
           limits->chunk_bytes <= LLANE_MAX_BYTES_MOST && limits->n_blocks <= LLANE_MAX_BLOCKS &&
           limits->n_threads <= LLANE_MAX_THREADS && limits->n_threads % 32 == 0 &&
           limits->ab < LLANE_AB_N_MODES &&
           (!limits->n_threads || limits->n_threads >= LLANE_MIN_THREADS);
}

/* Of a record, what a rank's configuration says; the rest is the set-up's own to find out. */
enum { SETTINGS_BYTES = offsetof(struct llane_route_limits, n_ranks) };

/* Rank 0's configuration holds for all. */
static enum llane_inactive_reason adopt_limits(struct llane_setup *s)
{
    struct llane_route_limits agreed = {0};
    const struct llane_route_limits *mine = &s->identity[s->comm->rank].limits;
    memcpy(&agreed, &s->identity[0].limits, SETTINGS_BYTES);
    if (!is_sane(&agreed)) {
        return LLANE_INACTIVE_RECORD;
    }
    if (memcmp(&agreed, mine, SETTINGS_BYTES) != 0) {
        LLANE_WARN(
            "rank %d: LLANE_MIN_BYTES=%" PRIu64 " LLANE_MAX_BYTES=%" PRIu64
            " (or memory, algorithm, packets, blocks, threads, poll, chunk, A/B) here differ from "
            "rank 0's, whose %" PRIu64 " and %" PRIu64 " hold for its communicator",
            s->comm->rank, mine->min_bytes, mine->max_bytes, agreed.min_bytes, agreed.max_bytes);
    }
    agreed.n_ranks = (uint32_t)s->comm->n_ranks;
    agreed.has_float8 = 1;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        agreed.has_float8 &= s->identity[r].gpu.cc_major >= 9;
    }
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        s->slot_bytes[p] = agreed.memory_mode == LLANE_MEMORY_HOST_ALONE
                               ? 2ull * LLANE_STRIPE_BYTES
                               : llane_route_slot_bytes(&agreed, (enum llane_packet)p);
    }
    s->lane->limits = agreed;
    return LLANE_INACTIVE_NONE;
}

/*
 * All that the lane can select now: loading one later could wait for a kernel that spins on this device.
 * They are many, and whoever ends the communicator waits for this thread.
 */
static int load(struct llane_setup *s, const void *kernel, uint32_t blocks_per_sm[LLANE_N_WIDTHS])
{
    int err = 0;
    for (int w = 0; w < LLANE_N_WIDTHS && kernel && !err; w++) {
        uint32_t blocks = UINT32_MAX;
        if (llane_is_canceled(&s->comm->cancel)) {
            return LLANE_ECANCELED;
        }
        err = llane_gpu_kernel_load(kernel, (uint32_t)LLANE_MIN_THREADS << w, &blocks);
        blocks_per_sm[w] = blocks < blocks_per_sm[w] ? blocks : blocks_per_sm[w];
    }
    if (err) {
        LLANE_INFO("rank %d: a kernel does not load: %s", s->comm->rank, llane_gpu_error());
    }
    return err;
}

/* Ring and islands by their names alone: nobody waits for kernels that are not used. */
static int can_be_selected(const struct llane_route_limits *limits, int algorithm)
{
    return algorithm <= LLANE_TWO_SHOT || limits->algorithm == 1u + (uint32_t)algorithm;
}

static enum llane_inactive_reason load_kernels(struct llane_setup *s,
                                               uint32_t blocks_per_sm_out[LLANE_N_WIDTHS])
{
    const struct llane_route_limits *limits = &s->lane->limits;
    int err = 0;
    memset(blocks_per_sm_out, 0xff, LLANE_N_WIDTHS * sizeof *blocks_per_sm_out);
    for (int k = 0; k < LLANE_N_KERNELS && !err; k++) {
        err = load(s, llane_kernel_table[k], blocks_per_sm_out);
    }
    for (int t = 0; t < LLANE_N_TYPES; t++) {
        for (int a = 0; a < LLANE_N_ALGORITHMS; a++) {
            for (int p = 0; p < LLANE_N_PACKETS && can_be_selected(limits, a) && !err; p++) {
                err = load(s, llane_all_reduce_table[t][a][p], blocks_per_sm_out);
                err = err ? err : load(s, llane_shared_table[t][a][p], blocks_per_sm_out);
            }
        }
    }
    return err == LLANE_ECANCELED ? LLANE_INACTIVE_CANCELED
           : err                  ? LLANE_INACTIVE_KERNEL
                                  : LLANE_INACTIVE_NONE;
}

/* What LLANE_AB measures with, on every rank or on none. */
static enum llane_inactive_reason take_ab(struct llane_setup *s)
{
    const struct llane_comm *comm = s->comm;
    struct llane_lane *lane = s->lane;
    int err =
        lane->limits.ab == LLANE_AB_ALTERNATE ? llane_ab_create(comm->device, &lane->ab)
        : lane->limits.ab == LLANE_AB_SHADOW
            ? llane_shadow_create(comm->device, comm->rank, comm->n_ranks, lane->limits.max_bytes,
                                  llane_config()->max_staging_bytes, &lane->shadow)
            : 0;
    if (err) {
        LLANE_INFO("rank %d: events and memory for LLANE_AB: %s", comm->rank,
                   err == LLANE_EGPU ? llane_gpu_error()
                                     : "out of memory, or beyond LLANE_MAX_STAGING");
        return err == LLANE_EGPU ? LLANE_INACTIVE_STAGING : LLANE_INACTIVE_STAGING_CAP;
    }
    if (lane->limits.ab != LLANE_AB_OFF) {
        llane_report_start(comm->device);
    }
    return LLANE_INACTIVE_NONE;
}

/*
 * All ranks have come and have what they need. From here on the user's calls are kept in order with
 * the lane's, which belongs to the communicator: its last reference buries it.
 */
static void keep_order(struct llane_setup *s)
{
    struct llane_comm *comm = s->comm;
    s->lane->order = &comm->order;
    s->lane->staging->events = comm->order.events;
    s->lane->device = comm->device;
    llane_comm_set_switching(comm, s->lane, llane_board_switch(s->board));
}

static enum llane_inactive_reason take_resources(struct llane_setup *s)
{
    struct llane_comm *comm = s->comm;
    struct llane_setup_resources mine = {0};
    enum llane_inactive_reason reason = s->readiness;
    if (!reason) {
        reason = adopt_limits(s);
    }
    if (!reason) {
        reason = load_kernels(s, mine.blocks_per_sm);
    }
    if (reason == LLANE_INACTIVE_CANCELED) {
        return reason;
    }
    if (!reason) {
        reason = llane_setup_take_staging(s, &mine);
    }
    if (!reason) {
        reason = take_ab(s);
    }
    reason = llane_setup_conclude(s, LLANE_SETUP_RESOURCES, reason, &mine, sizeof mine);
    for (int r = 0; r < comm->n_ranks && !reason; r++) {
        if (llane_board_record(s->board, LLANE_SETUP_RESOURCES, r, &s->resources[r],
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

uint32_t llane_setup_ranks_on_gpu_of(const struct llane_setup *s, int rank)
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
static enum llane_inactive_reason agree_on_width(struct llane_setup *s)
{
    struct llane_route_limits *limits = &s->lane->limits;
    limits->max_blocks = LLANE_MAX_BLOCKS;
    for (int w = 0; w < LLANE_N_WIDTHS; w++) {
        limits->fit[w] = UINT32_MAX;
    }
    for (int r = 0; r < s->comm->n_ranks; r++) {
        uint32_t sms = s->identity[r].gpu.n_sms > 0 ? (uint32_t)s->identity[r].gpu.n_sms : 0;
        uint32_t n_sharing = llane_setup_ranks_on_gpu_of(s, r);
        for (int w = 0; w < LLANE_N_WIDTHS; w++) {
            uint32_t fit = llane_route_fit(sms, s->resources[r].blocks_per_sm[w], n_sharing);
            limits->fit[w] = fit < limits->fit[w] ? fit : limits->fit[w];
        }
        uint32_t ctas =
            s->identity[r].max_ctas > 0 ? (uint32_t)s->identity[r].max_ctas : LLANE_MAX_BLOCKS;
        limits->max_blocks = ctas < limits->max_blocks ? ctas : limits->max_blocks;
    }
    return limits->fit[LLANE_N_WIDTHS - 1] ? LLANE_INACTIVE_NONE : LLANE_INACTIVE_NO_BLOCKS;
}

/* ---- all of it ---- */

enum llane_inactive_reason llane_setup_run_steps(struct llane_setup *s)
{
    s->lane = calloc(1, sizeof *s->lane);
    if (!s->lane) {
        return LLANE_INACTIVE_INTERNAL;
    }
    enum llane_inactive_reason reason = arrive(s);
    reason = reason ? reason : take_resources(s);
    reason = reason ? reason : llane_setup_map_peers(s, agree_on_width(s));
    reason = reason ? reason : llane_setup_prove(s);
    if (!reason && s->lane->limits.has_host_pairs) {
        reason = llane_setup_use_host(s);
    }
    return reason ? reason : llane_setup_tune(s);
}
