#include "setup_steps.h"

#include "config.h"
#include "err.h"
#include "log.h"

/* On the node of the GPU that polls it: the one reader's, or where several read, the writer's own. */
static int node_of_part(const struct llane_setup *s)
{
    uint32_t readers = llane_setup_host_peers_of(s, s->comm->rank);
    int has_one = (readers & (readers - 1)) == 0;
    return s->identity[has_one ? __builtin_ctz(readers) : s->comm->rank].gpu.numa_node;
}

static enum llane_inactive_reason take_memory(struct llane_setup *s)
{
    struct llane_staging_host *host = &s->host;
    host->n_ranks = (uint32_t)s->comm->n_ranks;
    host->rank = (uint32_t)s->comm->rank;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        host->slot_bytes[p] = llane_route_shared_slot_bytes(&s->lane->limits, (enum llane_packet)p);
    }
    uint64_t bytes = llane_staging_host_part_bytes(host->n_ranks, host->slot_bytes);
    if (llane_staging_reserve(bytes, llane_config()->max_staging_bytes)) {
        return LLANE_INACTIVE_STAGING_CAP;
    }
    int err = llane_staging_host_take(host, s->board, node_of_part(s), &s->comm->cancel);
    return err == LLANE_ECANCELED ? LLANE_INACTIVE_CANCELED
           : err                  ? LLANE_INACTIVE_HOST_MEMORY
                                  : LLANE_INACTIVE_NONE;
}

static enum llane_inactive_reason probe_memory(struct llane_setup *s)
{
    struct llane_comm *comm = s->comm;
    uint32_t results[LLANE_MAX_RANKS];
    struct llane_probe probe = {.staging = s->lane->staging,
                                .peers = llane_setup_host_peers_of(s, comm->rank),
                                .rank = comm->rank,
                                .n_ranks = comm->n_ranks,
                                .nonce = ~s->resources[0].nonce};
    for (uint32_t r = 0; r < (uint32_t)comm->n_ranks; r++) {
        if (probe.peers >> r & 1) {
            probe.send[r] = llane_staging_host_probe_area(&s->host, s->host.rank, r);
            probe.recv[r] = llane_staging_host_probe_area(&s->host, r, s->host.rank);
        }
    }
    enum llane_inactive_reason reason = llane_setup_run_probe(s, &probe, results);
    for (int r = 0; r < comm->n_ranks && !reason; r++) {
        if (probe.peers >> r & 1 && results[r] != LLANE_PROBE_GOOD) {
            LLANE_WARN("rank %d: what rank %d writes to host memory %s", comm->rank, r,
                       results[r] == LLANE_PROBE_WRONG ? "arrives damaged" : "does not arrive");
            reason = LLANE_INACTIVE_PROBE;
        }
    }
    return reason;
}

/* A rank whose pairs all have peer memory only votes. */
static enum llane_inactive_reason take_steps(struct llane_setup *s)
{
    int is_needed = llane_setup_host_peers_of(s, s->comm->rank) != 0;
    enum llane_inactive_reason reason = is_needed ? take_memory(s) : LLANE_INACTIVE_NONE;
    reason = llane_setup_conclude(s, LLANE_SETUP_HOST_MEMORY, reason, NULL, 0);
    if (reason) {
        return reason;
    }
    if (is_needed && llane_staging_host_pin(&s->host)) {
        reason = LLANE_INACTIVE_HOST_MEMORY;
    }
    reason = llane_setup_conclude(s, LLANE_SETUP_HOST_PINNED, reason, NULL, 0);
    if (reason) {
        return reason;
    }
    if (is_needed) {
        reason = probe_memory(s);
        LLANE_INFO("rank %u: %llu KiB of host memory, %s", s->host.rank,
                   (unsigned long long)(s->host.part_bytes >> 10), s->host.placement);
    }
    if (!reason) {
        llane_setup_fill_args(s);
    }
    return llane_setup_conclude(s, LLANE_SETUP_HOST_PROBE, reason, NULL, 0);
}

enum llane_inactive_reason llane_setup_use_host(struct llane_setup *s)
{
    enum llane_inactive_reason reason = take_steps(s);
    if (reason) {
        llane_setup_give_up(s);
    }
    return reason;
}
