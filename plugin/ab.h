/*
 * ab: LLANE_AB=alternate. Calls that the lane could carry take the lane and NCCL in turns, and both are
 * timed by the GPU's own clock, off the path of the call.
 *
 * Owns: for each lane a ring of pairs of events, made at set-up, and what was measured; used again for
 * another lane, never freed. A pair is FREE, TAKEN by the call between begin and end, RECORDED until
 * its time was read; a full ring leaves a call untimed.
 * Threads: begin, end and cancel by the thread that calls NCCL, under the communicator's lock; collect
 * and summarize by any. Blocking: no. Errors: a call that cannot be timed is only counted.
 */
#ifndef LLANE_AB_H
#define LLANE_AB_H

#include <stdint.h>

#include "sizes.h"

struct CUstream_st;
struct llane_ab;
struct llane_ab_pair;

enum llane_ab_mode { LLANE_AB_OFF, LLANE_AB_ALTERNATE, LLANE_AB_SHADOW, LLANE_AB_N_MODES };
enum llane_ab_path { LLANE_AB_LANE, LLANE_AB_NCCL, LLANE_AB_N_PATHS };

struct llane_ab_summary {
    struct {
        uint64_t calls[LLANE_AB_N_PATHS]; /* all, timed or not */
        uint64_t timed[LLANE_AB_N_PATHS];
        double median_us[LLANE_AB_N_PATHS], p99_us[LLANE_AB_N_PATHS]; /* to 1 % */
    } sizes[LLANE_SIZE_BUCKETS];
};

/*
 * Whose turn an all-reduce with this number is: the same on every rank. Of numbers 2k and 2k+1 one is
 * the lane's, which one is chance, so that programs whose calls repeat in turns of their own meet both.
 */
enum llane_ab_path llane_ab_turn(uint64_t number);

/* On the current device. 0, LLANE_EGPU or LLANE_ENOMEM. */
int llane_ab_create(int device, struct llane_ab **out);
void llane_ab_bury(struct llane_ab *ab);

/* Counts a call; is_timed: and records its start. NULL: nothing to end. */
struct llane_ab_pair *llane_ab_begin(struct llane_ab *ab, enum llane_ab_path path, uint64_t bytes,
                                     struct CUstream_st *stream, int is_timed);
void llane_ab_end(struct llane_ab_pair *pair, struct CUstream_st *stream);
/* Its time will not be known; was_made 0: there was no such call. */
void llane_ab_cancel(struct llane_ab_pair *pair, int was_made);

/* Reads the times of calls that have ended; often enough that the ring does not fill. */
void llane_ab_collect(struct llane_ab *ab);
/* Collects first. */
void llane_ab_summarize(struct llane_ab *ab, struct llane_ab_summary *out);

/* What the lane saved: its calls times the difference of the medians; 0 where one is not known. */
double llane_ab_saved_us(const struct llane_ab_summary *summary, int bucket);

#endif
