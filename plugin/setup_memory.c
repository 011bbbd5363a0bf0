#include "setup_steps.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "config.h"
#include "err.h"
#include "log.h"
#include "probe.h"

enum llane_inactive_reason llane_setup_take_staging(struct llane_setup *s,
                                                    struct llane_setup_resources *mine)
{
    struct llane_comm *comm = s->comm;
    uint32_t n_ranks = (uint32_t)comm->n_ranks;
    uint64_t bytes = llane_staging_bytes(n_ranks, s->slot_bytes, s->lane->limits.max_bytes);
    int err = llane_staging_take(comm->device, bytes, llane_config()->max_staging_bytes, s->stream,
                                 &s->lane->staging);
    if (err) {
        LLANE_INFO("rank %d: staging memory of %" PRIu64 " bytes: %s", comm->rank, bytes,
                   err == LLANE_EGPU ? llane_gpu_error() : "beyond LLANE_MAX_STAGING");
        return err == LLANE_EGPU ? LLANE_INACTIVE_STAGING : LLANE_INACTIVE_STAGING_CAP;
    }
    /* Relaxed: it goes with the vote. */
    atomic_store_explicit(&llane_board_presence(s->board, comm->rank)->is_using, 1,
                          memory_order_relaxed);
    s->scratch = llane_staging_scratch(s->lane->staging->base, n_ranks, s->slot_bytes);
    mine->memory.address = (uint64_t)(uintptr_t)s->lane->staging->base;
    mine->memory.device = comm->device;
    mine->memory.handle = s->lane->staging->handle;
    mine->memory.is_exported = s->lane->staging->is_exported;
    if (llane_address_space_self(&mine->memory.owner) ||
        getrandom(&mine->nonce, sizeof mine->nonce, 0) != (ssize_t)sizeof mine->nonce) {
        return LLANE_INACTIVE_INTERNAL;
    }
    return LLANE_INACTIVE_NONE;
}

/* ---- which pairs have peer memory ---- */

static const char *trouble_text(uint8_t trouble)
{
    static const char *const texts[] = {
#define LLANE_PAIR_TROUBLE_STRING(name, text) text,
        LLANE_PAIR_TROUBLES(LLANE_PAIR_TROUBLE_STRING)
#undef LLANE_PAIR_TROUBLE_STRING
    };
    return trouble < LLANE_N_PAIR_TROUBLES ? texts[trouble] : "its record makes no sense";
}

uint32_t llane_setup_peers_of(const struct llane_setup *s, int rank)
{
    uint32_t peers = 0;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        if (r != rank && !s->pairs[rank].trouble[r] && !s->pairs[r].trouble[rank]) {
            peers |= 1u << r;
        }
    }
    return peers;
}

uint32_t llane_setup_host_peers_of(const struct llane_setup *s, int rank)
{
    uint32_t all = (1u << s->comm->n_ranks) - 1;
    return all & ~(1u << rank) & ~llane_setup_peers_of(s, rank);
}

/* Each pair's trouble once, by both of its ranks, whoever saw it. */
static void log_troubles(const struct llane_setup *s, const struct llane_setup_pairs *before)
{
    int rank = s->comm->rank;
    const char *then =
        s->lane->limits.memory_mode == LLANE_MEMORY_P2P_ALONE ? "no lane" : "host memory";
    for (int r = 0; r < s->comm->n_ranks; r++) {
        if (before[rank].trouble[r] || before[r].trouble[rank]) {
            continue;
        }
        if (s->pairs[rank].trouble[r] > LLANE_PAIR_ASKED) {
            LLANE_INFO("rank %d: %s for the pair with rank %d: %s", rank, then, r,
                       trouble_text(s->pairs[rank].trouble[r]));
        } else if (s->pairs[r].trouble[rank] > LLANE_PAIR_ASKED) {
            LLANE_INFO("rank %d: %s for the pair with rank %d, which says of this one: %s", rank,
                       then, r, trouble_text(s->pairs[r].trouble[rank]));
        }
    }
}

