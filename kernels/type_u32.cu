#include "all_reduce.cuh"

LLANE_KERNELS_OF_INTEGER(llane_uint32, u32)
