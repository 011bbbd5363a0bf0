/* One-shot all-reduce by LL packets, float16. */
#include "one_shot.cuh"

LLANE_KERNEL(llane_one_shot_ll_f16, struct llane_one_shot_args)
{
    llane_one_shot_ll<llane_float16>(args);
}
