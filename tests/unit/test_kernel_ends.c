// Kernels stop when told, overlapping ones are noticed, a dead lane stays dead, and the probe tells pairs apart.
// ALSO: asan
/*
 * Through plugin/gpu.h and kernels/table.h alone, so it can be linked with gpu_cuda.c as well. Also
 * built with kernels that test_kernel_mutations.sh has broken on purpose; then it must fail.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernel_team.h"

enum { OUT_AT = 8192, USED_BYTES = 16384, SECOND = 0x3e, LATER = 0x5a };

/*
 * float32 elements. FEW: a packet a thread at most; no plain message for two-shot. SOME: the last block may
 * have none, and ends before the others. MANY: every block has packets to wait for, and threads have several.
 */
enum { FEW = 300, SOME = 1000, MANY = 1536 };

static struct launch lonely(int algorithm, int packet, uint64_t count)
{
    return (struct launch){.type = LLANE_TYPE_F32,
                           .algorithm = (enum llane_algorithm)algorithm,
                           .packet = (enum llane_packet)packet,
                           .op = LLANE_OP_SUM,
                           .count = count,
                           .n_blocks = 3,
                           .n_threads = LLANE_MIN_THREADS};
}

static void launch_lonely(struct member *m, struct CUstream_st *stream, const struct launch *how)
{
    member_launch(m, stream, how, m->arena, m->arena + OUT_AT);
}

/*
 * Are the n packets from this offset on of rank 0's slot at rank 1, in the generation of operation 1,
 * there, each with this payload in its first word? Any payload of the tests is neither 0 nor all ones.
 */
static int have_packets(struct team *team, enum llane_packet packet, uint64_t offset, uint64_t n,
                        uint32_t payload)
{
    struct member *to = &team->members[1];
    const uint32_t *words = (const uint32_t *)(const void *)to->image;
    uint64_t n_here = 0;

    MUST(llane_gpu_memcpy_async(to->image,
                                team_slot(team, packet, 1, 0) + team->slot_bytes[packet] + offset,
                                n * LLANE_PACKET_BYTES, to->side_stream));
    MUST(llane_gpu_stream_synchronize(to->side_stream));
    while (n_here < n && words[n_here * LLANE_PACKET_BYTES / 4] == payload)
        n_here++;
    return n_here == n;
}

static void wait_for_packet(struct team *team, enum llane_packet packet, uint64_t offset,
                            uint32_t payload)
{
    while (!have_packets(team, packet, offset, 1, payload)) {
    }
}

static void fetch_cells(struct member *m, struct CUstream_st *stream)
{
    MUST(llane_gpu_memcpy_async(m->seen, m->cells, sizeof(*m->seen), stream));
    MUST(llane_gpu_stream_synchronize(stream));
}

/* Until each block of the kernel that runs on m's lane has said so. */
static void wait_for_marks(struct member *m)
{
    int n_marked;

    do {
        fetch_cells(m, m->side_stream);
        n_marked = 0;
        for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
            n_marked += m->seen->cell[c].busy != 0;
    } while (n_marked < LLANE_MAX_BLOCKS);
}

/* By the peer's stream: kernels run on both of m's. */
static int is_lost(struct member *m, struct member *peer)
{
    int n_dead = 0;

    fetch_cells(m, peer->side_stream);
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
        n_dead += m->seen->cell[c].dead != LLANE_DEAD_NOT;
    return n_dead == LLANE_MAX_BLOCKS;
}

static uint32_t word_of(int byte)
{
    uint32_t word;

    memset(&word, byte, sizeof(word));
    return word;
}

