/*
 * The frame of every all-reduce kernel: enter the lane, run an algorithm with a packet family, let
 * dependents go, clean up, leave. Kernels are named llane_<algorithm>_<packet>_<type>.
 */
#ifndef LLANE_KERNELS_ALL_REDUCE_CUH
#define LLANE_KERNELS_ALL_REDUCE_CUH

#include "islands.cuh"
#include "one_shot.cuh"
#include "ring.cuh"
#include "several.cuh"
#include "single.cuh"

template <class A, class S>
LLANE_DEVICE void llane_visit_lane(const struct llane_all_reduce_args &args)
{
    struct llane_visit visit = llane_cells_enter(args.cells, (args.flags & LLANE_FLAG_EARLY) != 0);
    const typename A::template ahead<S> ahead = A::template look_ahead<S>(args);
    const uint32_t op = S::P::op_of(visit.cell);

    S::stamp(args, LLANE_ENTERED);
    if (visit.is_whole) {
        A::template push<S>(args, op, ahead);
        llane_cells_mark(&visit);
        S::stamp(args, LLANE_PUSHED);
        visit.is_whole = A::template finish<S>(args, op, ahead);
        S::stamp(args, LLANE_FINISHED);
    }
    if (!llane_cells_polled(&visit))
        return;
    A::template clean<S>(args, op);
    llane_leave<typename S::P>(args, &visit);
    S::stamp(args, LLANE_LEFT);
}

/* What a tool's kernels put around shapes, and the lane's do not. */
struct llane_as_is {
    template <class S> using shape = S;
};

/* S: a plain sum. */
template <class A, class S>
LLANE_DEVICE void llane_visit_lane_plainly(const struct llane_all_reduce_args &args)
{
    if constexpr (A::IS_PRIVATE) {
        const uint32_t n = A::template n_dealt<S>(args), n_threads = llane_grid_threads();

        if (n <= n_threads && !(args.flags & LLANE_FLAG_SLEEP) &&
            (A::N_STEPS == 1 || S::n_packets(args) <= LLANE_SINGLE_TWO_SHOT)) {
            llane_visit_single<S, A::N_STEPS>(args);
            return;
        }
        if constexpr (S::N <= 4) { /* four packets of 8 ranks do not fit into the registers */
            if (n > 2 * n_threads) {
                llane_visit_lane<struct llane_several<A, 4>, S>(args);
                return;
            }
        }
        if (n > n_threads) {
            llane_visit_lane<struct llane_several<A, 2>, S>(args);
            return;
        }
    }
    llane_visit_lane<A, S>(args);
}

/* Plain sums of the common types have code of their own: less of it is less to fetch, which at small
 * sizes is what counts. */
template <class A, class T, class P, class WRAP = struct llane_as_is>
LLANE_DEVICE void llane_all_reduce(const struct llane_all_reduce_args &args)
{
    if constexpr (T::IS_COMMON && A::HAS_PLAIN) {
        if ((args.flags & LLANE_FLAG_PLAIN) && args.op == LLANE_OP_SUM) {
            switch (args.n_ranks) {
            case 2:
                llane_visit_lane_plainly<
                    A, typename WRAP::template shape<llane_shape<T, P, 2, LLANE_OP_SUM, true>>>(
                    args);
                return;
            case 4:
                llane_visit_lane_plainly<
                    A, typename WRAP::template shape<llane_shape<T, P, 4, LLANE_OP_SUM, true>>>(
                    args);
                return;
            case 8:
                llane_visit_lane_plainly<
                    A, typename WRAP::template shape<llane_shape<T, P, 8, LLANE_OP_SUM, true>>>(
                    args);
                return;
            default:
                break;
            }
        }
    }
    llane_visit_lane<A, typename WRAP::template shape<llane_shape<T, P, 0, -1, false>>>(args);
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
    LLANE_ALL_REDUCE_KERNEL(two_shot, ll, type, suffix)                                            \
    LLANE_ALL_REDUCE_KERNEL(ring, ll, type, suffix)                                                \
    LLANE_ALL_REDUCE_KERNEL(islands, ll, type, suffix)                                             \
    LLANE_ALL_REDUCE_KERNEL(shared_one_shot, ll, type, suffix)                                     \
    LLANE_ALL_REDUCE_KERNEL(shared_two_shot, ll, type, suffix)

#define LLANE_KERNELS_OF_FLOAT(type, suffix)                                                       \
    LLANE_KERNELS_OF_INTEGER(type, suffix)                                                         \
    LLANE_ALL_REDUCE_KERNEL(one_shot, sentinel, type, suffix)                                      \
    LLANE_ALL_REDUCE_KERNEL(two_shot, sentinel, type, suffix)                                      \
    LLANE_ALL_REDUCE_KERNEL(shared_one_shot, sentinel, type, suffix)                               \
    LLANE_ALL_REDUCE_KERNEL(shared_two_shot, sentinel, type, suffix)

#endif
