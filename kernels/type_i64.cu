#include "all_reduce.cuh"

LLANE_KERNELS_OF_INTEGER(llane_int64, i64)
