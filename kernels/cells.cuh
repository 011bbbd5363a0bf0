/*
 * Cells: a lane's operation counters on the device, LLANE_MAX_BLOCKS equal copies between launches,
 * so that no block needs another one to know the operation's number. Block b reads cell b and owns
 * cells b, b+grid, b+2*grid, ...: it alone marks them busy and advances them, each by one of its
 * threads. (A block that advanced only the cell it read would leave the rest behind when the grid
 * size changes.) A block has at least LLANE_MAX_BLOCKS threads.
 *
 * The busy mark catches a second kernel on the lane: a running block has all of its cells marked soon
 * after it began, and cells that are not equal tell the same. A block acts on what it found at entry
 * when it leaves. Two kernels whose blocks start in the same instant can miss each other; the host's
 * ordering is the rule, this is the alarm.
 *
 * A lane that is lost has its reason in every cell: one word that all warps of a launch read would have
 * them queue for it.
 *
 * A thread's visit: llane_cells_enter, work, llane_cells_leave, by all threads of the block, also
 * those that gave up.
 */
#ifndef LLANE_KERNELS_CELLS_CUH
#define LLANE_KERNELS_CELLS_CUH

#include "device.cuh"

/* What a thread knows of the running operation. */
struct llane_visit {
    struct llane_cell cell;  /* its block's: not its busy mark, see llane_cells_enter */
    struct llane_cell own;   /* the one it advances, as it was at entry */
    struct llane_cell *mine; /* where that one is, or NULL */
    bool is_whole;           /* false: stopped; do nothing but leave */
};

/* The lane is lost: tells the host, then every block of this kernel and all later ones. */
LLANE_DEVICE void llane_lane_kill(struct llane_cells *cells, struct llane_lane_words *words,
                                  uint32_t reason)
{
    /* Pairs with the host's reading of the word. */
    llane_store_system32(&words->dead, reason);
    LLANE_NO_UNROLL
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
        /* Pairs with the load on entry and with the look in llane_poll_must_stop. */
        llane_store_system32(&cells->cell[c].dead, reason);
}

/*
 * Waits for the kernel before this one first: nothing of a lane may be read earlier. lets_go_early: see
 * LLANE_FLAG_EARLY; not before the wait, lest kernel behind kernel come to wait on the GPU. HAS_ALL:
 * the wait is to come after all addresses are known, and what the caller put into at_hand.
 */
template <bool HAS_ALL = false>
LLANE_DEVICE struct llane_visit llane_cells_enter(struct llane_cells *cells, bool lets_go_early,
                                                  [[maybe_unused]] uint64_t at_hand = 0)
{
    const uint32_t c = llane_block_id() + llane_thread_id() * llane_n_blocks();
    struct llane_visit visit = {};

    visit.mine = c < LLANE_MAX_BLOCKS ? &cells->cell[c] : NULL;
    if constexpr (HAS_ALL)
        llane_wait_for_predecessor_with(at_hand | (uintptr_t)visit.mine |
                                        (uintptr_t)&cells->cell[llane_block_id()]);
    else
        llane_wait_for_predecessor();
    if (lets_go_early)
        llane_release_dependents();
    /* All loads fly together; what the thread's own cell says is looked at when leaving. Only that one
     * tells of an overlap: the block's may have been marked meanwhile by the thread that owns it. */
    visit.cell = llane_load_cell(&cells->cell[llane_block_id()]);
    if (visit.mine)
        visit.own = llane_load_cell(visit.mine);
    visit.is_whole = visit.cell.dead == LLANE_DEAD_NOT;
    return visit;
}

/* Once the first packets are on their way, which cannot wait for it. */
LLANE_DEVICE void llane_cells_mark(const struct llane_visit *visit)
{
    /* Pairs with llane_load_cell on entry, in a kernel that should not be running. */
    if (visit->mine)
        llane_store_system32(&visit->mine->busy, 1);
}

/*
 * After the thread's last poll. Lets dependents of this kernel be launched once every block is here:
 * earlier, they could fill the GPU while the kernel that would end our polling waits behind them, but
 * for those that LLANE_FLAG_EARLY is about.
 * False: some thread of the block gave up, in a lane that is dead; its cells stay as they are.
 */
LLANE_DEVICE bool llane_cells_polled(const struct llane_visit *visit)
{
    const bool is_block_whole = !llane_block_or(!visit->is_whole);

    llane_release_dependents();
    return is_block_whole;
}

/* next: the numbers that the next kernel reads. Not for a block that is not whole. The lane may have been
 * lost meanwhile, and stays so: no store here touches a cell's `dead`, but to set it. */
LLANE_DEVICE void llane_cells_leave(const struct llane_visit *visit, struct llane_cells *cells,
                                    struct llane_lane_words *words, uint32_t next_ll_op,
                                    uint32_t next_sentinel_op)
{
    if (!visit->mine)
        return;
    if (visit->own.busy != 0 || visit->own.ll_op != visit->cell.ll_op ||
        visit->own.sentinel_op != visit->cell.sentinel_op) {
        llane_lane_kill(cells, words, LLANE_DEAD_OVERLAP);
        return;
    }
    llane_advance_cell(visit->mine, next_ll_op, next_sentinel_op);
}

/* What bounds a thread's polling. */
struct llane_poll {
    struct llane_cells *cells;
    struct llane_lane_words *words;
    uint32_t spins_per_look;
    uint32_t pause_ns; /* after the first round; 0: none */
};

/* A first sleep well below a packet's way, a last one that an arrival is late for by no more than. */
enum { LLANE_FIRST_PAUSE_NS = 32, LLANE_LAST_PAUSE_NS = 1024 };

LLANE_DEVICE struct llane_poll llane_poll_of(const struct llane_all_reduce_args &args)
{
    const bool sleeps = (args.flags & LLANE_FLAG_SLEEP) != 0;

    return {args.cells, args.words, args.spins_per_look,
            sleeps ? (uint32_t)LLANE_FIRST_PAUSE_NS : 0};
}

/* Around the polling for some packets: nothing, unless a tool traces it with a type of its own. */
LLANE_DEVICE uint64_t llane_poll_begins(const struct llane_poll *)
{
    return 0;
}

LLANE_DEVICE void llane_poll_ends(const struct llane_poll *, uint64_t)
{
}

/*
 * After spins_per_look rounds that found something missing of the family's operation op. True: give up
 * at once; the lane is dead.
 */
LLANE_DEVICE bool llane_poll_must_stop(const struct llane_poll *poll, enum llane_packet family,
                                       uint32_t op)
{
    /* Pairs with llane_lane_kill by another thread. */
    const struct llane_cell cell = llane_load_cell(&poll->cells->cell[llane_block_id()]);

    if (cell.dead != LLANE_DEAD_NOT)
        return true;
    /* An LL operation polls by its number. A sentinel's would be kept for this alone, in a register
     * that others need, and is the block's until the last of its threads has polled. */
    const uint32_t number = family == LLANE_LL ? op : cell.sentinel_op;

    /* Pairs with the watch's exchange. */
    llane_store_sign(&poll->words->waiting[family], number);
    /* Pairs with the host's store when the communicator is aborted. */
    if (llane_load_system32(&poll->words->abort) == 0)
        return false;
    llane_lane_kill(poll->cells, poll->words, LLANE_DEAD_ABORT);
    return true;
}

#endif
