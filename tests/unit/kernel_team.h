/*
 * Ranks as threads of one process, for tests of the kernels: every rank has its own stream, staging
 * memory, cells and arena, through plugin/gpu.h and kernels/table.h alone, so that the same test
 * runs on the emulation and on real GPUs (rank r on device r mod n). main() calls team_start_up().
 *
 * A run: every rank fills its arena with the inputs of all steps, then issues all steps, each in its
 * own thread and without waiting for anybody, then the whole arena is compared with what it must be.
 * Helpers that can fail end the program: they run outside cmocka's thread.
 */
#ifndef LLANE_TESTS_KERNEL_TEAM_H
#define LLANE_TESTS_KERNEL_TEAM_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "kernel_oracle.h"
#include "table.h"

enum { ARENA_BYTES = 10 << 20, UNTOUCHED = 0xc3, SPINS_PER_LOOK = 200, WATCHDOG_SECONDS = 220 };

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, llane_gpu_error());      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* Which pairs of ranks have shared slots in host memory instead of private ones. */
enum sharing { SHARING_NONE, SHARING_ALL, SHARING_SOME };

struct member {
    struct team *team;
    pthread_t thread;
    uint32_t rank;
    int device;
    struct CUstream_st *stream, *side_stream;
    struct CUgraphExec_st *graph;
    uint8_t *slots[LLANE_N_PACKETS]; /* of each family n_ranks slots of two generations */
    uint8_t *shared_slots[LLANE_N_PACKETS], *device_shared_slots[LLANE_N_PACKETS];
    struct llane_cells *cells;
    uint8_t *arena;
    uint8_t *image;           /* pinned: what goes into the arena and comes out of it */
    struct llane_cells *seen; /* pinned copy of the cells */
    struct llane_lane_words *words, *device_words;
    uint32_t *probe_result, *device_probe_result;
};

struct team {
    uint32_t n_ranks;
    uint64_t slot_bytes[LLANE_N_PACKETS];
    enum sharing sharing;
    uint64_t shared_slot_bytes[LLANE_N_PACKETS];
    uint32_t next_op[LLANE_N_PACKETS]; /* the number that each family's next operation has */
    void (*work)(struct member *member, void *arg);
    void *arg;
    struct member members[LLANE_MAX_RANKS];
};

static inline void watchdog_bite(int signal_number)
{
    static const char words[] = "watchdog: a kernel hangs\n";

    (void)signal_number;
    (void)!write(STDERR_FILENO, words, sizeof(words) - 1);
    _exit(1);
}

