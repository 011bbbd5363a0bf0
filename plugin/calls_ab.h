/*
 * calls_ab: all-reduces that LLANE_AB gives to NCCL though the lane could carry them. Which those are
 * depends on rank-uniform facts alone.
 *
 * Threads: those that call NCCL. Blocking: no. Errors: NCCL's.
 */
#ifndef LLANE_CALLS_AB_H
#define LLANE_CALLS_AB_H

#include "comm.h"

/* For a call that the lane could carry: LANE, or why NCCL gets it. The lock is held. */
enum llane_route llane_calls_ab_route(const struct llane_lane *lane, uint64_t number,
                                      cudaStream_t stream);

/* A call with one of those routes. */
ncclResult_t llane_calls_ab(struct llane_comm *comm, ncclComm_t handle,
                            const struct llane_operation *operation, enum llane_route route);

#endif
