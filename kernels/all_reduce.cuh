/*
 * The frame of every all-reduce kernel: enter the lane, run an algorithm with a packet family, let
 * dependents go, clean up, leave. Kernels are named llane_<algorithm>_<packet>_<type>.
 */
#ifndef LLANE_KERNELS_ALL_REDUCE_CUH
#define LLANE_KERNELS_ALL_REDUCE_CUH

#include "one_shot.cuh"
#include "two_shot.cuh"

/* The rank count is a constant where that pays (build-facts: small sizes of the float types). */
template <class A, class T, class P>
LLANE_DEVICE bool llane_run(const struct llane_all_reduce_args &args, uint32_t op)
{
    if (T::IS_COMMON) {
        switch (args.n_ranks) {
        case 2:
            return A::template run<T, P, 2>(args, op);
        case 4:
            return A::template run<T, P, 4>(args, op);
        case 8:
            return A::template run<T, P, 8>(args, op);
        default:
            break;
        }
    }
    return A::template run<T, P, 0>(args, op);
}

template <class A, class T, class P>
LLANE_DEVICE void llane_all_reduce(const struct llane_all_reduce_args &args)
{
    struct llane_visit visit = llane_cells_enter(args.cells, args.words);
    const uint32_t op = P::op_of(visit.cell);

    if (visit.is_whole)
        visit.is_whole = llane_run<A, T, P>(args, op);
    if (!llane_cells_polled(&visit))
        return;
    A::template clean<T, P>(args, op);
    llane_cells_leave(&visit, args.cells,
                      P::IS_LL ? llane_next_op(visit.cell.ll_op) : visit.cell.ll_op,
                      P::IS_LL ? visit.cell.sentinel_op : llane_next_op(visit.cell.sentinel_op));
}

#define LLANE_ALL_REDUCE_KERNEL(algorithm, packet, type, suffix)                                   \
    LLANE_KERNEL(llane_##algorithm##_##packet##_##suffix, struct llane_all_reduce_args)            \
    {                                                                                              \
        llane_all_reduce<llane_##algorithm, type, llane_##packet<type>>(args);                     \
    }

/* All kernels of one datatype: one .cu file each, so that they compile side by side. type: of
 * convert.cuh; suffix: as in LLANE_TYPES. */
#define LLANE_KERNELS_OF_INTEGER(type, suffix)                                                     \
    LLANE_ALL_REDUCE_KERNEL(one_shot, ll, type, suffix)                                            \
    LLANE_ALL_REDUCE_KERNEL(two_shot, ll, type, suffix)

#define LLANE_KERNELS_OF_FLOAT(type, suffix)                                                       \
    LLANE_KERNELS_OF_INTEGER(type, suffix)                                                         \
    LLANE_ALL_REDUCE_KERNEL(one_shot, sentinel, type, suffix)                                      \
    LLANE_ALL_REDUCE_KERNEL(two_shot, sentinel, type, suffix)

#endif
