#include "tuning.h"

#include <stdlib.h>

#include "sizes.h"

/* The width of the noise, of two medians of a few samples. */
static const double NOISE = 0.05, NOISE_US = 0.1;
/* Two passes that differ by more were disturbed: the GPU had other work. */
static const double STEADY = 0.25;
/* How far the best of a dozen like candidates is from another of them, in what one of them typically
 * differs from one pass to the other. */
static const double LUCK = 4;

enum { FIRST_BITS = 3, FIRST_BUCKET = 5, BUCKETS_A_STEP = 2 };

uint32_t llane_tuning_bucket(uint64_t bytes)
{
    uint32_t of_sizes = (uint32_t)llane_size_bucket(bytes);
    uint32_t bucket = of_sizes > FIRST_BITS ? of_sizes - FIRST_BITS : 0;
    return bucket < LLANE_TUNING_BUCKETS ? bucket : LLANE_TUNING_BUCKETS - 1;
}

uint64_t llane_tuning_bucket_bytes(uint32_t bucket)
{
    return 1ull << (FIRST_BITS + bucket);
}

uint32_t llane_tuning_ladder(uint64_t max_bytes, uint32_t buckets_out[LLANE_TUNING_SIZES])
{
    uint32_t n = 0;
    for (uint32_t b = FIRST_BUCKET;
         b < LLANE_TUNING_BUCKETS && llane_tuning_bucket_bytes(b) <= max_bytes;
         b += BUCKETS_A_STEP) {
        buckets_out[n++] = b;
    }
    return n;
}

int llane_tuning_is_faster(double a_us, double b_us)
{
    return a_us < b_us * (1 - NOISE) && a_us < b_us - NOISE_US;
}

/* A NaN is none either. */
static int is_time(float us)
{
    return us > 0 && us < 1e9f;
}

static int is_measured(const struct llane_tuning_times *times, int candidate)
{
    return is_time(times->us[0][candidate]) && is_time(times->us[1][candidate]);
}

static int is_steady(const struct llane_tuning_times *times, int candidate)
{
    double a = times->us[0][candidate], b = times->us[1][candidate];
    return a < b * (1 + STEADY) && b < a * (1 + STEADY);
}

double llane_tuning_us(const struct llane_tuning_times *times, int candidate)
{
    return ((double)times->us[0][candidate] + times->us[1][candidate]) / 2;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/*
 * By how much one pass may have another candidate ahead, as a share of a time: by what is no more than
 * noise to a choice, and by as much as the passes differ for most candidates, whatever a few of them
 * do; never by so much that other work would not show. What all candidates have in common (clocks that
 * rise) does not count.
 */
static double spread(const struct llane_tuning_times *times, int n, uint32_t may_use)
{
    double ratio[LLANE_TUNING_CANDIDATES] = {1};
    size_t n_ratios = 0;
    for (int c = 0; c < n; c++) {
        if ((may_use >> c & 1) && is_measured(times, c)) {
            ratio[n_ratios++] = (double)times->us[1][c] / times->us[0][c];
        }
    }
    if (!n_ratios) {
        return NOISE;
    }
    qsort(ratio, n_ratios, sizeof *ratio, ascending);
    double common = ratio[n_ratios / 2];
    for (size_t i = 0; i < n_ratios; i++) {
        double off = ratio[i] / common;
        ratio[i] = off > 1 ? off - 1 : 1 / off - 1;
    }
    qsort(ratio, n_ratios, sizeof *ratio, ascending);
    double wide = NOISE + LUCK * ratio[n_ratios / 2];
    return wide > STEADY ? STEADY : wide;
}

/* Of one pass: none would have done better by more than that. */
static int is_best_of(const float *us, const struct llane_tuning_times *times, int n,
                      uint32_t may_use, int candidate)
{
    double off = spread(times, n, may_use | 1u << candidate);
    for (int c = 0; c < n; c++) {
        if ((may_use >> c & 1) && is_measured(times, c) && us[c] < us[candidate] * (1 - off) &&
            us[c] < us[candidate] - NOISE_US) {
            return 0;
        }
    }
    return 1;
}

int llane_tuning_judge(const struct llane_tuning_times *times, int n_candidates, uint32_t may_use,
                       int by_default, int *agrees_out)
{
    int best = by_default;
    *agrees_out = 0;
    if (!is_measured(times, by_default) || !is_steady(times, by_default)) {
        return by_default;
    }
    for (int c = 0; c < n_candidates; c++) {
        if (!(may_use >> c & 1) || !is_measured(times, c) ||
            llane_tuning_us(times, c) >= llane_tuning_us(times, best)) {
            continue;
        }
        int is_better = 1;
        for (int pass = 0; pass < LLANE_TUNING_PASSES; pass++) {
            is_better &= llane_tuning_is_faster(times->us[pass][c], times->us[pass][by_default]);
        }
        best = is_better ? c : best;
    }
    *agrees_out = is_best_of(times->us[0], times, n_candidates, may_use, best) &&
                  is_best_of(times->us[1], times, n_candidates, may_use, best);
    return best;
}

void llane_tuning_spread(struct llane_tuning *tuning, enum llane_tuning_class of,
                         const uint32_t *buckets, uint32_t n_buckets)
{
    uint32_t b = 0;
    for (uint32_t i = 0; i < n_buckets; i++) {
        for (; b < buckets[i]; b++) {
            tuning->choice[of][b] = tuning->choice[of][buckets[i]];
        }
        b = buckets[i] + 1;
    }
}
