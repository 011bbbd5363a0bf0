/*
 * setup_steps: what one rank does to give its communicator a lane: the steps on the board, each local
 * work and then a vote. setup_steps.c: who is where, configuration, kernels, geometry;
 * setup_memory.c: memory, and proof that what one rank writes another one reads; setup_host.c: the same
 * over host memory, for pairs of ranks that have no other; setup_tune.c: which path carries which size.
 *
 * Owns: one set-up's state, a struct llane_setup. Threads: set-up's helper thread, to which the struct
 * belongs. Blocking: until all ranks have voted, or the communicator ends.
 * Errors: the reason why there is no lane, the same on all ranks once it was voted on; what fails
 * on this rank is logged here, once.
 */
#ifndef LLANE_SETUP_STEPS_H
#define LLANE_SETUP_STEPS_H

#include "comm.h"
#include "peers.h"
#include "probe.h"
#include "staging_host.h"

/* Steps on the board after arrival; each ends with a verdict that all ranks read. Those of host memory
 * are taken where a pair needs it; calibration's follow, as many as it takes. */
enum {
    LLANE_SETUP_RESOURCES = LLANE_BOARD_ARRIVAL + 1,
    LLANE_SETUP_PEERS,
    LLANE_SETUP_PROBE,
    LLANE_SETUP_HOST_MEMORY,
    LLANE_SETUP_HOST_PINNED,
    LLANE_SETUP_HOST_PROBE,
};

/* What keeps a pair of ranks from peer memory, seen by one of them; X(name, what it says of the other). */
#define LLANE_PAIR_TROUBLES(X)                                                                     \
    X(NONE, "")                                                                                    \
    X(ASKED, "LLANE_MEMORY=host")                                                                  \
    X(OPEN, "its memory does not open")                                                            \
    X(MISSING, "its writes do not arrive")                                                         \
    X(WRONG, "its writes arrive damaged")
enum llane_pair_trouble {
#define LLANE_PAIR_TROUBLE_MEMBER(name, text) LLANE_PAIR_##name,
    LLANE_PAIR_TROUBLES(LLANE_PAIR_TROUBLE_MEMBER)
#undef LLANE_PAIR_TROUBLE_MEMBER
        LLANE_N_PAIR_TROUBLES
};

/* What it tells with its votes on LLANE_SETUP_PEERS and LLANE_SETUP_PROBE. */
struct llane_setup_pairs {
    uint8_t trouble[LLANE_MAX_RANKS]; /* enum llane_pair_trouble with each rank */
};

/* What a rank tells with its arrival. */
struct llane_setup_identity {
    struct llane_gpu_identity gpu;
    struct llane_route_limits limits; /* the configuration in it; rank 0's holds */
    int32_t max_ctas;                 /* 0: no limit */
    int32_t objection;       /* enum llane_inactive_reason: why it wants no lane, or NONE */
    int32_t pcie_generation; /* that its GPU can; 0: unknown */
    int32_t wants_check;     /* LLANE_CHECK; one rank's holds for all */
};

/* What it tells with its vote on LLANE_SETUP_RESOURCES. */
struct llane_setup_resources {
    struct llane_remote_memory memory;
    uint64_t nonce; /* rank 0's is the probe's */
    uint32_t blocks_per_sm[LLANE_N_WIDTHS];
};

struct llane_setup {
    struct llane_comm *comm;
    struct llane_board *board;
    struct CUstream_st *stream;
    struct llane_lane *lane;
    enum llane_inactive_reason readiness; /* of this rank's GPU */
    struct llane_setup_identity identity[LLANE_MAX_RANKS];
    struct llane_setup_resources resources[LLANE_MAX_RANKS];
    struct llane_setup_pairs pairs[LLANE_MAX_RANKS];
    uint8_t *bases[LLANE_MAX_RANKS]; /* NULL: not mapped */
    struct llane_staging_host host;
    uint64_t slot_bytes[LLANE_N_PACKETS];
    uint8_t *scratch; /* limits.max_bytes of this rank's staging memory, for calibration */
};

/* All steps; NONE: the lane is proven on all ranks. */
enum llane_inactive_reason llane_setup_run_steps(struct llane_setup *s);

/* Votes' reasons and reasons for no lane. */
uint32_t llane_setup_vote_of(enum llane_inactive_reason reason);
enum llane_inactive_reason llane_setup_reason_of(const struct llane_setup *s,
                                                 const struct llane_verdict *verdict);

/* Ranks whose GPU is that of `rank`, this one included. */
uint32_t llane_setup_ranks_on_gpu_of(const struct llane_setup *s, int rank);

/* Votes, waits for the verdict and returns its reason, the same on every rank. */
enum llane_inactive_reason llane_setup_conclude(struct llane_setup *s, int step,
                                                enum llane_inactive_reason mine, const void *record,
                                                size_t record_bytes);

/* ---- setup_memory.c ---- */

/* Memory for the lane, and in *mine what the others need to know of it. */
enum llane_inactive_reason llane_setup_take_staging(struct llane_setup *s,
                                                    struct llane_setup_resources *mine);
/* Peers' memory mapped, or `reason` told; one verdict. */
enum llane_inactive_reason llane_setup_map_peers(struct llane_setup *s,
                                                 enum llane_inactive_reason reason);
/* What is written arrives; slots are armed and the lane's arguments complete; one verdict. */
enum llane_inactive_reason llane_setup_prove(struct llane_setup *s);

/* Ranks, a bit each, that `rank` reaches through peer memory and that reach it so. */
uint32_t llane_setup_peers_of(const struct llane_setup *s, int rank);
/* All others but these. */
uint32_t llane_setup_host_peers_of(const struct llane_setup *s, int rank);

/* The results are there unless it returns a reason, which it has logged. */
enum llane_inactive_reason llane_setup_run_probe(struct llane_setup *s,
                                                 const struct llane_probe *probe,
                                                 uint32_t results_out[LLANE_MAX_RANKS]);

/* The lane's arguments, as far as memory is there. Before a vote: whoever sees the switch confirmed
 * sees them. */
void llane_setup_fill_args(struct llane_setup *s);

/* After a failure: a kernel of ours may still run. The event tells when it has ended, the word ends it. */
void llane_setup_give_up(struct llane_setup *s);

/* ---- setup_host.c ---- */

/* Memory, pinning and proof for the pairs that need it; a verdict each. */
enum llane_inactive_reason llane_setup_use_host(struct llane_setup *s);

/* ---- setup_tune.c ---- */

/* Of PCIe, that a GPU can; 0: unknown. */
int32_t llane_setup_pcie_generation(const struct llane_gpu_identity *gpu);
/* Which path carries which size: calibrated together, or by default. */
enum llane_inactive_reason llane_setup_tune(struct llane_setup *s);

#endif
