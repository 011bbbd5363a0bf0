/*
 * Proves that all ranks adopt one table, made of what the slowest of them measured; that noise flips
 * nothing; that time runs out at one size for all; and what is kept, found again or thrown away.
 */
// ALSO: tsan
#include "board_ranks.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "calibrate.h"
#include "tuning_cache.h"

enum { N = 4, MAX_BYTES = 64 << 10, N_SIZES = 5, REFUSAL = LLANE_BOARD_REASON_FIRST + 1 };

/* One rank: what its source answers, and what came out. */
struct rank {
    struct llane_calibrate_args args;
    struct llane_calibrate_source source;
    struct llane_route_limits limits;
    struct llane_board *board;
    /* us of a candidate; may be NULL: all take 10. */
    float (*us)(const struct rank *rank, uint32_t bucket, const struct llane_tuning_choice *c,
                int pass);
    int number;
    float warm_us[8];
    double clock_ms, ms_a_size; /* the clock goes on as it measures */
    int fails_at;               /* measuring so many sizes before; -1: never */
    int n_warm, n_measured;
    int n_of[LLANE_TUNING_BUCKETS]; /* measured so many times, this one counted */
    int err;
    struct llane_verdict verdict;
    pthread_t thread;
};

static char folder[] = "/tmp/llane_calibrate_XXXXXX";

static int warm(void *arg, float *us_out)
{
    struct rank *rank = arg;
    *us_out = rank->warm_us[rank->n_warm < 8 ? rank->n_warm : 7];
    rank->n_warm++;
    return 0;
}

static int measure(void *arg, uint32_t bucket, const struct llane_tuning_choice *candidates, int n,
                   struct llane_tuning_times *out)
{
    struct rank *rank = arg;
    assert_true(n > 1 && n <= LLANE_TUNING_CANDIDATES);
    rank->clock_ms += rank->ms_a_size;
    rank->n_of[bucket]++;
    if (rank->n_measured++ == rank->fails_at) {
        return LLANE_EGPU;
    }
    for (int pass = 0; pass < LLANE_TUNING_PASSES; pass++) {
        for (int i = 0; i < n; i++) {
            out->us[pass][i] = rank->us ? rank->us(rank, bucket, &candidates[i], pass) : 10;
        }
    }
    return 0;
}

static double now_ms(void *arg)
{
    return ((struct rank *)arg)->clock_ms;
}

static void *run(void *arg)
{
    struct rank *rank = arg;
    rank->err = llane_board_wait(rank->board, LLANE_BOARD_ARRIVAL, NULL, &rank->verdict);
    if (!rank->err) {
        rank->err = llane_calibrate(&rank->args, &rank->limits, &rank->verdict);
    }
    return NULL;
}

struct team {
    struct rank rank[N];
    void *memory;
    char key[64];
};

static void prepare(struct team *team)
{
    static int n_teams;
    memset(team, 0, sizeof *team);
    team->memory = shared_memory(llane_board_bytes());
    snprintf(team->key, sizeof team->key, "team %d\n", n_teams++); /* none knows another's table */
    for (int r = 0; r < N; r++) {
        struct rank *rank = &team->rank[r];
        const struct llane_board_args args = {.key = new_key(), .n_ranks = N, .rank = r};
        assert_int_equal(llane_board_attach(team->memory, r == 0, &args, &rank->board), 0);
        rank->number = r;
        rank->fails_at = -1;
        rank->source = (struct llane_calibrate_source){warm, measure, now_ms, rank};
        rank->limits = (struct llane_route_limits){
            .max_bytes = MAX_BYTES,
            .n_ranks = N,
            .max_blocks = LLANE_MAX_BLOCKS,
            .fit = {64, 64, 64, 64},
            .memory = LLANE_MEMORY_PEER,
            .ranks_per_gpu = 1,
            .n_sockets = 1,
        };
        rank->args = (struct llane_calibrate_args){
            .board = rank->board,
            .first_step = 1,
            .rank = r,
            .n_ranks = N,
            .refusal = REFUSAL,
            .source = &rank->source,
        };
        for (int i = 0; i < 8; i++) {
            rank->warm_us[i] = 5;
        }
    }
    struct llane_calibrate_args *first = &team->rank[0].args;
    first->mode = LLANE_CALIBRATE_AUTO;
    first->budget_ms = 150;
    first->has_clock = 1;
    first->key = team->key;
    first->directory = folder;
}

