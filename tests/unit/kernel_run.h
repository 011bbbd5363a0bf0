/*
 * A run of many all-reduce steps over a team's ranks, without a pause between steps, and the check
 * of every byte of every rank's arena afterwards: results exact to the bit (so equal on all ranks),
 * nothing else touched, all cells equal and at the right numbers.
 */
#ifndef LLANE_TESTS_KERNEL_RUN_H
#define LLANE_TESTS_KERNEL_RUN_H

#include "kernel_team.h"

enum { MAX_STEPS = 320, MAX_SHIFT = 8, ARENA_GRAIN = 64 };

struct step {
    struct launch how;
    bool is_in_place;
    bool is_spiced;     /* values are awkward: the distance from a plain result says nothing */
    bool has_own_grids; /* every rank launches another grid */
    bool is_aligned;    /* every rank's buffers are aligned to packets */
    /* Element i of a rank's contribution; NULL: ordinary or, if is_spiced, awkward values. */
    uint64_t (*values)(const struct step *s, uint32_t n_ranks, uint32_t rank, uint64_t i);
    uint32_t number;      /* seeds its values, shifts and own grids */
    size_t in_at, out_at; /* in the arena, before the rank's shift */
};

struct run {
    struct team *team;
    uint32_t seed;
    uint32_t n_steps;
    uint32_t times; /* each rank issues all steps this many times */
    uint32_t
        max_pause_us; /* > 0: ranks pause between steps, up to this long, each in its own way */
    size_t used;      /* of the arena */
    struct step steps[MAX_STEPS];
};

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;

    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static inline uint32_t op_after(uint32_t op)
{
    return op == UINT32_MAX ? 4 : op + 1;
}

/* Varying on purpose: cells must not depend on the grid. Small, so that all ranks' blocks fit on one
 * GPU together. */
static inline void choose_grid(struct launch *how, uint64_t dice)
{
    static const uint32_t blocks[] = {1, 2, 1, 3, 1, 4};
    static const uint32_t threads[] = {LLANE_MIN_THREADS, 96, LLANE_MIN_THREADS, LLANE_MIN_THREADS,
                                       128};

    how->n_blocks = blocks[dice % 6];
    how->n_threads = threads[dice / 6 % 5];
}

static inline const struct format *step_format(const struct step *s)
{
    return format_of(s->how.type);
}

static inline uint64_t input_bits(const struct run *run, const struct step *s, uint32_t rank,
                                  uint64_t i)
{
    const uint32_t n_ranks = run->team->n_ranks;
    uint64_t h;

    if (s->values)
        return s->values(s, n_ranks, rank, i);
    h = mix(mix(run->seed, s->number), mix(rank, i));
    /* Four neighbours at a time, so that whole words are of one kind. */
    if (s->is_spiced)
        return oracle_spiced_bits(step_format(s), h, mix(s->number, i / 4) % ORACLE_N_SPICES,
                                  rank == i / 4 % n_ranks);
    return oracle_plain_bits(step_format(s), h);
}

/*
 * Local alignment: another one on every rank. For about half of the ranks both buffers are aligned to
 * packets, so that with a count to suit these ranks go the plain way and the others do not.
 */
static inline size_t shift_of(const struct step *s, uint32_t rank, uint32_t buffer)
{
    const uint64_t dice = mix(s->number, rank);

    return s->is_aligned || dice % 2 ? 0
                                     : mix(dice, buffer) % (MAX_SHIFT + 1) * step_format(s)->bytes;
}

static inline size_t in_at(const struct step *s, uint32_t rank)
{
    return s->in_at + shift_of(s, rank, 0);
}

static inline size_t out_at(const struct step *s, uint32_t rank)
{
    return s->is_in_place ? in_at(s, rank) : s->out_at + shift_of(s, rank, 1);
}

