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
#include "table.h"

enum { ARENA_BYTES = 3 << 20, SPINS_PER_LOOK = 200, WATCHDOG_SECONDS = 50 };

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, llane_gpu_error());      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

struct member {
    struct team *team;
    pthread_t thread;
    uint32_t rank;
    int device;
    struct CUstream_st *stream, *side_stream;
    struct CUgraphExec_st *graph;
    uint8_t *slots; /* n_ranks slots of two generations */
    struct llane_cell *cells;
    uint8_t *arena;
    uint8_t *image;          /* pinned: what goes into the arena and comes out of it */
    struct llane_cell *seen; /* pinned copy of the cells */
    struct llane_lane_words *words, *device_words;
    uint32_t *probe_result, *device_probe_result;
};

struct team {
    uint32_t n_ranks;
    uint64_t slot_bytes;
    void (*work)(struct member *member, void *arg);
    void *arg;
    struct member members[LLANE_MAX_RANKS];
};

static void watchdog_bite(int signal_number)
{
    static const char words[] = "watchdog: a kernel hangs\n";

    (void)signal_number;
    (void)!write(STDERR_FILENO, words, sizeof(words) - 1);
    _exit(1);
}

/* The program has WATCHDOG_SECONDS from here on, or as many as LLANE_TEST_WATCHDOG says. */
static void team_start_up(void)
{
    const char *seconds = getenv("LLANE_TEST_WATCHDOG");

    /* Ranks that share a GPU must not share a hardware queue: one would wait behind the other. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    signal(SIGALRM, watchdog_bite);
    alarm(seconds ? (unsigned)atoi(seconds) : WATCHDOG_SECONDS);
}

static void *team_thread(void *p)
{
    struct member *member = p;

    MUST(llane_gpu_device_set(member->device));
    member->team->work(member, member->team->arg);
    return NULL;
}

/* Runs work(member, arg) for every rank in a thread of its own, on its device; waits for all. */
static void team_do(struct team *team, void (*work)(struct member *, void *), void *arg)
{
    team->work = work;
    team->arg = arg;
    for (uint32_t r = 0; r < team->n_ranks; r++)
        MUST(pthread_create(&team->members[r].thread, NULL, team_thread, &team->members[r]));
    for (uint32_t r = 0; r < team->n_ranks; r++)
        MUST(pthread_join(team->members[r].thread, NULL));
}

static void member_create(struct member *m, void *arg)
{
    const size_t slots_bytes = m->team->n_ranks * 2 * m->team->slot_bytes;
    int n_devices = 0;
    uint32_t blocks_per_sm;
    void *p, *device_p;

    (void)arg;
    MUST(llane_gpu_device_count(&n_devices));
    for (int d = 0; d < n_devices && d < (int)m->team->n_ranks; d++)
        if (d != m->device)
            MUST(llane_gpu_peer_enable(d));
    for (int k = 0; k < LLANE_N_KERNELS; k++)
        MUST(llane_gpu_kernel_load(llane_kernel_table[k], 64, &blocks_per_sm));
    MUST(llane_gpu_stream_create(&m->stream));
    MUST(llane_gpu_stream_create(&m->side_stream));
    MUST(llane_gpu_malloc(slots_bytes, &p));
    m->slots = p;
    MUST(llane_gpu_malloc(LLANE_MAX_BLOCKS * sizeof(struct llane_cell), &p));
    m->cells = p;
    MUST(llane_gpu_malloc(ARENA_BYTES, &p));
    m->arena = p;
    MUST(llane_gpu_host_alloc(ARENA_BYTES, &p, &device_p));
    m->image = p;
    MUST(llane_gpu_host_alloc(LLANE_MAX_BLOCKS * sizeof(struct llane_cell), &p, &device_p));
    m->seen = p;
    MUST(llane_gpu_host_alloc(sizeof(struct llane_lane_words), &p, &device_p));
    m->words = p;
    m->device_words = device_p;
    MUST(llane_gpu_host_alloc(LLANE_MAX_RANKS * sizeof(uint32_t), &p, &device_p));
    m->probe_result = p;
    m->device_probe_result = device_p;
    MUST(llane_gpu_memset_async(m->slots, 0, slots_bytes, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/* Sets the lane's counters, as if operation ll_op - 1 had just ended. */
static void member_preset(struct member *m, void *arg)
{
    const uint32_t ll_op = *(const uint32_t *)arg;

    for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
        m->seen[c] = (struct llane_cell){ll_op, 1, 0, LLANE_DEAD_NOT};
    MUST(llane_gpu_memcpy_async(m->cells, m->seen, LLANE_MAX_BLOCKS * sizeof(struct llane_cell),
                                m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static struct team *team_create(uint32_t n_ranks, uint64_t slot_bytes, uint32_t first_op)
{
    struct team *team = calloc(1, sizeof(*team));
    int n_devices = 0;

    MUST(!team);
    MUST(llane_gpu_device_count(&n_devices));
    MUST(n_devices == 0);
    team->n_ranks = n_ranks;
    team->slot_bytes = slot_bytes;
    for (uint32_t r = 0; r < n_ranks; r++)
        team->members[r] =
            (struct member){.team = team, .rank = r, .device = (int)(r % (uint32_t)n_devices)};
    team_do(team, member_create, NULL);
    team_do(team, member_preset, &first_op);
    return team;
}

static void member_destroy(struct member *m, void *arg)
{
    (void)arg;
    MUST(llane_gpu_stream_destroy(m->stream));
    MUST(llane_gpu_stream_destroy(m->side_stream));
    MUST(llane_gpu_free(m->slots));
    MUST(llane_gpu_free(m->cells));
    MUST(llane_gpu_free(m->arena));
}

static void team_destroy(struct team *team)
{
    team_do(team, member_destroy, NULL);
    free(team);
}

/* Where rank `source` writes at rank `owner`. */
static uint8_t *team_slot(const struct team *team, uint32_t owner, uint32_t source)
{
    return team->members[owner].slots + source * 2 * team->slot_bytes;
}

struct launch {
    enum llane_kernel kernel;
    enum llane_kernel_op op;
    uint64_t count;
    uint32_t n_blocks, n_threads;
};

static void member_launch(struct member *m, struct CUstream_st *stream, const struct launch *how,
                          const uint8_t *in, uint8_t *out)
{
    struct llane_one_shot_args args = {
        .in = in,
        .out = out,
        .count = how->count,
        .slot_bytes = m->team->slot_bytes,
        .rank = m->rank,
        .n_ranks = m->team->n_ranks,
        .op = how->op,
        .spins_per_look = SPINS_PER_LOOK,
        .cells = m->cells,
        .words = m->device_words,
    };
    struct llane_gpu_launch launch = {
        .kernel = llane_kernel_table[how->kernel],
        .args = &args,
        .args_bytes = sizeof(args),
        .n_blocks = how->n_blocks,
        .n_threads = how->n_threads,
        .stream = stream,
    };

    for (uint32_t r = 0; r < m->team->n_ranks; r++) {
        if (r == m->rank)
            continue;
        args.send[r] = team_slot(m->team, r, m->rank);
        args.recv[r] = team_slot(m->team, m->rank, r);
    }
    MUST(llane_gpu_launch(&launch));
}

#endif
