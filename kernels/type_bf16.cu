#include "of_type.cuh"

LLANE_KERNELS_OF_FLOAT(llane_bfloat16, bf16)