/* Gives every step its place. A step that does not fit is a mistake in the test. */
static inline void run_lay_out(struct run *run)
{
    size_t at = ARENA_GRAIN;

    for (uint32_t k = 0; k < run->n_steps; k++) {
        struct step *s = &run->steps[k];
        const size_t bytes =
            divide_up((s->how.count + MAX_SHIFT + 1) * step_format(s)->bytes, ARENA_GRAIN) *
            ARENA_GRAIN;

        s->number = k;
        s->in_at = at;
        at += bytes;
        s->out_at = at;
        if (!s->is_in_place)
            at += bytes;
    }
    run->used = at + ARENA_GRAIN;
    if (run->used > ARENA_BYTES) {
        fprintf(stderr, "the run needs %zu bytes of arena\n", run->used);
        _exit(1);
    }
}

static inline void image_fill(const struct run *run, uint32_t rank, uint8_t *image)
{
    memset(image, UNTOUCHED, run->used);
    for (uint32_t k = 0; k < run->n_steps; k++) {
        const struct step *s = &run->steps[k];
        const struct format *f = step_format(s);

        for (uint64_t i = 0; i < s->how.count; i++)
            oracle_store(f, image + in_at(s, rank) + i * f->bytes, input_bits(run, s, rank, i));
    }
}

