/*
 * The bench's own kernels, which are not part of the plugin: an empty one, a one-way flag's ping-pong
 * between two ranks, and a plain producer that writes an operation's input.
 */
#ifndef LLANE_BENCH_KERNELS_H
#define LLANE_BENCH_KERNELS_H

#include <stdint.h>

struct llane_bench_empty_args {
    uint32_t unused;
};

/*
 * One thread. The first rank stores a number into the second's flag and waits for it to come back.
 * Time starts with the round after n_warm. result_ns is mapped host memory; it stays as it is when
 * nothing came within timeout_ns.
 */
struct llane_bench_flag_args {
    uint32_t *own, *peer; /* zeroed before the first launch */
    uint64_t *result_ns;
    uint64_t timeout_ns;
    uint32_t first; /* numbers used so far */
    uint32_t n_warm, n_rounds;
    uint32_t is_first;
};

/* Copies n_words 16-byte words. */
struct llane_bench_produce_args {
    const void *from;
    void *to;
    uint64_t n_words;
};

enum llane_bench_kernel {
    LLANE_BENCH_EMPTY,
    LLANE_BENCH_FLAG,
    LLANE_BENCH_PRODUCE,
    LLANE_BENCH_N_KERNELS
};

#ifdef __cplusplus
extern "C" {
#endif
extern const void *const llane_bench_kernels[LLANE_BENCH_N_KERNELS];
#ifdef __cplusplus
}
#endif

#endif
