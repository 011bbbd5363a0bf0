/*
 * The lane's float32 kernels once more, with a record of where their time goes: each block's first
 * thread writes the clock at some moments, and how long it polled. Not part of the plugin.
 */
#ifndef LLANE_BENCH_TRACE_KERNELS_H
#define LLANE_BENCH_TRACE_KERNELS_H

#include <stdint.h>

#include "table.h"

/* Cycles of the block's multiprocessor. */
struct llane_bench_record {
    uint64_t moments[LLANE_N_MOMENTS];
    uint64_t polled;
};

struct llane_bench_trace_args {
    struct llane_all_reduce_args all_reduce; /* first: the kernels find the rest behind it */
    struct llane_bench_record *records;      /* own memory, one for each block */
};

/* Writes how many cycles go by in about ns. One thread. */
struct llane_bench_clock_args {
    uint64_t ns;
    uint64_t *cycles_ns; /* two words: cycles, nanoseconds */
};

#ifdef __cplusplus
extern "C" {
#endif
/* NULL where the lane has no such kernel. */
extern const void *const llane_bench_trace_table[LLANE_N_ALGORITHMS][LLANE_N_PACKETS];
extern const void *const llane_bench_clock_kernel;
#ifdef __cplusplus
}
#endif

#endif