/* The program has WATCHDOG_SECONDS from here on, or as many as LLANE_TEST_WATCHDOG says. */
static inline void team_start_up(void)
{
    const char *seconds = getenv("LLANE_TEST_WATCHDOG");

    /* Ranks that share a GPU must not share a hardware queue: one would wait behind the other. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    signal(SIGALRM, watchdog_bite);
    alarm(seconds ? (unsigned)atoi(seconds) : WATCHDOG_SECONDS);
}

static inline void *team_thread(void *p)
{
    struct member *member = p;

    MUST(llane_gpu_device_set(member->device));
    member->team->work(member, member->team->arg);
    return NULL;
}

/* Runs work(member, arg) for every rank in a thread of its own, on its device; waits for all. */
static inline void team_do(struct team *team, void (*work)(struct member *, void *), void *arg)
{
    team->work = work;
    team->arg = arg;
    for (uint32_t r = 0; r < team->n_ranks; r++)
        MUST(pthread_create(&team->members[r].thread, NULL, team_thread, &team->members[r]));
    for (uint32_t r = 0; r < team->n_ranks; r++)
        MUST(pthread_join(team->members[r].thread, NULL));
}

static inline void load_kernels(void)
{
    uint32_t blocks_per_sm;

    for (int k = 0; k < LLANE_N_KERNELS; k++)
        MUST(llane_gpu_kernel_load(llane_kernel_table[k], LLANE_MIN_THREADS, &blocks_per_sm));
    for (int k = 0; k < LLANE_N_TYPES * LLANE_N_ALGORITHMS * LLANE_N_PACKETS; k++) {
        const void *kernel = (&llane_all_reduce_table[0][0][0])[k];
        const void *shared = (&llane_shared_table[0][0][0])[k];

        if (kernel)
            MUST(llane_gpu_kernel_load(kernel, LLANE_MIN_THREADS, &blocks_per_sm));
        if (shared)
            MUST(llane_gpu_kernel_load(shared, LLANE_MIN_THREADS, &blocks_per_sm));
    }
}

static inline uint32_t shared_generations(int packet)
{
    return packet == LLANE_LL ? 2 : LLANE_SHARED_GENERATIONS;
}

static inline bool are_sharing(const struct team *team, uint32_t a, uint32_t b)
{
    return a != b && (team->sharing == SHARING_ALL ||
                      (team->sharing == SHARING_SOME && (a * b + a + b) % 3 != 2));
}

static inline void member_create_shared(struct member *m)
{
    for (int packet = 0; packet < LLANE_N_PACKETS; packet++) {
        const size_t bytes = shared_generations(packet) * m->team->shared_slot_bytes[packet];
        void *p, *device_p;

        MUST(llane_gpu_host_alloc(bytes, &p, &device_p));
        m->shared_slots[packet] = p;
        m->device_shared_slots[packet] = device_p;
        memset(p, packet == LLANE_LL ? 0 : 0xff, bytes);
    }
}

static inline void member_create(struct member *m, void *arg)
{
    int n_devices = 0;
    void *p, *device_p;

    (void)arg;
    MUST(llane_gpu_device_count(&n_devices));
    for (int d = 0; d < n_devices && d < (int)m->team->n_ranks; d++)
        if (d != m->device)
            MUST(llane_gpu_peer_enable(d));
    load_kernels();
    MUST(llane_gpu_stream_create(&m->stream));
    MUST(llane_gpu_stream_create(&m->side_stream));
    for (int packet = 0; packet < LLANE_N_PACKETS; packet++) {
        const size_t slots_bytes = m->team->n_ranks * 2 * m->team->slot_bytes[packet];

        MUST(llane_gpu_malloc(slots_bytes, &p));
        m->slots[packet] = p;
        MUST(llane_gpu_memset_async(p, packet == LLANE_LL ? 0 : 0xff, slots_bytes, m->stream));
    }
    if (m->team->sharing != SHARING_NONE)
        member_create_shared(m);
    MUST(llane_gpu_malloc(sizeof(struct llane_cells), &p));
    m->cells = p;
    MUST(llane_gpu_malloc(ARENA_BYTES, &p));
    m->arena = p;
    MUST(llane_gpu_host_alloc(ARENA_BYTES, &p, &device_p));
    m->image = p;
    MUST(llane_gpu_host_alloc(sizeof(struct llane_cells), &p, &device_p));
    m->seen = p;
    MUST(llane_gpu_host_alloc(sizeof(struct llane_lane_words), &p, &device_p));
    m->words = p;
    m->device_words = device_p;
    MUST(llane_gpu_host_alloc(LLANE_MAX_RANKS * sizeof(uint32_t), &p, &device_p));
    m->probe_result = p;
    m->device_probe_result = device_p;
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static inline void member_preset(struct member *m, void *arg)
{
    const uint32_t *next_op = m->team->next_op;

    (void)arg;
    memset(m->seen, 0, sizeof(*m->seen));
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
        m->seen->cell[c] =
            (struct llane_cell){.ll_op = next_op[LLANE_LL], .sentinel_op = next_op[LLANE_SENTINEL]};
    MUST(llane_gpu_memcpy_async(m->cells, m->seen, sizeof(struct llane_cells), m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/* Sets the lane's counters, as if the operations before these had just ended. */
static inline void team_preset(struct team *team, uint32_t ll_op, uint32_t sentinel_op)
{
    team->next_op[LLANE_LL] = ll_op;
    team->next_op[LLANE_SENTINEL] = sentinel_op;
    team_do(team, member_preset, NULL);
}

static inline uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Bytes of a slot's generation, so that messages of max_bytes fit, whatever the algorithm. */
static inline uint64_t slot_bytes_for(uint64_t max_bytes, uint32_t n_ranks,
                                      enum llane_packet packet)
{
    const uint64_t payload = packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
    const uint64_t n_packets = divide_up(max_bytes, payload);
    const uint64_t n_shard = divide_up(n_packets, n_ranks);
    const uint64_t n_ring = (2 * n_ranks - 2) * divide_up(n_shard, 2) * (n_ranks == 2 ? 2 : 1);
    const uint64_t n_shots = n_packets > 2 * n_shard ? n_packets : 2 * n_shard;
    const uint64_t n_islands = 5 * divide_up(n_packets, n_ranks / 2);
    const uint64_t n_named = n_ring > n_islands ? n_ring : n_islands;
    const uint64_t n = n_shots > n_named ? n_shots : n_named;

    return divide_up(n * LLANE_PACKET_BYTES, 2 * (uint64_t)LLANE_STRIPE_BYTES) * 2 *
           LLANE_STRIPE_BYTES;
}

/* Bytes of a shared slot's generation, likewise. */
static inline uint64_t shared_slot_bytes_for(uint64_t max_bytes, uint32_t n_ranks,
                                             enum llane_packet packet)
{
    const uint64_t payload = packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
    const uint64_t n_packets = divide_up(max_bytes, payload) + n_ranks;

    return divide_up(n_packets * LLANE_PACKET_BYTES, LLANE_STRIPE_BYTES) * LLANE_STRIPE_BYTES;
}

/* A lane, ready for its first operation, for messages of up to max_bytes. */
static inline struct team *team_create_sharing(uint32_t n_ranks, uint64_t max_bytes,
                                               enum sharing sharing)
{
    struct team *team = calloc(1, sizeof(*team));
    int n_devices = 0;

    MUST(!team);
    MUST(llane_gpu_device_count(&n_devices));
    MUST(n_devices == 0);
    team->n_ranks = n_ranks;
    team->sharing = sharing;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        team->slot_bytes[p] = slot_bytes_for(max_bytes, n_ranks, (enum llane_packet)p);
        team->shared_slot_bytes[p] =
            shared_slot_bytes_for(max_bytes, n_ranks, (enum llane_packet)p);
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        team->members[r] =
            (struct member){.team = team, .rank = r, .device = (int)(r % (uint32_t)n_devices)};
    team_do(team, member_create, NULL);
    team_preset(team, 1, 1);
    return team;
}

static inline struct team *team_create(uint32_t n_ranks, uint64_t max_bytes)
{
    return team_create_sharing(n_ranks, max_bytes, SHARING_NONE);
}

static inline void member_destroy(struct member *m, void *arg)
{
    (void)arg;
    MUST(llane_gpu_stream_destroy(m->stream));
    MUST(llane_gpu_stream_destroy(m->side_stream));
    for (int packet = 0; packet < LLANE_N_PACKETS; packet++)
        MUST(llane_gpu_free(m->slots[packet]));
    MUST(llane_gpu_free(m->cells));
    MUST(llane_gpu_free(m->arena));
}

static inline void team_destroy(struct team *team)
{
    team_do(team, member_destroy, NULL);
    free(team);
}

/* Where rank `source` writes at rank `owner`. */
static inline uint8_t *team_slot(const struct team *team, enum llane_packet packet, uint32_t owner,
                                 uint32_t source)
{
    return team->members[owner].slots[packet] + source * 2 * team->slot_bytes[packet];
}

/* bytes of the arena, and the cells */
static inline void member_fetch(struct member *m, void *bytes)
{
    MUST(llane_gpu_memcpy_async(m->image, m->arena, *(const size_t *)bytes, m->stream));
    MUST(llane_gpu_memcpy_async(m->seen, m->cells, sizeof(struct llane_cells), m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/* A generation of what `source` writes at m, into m->image. */
static inline uint32_t *member_fetch_slot(struct member *m, enum llane_packet packet,
                                          uint32_t source, uint32_t generation)
{
    const uint64_t bytes = m->team->slot_bytes[packet];

    MUST(llane_gpu_device_set(m->device));
    MUST(llane_gpu_memcpy_async(m->image,
                                team_slot(m->team, packet, m->rank, source) + generation * bytes,
                                bytes, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
    return (uint32_t *)(void *)m->image;
}

struct launch {
    enum llane_type type;
    enum llane_algorithm algorithm;
    enum llane_packet packet;
    enum llane_kernel_op op;
    uint64_t count;
    uint32_t n_blocks, n_threads;
    uint32_t chunk_packets;
    bool sleeps;
    bool is_deaf; /* never looks whether it must stop */
};

/* Says itself how a rank may go about its own buffers, as plugin/lane.c does. */
static inline uint32_t launch_flags(const struct launch *how, uint64_t bytes, uint32_t n_ranks,
                                    const uint8_t *in, const uint8_t *out)
{
    const uint64_t payload = how->packet == LLANE_LL ? 8 : 16;
    const uint64_t grain = payload * (how->algorithm == LLANE_TWO_SHOT ? n_ranks : 1);

    return (uintptr_t)in % payload == 0 && (uintptr_t)out % payload == 0 && bytes % grain == 0
               ? LLANE_FLAG_PLAIN
               : 0;
}

static inline void member_launch(struct member *m, struct CUstream_st *stream,
                                 const struct launch *how, const uint8_t *in, uint8_t *out)
{
    const uint32_t n_ranks = m->team->n_ranks;
    const uint32_t next = m->rank + 1 < n_ranks ? m->rank + 1 : 0;
    struct llane_all_reduce_args args = {
        .in = in,
        .out = out,
        .count = how->count,
        .slot_bytes = m->team->slot_bytes[how->packet],
        .rank = m->rank,
        .n_ranks = n_ranks,
        .op = how->op,
        .flags = launch_flags(how, how->count * format_of(how->type)->bytes, n_ranks, in, out) |
                 (how->sleeps ? LLANE_FLAG_SLEEP : 0),
        .chunk_packets = how->chunk_packets,
        .spins_per_look = how->is_deaf ? UINT32_MAX : SPINS_PER_LOOK,
        .cells = m->cells,
        .words = m->device_words,
    };
    struct llane_gpu_launch launch = {
        .kernel = llane_all_reduce_table[how->type][how->algorithm][how->packet],
        .args = &args,
        .args_bytes = sizeof(args),
        .n_blocks = how->n_blocks,
        .n_threads = how->n_threads,
        .stream = stream,
    };

    if (m->team->sharing != SHARING_NONE) {
        launch.kernel = llane_shared_table[how->type][how->algorithm][how->packet];
        args.shared_slot = m->device_shared_slots[how->packet];
        args.shared_slot_bytes = m->team->shared_slot_bytes[how->packet];
    }
    for (uint32_t s = 0; s + 1 < n_ranks; s++)
        args.slot[s].send = team_slot(m->team, how->packet, (next + s) % n_ranks, m->rank);
    for (uint32_t r = 0; r < LLANE_MAX_RANKS; r++)
        args.slot[r].recv =
            team_slot(m->team, how->packet, m->rank, r < n_ranks && r != m->rank ? r : next);
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (are_sharing(m->team, m->rank, r)) {
            args.shared |= 1u << r;
            args.slot[r].recv = m->team->members[r].device_shared_slots[how->packet];
        }
    }
    MUST(llane_gpu_launch(&launch));
}

#endif