static void run_all(struct team *team)
{
    for (int r = 0; r < N; r++) {
        assert_int_equal(pthread_create(&team->rank[r].thread, NULL, run, &team->rank[r]), 0);
    }
    for (int r = 0; r < N; r++) {
        pthread_join(team->rank[r].thread, NULL);
        llane_board_leave(team->rank[r].board);
    }
    munmap(team->memory, llane_board_bytes());
}

static void assert_one_table(const struct team *team)
{
    for (int r = 0; r < N; r++) {
        assert_int_equal(team->rank[r].err, 0);
        assert_memory_equal(&team->rank[r].limits, &team->rank[0].limits,
                            sizeof team->rank[r].limits);
    }
}

static const struct llane_tuning_choice *choice(const struct team *team, enum llane_tuning_class of,
                                                uint64_t bytes)
{
    return &team->rank[N - 1].limits.tuning.choice[of][llane_tuning_bucket(bytes)];
}

static struct llane_tuning defaults(const struct team *team)
{
    struct llane_route_limits limits = team->rank[0].limits;
    memset(&limits.tuning, 0, sizeof limits.tuning);
    llane_route_fill_defaults(&limits);
    return limits.tuning;
}

static void assert_is_default(const struct team *team)
{
    const struct llane_tuning expected = defaults(team);
    assert_memory_equal(&team->rank[0].limits.tuning, &expected, sizeof expected);
}

static int is_in_cache(const struct team *team)
{
    char path[512];
    struct stat st;
    llane_tuning_cache_path(folder, team->key, path, sizeof path);
    return stat(path, &st) == 0;
}

/* ---- who decides ---- */

/* Two-shot is 4 us on all but rank 2, where it is 20; all else is 10. */
static float two_shot_is_slow_on_rank_2(const struct rank *rank, uint32_t bucket,
                                        const struct llane_tuning_choice *c, int pass)
{
    (void)bucket;
    (void)pass;
    return c->algorithm != LLANE_TWO_SHOT ? 10 : rank->number == 2 ? 20 : 4;
}

static float two_shot_is_fast(const struct rank *rank, uint32_t bucket,
                              const struct llane_tuning_choice *c, int pass)
{
    (void)rank;
    (void)bucket;
    (void)pass;
    return c->algorithm == LLANE_TWO_SHOT ? 4 : 10;
}

static void calibrate__fast_on_all_ranks__taken_for_every_size(void **state)
{
    (void)state;
    struct team team;
    prepare(&team);
    for (int r = 0; r < N; r++) {
        team.rank[r].us = two_shot_is_fast;
    }
    run_all(&team);
    assert_one_table(&team);
    for (uint64_t bytes = 8; bytes <= MAX_BYTES; bytes *= bytes < 256 ? 2 : 4) {
        for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
            const struct llane_tuning_choice *c = choice(&team, (enum llane_tuning_class)of, bytes);
            assert_int_equal(c->path, LLANE_TUNING_LANE);
            assert_int_equal(c->algorithm, LLANE_TWO_SHOT);
        }
        assert_int_equal(choice(&team, LLANE_TUNING_INTEGER, bytes)->packet, LLANE_LL);
    }
    assert_int_equal(team.rank[1].n_measured, N_SIZES);
    assert_true(is_in_cache(&team));
}

static void calibrate__slow_on_one_rank__taken_by_none(void **state)
{
    (void)state;
    struct team team;
    prepare(&team);
    for (int r = 0; r < N; r++) {
        team.rank[r].us = two_shot_is_slow_on_rank_2;
    }
    run_all(&team);
    assert_one_table(&team);
    for (uint64_t bytes = 8; bytes <= MAX_BYTES; bytes *= 2) {
        assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, bytes)->algorithm, LLANE_ONE_SHOT);
    }
}

