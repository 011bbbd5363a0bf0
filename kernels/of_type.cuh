/* All kernels of one datatype: one .cu file each, so that they compile side by side. */
#ifndef LLANE_KERNELS_OF_TYPE_CUH
#define LLANE_KERNELS_OF_TYPE_CUH

#include "one_shot.cuh"

/* type: a type of convert.cuh; suffix: as in LLANE_TYPES. */
#define LLANE_KERNELS_OF_INTEGER(type, suffix)                                                     \
    LLANE_KERNEL(llane_one_shot_ll_##suffix, struct llane_one_shot_args)                           \
    {                                                                                              \
        llane_one_shot_ll<type>(args);                                                             \
    }

#define LLANE_KERNELS_OF_FLOAT(type, suffix)                                                       \
    LLANE_KERNEL(llane_one_shot_ll_##suffix, struct llane_one_shot_args)                           \
    {                                                                                              \
        llane_one_shot_ll<type>(args);                                                             \
    }

#endif
