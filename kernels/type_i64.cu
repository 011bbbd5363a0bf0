#include "of_type.cuh"

LLANE_KERNELS_OF_INTEGER(llane_int64, i64)
