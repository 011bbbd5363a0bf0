/* See bench_trace_kernels.h. */
#include "all_reduce.cuh"
#include "bench_trace_kernels.h"

LLANE_DEVICE struct llane_bench_record *record_of(const struct llane_all_reduce_args &args)
{
    return &((const struct llane_bench_trace_args *)&args)->records[llane_block_id()];
}

/* Of one thread; what it polled for is summed up here. */
struct traced_poll : llane_poll {
    uint64_t *polled;
};

LLANE_DEVICE uint64_t llane_poll_begins(const struct traced_poll *)
{
    return llane_clock();
}

LLANE_DEVICE void llane_poll_ends(const struct traced_poll *poll, uint64_t began)
{
    if (poll->polled)
        *poll->polled += llane_clock() - began;
}

struct traced {
    template <class S> struct shape : S {
        typedef struct traced_poll poll;

        LLANE_DEVICE poll poll_of(const struct llane_all_reduce_args &args)
        {
            poll p;

            (struct llane_poll &)p = llane_poll_of(args);
            p.polled = llane_thread_id() == 0 ? &record_of(args)->polled : NULL;
            return p;
        }

        LLANE_DEVICE void stamp(const struct llane_all_reduce_args &args, enum llane_moment moment)
        {
            if (llane_thread_id() != 0)
                return;
            if (moment == LLANE_ENTERED)
                record_of(args)->polled = 0;
            record_of(args)->moments[moment] = llane_clock();
        }
    };
};

#define TRACED(algorithm, packet)                                                                  \
    LLANE_KERNEL(llane_bench_##algorithm##_##packet, struct llane_bench_trace_args)                \
    {                                                                                              \
        llane_all_reduce<llane_##algorithm, llane_float32, llane_##packet<llane_float32>, traced>( \
            args.all_reduce);                                                                      \
    }

TRACED(one_shot, ll)
TRACED(one_shot, sentinel)
TRACED(two_shot, ll)
TRACED(two_shot, sentinel)
TRACED(ring, ll)
TRACED(islands, ll)

extern "C" const void *const llane_bench_trace_table[LLANE_N_ALGORITHMS][LLANE_N_PACKETS] = {
    {(const void *)llane_bench_one_shot_ll, (const void *)llane_bench_one_shot_sentinel},
    {(const void *)llane_bench_two_shot_ll, (const void *)llane_bench_two_shot_sentinel},
    {(const void *)llane_bench_ring_ll, NULL},
    {(const void *)llane_bench_islands_ll, NULL},
};

LLANE_KERNEL(llane_bench_clock, struct llane_bench_clock_args)
{
    const uint64_t start_ns = llane_timer_ns(), start = llane_clock();
    uint64_t ns = 0;

    if (llane_grid_thread() != 0)
        return;
    /* Bounded by the timer, which always goes on. */
    while (ns < args.ns)
        ns = llane_timer_ns() - start_ns;
    args.cycles_ns[0] = llane_clock() - start;
    args.cycles_ns[1] = ns;
}

extern "C" const void *const llane_bench_clock_kernel = (const void *)llane_bench_clock;
