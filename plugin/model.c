#include "model.h"

/*
 * Microseconds and bytes a microsecond. A step of the lane: hop + per_peer for each peer, and its
 * bytes. per_peer is what sending to and polling for one more peer costs; queue, what a whole
 * operation costs more for each peer and each rank on the link, whose polls wait for each other;
 * copied, for each peer alone, at most, where each reader has a copy of its own. late: what an
 * operation costs more that is not launched early, having no room beside another one. second:
 * hop and per_peer of two-shot's second step, as a share of the first one's.
 */
struct link {
    double launch, late, hop, per_peer, second, queue, copied, bandwidth;
    double nccl_fixed, nccl_hop, nccl_bandwidth;
};
static const struct link links[LLANE_N_MEMORIES] = {
    [LLANE_MEMORY_ONE_GPU] = {0.28, 0.25, 0.71, 0.225, 0.65, 0, 0, 1.25e6, 2.7, 1.35, 72e3},
    [LLANE_MEMORY_PEER] = {1, 0, 1.5, 0.5, 1, 0, 0, 22e3, 6.6, 1, 22e3},
    [LLANE_MEMORY_HOST] = {1, 0, 1.85, 0, 1, 0.33, 0.4, 51e3, 4.6, 2.5, 25e3},
};

static const double TURN = 0.44;    /* a packet for each thread of a launch, in each step */
static const double RE_ARM = 0.012; /* what a peer's sentinel packet costs more than one of LL */
/* Of one GPU: bytes that operations send without leaving its cache; of what is more, the bandwidth
 * that comes on top. */
static const double CACHE = 8.3e6, BEYOND_CACHE = 4.4e6;
static const double SIMPLE = 16;            /* what NCCL's Simple protocol costs more than its LL */
static const double BETWEEN_SOCKETS = 22e3; /* peer memory across sockets, all ranks together */

const char *llane_memory_text(enum llane_memory memory)
{
    static const char *const texts[LLANE_N_MEMORIES] = {"one-gpu", "peer", "host"};
    return (unsigned)memory < LLANE_N_MEMORIES ? texts[memory] : "unknown";
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* GPUs that share a link share what it carries. */
static double sharing(const struct llane_model_machine *m)
{
    return m->memory == LLANE_MEMORY_ONE_GPU ? m->n_ranks : m->ranks_per_gpu ? m->ranks_per_gpu : 1;
}

/* Peers' writes are as fast as the generation lets them be; host memory was no faster at 5. */
static double speed(const struct llane_model_machine *m)
{
    static const double to_four[] = {1, 0.125, 0.25, 0.5, 1, 2, 4};
    uint32_t last = sizeof to_four / sizeof *to_four - 1;
    uint32_t generation = m->generation < last ? m->generation : last;
    return m->memory == LLANE_MEMORY_PEER ? to_four[generation] : 1;
}

static int has_far_peers(const struct llane_model_machine *m)
{
    return m->n_sockets > 1 && m->memory == LLANE_MEMORY_PEER;
}

/* Each thread takes one packet after another; a launch has only so many threads. */
static double turns_of(const struct llane_model_machine *m, enum llane_algorithm algorithm,
                       enum llane_packet packet, uint64_t bytes)
{
    double shards = algorithm == LLANE_TWO_SHOT ? m->n_ranks : 1;
    double threads = m->n_threads ? m->n_threads : (double)LLANE_MAX_BLOCKS * LLANE_MAX_THREADS;
    return (double)bytes / llane_payload_bytes(packet) / shards / threads;
}

/* table.h: each reader has packets of its own. */
static int is_copied(const struct llane_model_machine *m, enum llane_algorithm algorithm,
                     enum llane_packet packet, uint64_t bytes)
{
    return m->memory == LLANE_MEMORY_HOST && algorithm == LLANE_ONE_SHOT && m->n_ranks > 2 &&
           (double)bytes <= LLANE_COPIED_PACKETS * llane_payload_bytes(packet);
}

/* What ranks store to their peers crosses a link, or stays in the one GPU's memory; in host
 * memory both what a rank stores and what it reads cross its link. */
static double transfer_us(const struct llane_model_machine *m, enum llane_algorithm algorithm,
                          enum llane_packet packet, uint64_t bytes)
{
    const struct link *link = &links[m->memory];
    double n = m->n_ranks;
    double message = (double)bytes;
    /* In one GPU's memory re-arming costs as much as LL's flags. */
    if (m->memory != LLANE_MEMORY_ONE_GPU) {
        message *= LLANE_PACKET_BYTES / (double)llane_payload_bytes(packet);
    }
    double to_a_peer = (algorithm == LLANE_TWO_SHOT ? 2 / n : 1) * message;
    double sent = (n - 1) * to_a_peer * sharing(m);
    if (m->memory == LLANE_MEMORY_HOST) {
        sent += is_copied(m, algorithm, packet, bytes) ? sent : message * sharing(m);
    }
    double transfer = sent / (speed(m) * link->bandwidth);
    if (m->memory == LLANE_MEMORY_ONE_GPU) {
        transfer += larger(sent - CACHE, 0) / BEYOND_CACHE;
    }
    if (has_far_peers(m)) {
        /* Each rank of one half sends to each of the other. */
        transfer = larger(transfer, n / 2 * (n / 2) * to_a_peer / BETWEEN_SOCKETS);
    }
    return transfer;
}

double llane_model_lane_us(const struct llane_model_machine *m, enum llane_algorithm algorithm,
                           enum llane_packet packet, uint64_t bytes)
{
    const struct link *link = &links[m->memory];
    double peers = m->n_ranks - 1;
    int is_two = algorithm == LLANE_TWO_SHOT;
    double turns = turns_of(m, algorithm, packet, bytes);
    double queue = link->queue * sharing(m);
    if (queue > link->copied && is_copied(m, algorithm, packet, bytes)) {
        queue = link->copied;
    }
    return link->launch + (turns > 0.5 ? link->late : 0) +
           (is_two ? 1 + link->second : 1) * (link->hop + peers * link->per_peer) +
           (is_two ? 2 : 1) * turns * TURN + peers * queue +
           transfer_us(m, algorithm, packet, bytes) +
           (packet == LLANE_SENTINEL ? peers * RE_ARM : 0);
}

/* The classic ring: 2(n-1) steps of an n-th; between sockets one of them crosses each way. */
double llane_model_nccl_us(const struct llane_model_machine *m, uint64_t bytes)
{
    const struct link *link = &links[m->memory];
    double n = m->n_ranks;
    double sent = 2 * (n - 1) / n * (double)bytes;
    double shared = m->memory == LLANE_MEMORY_ONE_GPU ? 1 : sharing(m);
    double transfer = sent * shared / (speed(m) * link->nccl_bandwidth);
    if (has_far_peers(m)) {
        transfer = larger(transfer, sent / BETWEEN_SOCKETS);
    }
    double ll = 2 * transfer, simple = SIMPLE + transfer;
    return link->nccl_fixed + 2 * (n - 1) * link->nccl_hop + (ll < simple ? ll : simple);
}
