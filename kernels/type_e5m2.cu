#include "all_reduce.cuh"

LLANE_KERNELS_OF_FLOAT(llane_float8_e5m2, e5m2)