/* Votes with what this rank has seen of the others, and learns what they have. */
static enum llane_inactive_reason conclude_pairs(struct llane_setup *s, int step,
                                                 enum llane_inactive_reason reason,
                                                 const struct llane_setup_pairs *mine)
{
    struct llane_setup_pairs before[LLANE_MAX_RANKS];
    memcpy(before, s->pairs, sizeof before);
    reason = llane_setup_conclude(s, step, reason, mine, sizeof *mine);
    for (int r = 0; r < s->comm->n_ranks && !reason; r++) {
        if (llane_board_record(s->board, step, r, &s->pairs[r], sizeof s->pairs[r])) {
            reason = LLANE_INACTIVE_RECORD;
        }
    }
    if (reason) {
        return reason;
    }
    log_troubles(s, before);
    for (int r = 0; r < s->comm->n_ranks; r++) {
        s->lane->limits.has_host_pairs |= llane_setup_host_peers_of(s, r) != 0;
    }
    return LLANE_INACTIVE_NONE;
}

/* ---- step 2: peers' memory mapped ---- */

static void map_peer(struct llane_setup *s, int r, uint8_t *trouble)
{
    if (s->lane->limits.memory_mode == LLANE_MEMORY_HOST_ALONE) {
        *trouble = LLANE_PAIR_ASKED;
        return;
    }
    int err = llane_peers_map(&s->resources[r].memory, s->comm->device, &s->bases[r]);
    if (err) {
        LLANE_INFO("rank %d: memory of rank %d: %s", s->comm->rank, r,
                   err == LLANE_EGPU ? llane_gpu_error() : "not exported");
        *trouble = LLANE_PAIR_OPEN;
    }
}

enum llane_inactive_reason llane_setup_map_peers(struct llane_setup *s,
                                                 enum llane_inactive_reason reason)
{
    struct llane_setup_pairs mine = {0};
    for (int r = 0; r < s->comm->n_ranks && !reason; r++) {
        if (r == s->comm->rank) {
            s->bases[r] = s->lane->staging->base;
        } else {
            map_peer(s, r, &mine.trouble[r]);
        }
    }
    reason = conclude_pairs(s, LLANE_SETUP_PEERS, reason, &mine);
    return !reason && s->lane->limits.has_host_pairs &&
                   s->lane->limits.memory_mode == LLANE_MEMORY_P2P_ALONE
               ? LLANE_INACTIVE_PEER
               : reason;
}

/* ---- step 3: what is written arrives ---- */

static void fill_private(const struct llane_setup *s, enum llane_packet packet,
                         struct llane_all_reduce_args *args)
{
    uint8_t *base = s->lane->staging->base;
    for (uint32_t r = 0; r < args->n_ranks; r++) {
        args->slot[r].recv = llane_staging_slot(base, args->n_ranks, s->slot_bytes, packet, r);
    }
    for (uint32_t i = 0; i + 1 < args->n_ranks; i++) {
        uint32_t peer = (args->rank + 1 + i) % args->n_ranks;
        args->slot[i].send = s->bases[peer] ? llane_staging_slot(s->bases[peer], args->n_ranks,
                                                                 s->slot_bytes, packet, args->rank)
                                            : NULL;
    }
}

static void fill_shared(const struct llane_setup *s, enum llane_packet packet,
                        struct llane_all_reduce_args *args)
{
    args->shared = llane_setup_host_peers_of(s, s->comm->rank);
    args->shared_slot_bytes = s->host.slot_bytes[packet];
    args->shared_slot = llane_staging_host_slot(&s->host, packet, args->rank);
    for (uint32_t r = 0; r < args->n_ranks; r++) {
        if (args->shared >> r & 1) {
            args->slot[r].recv = llane_staging_host_slot(&s->host, packet, r);
        }
    }
}

