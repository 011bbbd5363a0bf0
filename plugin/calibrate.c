#include "calibrate.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backoff.h"
#include "err.h"
#include "log.h"
#include "tuning_cache.h"

enum { LOCK_TIMEOUT_MS = 5000, MAX_WARM_ROUNDS = 6, MAX_AGAIN = 3 };
static const double STABLE = 0.1; /* the link is warm when two rounds differ by no more */

enum action { ACTION_BEGIN, ACTION_WARM, ACTION_MEASURE, ACTION_HAND_IN, ACTION_ADOPT };

/* With each vote. */
struct record {
    uint32_t action;                 /* rank 0's: what all do next */
    uint32_t size;                   /* rank 0's, with MEASURE: which of the ladder */
    struct llane_tuning_times times; /* what this rank measured in the round before */
    struct llane_tuning tuning;      /* rank 0's, with ADOPT */
};
_Static_assert(sizeof(struct record) <= LLANE_BOARD_RECORD_BYTES, "a record is one vote's");

/* ---- tables of this process ---- */

struct known {
    struct known *next;
    struct llane_tuning tuning;
    char key[];
};
static struct known *known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static int recall(const char *key, struct llane_tuning *out)
{
    pthread_mutex_lock(&known_lock);
    const struct known *k = known;
    while (k && strcmp(k->key, key) != 0) {
        k = k->next;
    }
    if (k) {
        *out = k->tuning;
    }
    pthread_mutex_unlock(&known_lock);
    return k != NULL;
}

/* Without memory it is measured again. */
static void remember(const char *key, const struct llane_tuning *tuning)
{
    struct known *k = malloc(sizeof *k + strlen(key) + 1);
    if (k) {
        k->tuning = *tuning;
        strcpy(k->key, key);
        pthread_mutex_lock(&known_lock);
        k->next = known;
        known = k;
        pthread_mutex_unlock(&known_lock);
    }
}

/* ---- one calibration a host: an abstract name that goes with its process ---- */

static int try_lock(int socket)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    static const char name[] = "llane-calibration";
    memcpy(address.sun_path + 1, name, sizeof name);
    return bind(socket, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + sizeof name)) == 0;
}

/* A descriptor to close, or -1: another one took too long, and this one does without. */
static int lock_host(const _Atomic int *cancel)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int64_t deadline = llane_now_ms() + LOCK_TIMEOUT_MS;
    struct llane_backoff backoff = {0};
    while (fd >= 0 && !try_lock(fd)) {
        if (llane_is_canceled(cancel) || llane_now_ms() > deadline) {
            close(fd);
            return -1;
        }
        llane_backoff_sleep(&backoff);
    }
    return fd;
}

/* ---- one rank's calibration ---- */

struct calibration {
    const struct llane_calibrate_args *args;
    struct llane_route_limits *limits;
    uint32_t ladder[LLANE_TUNING_SIZES];
    uint32_t n_sizes, n_begun, size;       /* size: measured last */
    struct record mine;                    /* for the next vote */
    struct record theirs[LLANE_MAX_RANKS]; /* of the last one */
    float warm_us, warm_before_us;

    /* Rank 0's: */
    int lock, n_warm, is_second_time;
    uint32_t differ, again; /* bits of sizes: passes differ; still to be measured once more */
    double started_ms, size_started_ms, size_ms[LLANE_TUNING_SIZES];
    struct llane_tuning tuning;
};

static double now_ms(const struct calibration *c)
{
    return c->args->source->now_ms(c->args->source->arg);
}

/* What one rank could not measure counts as not measured. */
static struct llane_tuning_times slowest_times(const struct calibration *c)
{
    struct llane_tuning_times slowest = c->theirs[0].times;
    for (int r = 1; r < c->args->n_ranks; r++) {
        for (int i = 0; i < LLANE_TUNING_PASSES * LLANE_TUNING_CANDIDATES; i++) {
            float *us = &slowest.us[0][0] + i, theirs = (&c->theirs[r].times.us[0][0])[i];
            if (!(*us > 0) || !(theirs > 0)) {
                *us = 0;
            } else if (theirs > *us) {
                *us = theirs;
            }
        }
    }
    return slowest;
}

