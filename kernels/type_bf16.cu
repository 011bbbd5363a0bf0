#include "all_reduce.cuh"

LLANE_KERNELS_OF_FLOAT(llane_bfloat16, bf16)