/* Each rank's own figures would give it another table. */
static float of_its_own(const struct rank *rank, uint32_t bucket,
                        const struct llane_tuning_choice *c, int pass)
{
    (void)pass;
    uint32_t kernel = c->algorithm * 2u + c->packet;
    return kernel == (uint32_t)rank->number ? 2.0f + (float)bucket / 10
                                            : 10 + (float)c->n_blocks / 10;
}

static void calibrate__ranks_disagree__one_table_all_the_same(void **state)
{
    (void)state;
    struct team team;
    prepare(&team);
    for (int r = 0; r < N; r++) {
        team.rank[r].us = of_its_own;
    }
    run_all(&team);
    assert_one_table(&team); /* no kernel is fast on all: the slowest rank's 10 for each */
    assert_is_default(&team);
}

/* ---- noise ---- */

static float a_little_faster(const struct rank *rank, uint32_t bucket,
                             const struct llane_tuning_choice *c, int pass)
{
    return two_shot_is_fast(rank, bucket, c, pass) < 10 ? 9.7f : 10;
}

static float faster_at_first(const struct rank *rank, uint32_t bucket,
                             const struct llane_tuning_choice *c, int pass)
{
    return pass == 0 ? two_shot_is_fast(rank, bucket, c, pass) : 10;
}

static float not_to_be_measured(const struct rank *rank, uint32_t bucket,
                                const struct llane_tuning_choice *c, int pass)
{
    float us = two_shot_is_fast(rank, bucket, c, pass);
    return us < 10 && rank->number == 3 ? 0 : us;
}

static void run_with(struct team *team, float (*us)(const struct rank *, uint32_t,
                                                    const struct llane_tuning_choice *, int))
{
    prepare(team);
    for (int r = 0; r < N; r++) {
        team->rank[r].us = us;
    }
    run_all(team);
    assert_one_table(team);
}

static void calibrate__faster_by_no_more_than_noise__default_stays(void **state)
{
    (void)state;
    struct team team;
    run_with(&team, a_little_faster);
    assert_is_default(&team);
    assert_true(is_in_cache(&team));
}

static void calibrate__passes_differ__default_stays_and_nothing_is_kept(void **state)
{
    (void)state;
    struct team team;
    run_with(&team, faster_at_first);
    assert_is_default(&team);
    assert_int_equal(team.rank[0].n_measured, N_SIZES); /* at so many sizes it is no accident */
    assert_false(is_in_cache(&team));
}

/* 4 KiB differ when they are measured for the first time. */
static float cold_at_first(const struct rank *rank, uint32_t bucket,
                           const struct llane_tuning_choice *c, int pass)
{
    int is_cold = bucket == llane_tuning_bucket(4096) && rank->n_of[bucket] == 1;
    return is_cold ? faster_at_first(rank, bucket, c, pass)
                   : two_shot_is_fast(rank, bucket, c, pass);
}

static void calibrate__passes_differ_at_one_size__measured_once_more(void **state)
{
    (void)state;
    struct team team;
    run_with(&team, cold_at_first);
    assert_int_equal(team.rank[1].n_measured, N_SIZES + 1);
    assert_int_equal(team.rank[3].n_of[llane_tuning_bucket(4096)], 2);
    assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, 4096)->algorithm, LLANE_TWO_SHOT);
    assert_true(is_in_cache(&team));
}

/* 1 and 4 KiB differ whenever they are measured. */
static float busy_at_two_sizes(const struct rank *rank, uint32_t bucket,
                               const struct llane_tuning_choice *c, int pass)
{
    int is_busy = bucket == llane_tuning_bucket(1024) || bucket == llane_tuning_bucket(4096);
    return is_busy ? faster_at_first(rank, bucket, c, pass)
                   : two_shot_is_fast(rank, bucket, c, pass);
}

static int n_measured_with(double ms_a_size)
{
    struct team team;
    prepare(&team);
    for (int r = 0; r < N; r++) {
        team.rank[r].us = busy_at_two_sizes;
        team.rank[r].ms_a_size = ms_a_size;
    }
    run_all(&team);
    assert_one_table(&team);
    assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, 4096)->algorithm, LLANE_ONE_SHOT);
    assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, 16384)->algorithm, LLANE_TWO_SHOT);
    assert_false(is_in_cache(&team));
    return team.rank[2].n_measured;
}

