/* The addresses that the host launches by, in the order of enum llane_kernel. */
#include "device.cuh"

LLANE_KERNEL_DECLARE(llane_probe_send, struct llane_probe_args);
LLANE_KERNEL_DECLARE(llane_probe_check, struct llane_probe_args);

#define DECLARE_KERNEL(name, suffix)                                                               \
    LLANE_KERNEL_DECLARE(llane_one_shot_ll_##suffix, struct llane_one_shot_args);
LLANE_TYPES(DECLARE_KERNEL)

#define ONE_SHOT_LL(name, suffix) (const void *)llane_one_shot_ll_##suffix,

extern "C" const void *const llane_kernel_table[LLANE_N_KERNELS] = {
    (const void *)llane_probe_send, (const void *)llane_probe_check, LLANE_TYPES(ONE_SHOT_LL)};
