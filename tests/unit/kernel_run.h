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

/* Element i of a rank's contribution. */
static uint32_t input_bits(const struct run *run, const struct step *s, uint32_t rank, uint64_t i)
{
    const struct format *f = format_of(s->how.kernel);
    const uint64_t h = mix(mix(run->seed, s->number), mix(rank, i));
    const int bits = (int)f->bytes * 8;
    const uint32_t sign = (uint32_t)(h >> 63) << (bits - 1);
    const uint32_t fraction = (uint32_t)h & ((1u << f->fraction_bits) - 1);
    const uint32_t bias = (1u << (f->exponent_bits - 1)) - 1;
    const uint32_t infinity = (2 * bias + 1) << f->fraction_bits;
    const bool is_chosen = rank == i % run->team->n_ranks;

    if (s->is_spiced) {
        switch (mix(s->number, i / 4) % 8) {
        case 0: /* anything */
            return (uint32_t)(h >> 16) & (uint32_t)((1ull << bits) - 1);
        case 1: /* subnormals */
            return sign | fraction;
        case 2: /* zeros */
            return sign;
        case 3: /* the largest numbers of one sign: sums overflow, averages may not */
            return infinity - 1;
        case 4: /* all ones on one rank, in words of two lanes as well */
            if (rank == i / 4 % run->team->n_ranks)
                return (uint32_t)((1ull << bits) - 1);
            break;
        case 5: /* some NaN on one rank */
            if (is_chosen)
                return sign | infinity | fraction | 1;
            break;
        case 6:
            if (is_chosen)
                return sign | infinity;
            break;
        default:
            break;
        }
    }
    return sign | (uint32_t)(bias - 4 + (h >> 32) % 9) << f->fraction_bits | fraction;
}

/* Local alignment: an element's size times 0..8, another one on every rank. */
static size_t in_at(const struct step *s, uint32_t rank)
{
    return s->in_at + mix(s->number, rank) % MAX_SHIFT * format_of(s->how.kernel)->bytes;
}

static size_t out_at(const struct step *s, uint32_t rank)
{
    if (s->is_in_place)
        return in_at(s, rank);
    return s->out_at + mix(s->number, 100 + rank) % MAX_SHIFT * format_of(s->how.kernel)->bytes;
}

/* Gives every step its place. A step that does not fit is a mistake in the test. */
static void run_lay_out(struct run *run)
{
    size_t at = 64;

    for (uint32_t k = 0; k < run->n_steps; k++) {
        struct step *s = &run->steps[k];
        const size_t bytes = (s->how.count + MAX_SHIFT) * format_of(s->how.kernel)->bytes;

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
        const struct format *f = format_of(s->how.kernel);

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

/* As member_issue, from one captured graph. */
static void member_replay(struct member *m, void *arg)
{
    const struct run *run = arg;
    struct CUgraphExec_st *graph;

    MUST(llane_gpu_capture_begin(m->stream));
    member_issue_steps(m, run);
    MUST(llane_gpu_capture_end(m->stream, &graph));
    for (uint32_t t = 0; t < run->times; t++)
        MUST(llane_gpu_graph_launch(graph, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
    MUST(llane_gpu_graph_destroy(graph));
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
        const struct format *f = format_of(s->how.kernel);

        for (uint64_t i = 0; i < s->how.count; i++) {
            uint32_t bits[LLANE_MAX_RANKS];
            double distance;
            uint32_t result;

            for (uint32_t r = 0; r < run->team->n_ranks; r++)
                bits[r] = input_bits(run, s, r, i);
            result = oracle_reduce(f, s->how.op, bits, run->team->n_ranks, &distance);
            if (!s->is_spiced && distance > 1)
                fail_msg("step %u element %llu: the float sum is %g roundings off", k,
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
static uint32_t run_all(struct run *run, void (*issue)(struct member *, void *), uint32_t first_op)
{
    run_lay_out(run);
    team_do(run->team, member_load, run);
    team_do(run->team, issue, run);
    team_do(run->team, member_fetch, NULL);
    run_check(run, first_op);
    return run->team->members[0].seen[0].ll_op;
}

#endif
