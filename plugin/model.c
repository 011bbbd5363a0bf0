#include "model.h"

/*
 * Microseconds and bytes a microsecond. A step of the lane: hop + per_peer for each peer, and its
 * bytes. per_peer is what sending to and polling for one more peer costs; queue, what a whole
 * operation costs more for each peer and each rank on the link, whose polls wait for each other.
 */
struct link {
    double hop, per_peer, queue, bandwidth;
    double nccl_fixed, nccl_hop, nccl_bandwidth;
};
static const struct link links[LLANE_N_MEMORIES] = {
    [LLANE_MEMORY_ONE_GPU] = {0.38, 0.36, 0, 2e6, 2.7, 1.35, 72e3},
    [LLANE_MEMORY_PEER] = {1.5, 0.5, 0, 22e3, 6.6, 1.0, 22e3},
    [LLANE_MEMORY_HOST] = {1.8, 0, 0.3, 24e3, 6.6, 1.7, 22e3},
};

static const double LAUNCH = 1.0;
static const double RE_ARM = 0.012; /* what a sentinel packet costs more than one of LL */
/* A packet a thread, one-shot with sentinel packets: loads that wait for memory, and more of them for
 * each peer. LL has no loop that arms again; two-shot has loops for results too. */
static const double TURN = 0.85, TURN_PER_PEER = 0.1, TURN_LL = 0.55, TURN_TWO_SHOT = 1.6;
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
static double turns_us(const struct llane_model_machine *m, enum llane_algorithm algorithm,
                       enum llane_packet packet, uint64_t bytes)
{
    double payload = packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
    double shards = algorithm == LLANE_TWO_SHOT ? m->n_ranks : 1;
    double threads = m->n_threads ? m->n_threads : (double)LLANE_MAX_BLOCKS * LLANE_MAX_THREADS;
    double turn = (TURN + (m->n_ranks - 1) * TURN_PER_PEER) * (packet == LLANE_LL ? TURN_LL : 1) *
                  (algorithm == LLANE_TWO_SHOT ? TURN_TWO_SHOT : 1);
    return turn * (double)bytes / payload / shards / threads;
}

double llane_model_lane_us(const struct llane_model_machine *m, enum llane_algorithm algorithm,
                           enum llane_packet packet, uint64_t bytes)
{
    const struct link *link = &links[m->memory];
    double n = m->n_ranks;
    double steps = algorithm == LLANE_TWO_SHOT ? 2 : 1;
    double to_a_peer = (algorithm == LLANE_TWO_SHOT ? 2 / n : 1) * (double)bytes;
    if (packet == LLANE_LL) {
        to_a_peer *= LLANE_PACKET_BYTES / (double)LLANE_LL_PAYLOAD;
    }
    double transfer = (n - 1) * to_a_peer * sharing(m) / (speed(m) * link->bandwidth);
    if (has_far_peers(m)) {
        /* Each rank of one half sends to each of the other. */
        transfer = larger(transfer, n / 2 * (n / 2) * to_a_peer / BETWEEN_SOCKETS);
    }
    return LAUNCH + steps * (link->hop + (n - 1) * link->per_peer) +
           (n - 1) * link->queue * sharing(m) + transfer + turns_us(m, algorithm, packet, bytes) +
           (packet == LLANE_SENTINEL ? RE_ARM : 0);
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
