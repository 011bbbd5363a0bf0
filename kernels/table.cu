/* The addresses that the host launches by, in the order of enum llane_kernel and enum llane_type. */
#include "device.cuh"

LLANE_KERNEL_DECLARE(llane_probe_send, struct llane_probe_args);
LLANE_KERNEL_DECLARE(llane_probe_check, struct llane_probe_args);

extern "C" const void *const llane_kernel_table[LLANE_N_KERNELS] = {
    (const void *)llane_probe_send, (const void *)llane_probe_check};

#define DECLARE(algorithm, packet, suffix)                                                         \
    LLANE_KERNEL_DECLARE(llane_##algorithm##_##packet##_##suffix, struct llane_all_reduce_args);
#define DECLARE_LL(name, suffix)                                                                   \
    DECLARE(one_shot, ll, suffix)                                                                  \
    DECLARE(two_shot, ll, suffix) DECLARE(ring, ll, suffix) DECLARE(islands, ll, suffix)
#define DECLARE_SHARED_LL(name, suffix)                                                            \
    DECLARE(shared_one_shot, ll, suffix) DECLARE(shared_two_shot, ll, suffix)
#define DECLARE_SENTINEL(name, suffix)                                                             \
    DECLARE(one_shot, sentinel, suffix) DECLARE(two_shot, sentinel, suffix)

#define DECLARE_SHARED_SENTINEL(name, suffix)                                                      \
    DECLARE(shared_one_shot, sentinel, suffix) DECLARE(shared_two_shot, sentinel, suffix)

LLANE_TYPES(DECLARE_LL)
LLANE_TYPES(DECLARE_SHARED_LL)
LLANE_FLOAT_TYPES(DECLARE_SENTINEL)
LLANE_FLOAT_TYPES(DECLARE_SHARED_SENTINEL)

#define ROW_OF_INTEGER(name, suffix)                                                               \
    {{(const void *)llane_one_shot_ll_##suffix, NULL},                                             \
     {(const void *)llane_two_shot_ll_##suffix, NULL},                                             \
     {(const void *)llane_ring_ll_##suffix, NULL},                                                 \
     {(const void *)llane_islands_ll_##suffix, NULL}},
#define ROW_OF_FLOAT(name, suffix)                                                                 \
    {{(const void *)llane_one_shot_ll_##suffix, (const void *)llane_one_shot_sentinel_##suffix},   \
     {(const void *)llane_two_shot_ll_##suffix, (const void *)llane_two_shot_sentinel_##suffix},   \
     {(const void *)llane_ring_ll_##suffix, NULL},                                                 \
     {(const void *)llane_islands_ll_##suffix, NULL}},

extern "C" const void
    *const llane_all_reduce_table[LLANE_N_TYPES][LLANE_N_ALGORITHMS][LLANE_N_PACKETS] = {
        LLANE_INTEGER_TYPES(ROW_OF_INTEGER) LLANE_FLOAT_TYPES(ROW_OF_FLOAT)};

#define SHARED_ROW_OF_INTEGER(name, suffix)                                                        \
    {{(const void *)llane_shared_one_shot_ll_##suffix, NULL},                                      \
     {(const void *)llane_shared_two_shot_ll_##suffix, NULL}},
#define SHARED_ROW_OF_FLOAT(name, suffix)                                                          \
    {{(const void *)llane_shared_one_shot_ll_##suffix,                                             \
      (const void *)llane_shared_one_shot_sentinel_##suffix},                                      \
     {(const void *)llane_shared_two_shot_ll_##suffix,                                             \
      (const void *)llane_shared_two_shot_sentinel_##suffix}},

extern "C" const void
    *const llane_shared_table[LLANE_N_TYPES][LLANE_N_ALGORITHMS][LLANE_N_PACKETS] = {
        LLANE_INTEGER_TYPES(SHARED_ROW_OF_INTEGER) LLANE_FLOAT_TYPES(SHARED_ROW_OF_FLOAT)};