static void calibrate__passes_still_differ__not_kept_and_no_third_time(void **state)
{
    (void)state;
    assert_int_equal(n_measured_with(0), N_SIZES + 2);
    assert_int_equal(n_measured_with(24), N_SIZES + 1); /* 144 ms; another one would be 168 */
    assert_int_equal(n_measured_with(26), N_SIZES - 1); /* 104 ms; two more might take it to 156 */
}

/* Two-shot is the best in both passes, but the GPU was busy in one of them. */
static float disturbed(const struct rank *rank, uint32_t bucket,
                       const struct llane_tuning_choice *c, int pass)
{
    return two_shot_is_fast(rank, bucket, c, pass) * (pass ? 1 : 3);
}

/* Faster than the default, but far behind what NCCL takes for 64 KiB. */
static float slow_all_over(const struct rank *rank, uint32_t bucket,
                           const struct llane_tuning_choice *c, int pass)
{
    return two_shot_is_fast(rank, bucket, c, pass) * 100;
}

static void calibrate__gpu_was_busy__default_stays_and_nothing_is_kept(void **state)
{
    (void)state;
    struct team team;
    run_with(&team, disturbed);
    assert_is_default(&team);
    assert_false(is_in_cache(&team));
}

static void calibrate__slower_than_nccl_should_be__not_taken(void **state)
{
    (void)state;
    struct team team;
    run_with(&team, slow_all_over);
    assert_is_default(&team);
}

static void calibrate__one_rank_could_not_measure_it__not_taken(void **state)
{
    (void)state;
    struct team team;
    run_with(&team, not_to_be_measured);
    assert_is_default(&team);
}

static void calibrate__link_not_warm__warmed_until_stable(void **state)
{
    (void)state;
    static const float cold[8] = {50, 20, 10, 9.8f, 9.8f, 9.8f, 9.8f, 9.8f};
    struct team team;
    prepare(&team);
    memcpy(team.rank[0].warm_us, cold, sizeof cold);
    run_all(&team);
    assert_one_table(&team);
    for (int r = 0; r < N; r++) {
        assert_int_equal(team.rank[r].n_warm, 4);
    }
    prepare(&team);
    for (int i = 0; i < 8; i++) {
        team.rank[0].warm_us[i] = 100.0f / (float)(1 + i); /* never */
    }
    run_all(&team);
    assert_one_table(&team);
    assert_in_range(team.rank[1].n_warm, 2, 8);
}

/* ---- time ---- */

static void calibrate__time_is_over__all_stop_at_rank_0s_size(void **state)
{
    (void)state;
    struct team team;
    prepare(&team);
    for (int r = 0; r < N; r++) {
        team.rank[r].us = two_shot_is_fast;
        team.rank[r].ms_a_size = r == 0 ? 45 : 1000; /* no other rank's clock counts */
    }
    run_all(&team);
    assert_one_table(&team);
    for (int r = 0; r < N; r++) {
        assert_int_equal(team.rank[r].n_measured, 2); /* 90 ms; two more might take it to 180 */
    }
    assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, 1024)->algorithm, LLANE_TWO_SHOT);
    const struct llane_tuning by_default = defaults(&team);
    uint32_t next = llane_tuning_bucket(4096);
    assert_memory_equal(&team.rank[2].limits.tuning.choice[LLANE_TUNING_FLOAT][next],
                        &by_default.choice[LLANE_TUNING_FLOAT][next],
                        sizeof(struct llane_tuning_choice));
    assert_false(is_in_cache(&team));
}

/* ---- whether to measure ---- */