/* Rank 0, when it has what all measured for the size measured last. */
static void judge(struct calibration *c)
{
    struct llane_tuning_choice candidates[LLANE_TUNING_CANDIDATES];
    uint32_t usable[LLANE_TUNING_CLASSES];
    int by_default[LLANE_TUNING_CLASSES];
    uint32_t bucket = c->ladder[c->size], bit = 1u << c->size;
    struct llane_tuning_times times = slowest_times(c);
    int n = llane_route_candidates(c->limits, bucket, candidates, usable, by_default);
    c->differ &= ~bit;
    for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
        int agrees;
        c->tuning.choice[of][bucket] = (struct llane_tuning_choice){.path = LLANE_TUNING_DEFAULT};
        int best = llane_tuning_judge(&times, n, usable[of], by_default[of], &agrees);
        double nccl_us = llane_route_nccl_us(c->limits, llane_tuning_bucket_bytes(bucket));
        /* Else it stays the model's, which may be NCCL, for this size and those between. */
        if (best != by_default[of] &&
            !llane_tuning_is_faster(nccl_us, llane_tuning_us(&times, best))) {
            c->tuning.choice[of][bucket] = candidates[best];
        }
        c->differ |= agrees ? 0 : bit;
    }
}

static enum action measure_size(struct calibration *c, uint32_t size)
{
    c->mine.size = size;
    c->size_started_ms = now_ms(c);
    return ACTION_MEASURE;
}

/* The next size has four times the bytes, and seldom takes twice as long. */
static enum action next_size(struct calibration *c)
{
    double spent = now_ms(c) - c->started_ms, last = c->n_begun ? c->size_ms[c->n_begun - 1] : 0;
    if (c->n_begun == c->n_sizes || spent + 2 * last > c->args->budget_ms) {
        return ACTION_HAND_IN;
    }
    return measure_size(c, c->n_begun);
}

/* A size whose passes differ was disturbed by chance, or there is other work: it would show again. */
static enum action next_again(struct calibration *c)
{
    for (uint32_t size = 0; size < c->n_sizes; size++) {
        if ((c->again >> size & 1) &&
            now_ms(c) - c->started_ms + c->size_ms[size] <= c->args->budget_ms) {
            c->again &= ~(1u << size);
            return measure_size(c, size);
        }
    }
    return ACTION_HAND_IN;
}

/* What differs at many sizes is no accident. */
static int is_worth_again(const struct calibration *c)
{
    return !c->is_second_time && c->n_begun == c->n_sizes &&
           __builtin_popcount(c->differ) <= MAX_AGAIN;
}

static enum action warm_or_measure(struct calibration *c)
{
    int is_stable = c->warm_us < c->warm_before_us * (1 + STABLE) &&
                    c->warm_us > c->warm_before_us * (1 - STABLE);
    if (is_stable || c->n_warm == MAX_WARM_ROUNDS) {
        return next_size(c);
    }
    c->n_warm++;
    return ACTION_WARM;
}

static enum action finish(struct calibration *c)
{
    const struct llane_calibrate_args *args = c->args;
    int is_whole = c->n_begun == c->n_sizes;
    for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
        llane_tuning_spread(&c->tuning, (enum llane_tuning_class)of, c->ladder, c->n_begun);
    }
    remember(args->key, &c->tuning);
    int is_kept = is_whole && !c->differ && args->directory &&
                  !llane_tuning_cache_write(args->directory, args->key, &c->tuning);
    LLANE_INFO("calibration: %u of %u sizes in %.0f ms; %s", c->n_begun, c->n_sizes,
               now_ms(c) - c->started_ms,
               is_kept     ? "kept for later runs"
               : !is_whole ? "the others by default, for want of time"
               : c->differ ? "not kept, as its two passes differ"
                           : "not kept");
    return ACTION_ADOPT;
}

/* All sizes are judged. */
static enum action again_or_finish(struct calibration *c)
{
    if (is_worth_again(c)) {
        c->is_second_time = 1;
        c->again = c->differ;
        if (next_again(c) == ACTION_MEASURE) {
            return ACTION_MEASURE;
        }
    }
    return finish(c);
}

/* A table that is there already. */
static int find(struct calibration *c)
{
    const struct llane_calibrate_args *args = c->args;
    struct llane_tuning tuning;
    if (recall(args->key, &c->tuning)) {
        return 1;
    }
    if (args->mode != LLANE_CALIBRATE_AUTO || !args->directory ||
        llane_tuning_cache_read(args->directory, args->key, &tuning)) {
        return 0;
    }
    if (!llane_route_can_use(c->limits, &tuning)) {
        LLANE_WARN("calibration: a table in %s names kernels that cannot be; ignored",
                   args->directory);
        return 0;
    }
    c->tuning = tuning;
    return 1;
}

static enum action begin(struct calibration *c)
{
    const struct llane_calibrate_args *args = c->args;
    const struct llane_route_limits *l = c->limits;
    int is_forced = l->algorithm || l->packet || l->n_blocks || l->n_threads;
    int is_worth_it = args->mode == LLANE_CALIBRATE_FORCE || args->has_clock;
    if (args->mode == LLANE_CALIBRATE_OFF || is_forced || find(c) || !is_worth_it || !c->n_sizes) {
        return ACTION_ADOPT;
    }
    if (args->has_clock) {
        c->lock = lock_host(args->cancel);
        if (c->lock < 0 || find(c)) { /* whoever had the lock may have calibrated the same */
            return ACTION_ADOPT;
        }
    }
    c->n_warm = 1;
    c->started_ms = now_ms(c);
    return ACTION_WARM;
}

