#include "all_reduce.cuh"

LLANE_KERNELS_OF_FLOAT(llane_float64, f64)
