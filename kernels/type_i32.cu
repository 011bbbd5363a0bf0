#include "all_reduce.cuh"

LLANE_KERNELS_OF_INTEGER(llane_int32, i32)
