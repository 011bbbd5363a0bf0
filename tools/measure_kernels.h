/*
 * Kernels of llane-measure: a flag that goes back and forth between two places, and a plain copy.
 * table.cu's way of naming kernels; see kernels/table.h.
 */
#ifndef LLANE_MEASURE_KERNELS_H
#define LLANE_MEASURE_KERNELS_H

#include <stdint.h>

/*
 * One thread. The first side stores a number into the other's word and waits for it in its own; the
 * other side answers. result_ns is mapped host memory and stays 0 when nothing came in time.
 */
struct llane_measure_flag_args {
    uint32_t *own, *peer; /* zeroed before */
    uint64_t *result_ns;
    uint64_t timeout_ns;
    uint32_t n_warm, n_rounds;
    uint32_t is_first;
};

struct llane_measure_copy_args {
    const void *from;
    void *to;
    uint64_t n_words; /* of 16 bytes */
};

enum llane_measure_kernel { LLANE_MEASURE_FLAG, LLANE_MEASURE_COPY, LLANE_MEASURE_N_KERNELS };

#ifdef __cplusplus
extern "C" {
#endif
extern const void *const llane_measure_kernels[LLANE_MEASURE_N_KERNELS];
#ifdef __cplusplus
}
#endif

#endif