static inline void member_load(struct member *m, void *arg)
{
    const struct run *run = arg;

    image_fill(run, m->rank, m->image);
    MUST(llane_gpu_memcpy_async(m->arena, m->image, run->used, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static inline void member_issue_steps(struct member *m, const struct run *run)
{
    for (uint32_t k = 0; k < run->n_steps; k++) {
        const struct step *s = &run->steps[k];
        struct launch how = s->how;

        if (s->has_own_grids)
            choose_grid(&how, mix(mix(run->seed, k), m->rank));
        if (run->max_pause_us)
            usleep((useconds_t)(mix(mix(m->rank, run->seed), k) % run->max_pause_us));
        member_launch(m, m->stream, &how, m->arena + in_at(s, m->rank),
                      m->arena + out_at(s, m->rank));
    }
}

static inline void member_issue(struct member *m, void *arg)
{
    const struct run *run = arg;

    for (uint32_t t = 0; t < run->times; t++)
        member_issue_steps(m, run);
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/* All steps become one graph. Done by all ranks before any replays: making or freeing a graph may
 * wait for kernels of ranks that share the GPU. */
static inline void member_capture(struct member *m, void *arg)
{
    MUST(llane_gpu_capture_begin(m->stream));
    member_issue_steps(m, arg);
    MUST(llane_gpu_capture_end(m->stream, &m->graph));
}

/* As member_issue, by the graph. */
static inline void member_replay(struct member *m, void *arg)
{
    const struct run *run = arg;

    for (uint32_t t = 0; t < run->times; t++)
        MUST(llane_gpu_graph_launch(m->graph, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static inline void member_drop_graph(struct member *m, void *arg)
{
    (void)arg;
    MUST(llane_gpu_graph_destroy(m->graph));
}

/*
 * The rank whose contribution to element i is combined as the nth. In a ring a shard sets out at its
 * own rank; the first half of its packets goes up the ranks, the rest down.
 */
static inline uint32_t nth_rank(const struct launch *how, uint32_t n_ranks, uint64_t i, uint32_t n)
{
    const uint32_t bytes = format_of(how->type)->bytes;
    const uint64_t n_shard = divide_up(divide_up(how->count * bytes, LLANE_LL_PAYLOAD), n_ranks);
    const uint64_t packet = i * bytes / LLANE_LL_PAYLOAD;
    const uint32_t shard = (uint32_t)(packet / n_shard);

    if (how->algorithm != LLANE_RING)
        return n;
    return (packet % n_shard < divide_up(n_shard, 2) ? shard + n : shard + n_ranks - n) % n_ranks;
}

static inline const char *launch_name(const struct launch *how)
{
    static const char *const names[LLANE_N_ALGORITHMS] = {"one-shot", "two-shot", "ring",
                                                          "islands"};

    return names[how->algorithm];
}

/* What the ranks' arenas must be after the run. */
static inline void images_expect(const struct run *run, uint8_t **images)
{
    const uint32_t n_ranks = run->team->n_ranks;

    for (uint32_t r = 0; r < n_ranks; r++) {
        images[r] = malloc(run->used);
        MUST(!images[r]);
        image_fill(run, r, images[r]);
    }
    for (uint32_t k = 0; k < run->n_steps; k++) {
        const struct step *s = &run->steps[k];
        const struct format *f = step_format(s);

        for (uint64_t i = 0; i < s->how.count; i++) {
            uint64_t bits[LLANE_MAX_RANKS] = {0}, result;
            double distance;

            for (uint32_t r = 0; r < n_ranks; r++)
                bits[r] = input_bits(run, s, nth_rank(&s->how, n_ranks, i, r), i);
            result = oracle_combine(f, s->how.op, bits, n_ranks, s->how.algorithm == LLANE_RING,
                                    &distance);
            if (!s->is_spiced && distance > 1)
                fail_msg("step %u element %llu: the result is %g roundings off", k,
                         (unsigned long long)i, distance);
            for (uint32_t r = 0; r < n_ranks; r++)
                oracle_store(f, images[r] + out_at(s, r) + i * f->bytes, result);
        }
    }
}

static inline void run_fail(const struct run *run, uint32_t rank, size_t at,
                            const uint8_t *expected)
{
    const struct step *s = NULL;
    const uint8_t *got = run->team->members[rank].image;

    for (uint32_t k = 0; k < run->n_steps && run->steps[k].in_at <= at; k++)
        s = &run->steps[k];
    if (!s)
        fail_msg("rank %u of %u: byte %zu before the first step was written", rank,
                 run->team->n_ranks, at);
    fail_msg("rank %u of %u, step %u of %u: %s, %s, %s, op %d, %llu elements, %u x %u threads%s: "
             "byte %zu of the output is %02x, not %02x",
             rank, run->team->n_ranks, s->number, run->n_steps, step_format(s)->name,
             launch_name(&s->how), s->how.packet == LLANE_LL ? "LL" : "sentinel", s->how.op,
             (unsigned long long)s->how.count, s->how.n_blocks, s->how.n_threads,
             s->is_in_place ? ", in place" : "", at - out_at(s, rank), got[at], expected[at]);
}

static inline void cells_check(const struct member *m, const uint32_t *next_op)
{
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++) {
        assert_int_equal(m->seen->cell[c].ll_op, next_op[LLANE_LL]);
        assert_int_equal(m->seen->cell[c].sentinel_op, next_op[LLANE_SENTINEL]);
        assert_int_equal(m->seen->cell[c].busy, 0);
        assert_int_equal(m->seen->cell[c].dead, LLANE_DEAD_NOT);
    }
    assert_int_equal(m->words->dead, LLANE_DEAD_NOT);
}

static inline void run_check(const struct run *run)
{
    struct team *team = run->team;
    uint8_t *expected[LLANE_MAX_RANKS];

    for (uint32_t k = 0; k < run->n_steps * run->times; k++) {
        uint32_t *next_op = &team->next_op[run->steps[k % run->n_steps].how.packet];

        *next_op = op_after(*next_op);
    }
    images_expect(run, expected);
    for (uint32_t r = 0; r < team->n_ranks; r++) {
        for (size_t at = 0; at < run->used; at++)
            if (team->members[r].image[at] != expected[r][at])
                run_fail(run, r, at, expected[r]);
        free(expected[r]);
        cells_check(&team->members[r], team->next_op);
    }
}

/* Calls check for all slots of a family that are in use, one generation at a time. */
static inline void team_check_slots(struct team *team, enum llane_packet packet,
                                    void (*check)(const struct team *team, uint32_t generation,
                                                  const uint32_t *words, uint64_t n_words))
{
    for (uint32_t r = 0; r < team->n_ranks; r++)
        for (uint32_t source = 0; source < team->n_ranks; source++)
            for (uint32_t g = 0; g < 2 && source != r; g++)
                check(team, g, member_fetch_slot(&team->members[r], packet, source, g),
                      team->slot_bytes[packet] / sizeof(uint32_t));
}

/* Between operations all of a sentinel slot waits. */
static inline void slot_check_armed(const struct team *team, uint32_t generation,
                                    const uint32_t *words, uint64_t n_words)
{
    for (uint64_t w = 0; w < n_words; w++)
        if (words[w] != UINT32_MAX)
            fail_msg("word %llu of generation %u of a sentinel slot of %u ranks is %08x",
                     (unsigned long long)w, generation, team->n_ranks, words[w]);
}

static inline bool has_kernel(int type, int algorithm, int packet)
{
    return llane_all_reduce_table[type][algorithm][packet] != NULL;
}

static inline struct run *run_create(struct team *team, uint32_t seed)
{
    struct run *run = calloc(1, sizeof(*run));

    assert_non_null(run);
    run->team = team;
    run->seed = seed;
    run->times = 1;
    return run;
}

static inline struct step *run_add(struct run *run, int type, int algorithm, int packet, int op,
                                   uint64_t count)
{
    struct step *s = &run->steps[run->n_steps];

    assert_true(run->n_steps < MAX_STEPS);
    assert_true(has_kernel(type, algorithm, packet));
    *s = (struct step){.how = {.type = (enum llane_type)type,
                               .algorithm = (enum llane_algorithm)algorithm,
                               .packet = (enum llane_packet)packet,
                               .op = (enum llane_kernel_op)op,
                               .count = count}};
    s->how.chunk_packets = (uint32_t)(mix(run->seed + 2, run->n_steps) % 4 * 7);
    s->how.sleeps = mix(run->seed + 3, run->n_steps) % 4 == 0;
    choose_grid(&s->how, mix(run->seed, run->n_steps));
    s->is_in_place = mix(run->seed + 1, run->n_steps) % 3 == 0;
    run->n_steps++;
    return s;
}

/* Any kernel and operation; a message of at most max_bytes, often a small one, often plain. */
static inline struct step *run_add_any(struct run *run, uint64_t dice, uint64_t max_bytes)
{
    /* Half of them of the three types whose plain sums have code of their own. */
    static const int common[] = {LLANE_TYPE_F32, LLANE_TYPE_F16, LLANE_TYPE_BF16};
    const bool is_common = dice >> 8 & 1;
    const int type = is_common ? common[(dice >> 16) % 3] : (int)((dice >> 16) % LLANE_N_TYPES);
    /* The other two have private slots only. */
    const int n_algorithms = run->team->sharing == SHARING_NONE ? LLANE_N_ALGORITHMS : LLANE_RING;
    const int algorithm = (int)(dice >> 40 & 0xffff) % n_algorithms;
    const int packet = dice >> 9 & 1 && has_kernel(type, algorithm, LLANE_SENTINEL);
    const uint64_t size = format_of((enum llane_type)type)->bytes;
    const uint64_t grain = LLANE_PACKET_BYTES * run->team->n_ranks;
    const uint64_t most = dice >> 32 & 3 ? max_bytes / 8 : max_bytes;
    uint64_t bytes = 1 + mix(dice, 1) % most;
    struct step *s;

    if (dice >> 34 & 1 && bytes > grain)
        bytes -= bytes % grain;
    s = run_add(run, type, algorithm, packet,
                is_common && dice >> 11 & 1 ? LLANE_OP_SUM : (int)((dice >> 24) % LLANE_N_OPS),
                divide_up(bytes, size));
    s->is_spiced = dice >> 12 & 1;
    s->has_own_grids = dice >> 13 & 1;
    return s;
}

/* The whole of it. Inputs stay what they are: with times > 1, nothing may be in place. */
static inline void run_all(struct run *run, bool by_graph)
{
    run_lay_out(run);
    team_do(run->team, member_load, run);
    if (by_graph) {
        team_do(run->team, member_capture, run);
        team_do(run->team, member_replay, run);
        team_do(run->team, member_drop_graph, NULL);
    } else {
        team_do(run->team, member_issue, run);
    }
    team_do(run->team, member_fetch, &run->used);
    run_check(run);
    team_check_slots(run->team, LLANE_SENTINEL, slot_check_armed);
}

#endif