/* Rank 0, before a vote: what comes after the action that all have just done. */
static enum action direct(struct calibration *c, enum action done)
{
    switch (done) {
    case ACTION_BEGIN:
        return begin(c);
    case ACTION_WARM:
        return warm_or_measure(c);
    case ACTION_MEASURE:
        c->size_ms[c->size] = now_ms(c) - c->size_started_ms;
        return c->is_second_time ? next_again(c) : next_size(c);
    default:
        return again_or_finish(c);
    }
}

/* Votes and reads what all ranks said. */
static int exchange(struct calibration *c, int step, int err, struct llane_verdict *verdict)
{
    const struct llane_calibrate_args *args = c->args;
    llane_board_vote(args->board, step, err ? args->refusal : LLANE_BOARD_AGREED, &c->mine,
                     sizeof c->mine);
    if ((err = llane_board_wait(args->board, step, args->cancel, verdict))) {
        return err;
    }
    for (int r = 0; r < args->n_ranks && verdict->is_yes; r++) {
        if (llane_board_record(args->board, step, r, &c->theirs[r], sizeof c->theirs[r])) {
            return LLANE_EINVAL;
        }
    }
    return verdict->is_yes ? 0 : LLANE_EREFUSED;
}

static int warm(struct calibration *c)
{
    c->warm_before_us = c->warm_us;
    return c->args->source->warm(c->args->source->arg, &c->warm_us);
}

static int measure(struct calibration *c)
{
    struct llane_tuning_choice candidates[LLANE_TUNING_CANDIDATES];
    uint32_t usable[LLANE_TUNING_CLASSES];
    int by_default[LLANE_TUNING_CLASSES];
    c->size = c->theirs[0].size;
    c->n_begun += c->size == c->n_begun;
    uint32_t bucket = c->ladder[c->size];
    int n = llane_route_candidates(c->limits, bucket, candidates, usable, by_default);
    memset(&c->mine.times, 0, sizeof c->mine.times);
    return c->args->source->measure(c->args->source->arg, bucket, candidates, n, &c->mine.times);
}

/* One round's action; an error is this rank's, which refuses the next step. */
static int act(struct calibration *c, enum action action)
{
    return action == ACTION_WARM ? warm(c) : action == ACTION_MEASURE ? measure(c) : 0;
}

static int is_sane(const struct calibration *c, uint32_t action, int step)
{
    uint32_t size = c->theirs[0].size;
    return action <= ACTION_ADOPT && step + 1 < LLANE_BOARD_STEPS &&
           (action != ACTION_MEASURE || (size < c->n_sizes && size <= c->n_begun)) &&
           (action != ACTION_ADOPT || llane_route_can_use(c->limits, &c->theirs[0].tuning));
}

static int run(struct calibration *c, struct llane_verdict *verdict)
{
    const struct llane_calibrate_args *args = c->args;
    enum action done = ACTION_BEGIN;
    int err = 0;
    for (int step = args->first_step;; step++) {
        if (args->rank == 0 && !err) {
            c->mine.action = direct(c, done);
            c->mine.tuning = c->tuning;
        }
        if ((err = exchange(c, step, err, verdict))) {
            return err;
        }
        if (args->rank == 0 && done == ACTION_MEASURE) {
            judge(c);
        }
        if (!is_sane(c, c->theirs[0].action, step)) {
            return LLANE_EINVAL;
        }
        done = (enum action)c->theirs[0].action;
        if (done == ACTION_ADOPT) {
            c->limits->tuning = c->theirs[0].tuning;
            llane_route_fill_defaults(c->limits);
            return exchange(c, step + 1, 0, verdict);
        }
        err = act(c, done);
    }
}

int llane_calibrate(const struct llane_calibrate_args *args, struct llane_route_limits *limits,
                    struct llane_verdict *verdict_out)
{
    struct calibration *c = calloc(1, sizeof *c);
    if (!c) {
        llane_board_refuse(args->board, args->first_step, args->refusal);
        return LLANE_ENOMEM;
    }
    c->args = args;
    c->limits = limits;
    c->lock = -1;
    c->n_sizes = llane_tuning_ladder(limits->max_bytes, c->ladder);
    int err = run(c, verdict_out);
    if (c->lock >= 0) {
        close(c->lock);
    }
    free(c);
    return err;
}