static int n_measured_as(enum llane_calibrate_mode mode, int has_clock, uint32_t forced_algorithm,
                         const char *key)
{
    struct team team;
    prepare(&team);
    for (int r = 0; r < N; r++) {
        team.rank[r].us = two_shot_is_fast;
        team.rank[r].limits.algorithm = forced_algorithm;
    }
    /* What the others are told to do is nobody's affair. */
    team.rank[2].args.mode = LLANE_CALIBRATE_OFF;
    team.rank[0].args.mode = mode;
    team.rank[0].args.has_clock = has_clock;
    team.rank[0].args.key = key ? key : team.key;
    run_all(&team);
    assert_one_table(&team);
    assert_int_equal(team.rank[0].n_measured, team.rank[2].n_measured);
    return team.rank[0].n_measured;
}

static void calibrate__auto_off_force__as_rank_0_says(void **state)
{
    (void)state;
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_AUTO, 1, 0, NULL), N_SIZES);
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_AUTO, 0, 0, NULL), 0); /* an emulation */
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_FORCE, 0, 0, NULL), N_SIZES);
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_OFF, 1, 0, NULL), 0);
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_FORCE, 1, 1 + LLANE_ONE_SHOT, NULL), 0);
}

static void calibrate__again_in_this_process__found_without_measuring(void **state)
{
    (void)state;
    static const char key[] = "twice\n";
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_FORCE, 1, 0, key), N_SIZES);
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_FORCE, 1, 0, key), 0);
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_AUTO, 1, 0, key), 0);
}

static void calibrate__table_in_the_cache__adopted_unless_forced(void **state)
{
    (void)state;
    struct llane_tuning tuning = {0};
    static const char keys[][16] = {"in the cache\n", "forced\n"};
    uint32_t bucket = llane_tuning_bucket(4096);
    tuning.choice[LLANE_TUNING_FLOAT][bucket].path = LLANE_TUNING_NCCL;
    struct team team;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(llane_tuning_cache_write(folder, keys[i], &tuning), 0);
        prepare(&team);
        team.rank[0].args.key = keys[i];
        team.rank[0].args.mode = i ? LLANE_CALIBRATE_FORCE : LLANE_CALIBRATE_AUTO;
        run_all(&team);
        assert_one_table(&team);
        assert_int_equal(team.rank[1].n_measured, i ? N_SIZES : 0);
        assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, 4096)->path,
                         i ? LLANE_TUNING_LANE : LLANE_TUNING_NCCL);
        assert_int_equal(llane_route_choose(&team.rank[3].limits, 1024, ncclFloat32, ncclSum),
                         i ? LLANE_ROUTE_LANE : LLANE_ROUTE_SLOWER);
    }
}

/* One-shot for a message that is larger than its slots. */
static void calibrate__table_in_the_cache_does_not_fit__measured_anew(void **state)
{
    (void)state;
    struct llane_tuning tuning = {0};
    tuning.choice[LLANE_TUNING_FLOAT][LLANE_TUNING_BUCKETS - 1] =
        (struct llane_tuning_choice){.path = LLANE_TUNING_LANE, .algorithm = LLANE_ONE_SHOT};
    assert_int_equal(llane_tuning_cache_write(folder, "too large\n", &tuning), 0);
    assert_int_equal(n_measured_as(LLANE_CALIBRATE_AUTO, 1, 0, "too large\n"), N_SIZES);
}

static void calibrate__folder_that_cannot_be__calibrates_all_the_same(void **state)
{
    (void)state;
    struct team team;
    prepare(&team);
    team.rank[0].args.directory = "/proc/no/such/folder";
    run_all(&team);
    assert_one_table(&team);
    assert_int_equal(team.rank[0].n_measured, N_SIZES);
}

/* ---- failures ---- */

static void calibrate__one_rank_fails__all_refuse_with_its_reason(void **state)
{
    (void)state;
    struct team team;
    prepare(&team);
    team.rank[2].fails_at = 1;
    run_all(&team);
    for (int r = 0; r < N; r++) {
        assert_int_equal(team.rank[r].err, LLANE_EREFUSED);
        assert_int_equal(team.rank[r].verdict.rank, 2);
        assert_int_equal(team.rank[r].verdict.reason, REFUSAL);
    }
}

/* ---- one at a time on a host ---- */

static _Atomic int is_lock_free, n_too_early;

