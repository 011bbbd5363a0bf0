#include "all_reduce.cuh"

LLANE_KERNELS_OF_FLOAT(llane_float32, f32)
