/*
 * tuning: which path carries a message of a size, and what is tried to find out. Pure: the
 * measurements are calibrate's, the files tuning_file's.
 */
#ifndef LLANE_TUNING_H
#define LLANE_TUNING_H

#include <stddef.h>
#include <stdint.h>

#include "table.h"

/* Messages of up to 8, 16, 32 bytes, ..., 64 MiB; LLANE_MAX_BYTES goes no further. */
enum { LLANE_TUNING_BUCKETS = 24 };

/* Integers have no sentinel packets. */
enum llane_tuning_class { LLANE_TUNING_INTEGER, LLANE_TUNING_FLOAT, LLANE_TUNING_CLASSES };

/* DEFAULT: as the model says. */
enum llane_tuning_path { LLANE_TUNING_DEFAULT, LLANE_TUNING_LANE, LLANE_TUNING_NCCL };

struct llane_tuning_choice {
    uint8_t path; /* enum llane_tuning_path; the rest is for LANE */
    uint8_t algorithm, packet;
    uint8_t n_blocks;   /* no more than so many; 0: as many as the message has work for */
    uint16_t n_threads; /* of a block; 0: by size */
};

struct llane_tuning {
    struct llane_tuning_choice choice[LLANE_TUNING_CLASSES][LLANE_TUNING_BUCKETS];
};

/* bytes > 0; past the last bucket's the last. */
uint32_t llane_tuning_bucket(uint64_t bytes);
/* The largest message of a bucket. */
uint64_t llane_tuning_bucket_bytes(uint32_t bucket);

/* ---- what is measured ---- */

enum { LLANE_TUNING_SIZES = 10, LLANE_TUNING_CANDIDATES = 16, LLANE_TUNING_PASSES = 2 };

/* The buckets that are measured, ascending: 256 bytes, then every fourth size up to max_bytes. */
uint32_t llane_tuning_ladder(uint64_t max_bytes, uint32_t buckets_out[LLANE_TUNING_SIZES]);

/* Microseconds of the slowest rank, for each pass; not above 0: it could not be measured. */
struct llane_tuning_times {
    float us[LLANE_TUNING_PASSES][LLANE_TUNING_CANDIDATES];
};

/* Of both passes. */
double llane_tuning_us(const struct llane_tuning_times *times, int candidate);

/*
 * The best of the candidates that may_use marks. Candidate `by_default` stays unless another one is
 * faster by more than noise, in both passes. agrees_out: each pass alone would have come to the same,
 * or to one that is as fast.
 */
int llane_tuning_judge(const struct llane_tuning_times *times, int n_candidates, uint32_t may_use,
                       int by_default, int *agrees_out);

/* Of two times: is a below b by more than noise? */
int llane_tuning_is_faster(double a_us, double b_us);

/* Measured sizes stand for those below them, down to the measured size before. */
void llane_tuning_spread(struct llane_tuning *tuning, enum llane_tuning_class of,
                         const uint32_t *buckets, uint32_t n_buckets);

#endif