static float only_when_free(const struct rank *rank, uint32_t bucket,
                            const struct llane_tuning_choice *c, int pass)
{
    (void)rank;
    (void)bucket;
    (void)c;
    (void)pass;
    atomic_fetch_add(&n_too_early, !atomic_load(&is_lock_free));
    return 10;
}

static void *free_soon(void *lock)
{
    sleep_ms(200);
    atomic_store(&is_lock_free, 1);
    close(*(int *)lock);
    return NULL;
}

static int take_lock(void)
{
    static const struct sockaddr_un name = {AF_UNIX, "\0llane-calibration"};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + sizeof "llane-calibration");
    for (int ms = 0; bind(fd, (const struct sockaddr *)&name, bytes); ms++) {
        assert_true(ms < 5000); /* another run of this test has it */
        sleep_ms(1);
    }
    return fd;
}

static void calibrate__another_process_calibrates__waits_for_it(void **state)
{
    (void)state;
    struct team team;
    pthread_t thread;
    int lock = take_lock();
    assert_int_equal(pthread_create(&thread, NULL, free_soon, &lock), 0);
    run_with(&team, only_when_free);
    pthread_join(thread, NULL);
    assert_int_equal(team.rank[0].n_measured, N_SIZES);
    assert_int_equal(atomic_load(&n_too_early), 0);
}

static const char theirs[] = "of another process\n";

static void *write_and_free(void *lock)
{
    struct llane_tuning tuning = {0};
    tuning.choice[LLANE_TUNING_FLOAT][llane_tuning_bucket(4096)].path = LLANE_TUNING_NCCL;
    sleep_ms(200);
    assert_int_equal(llane_tuning_cache_write(folder, theirs, &tuning), 0);
    close(*(int *)lock);
    return NULL;
}

static void calibrate__another_process_calibrated_the_same__its_table_holds(void **state)
{
    (void)state;
    struct team team;
    pthread_t thread;
    int lock = take_lock();
    prepare(&team);
    team.rank[0].args.key = theirs;
    assert_int_equal(pthread_create(&thread, NULL, write_and_free, &lock), 0);
    run_all(&team);
    pthread_join(thread, NULL);
    assert_one_table(&team);
    assert_int_equal(team.rank[0].n_measured, 0);
    assert_int_equal(choice(&team, LLANE_TUNING_FLOAT, 4096)->path, LLANE_TUNING_NCCL);
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calibrate__fast_on_all_ranks__taken_for_every_size),
        cmocka_unit_test(calibrate__slow_on_one_rank__taken_by_none),
        cmocka_unit_test(calibrate__ranks_disagree__one_table_all_the_same),
        cmocka_unit_test(calibrate__faster_by_no_more_than_noise__default_stays),
        cmocka_unit_test(calibrate__passes_differ__default_stays_and_nothing_is_kept),
        cmocka_unit_test(calibrate__passes_differ_at_one_size__measured_once_more),
        cmocka_unit_test(calibrate__passes_still_differ__not_kept_and_no_third_time),
        cmocka_unit_test(calibrate__gpu_was_busy__default_stays_and_nothing_is_kept),
        cmocka_unit_test(calibrate__slower_than_nccl_should_be__not_taken),
        cmocka_unit_test(calibrate__one_rank_could_not_measure_it__not_taken),
        cmocka_unit_test(calibrate__link_not_warm__warmed_until_stable),
        cmocka_unit_test(calibrate__time_is_over__all_stop_at_rank_0s_size),
        cmocka_unit_test(calibrate__auto_off_force__as_rank_0_says),
        cmocka_unit_test(calibrate__again_in_this_process__found_without_measuring),
        cmocka_unit_test(calibrate__table_in_the_cache__adopted_unless_forced),
        cmocka_unit_test(calibrate__table_in_the_cache_does_not_fit__measured_anew),
        cmocka_unit_test(calibrate__folder_that_cannot_be__calibrates_all_the_same),
        cmocka_unit_test(calibrate__one_rank_fails__all_refuse_with_its_reason),
        cmocka_unit_test(calibrate__another_process_calibrates__waits_for_it),
        cmocka_unit_test(calibrate__another_process_calibrated_the_same__its_table_holds),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
