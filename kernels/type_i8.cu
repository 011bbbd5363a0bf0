#include "all_reduce.cuh"

LLANE_KERNELS_OF_INTEGER(llane_int8, i8)
