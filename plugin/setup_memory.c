#include "setup_steps.h"

#include <inttypes.h>
#include <sys/random.h>

#include "config.h"
#include "err.h"
#include "log.h"
#include "probe.h"

enum llane_inactive_reason llane_setup_take_staging(struct llane_setup *s,
                                                    struct llane_setup_resources *mine)
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
    /* Relaxed: it goes with the vote. */
    atomic_store_explicit(&llane_board_presence(s->board, comm->rank)->is_using, 1,
                          memory_order_relaxed);
    mine->memory.address = (uint64_t)(uintptr_t)s->lane->staging->base;
    mine->memory.device = comm->device;
    mine->memory.handle = s->lane->staging->handle;
    if (llane_address_space_self(&mine->memory.owner) ||
        getrandom(&mine->nonce, sizeof mine->nonce, 0) != (ssize_t)sizeof mine->nonce) {
        return LLANE_INACTIVE_INTERNAL;
    }
    return LLANE_INACTIVE_NONE;
}

enum llane_inactive_reason llane_setup_map_peers(struct llane_setup *s,
                                                 enum llane_inactive_reason reason)
{
    for (int r = 0; r < s->comm->n_ranks && !reason; r++) {
        if (r == s->comm->rank) {
            s->bases[r] = s->lane->staging->base;
        } else if (llane_peers_map(&s->resources[r].memory, s->comm->device, &s->bases[r])) {
            LLANE_INFO("rank %d: memory of rank %d: %s", s->comm->rank, r, llane_gpu_error());
            reason = LLANE_INACTIVE_PEER;
        }
    }
    return llane_setup_conclude(s, LLANE_SETUP_PEERS, reason, NULL, 0);
}

/* ---- step 3: what is written arrives; the lane is published ---- */

static void fill_args(struct llane_setup *s)
{
    struct llane_staging *staging = s->lane->staging;
    uint32_t rank = (uint32_t)s->comm->rank, n_ranks = (uint32_t)s->comm->n_ranks;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        enum llane_packet packet = (enum llane_packet)p;
        struct llane_all_reduce_args *args = &s->lane->args[p];
        args->slot_bytes = s->slot_bytes[p];
        args->rank = rank;
        args->n_ranks = n_ranks;
        args->spins_per_look = llane_gpu_spins_per_look();
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

enum llane_inactive_reason llane_setup_prove(struct llane_setup *s)
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
    reason = llane_setup_conclude(s, LLANE_SETUP_PROBE, reason, NULL, 0);
    if (reason) {
        /* Our own probe may still run: the event tells when it has ended, the word ends it. */
        (void)llane_gpu_event_record(s->lane->staging->last_probe, s->stream);
        llane_lane_abort(s->lane);
    }
    return reason;
}
