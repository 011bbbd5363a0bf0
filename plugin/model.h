/*
 * model: how long an all-reduce takes, lane and NCCL, from latencies and bandwidths of the memory
 * between the ranks: what a route stands on where nothing was measured. docs/scaling.md derives it
 * and compares it with measurements. Pure.
 */
#ifndef LLANE_MODEL_H
#define LLANE_MODEL_H

#include <stdint.h>

#include "table.h"

/* What the slots lie in; the slowest kind of any pair. */
enum llane_memory {
    LLANE_MEMORY_ONE_GPU, /* all ranks share a GPU and its memory */
    LLANE_MEMORY_PEER,    /* a peer GPU's, over PCIe */
    LLANE_MEMORY_HOST,    /* pinned host memory */
    LLANE_N_MEMORIES
};
const char *llane_memory_text(enum llane_memory memory);

struct llane_model_machine {
    enum llane_memory memory;
    uint32_t n_ranks;
    uint32_t ranks_per_gpu; /* the most that share one GPU's link */
    uint32_t n_sockets;     /* that the GPUs hang off */
    uint32_t generation;    /* of PCIe, the slowest GPU's; 0: 4 */
    uint32_t n_threads;     /* that a rank's widest launch has; 0: as many as kernels can have */
};

/* bytes: of the message. Microseconds an operation, in a CUDA graph of back-to-back operations. */
double llane_model_lane_us(const struct llane_model_machine *machine,
                           enum llane_algorithm algorithm, enum llane_packet packet,
                           uint64_t bytes);
double llane_model_nccl_us(const struct llane_model_machine *machine, uint64_t bytes);

#endif
