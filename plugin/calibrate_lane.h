/*
 * calibrate_lane: times candidates by running them on a lane that is proven and not live.
 *
 * Each candidate is a CUDA graph of operations back to back, as a graph of the user's would have
 * them, replayed between events; on this rank's own stream and staging memory, past the lane's order.
 * All ranks run the same operations, so slots and cells go on from where they end: nothing is to be
 * armed anew.
 * Threads: the helper thread. Blocking: until the GPU is done, the communicator ends, or a time that
 * LLANE_PROBE_TIMEOUT_MS bounds is over; the lane is then aborted. Errors: in the log, from source.
 */
#ifndef LLANE_CALIBRATE_LANE_H
#define LLANE_CALIBRATE_LANE_H

#include "calibrate.h"
#include "lane.h"

struct llane_calibrate_lane {
    struct llane_lane *lane;
    struct CUstream_st *stream;
    uint8_t *scratch; /* limits.max_bytes */
    const _Atomic int *cancel;
    int rank;
};

struct llane_calibrate_source llane_calibrate_lane_source(struct llane_calibrate_lane *lane);

#endif
