#include "all_reduce.cuh"

LLANE_KERNELS_OF_FLOAT(llane_float8_e4m3, e4m3)
