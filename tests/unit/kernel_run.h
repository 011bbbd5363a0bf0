/*
 * A run of many all-reduce steps over a team's ranks, without a pause between steps, and the check
 * of every byte of every rank's arena afterwards: results exact to the bit (so equal on all ranks),
 * nothing else touched, all cells equal and at the right number.
 */
#ifndef LLANE_TESTS_KERNEL_RUN_H
#define LLANE_TESTS_KERNEL_RUN_H

#include "kernel_oracle.h"
#include "kernel_team.h"

enum { MAX_STEPS = 320, MAX_SHIFT = 9, UNTOUCHED = 0xc3 };

struct step {
    struct launch how;
    bool is_in_place;
    bool is_spiced;       /* NaNs, infinities, overflow, zeros' signs */
    uint32_t number;      /* seeds its values and shifts */
    size_t in_at, out_at; /* in the arena, before the rank's shift */
};

struct run {
    struct team *team;
    uint32_t seed;
    uint32_t n_steps;
    uint32_t times; /* each rank issues all steps this many times */
    size_t used;    /* of the arena */
    struct step steps[MAX_STEPS];
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;

    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint32_t flag_after(uint32_t flag)
{
    return flag == UINT32_MAX ? 2 : flag + 1;
}

static const struct format *step_format(const struct step *s)
{
    return format_of((enum llane_type)((s->how.kernel - LLANE_KERNEL_ONE_SHOT_LL) % LLANE_N_TYPES));
}

/* Element i of a rank's contribution. */
static uint64_t input_bits(const struct run *run, const struct step *s, uint32_t rank, uint64_t i)
{
    const uint64_t h = mix(mix(run->seed, s->number), mix(rank, i));
    /* Four neighbours at a time, so that whole words are of one kind. */
    const bool is_chosen = rank == i / 4 % run->team->n_ranks;

    if (s->is_spiced)
        return oracle_spiced_bits(step_format(s), h, mix(s->number, i / 4) % ORACLE_N_SPICES,
                                  is_chosen);
    return oracle_plain_bits(step_format(s), h);
}

/* Local alignment: an element's size times 0..8, another one on every rank. */
static size_t in_at(const struct step *s, uint32_t rank)
{
    return s->in_at + mix(s->number, rank) % MAX_SHIFT * step_format(s)->bytes;
}

static size_t out_at(const struct step *s, uint32_t rank)
{
    if (s->is_in_place)
        return in_at(s, rank);
    return s->out_at + mix(s->number, 100 + rank) % MAX_SHIFT * step_format(s)->bytes;
}

/* Gives every step its place. A step that does not fit is a mistake in the test. */
static void run_lay_out(struct run *run)
{
    size_t at = 64;

    for (uint32_t k = 0; k < run->n_steps; k++) {
        struct step *s = &run->steps[k];
        const size_t bytes = (s->how.count + MAX_SHIFT) * step_format(s)->bytes;

        s->number = k;
        s->in_at = at;
        at += (bytes + 31) / 16 * 16;
        s->out_at = at;
        if (!s->is_in_place)
            at += (bytes + 31) / 16 * 16;
    }
    run->used = at + 64;
    if (run->used > ARENA_BYTES) {
        fprintf(stderr, "the run needs %zu bytes of arena\n", run->used);
        _exit(1);
    }
}

static void image_fill(const struct run *run, uint32_t rank, uint8_t *image)
{
    memset(image, UNTOUCHED, run->used);
    for (uint32_t k = 0; k < run->n_steps; k++) {
        const struct step *s = &run->steps[k];
        const struct format *f = step_format(s);

        for (uint64_t i = 0; i < s->how.count; i++)
            oracle_store(f, image + in_at(s, rank) + i * f->bytes, input_bits(run, s, rank, i));
    }
}

static void member_load(struct member *m, void *arg)
{
    const struct run *run = arg;

    image_fill(run, m->rank, m->image);
    MUST(llane_gpu_memcpy_async(m->arena, m->image, run->used, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void member_issue_steps(struct member *m, const struct run *run)
{
    for (uint32_t k = 0; k < run->n_steps; k++) {
        const struct step *s = &run->steps[k];

        member_launch(m, m->stream, &s->how, m->arena + in_at(s, m->rank),
                      m->arena + out_at(s, m->rank));
    }
}

static void member_issue(struct member *m, void *arg)
{
    const struct run *run = arg;

    for (uint32_t t = 0; t < run->times; t++)
        member_issue_steps(m, run);
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/* All steps become one graph. Done by all ranks before any replays: making or freeing a graph may
 * wait for kernels of ranks that share the GPU. */
static void member_capture(struct member *m, void *arg)
{
    MUST(llane_gpu_capture_begin(m->stream));
    member_issue_steps(m, arg);
    MUST(llane_gpu_capture_end(m->stream, &m->graph));
}

/* As member_issue, by the graph. */
static void member_replay(struct member *m, void *arg)
{
    const struct run *run = arg;

    for (uint32_t t = 0; t < run->times; t++)
        MUST(llane_gpu_graph_launch(m->graph, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void member_drop_graph(struct member *m, void *arg)
{
    (void)arg;
    MUST(llane_gpu_graph_destroy(m->graph));
}

static void member_fetch(struct member *m, void *arg)
{
    (void)arg;
    MUST(llane_gpu_memcpy_async(m->image, m->arena, ARENA_BYTES, m->stream));
    MUST(llane_gpu_memcpy_async(m->seen, m->cells, LLANE_MAX_BLOCKS * sizeof(struct llane_cell),
                                m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/* What a rank's arena must be after the run. */
static uint8_t *image_expected(const struct run *run, uint32_t rank)
{
    uint8_t *image = malloc(run->used);

    MUST(!image);
    image_fill(run, rank, image);
    for (uint32_t k = 0; k < run->n_steps; k++) {
        const struct step *s = &run->steps[k];
        const struct format *f = step_format(s);

        for (uint64_t i = 0; i < s->how.count; i++) {
            uint64_t bits[LLANE_MAX_RANKS], result;
            double distance;

            for (uint32_t r = 0; r < run->team->n_ranks; r++)
                bits[r] = input_bits(run, s, r, i);
            result = oracle_reduce(f, s->how.op, bits, run->team->n_ranks, &distance);
            if (!s->is_spiced && distance > 1)
                fail_msg("step %u element %llu: the result is %g roundings off", k,
                         (unsigned long long)i, distance);
            oracle_store(f, image + out_at(s, rank) + i * f->bytes, result);
        }
    }
    return image;
}

static void run_fail(const struct run *run, uint32_t rank, size_t at, const uint8_t *expected)
{
    const struct step *s = NULL;
    const uint8_t *got = run->team->members[rank].image;

    for (uint32_t k = 0; k < run->n_steps && run->steps[k].in_at <= at; k++)
        s = &run->steps[k];
    if (!s)
        fail_msg("rank %u of %u: byte %zu before the first step was written", rank,
                 run->team->n_ranks, at);
    fail_msg("rank %u of %u, step %u of %u: kernel %d, op %d, %llu elements, %u x %u threads%s: "
             "byte %zu of the output is %02x, not %02x",
             rank, run->team->n_ranks, s->number, run->n_steps, s->how.kernel, s->how.op,
             (unsigned long long)s->how.count, s->how.n_blocks, s->how.n_threads,
             s->is_in_place ? ", in place" : "", at - out_at(s, rank), got[at], expected[at]);
}

/* first_op: the number that the run's first operation had. */
static void run_check(const struct run *run, uint32_t first_op)
{
    uint32_t next_op = first_op;

    for (uint32_t k = 0; k < run->n_steps * run->times; k++)
        next_op = flag_after(next_op);
    for (uint32_t r = 0; r < run->team->n_ranks; r++) {
        const struct member *m = &run->team->members[r];
        uint8_t *expected = image_expected(run, r);

        for (size_t at = 0; at < run->used; at++)
            if (m->image[at] != expected[at])
                run_fail(run, r, at, expected);
        free(expected);
        for (int c = 0; c < LLANE_MAX_BLOCKS; c++) {
            assert_int_equal(m->seen[c].ll_op, next_op);
            assert_int_equal(m->seen[c].busy, 0);
            assert_int_equal(m->seen[c].dead, LLANE_DEAD_NOT);
        }
        assert_int_equal(m->words->dead, LLANE_DEAD_NOT);
    }
}

/* The whole of it. Returns the number that the next operation will have. */
static uint32_t run_all(struct run *run, bool by_graph, uint32_t first_op)
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
    team_do(run->team, member_fetch, NULL);
    run_check(run, first_op);
    return run->team->members[0].seen[0].ll_op;
}

#endif
