/* See bench_kernels.h. */
#include "bench_kernels.h"
#include "device.cuh"

enum { SPINS_PER_LOOK = 4096 };

LLANE_KERNEL(llane_bench_empty, struct llane_bench_empty_args)
{
}

LLANE_DEVICE bool await_flag(const struct llane_bench_flag_args &args, uint32_t number,
                             uint64_t start)
{
    uint32_t spins = 0;

    /* Pairs with the store below in the other rank's kernel. */
    while (llane_load_system32(args.own) != number) {
        llane_poll_pause(0);
        if (++spins % SPINS_PER_LOOK == 0 && llane_timer_ns() - start > args.timeout_ns)
            return false;
    }
    return true;
}

LLANE_KERNEL(llane_bench_flag, struct llane_bench_flag_args)
{
    uint64_t start = llane_timer_ns();

    if (llane_grid_thread() != 0)
        return;
    for (uint32_t round = 1; round <= args.n_warm + args.n_rounds; round++) {
        const uint32_t number = args.first + round;

        if (round == args.n_warm + 1)
            start = llane_timer_ns();
        /* Pairs with await_flag in the other rank's kernel, here and below. */
        if (args.is_first)
            llane_store_system32(args.peer, number);
        if (!await_flag(args, number, start))
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

LLANE_KERNEL(llane_bench_produce, struct llane_bench_produce_args)
{
    const struct word *from = (const struct word *)args.from;
    struct word *to = (struct word *)args.to;

    for (uint64_t i = llane_grid_thread(); i < args.n_words; i += llane_grid_threads())
        to[i] = from[i];
}

extern "C" const void *const llane_bench_kernels[LLANE_BENCH_N_KERNELS] = {
    (const void *)llane_bench_empty,
    (const void *)llane_bench_flag,
    (const void *)llane_bench_produce,
};
