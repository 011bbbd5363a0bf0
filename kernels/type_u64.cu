#include "all_reduce.cuh"

LLANE_KERNELS_OF_INTEGER(llane_uint64, u64)
