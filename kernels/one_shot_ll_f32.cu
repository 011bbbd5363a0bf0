/* One-shot all-reduce by LL packets, float32. */
#include "one_shot.cuh"

LLANE_KERNEL(llane_one_shot_ll_f32, struct llane_one_shot_args)
{
    llane_one_shot_ll<llane_float32>(args);
}
