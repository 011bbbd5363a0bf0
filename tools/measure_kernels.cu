/* See measure_kernels.h. */
#include "device.cuh"
#include "measure_kernels.h"

enum { SPINS_PER_LOOK = 1024 };

LLANE_DEVICE bool await_number(const struct llane_measure_flag_args &args, uint32_t number,
                               uint64_t start)
{
    uint32_t spins = 0;

    /* Pairs with the other side's store: a kernel's below, or the host's answer. */
    while (llane_load_system32(args.own) != number) {
        llane_poll_pause(0);
        if (++spins % SPINS_PER_LOOK == 0 && llane_timer_ns() - start > args.timeout_ns)
            return false;
    }
    return true;
}

LLANE_KERNEL(llane_measure_flag, struct llane_measure_flag_args)
{
    uint64_t start = llane_timer_ns();

    if (llane_grid_thread() != 0)
        return;
    for (uint32_t number = 1; number <= args.n_warm + args.n_rounds; number++) {
        if (number == args.n_warm + 1)
            start = llane_timer_ns();
        /* Pairs with await_number on the other side, here and below. */
        if (args.is_first)
            llane_store_system32(args.peer, number);
        if (!await_number(args, number, start))
            return;
        if (!args.is_first)
            llane_store_system32(args.peer, number);
    }
    /* Plain: the host reads it after it has awaited the stream. */
    *args.result_ns = llane_timer_ns() - start;
}

struct word {
    uint64_t low, high;
};

LLANE_KERNEL(llane_measure_copy, struct llane_measure_copy_args)
{
    const struct word *from = (const struct word *)args.from;
    struct word *to = (struct word *)args.to;

    for (uint64_t i = llane_grid_thread(); i < args.n_words; i += llane_grid_threads())
        to[i] = from[i];
}

extern "C" const void *const llane_measure_kernels[LLANE_MEASURE_N_KERNELS] = {
    (const void *)llane_measure_flag, (const void *)llane_measure_copy};