static void arena_fill(struct member *m, int byte)
{
    MUST(llane_gpu_memset_async(m->arena, byte, USED_BYTES, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void member_check_arena(struct member *m, int byte)
{
    size_t bytes = USED_BYTES;

    member_fetch(m, &bytes);
    for (size_t at = 0; at < USED_BYTES; at++)
        assert_int_equal(m->image[at], byte);
}

static void check_dead(struct member *m, uint32_t reason)
{
    const struct launch later = lonely(LLANE_ONE_SHOT, LLANE_LL, MANY);
    struct member *peer = &m->team->members[1];
    const uint32_t *words;

    assert_int_equal(__atomic_load_n(&m->words->dead, __ATOMIC_ACQUIRE), reason);
    /* A later kernel leaves at once and sends nothing, whatever the abort word says now. */
    __atomic_store_n(&m->words->abort, 0, __ATOMIC_RELEASE);
    arena_fill(m, LATER);
    launch_lonely(m, m->stream, &later);
    MUST(llane_gpu_stream_synchronize(m->stream));
    member_check_arena(m, LATER);
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
        assert_int_equal(m->seen->cell[c].dead, reason);
    for (uint32_t g = 0; g < 2; g++) {
        words = member_fetch_slot(peer, LLANE_LL, 0, g);
        for (uint64_t w = 0; w < m->team->slot_bytes[LLANE_LL] / sizeof(*words); w++)
            assert_int_not_equal(words[w], word_of(LATER));
    }
}

/* The families' first numbers, of one generation. */
static struct team *abort_team_create(void)
{
    struct team *team = team_create(2, 8 << 10);

    team_preset(team, 1, 3);
    return team;
}

static void member_abort(struct member *m, enum llane_packet packet)
{
    int is_done;

    /* Pairs with the look in the poll loop, as below. */
    while (__atomic_load_n(&m->words->waiting[packet], __ATOMIC_RELAXED) !=
           m->team->next_op[packet])
        sched_yield();
    assert_int_equal(m->words->waiting[!packet], 0);

    MUST(llane_gpu_stream_query(m->stream, &is_done));
    assert_false(is_done);
    /* Pairs with the look in the poll loop. */
    __atomic_store_n(&m->words->abort, 1, __ATOMIC_RELEASE);
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void kernels__aborted_while_polling__leave_output_alone_and_lane_dead(void **state)
{
    static const uint64_t counts[] = {FEW, SOME, MANY};

    (void)state;
    for (int k = 0; k < 3 * LLANE_N_ALGORITHMS * LLANE_N_PACKETS; k++) {
        const struct launch how =
            lonely(k / 3 / LLANE_N_PACKETS, k / 3 % LLANE_N_PACKETS, counts[k % 3]);

        if (!llane_all_reduce_table[how.type][how.algorithm][how.packet])
            continue;
        struct team *team = abort_team_create();
        struct member *m = &team->members[0];

        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        launch_lonely(m, m->stream, &how);
        /* Islands of one rank each: the first packet is a partial result, behind the results. */
        wait_for_packet(team, how.packet,
                        how.algorithm == LLANE_ISLANDS
                            ? how.count * 4 / LLANE_LL_PAYLOAD * LLANE_PACKET_BYTES
                            : 0,
                        word_of(UNTOUCHED));
        member_abort(m, how.packet);
        member_check_arena(m, UNTOUCHED);
        check_dead(m, LLANE_DEAD_ABORT);
        team_destroy(team);
    }
}

/* Contributions of rank 1 as they would have come for operation 1. */
static void plant_contributions(struct team *team, enum llane_packet packet, uint64_t bytes)
{
    struct member *from = &team->members[1];
    uint32_t *words = (uint32_t *)(void *)from->image;

    for (uint64_t w = 0; w < bytes / sizeof(*words); w++)
        words[w] = packet == LLANE_LL && w % 2 ? 1 : 0x3f800000;
    MUST(llane_gpu_memcpy_async(team_slot(team, packet, 0, 1) + team->slot_bytes[packet], words,
                                bytes, from->side_stream));
    MUST(llane_gpu_stream_synchronize(from->side_stream));
}

static void kernels__two_shot_aborted_between_its_steps__ends_and_lane_dead(void **state)
{
    static const uint64_t counts[] = {FEW, SOME, MANY};

    (void)state;
    for (int k = 0; k < 3 * LLANE_N_PACKETS; k++) {
        const int packet = k / 3;
        const struct launch how = lonely(LLANE_TWO_SHOT, packet, counts[k % 3]);
        const uint64_t payload = packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
        const uint64_t n_packets = divide_up(how.count * 4, payload);
        size_t bytes = USED_BYTES;
        struct team *team = abort_team_create();
        struct member *m = &team->members[0];

        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        plant_contributions(team, how.packet, team->slot_bytes[packet] / 2);
        launch_lonely(m, m->stream, &how);
        /* Its own shard's sum is on its way to rank 1, who sends none. */
        wait_for_packet(team, how.packet, team->slot_bytes[packet] / 2,
                        (uint32_t)format_encode(
                            format_of(LLANE_TYPE_F32),
                            format_decode(format_of(LLANE_TYPE_F32), word_of(UNTOUCHED)) + 1.0));
        member_abort(m, how.packet);
        /* Rank 0's shard, the first one, is there, or a part of it. */
        member_fetch(m, &bytes);
        for (size_t at = OUT_AT + divide_up(n_packets, 2) * payload; at < USED_BYTES; at++)
            assert_int_equal(m->image[at], UNTOUCHED);
        check_dead(m, LLANE_DEAD_ABORT);
        team_destroy(team);
    }
}

/*
 * Both kernels have begun when rank 1 lets them end: the first one has sent all it has, the second one too,
 * or a block of it that has nothing to send told that the lane is lost. A thread that began later would
 * await an operation that rank 1 does not take part in.
 */
static void kernels__two_at_once_on_a_lane__end_and_lane_dead(void **state)
{
    static const uint32_t second_blocks[] = {3, 1, 7, 3};

    (void)state;
    for (int k = 0; k < 4; k++) {
        const struct launch first = lonely(k % 2, LLANE_LL, MANY);
        const uint64_t n_packets = divide_up(first.count * 4, LLANE_LL_PAYLOAD);
        const uint64_t n_sent = first.algorithm == LLANE_ONE_SHOT ? n_packets : n_packets / 2;
        struct team *team = team_create(2, 8 << 10);
        struct member *m = &team->members[0], *peer = &team->members[1];
        struct launch second = first;

        second.n_blocks = second_blocks[k];
        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        arena_fill(peer, UNTOUCHED);
        MUST(llane_gpu_memset_async(m->arena + USED_BYTES, SECOND, OUT_AT, m->stream));
        launch_lonely(m, m->stream, &first);
        while (!have_packets(team, LLANE_LL, 0, n_sent, word_of(UNTOUCHED)))
            sched_yield();
        wait_for_marks(m); /* sooner, the two can miss each other */
        member_launch(m, m->side_stream, &second, m->arena + USED_BYTES,
                      m->arena + USED_BYTES + OUT_AT);
        while (!have_packets(team, LLANE_LL, 0, n_sent, word_of(SECOND)) && !is_lost(m, peer))
            sched_yield();
        MUST(llane_gpu_device_set(peer->device));
        launch_lonely(peer, peer->stream, &first);
        MUST(llane_gpu_device_set(m->device));
        MUST(llane_gpu_stream_synchronize(m->side_stream));
        MUST(llane_gpu_stream_synchronize(m->stream));
        /* Stopped between its steps, two-shot has sent no result. */
        __atomic_store_n(&peer->words->abort, 1, __ATOMIC_RELEASE);
        MUST(llane_gpu_stream_synchronize(peer->stream));
        check_dead(m, LLANE_DEAD_OVERLAP);
        team_destroy(team);
    }
}

/*
 * The second kernel has but a few packets, ends and tells that the lane is lost. The first one stops when
 * it looks; or does not look, gets the rest, and moves its cells on, which are lost all the same.
 */
static void kernels__lane_lost_while_polling__ends_and_lane_dead(void **state)
{
    enum { N_PACKETS = 8, WORDS = LLANE_LL_PAYLOAD / 4 };

    (void)state;
    for (int k = 0; k < 4; k++) {
        struct launch first = lonely(LLANE_ONE_SHOT, LLANE_LL, MANY), second = first;
        struct team *team = team_create(2, 8 << 10);
        struct member *m = &team->members[0];

        first.is_deaf = k / 2;
        second.count = N_PACKETS * WORDS;
        second.n_blocks = k % 2 ? 3 : 1;
        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        launch_lonely(m, m->stream, &first);
        wait_for_packet(team, LLANE_LL, 0, word_of(UNTOUCHED));
        wait_for_marks(m);
        launch_lonely(m, m->side_stream, &second);
        plant_contributions(team, LLANE_LL, N_PACKETS * LLANE_PACKET_BYTES);
        MUST(llane_gpu_stream_synchronize(m->side_stream));
        if (first.is_deaf)
            plant_contributions(team, LLANE_LL, MANY / WORDS * LLANE_PACKET_BYTES);
        MUST(llane_gpu_stream_synchronize(m->stream));
        assert_int_equal(m->words->abort, 0);
        check_dead(m, LLANE_DEAD_OVERLAP);
        for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
            assert_int_equal(m->seen->cell[c].ll_op, first.is_deaf ? 2 : 1);
        team_destroy(team);
    }
}

/* A second kernel that met another one while it moved its cells on, one after the other: none is busy. */
static void kernels__cells_not_equal__end_and_lane_dead(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * LLANE_N_PACKETS; k++) {
        const struct launch how = lonely(LLANE_ONE_SHOT, k / 2, FEW);
        struct team *team = team_create(2, 8 << 10);
        struct member *m = &team->members[0], *peer = &team->members[1];
        struct llane_cell *moved = &m->seen->cell[LLANE_MAX_BLOCKS - 1];

        *(k % 2 ? &moved->sentinel_op : &moved->ll_op) = 2;
        MUST(llane_gpu_device_set(m->device));
        MUST(llane_gpu_memcpy_async(m->cells, m->seen, sizeof(*m->seen), m->stream));
        arena_fill(m, UNTOUCHED);
        arena_fill(peer, UNTOUCHED);
        launch_lonely(m, m->stream, &how);
        MUST(llane_gpu_device_set(peer->device));
        launch_lonely(peer, peer->stream, &how);
        MUST(llane_gpu_stream_synchronize(m->stream));
        /* A block of rank 0's that began when the lane was lost already has sent nothing. */
        __atomic_store_n(&peer->words->abort, 1, __ATOMIC_RELEASE);
        MUST(llane_gpu_stream_synchronize(peer->stream));
        MUST(llane_gpu_device_set(m->device));
        check_dead(m, LLANE_DEAD_OVERLAP);
        team_destroy(team);
    }
}

/* ---- the probe, in areas at the start of the slots ---- */

struct probing {
    uint64_t nonce;
    uint64_t timeout_ns;
    uint32_t lazy;    /* this rank does not send */
    uint32_t liar[2]; /* what rank liar[0] sends to others says that it came from liar[1] */
};

static void probe_args(struct member *m, const struct probing *how, struct llane_probe_args *args)
{
    *args = (struct llane_probe_args){
        .nonce = how->nonce,
        .timeout_ns = how->timeout_ns,
        .rank = m->rank,
        .n_ranks = m->team->n_ranks,
        .peers = ((1u << m->team->n_ranks) - 1) & ~(1u << m->rank),
        .result = m->device_probe_result,
        .words = m->device_words,
    };
    for (uint32_t r = 0; r < m->team->n_ranks; r++) {
        args->send[r] = team_slot(m->team, LLANE_LL, r, m->rank);
        args->recv[r] = team_slot(m->team, LLANE_LL, m->rank, r);
    }
}

static void member_probe(struct member *m, void *arg)
{
    const struct probing *how = arg;
    struct llane_probe_args args;
    struct llane_gpu_launch launch = {.args = &args,
                                      .args_bytes = sizeof(args),
                                      .n_blocks = 1,
                                      .n_threads = 64,
                                      .stream = m->stream};

    memset(m->probe_result, 0, LLANE_MAX_RANKS * sizeof(uint32_t));
    probe_args(m, how, &args);
    if (m->rank == how->liar[0]) {
        const uint32_t as = how->liar[1];
        uint8_t *own = args.send[m->rank];

        args.send[m->rank] = args.send[as]; /* whose own entry is not used */
        args.send[as] = own;
        args.rank = as;
        args.peers = ((1u << m->team->n_ranks) - 1) & ~(1u << as);
    }
    launch.kernel = llane_kernel_table[LLANE_KERNEL_PROBE_SEND];
    if (m->rank != how->lazy)
        MUST(llane_gpu_launch(&launch));
    MUST(llane_gpu_stream_synchronize(m->stream));
    probe_args(m, how, &args);
    launch.kernel = llane_kernel_table[LLANE_KERNEL_PROBE_CHECK];
    MUST(llane_gpu_launch(&launch));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void probe__pairs_good_silent_wrong_stale__told_apart(void **state)
{
    enum { N = 4, NOBODY = 99 };
    struct team *team = team_create(N, 4 << 10);
    struct probing how = {.nonce = 0x123456789abcdef0u,
                          .timeout_ns = 10000000000u,
                          .lazy = NOBODY,
                          .liar = {NOBODY, NOBODY}};

    (void)state;
    team_do(team, member_probe, &how);
    for (int r = 0; r < N; r++)
        for (int s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s], LLANE_PROBE_GOOD);

    /* Rank 2 keeps silent under a new nonce: what it sent before does not count. */
    how.nonce++;
    how.timeout_ns = 300000000;
    how.lazy = 2;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 2 && r != 2 ? LLANE_PROBE_WRONG : LLANE_PROBE_GOOD);
    team_destroy(team);

    /* Clean areas, and rank 1 silent: missing. */
    team = team_create(N, 4 << 10);
    how.lazy = 1;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 1 && r != 1 ? LLANE_PROBE_MISSING : LLANE_PROBE_GOOD);
    team_destroy(team);

    /* Rank 0's stores carry rank 3's pattern: as if they had gone astray. */
    team = team_create(N, 4 << 10);
    how.lazy = NOBODY;
    how.liar[0] = 0;
    how.liar[1] = 3;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 0 && r != 0 ? LLANE_PROBE_WRONG : LLANE_PROBE_GOOD);
    team_destroy(team);
}

