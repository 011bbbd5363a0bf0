/* The addresses that the host launches by, in the order of enum llane_kernel. */
#include "device.cuh"

LLANE_KERNEL_DECLARE(llane_probe_send, struct llane_probe_args);
LLANE_KERNEL_DECLARE(llane_probe_check, struct llane_probe_args);
LLANE_KERNEL_DECLARE(llane_one_shot_ll_f32, struct llane_one_shot_args);
LLANE_KERNEL_DECLARE(llane_one_shot_ll_f16, struct llane_one_shot_args);
LLANE_KERNEL_DECLARE(llane_one_shot_ll_bf16, struct llane_one_shot_args);

extern "C" const void *const llane_kernel_table[LLANE_N_KERNELS] = {
    (const void *)llane_probe_send,       (const void *)llane_probe_check,
    (const void *)llane_one_shot_ll_f32,  (const void *)llane_one_shot_ll_f16,
    (const void *)llane_one_shot_ll_bf16,
};
