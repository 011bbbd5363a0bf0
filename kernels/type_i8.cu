#include "of_type.cuh"

LLANE_KERNELS_OF_INTEGER(llane_int8, i8)