static void probe__aborted__leaves_pairs_pending(void **state)
{
    struct team *team = team_create(2, 4 << 10);
    struct probing how = {.timeout_ns = UINT64_MAX, .lazy = 1, .liar = {99, 99}};

    (void)state;
    /* Pairs with the check kernel's look. */
    for (int r = 0; r < 2; r++)
        __atomic_store_n(&team->members[r].words->abort, 1, __ATOMIC_RELEASE);
    team_do(team, member_probe, &how);
    assert_int_equal(team->members[0].probe_result[1], LLANE_PROBE_PENDING);
    team_destroy(team);
}

/* With an argument: only the tests that match this pattern. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels__aborted_while_polling__leave_output_alone_and_lane_dead),
        cmocka_unit_test(kernels__two_shot_aborted_between_its_steps__ends_and_lane_dead),
        cmocka_unit_test(kernels__two_at_once_on_a_lane__end_and_lane_dead),
        cmocka_unit_test(kernels__lane_lost_while_polling__ends_and_lane_dead),
        cmocka_unit_test(kernels__cells_not_equal__end_and_lane_dead),
        cmocka_unit_test(probe__pairs_good_silent_wrong_stale__told_apart),
        cmocka_unit_test(probe__aborted__leaves_pairs_pending),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    team_start_up();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
