/* One-shot all-reduce by LL packets, bfloat16. */
#include "one_shot.cuh"

LLANE_KERNEL(llane_one_shot_ll_bf16, struct llane_one_shot_args)
{
    llane_one_shot_ll<llane_bfloat16>(args);
}