void llane_setup_fill_args(struct llane_setup *s)
{
    struct llane_staging *staging = s->lane->staging;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        struct llane_all_reduce_args *args = &s->lane->args[p];
        args->slot_bytes = s->slot_bytes[p];
        args->rank = (uint32_t)s->comm->rank;
        args->n_ranks = (uint32_t)s->comm->n_ranks;
        args->spins_per_look = llane_gpu_spins_per_look();
        args->cells = llane_staging_cells(staging->base);
        args->words = &staging->mapped_device->words;
        fill_private(s, (enum llane_packet)p, args);
        if (s->host.device) {
            fill_shared(s, (enum llane_packet)p, args);
        }
    }
    s->lane->has_shared = s->host.device != NULL;
}

void llane_setup_give_up(struct llane_setup *s)
{
    (void)llane_gpu_event_record(s->lane->staging->last_probe, s->stream);
    llane_lane_abort(s->lane);
}

/* A pair that fails is noted in mine; NONE then too. */
static enum llane_inactive_reason probe_peers(struct llane_setup *s, struct llane_setup_pairs *mine)
{
    struct llane_comm *comm = s->comm;
    uint32_t results[LLANE_MAX_RANKS];
    struct llane_probe probe = {.staging = s->lane->staging,
                                .peers = llane_setup_peers_of(s, comm->rank),
                                .rank = comm->rank,
                                .n_ranks = comm->n_ranks,
                                .nonce = s->resources[0].nonce};
    for (int r = 0; r < comm->n_ranks; r++) {
        if (probe.peers >> r & 1) {
            probe.send[r] = llane_staging_probe_area(s->bases[r], (uint32_t)comm->rank);
            probe.recv[r] = llane_staging_probe_area(s->lane->staging->base, (uint32_t)r);
        }
    }
    enum llane_inactive_reason reason = llane_setup_run_probe(s, &probe, results);
    for (int r = 0; r < comm->n_ranks && !reason; r++) {
        if (probe.peers >> r & 1 && results[r] != LLANE_PROBE_GOOD) {
            mine->trouble[r] =
                results[r] == LLANE_PROBE_WRONG ? LLANE_PAIR_WRONG : LLANE_PAIR_MISSING;
        }
    }
    return reason;
}

enum llane_inactive_reason llane_setup_run_probe(struct llane_setup *s,
                                                 const struct llane_probe *probe,
                                                 uint32_t results_out[LLANE_MAX_RANKS])
{
    int err = probe->peers ? llane_probe_run(probe, s->stream, &s->comm->cancel, results_out) : 0;
    if (err == LLANE_EGPU) {
        LLANE_INFO("rank %d: probe: %s", s->comm->rank, llane_gpu_error());
    } else if (err == LLANE_EREFUSED) {
        LLANE_WARN("rank %d: the GPU does not end the probe's kernels in time", s->comm->rank);
    }
    return err == LLANE_ECANCELED ? LLANE_INACTIVE_CANCELED
           : err                  ? LLANE_INACTIVE_PROBE
                                  : LLANE_INACTIVE_NONE;
}

enum llane_inactive_reason llane_setup_prove(struct llane_setup *s)
{
    struct llane_comm *comm = s->comm;
    struct llane_setup_pairs mine = s->pairs[comm->rank];
    enum llane_inactive_reason reason = probe_peers(s, &mine);
    if (!reason &&
        llane_staging_arm(s->lane->staging, (uint32_t)comm->n_ranks, s->slot_bytes, s->stream)) {
        LLANE_INFO("rank %d: arming the slots: %s", comm->rank, llane_gpu_error());
        reason = LLANE_INACTIVE_STAGING;
    }
    if (!reason) {
        llane_setup_fill_args(s);
    }
    reason = conclude_pairs(s, LLANE_SETUP_PROBE, reason, &mine);
    if (!reason && s->lane->limits.has_host_pairs &&
        s->lane->limits.memory_mode == LLANE_MEMORY_P2P_ALONE) {
        reason = LLANE_INACTIVE_PROBE;
    }
    if (reason) {
        llane_setup_give_up(s);
    }
    return reason;
}
