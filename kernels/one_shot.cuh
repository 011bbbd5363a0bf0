/*
 * One-shot all-reduce: every rank stores its whole message into its slot at every peer, and combines
 * what arrives in its own slots. A line is stored, awaited and combined by the same thread of the
 * grid, so nothing inside a block waits for anything but packets.
 */
#ifndef LLANE_KERNELS_ONE_SHOT_CUH
#define LLANE_KERNELS_ONE_SHOT_CUH

#include "lines.cuh"
#include "packet_ll.cuh"

/*
 * All of one thread's lines. N: the number of ranks, or 0 where only the arguments know it. A thread
 * takes AHEAD lines at a time, and polls GROUP ranks at once. False: stopped by an abort.
 */
template <class T, int N>
LLANE_DEVICE bool llane_one_shot_lines(const struct llane_one_shot_args &args, uint32_t ll_op,
                                       uint32_t n_lines)
{
    enum { GROUP = N ? N : 4, AHEAD = N == 2 || N == 4 ? 4 : 2 };
    const uint32_t n_ranks = N ? N : args.n_ranks;
    const uint32_t stride = llane_grid_threads();
    const uint64_t generation = llane_ll_generation_offset(ll_op, args.slot_bytes);
    const typename T::wide f = llane_acc_factor<T>(n_ranks);
    struct llane_poll poll = {args.cells, args.words, args.spins_per_look, 0};

    for (uint64_t first = llane_grid_thread(); first < n_lines; first += AHEAD * (uint64_t)stride) {
        uint64_t mine[AHEAD], at[AHEAD];
        struct llane_line_sum<T> sums[AHEAD];
        uint32_t n_here = 0;

        LLANE_UNROLL
        for (int k = 0; k < AHEAD; k++) {
            const uint64_t line = first + (uint64_t)k * stride;

            mine[k] = 0;
            at[k] = generation + line * LLANE_LINE_BYTES;
            if (line < n_lines) {
                mine[k] = llane_local_load<T>(args.in, args.count, (uint32_t)line);
                n_here = k + 1;
            }
        }

        /* Destinations start behind the own rank, so that not all sources store to one peer at
         * once. */
        LLANE_UNROLL
        for (uint32_t step = 1; step < n_ranks; step++) {
            const uint32_t peer =
                args.rank + step < n_ranks ? args.rank + step : args.rank + step - n_ranks;
            uint8_t *slot = args.send[peer];

            LLANE_UNROLL
            for (uint32_t k = 0; k < AHEAD; k++)
                if (k < n_here)
                    llane_ll_store(slot + at[k], mine[k], ll_op);
        }

        for (uint32_t base = 0; base < n_ranks; base += GROUP) {
            uint64_t payloads[AHEAD * GROUP];
            uint32_t missing = 0;

            LLANE_UNROLL
            for (uint32_t k = 0; k < AHEAD; k++) {
                LLANE_UNROLL
                for (uint32_t g = 0; g < GROUP; g++) {
                    payloads[k * GROUP + g] = mine[k];
                    if (k < n_here && base + g < n_ranks && base + g != args.rank)
                        missing |= 1u << (k * GROUP + g);
                }
            }
            if (!llane_ll_gather<AHEAD * GROUP>(
                    [&](int i) { return args.recv[base + i % GROUP] + at[i / GROUP]; }, missing,
                    ll_op, &poll, payloads))
                return false;
            LLANE_UNROLL
            for (int k = 0; k < AHEAD; k++)
                llane_line_add<T, GROUP>(&sums[k], args.op, &payloads[k * GROUP], n_ranks - base,
                                         base == 0, f);
        }

        LLANE_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++)
            if (k < n_here)
                llane_local_store<T>(args.out, args.count, (uint32_t)(first + (uint64_t)k * stride),
                                     llane_line_finish<T>(&sums[k], args.op, f));
    }
    return true;
}

template <class T> LLANE_DEVICE void llane_one_shot_ll(const struct llane_one_shot_args &args)
{
    struct llane_cell cell;
    bool is_whole = llane_cells_enter(args.cells, args.words, &cell);

    if (is_whole) {
        const uint32_t n_lines = llane_local_n_lines<T>(args.count);

        switch (args.n_ranks) {
        case 2:
            is_whole = llane_one_shot_lines<T, 2>(args, cell.ll_op, n_lines);
            break;
        case 4:
            is_whole = llane_one_shot_lines<T, 4>(args, cell.ll_op, n_lines);
            break;
        case 8:
            is_whole = llane_one_shot_lines<T, 8>(args, cell.ll_op, n_lines);
            break;
        default:
            is_whole = llane_one_shot_lines<T, 0>(args, cell.ll_op, n_lines);
            break;
        }
#ifndef LLANE_MUTATE_NO_STRIPE
        if (is_whole)
            llane_ll_clean(args.recv, args.n_ranks, args.rank, args.slot_bytes, cell.ll_op,
                           n_lines);
#endif
    }
    llane_cells_leave(args.cells, llane_ll_next_op(cell.ll_op), is_whole);
}

#endif
