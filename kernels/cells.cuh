/*
 * Cells: a lane's operation counters on the device, LLANE_MAX_BLOCKS equal copies between launches,
 * so that no block needs another one to know the operation's number. Block b reads cell b and owns
 * cells b, b+grid, b+2*grid, ...: it alone marks them busy, checks and advances them. (A block that
 * advanced only the cell it read would leave the rest behind when the grid size changes.)
 *
 * The busy mark catches a second kernel on the lane: every cell is looked at by some block of every
 * kernel, and a running block has all of its cells marked. Two kernels whose blocks start in the
 * same instant can miss each other; the host's ordering is the rule, this is the alarm.
 *
 * `dead` is only ever set, by a 4-byte store of its own, so advancing a cell cannot revive it.
 *
 * A thread's visit: llane_cells_enter, work, llane_cells_leave, by all threads of the block, also
 * those that gave up.
 */
#ifndef LLANE_KERNELS_CELLS_CUH
#define LLANE_KERNELS_CELLS_CUH

#include "device.cuh"

/* Threads of a block share the cells it owns: thread t takes every n_threads-th from t on. */
#define LLANE_FOR_EACH_OWN_CELL(c)                                                                 \
    for (uint32_t c = llane_block_id() + llane_thread_id() * llane_n_blocks();                     \
         c < LLANE_MAX_BLOCKS; c += llane_n_threads() * llane_n_blocks())

/* The lane is lost: tells the host, then every block of this kernel and all later ones. */
LLANE_DEVICE void llane_lane_kill(struct llane_cell *cells, struct llane_lane_words *words,
                                  uint32_t reason)
{
    /* Pairs with the host's reading of the word (watch). */
    llane_store_system32(&words->dead, reason);
    /* Pairs with llane_load_cell on entry and with the look in llane_poll_must_stop. */
    for (uint32_t c = 0; c < LLANE_MAX_BLOCKS; c++)
        llane_store_system32(&cells[c].dead, reason);
}

/* False: this thread must do nothing but llane_cells_leave. */
LLANE_DEVICE bool llane_cells_enter(struct llane_cell *cells, struct llane_lane_words *words,
                                    struct llane_cell *cell_out)
{
    bool is_overlap = false;

    /* No branch on the first load: the loads of own cells then fly beside it. */
    *cell_out = llane_load_cell(&cells[llane_block_id()]);
    LLANE_FOR_EACH_OWN_CELL(c)
    {
        const struct llane_cell own = llane_load_cell(&cells[c]);

#ifndef LLANE_MUTATE_NO_BUSY
        is_overlap |= own.busy != 0;
#endif
        is_overlap |= own.ll_op != cell_out->ll_op;
    }
    if (cell_out->dead != LLANE_DEAD_NOT)
        return false;
    if (is_overlap) {
        llane_lane_kill(cells, words, LLANE_DEAD_OVERLAP);
        return false;
    }
    LLANE_FOR_EACH_OWN_CELL(c)
    {
        /* Pairs with llane_load_cell above, in a kernel that should not be running. */
        llane_store_system32(&cells[c].busy, 1);
    }
    return true;
}

/*
 * next_ll_op: what the next kernel reads. is_whole: this thread did all of its work; a block with a
 * thread that gave up leaves its cells as they are, in a lane that is dead.
 */
LLANE_DEVICE void llane_cells_leave(struct llane_cell *cells, uint32_t next_ll_op, bool is_whole)
{
    /* Not before every thread of the block has read the block's cell. */
    if (llane_block_or(!is_whole))
        return;
    LLANE_FOR_EACH_OWN_CELL(c)
    {
#ifdef LLANE_MUTATE_OWN_CELL
        if (c != llane_block_id())
            continue;
#endif
        /* Both pair with llane_load_cell in the next kernel; the end of this one orders them. */
        llane_store_system32(&cells[c].ll_op, next_ll_op);
        llane_store_system32(&cells[c].busy, 0);
    }
}

/* What bounds a thread's polling. */
struct llane_poll {
    struct llane_cell *cells;
    struct llane_lane_words *words;
    uint32_t spins_per_look;
    uint32_t spins; /* since the last look */
};

/* After a round that found something missing. True: give up at once; the lane is dead. */
LLANE_DEVICE bool llane_poll_must_stop(struct llane_poll *poll)
{
    llane_poll_pause();
#ifdef LLANE_MUTATE_NO_LOOK
    return false;
#endif
    if (++poll->spins < poll->spins_per_look)
        return false;
    poll->spins = 0;
    /* Pairs with llane_lane_kill by another thread. */
    if (llane_load_system32(&poll->cells[llane_block_id()].dead) != LLANE_DEAD_NOT)
        return true;
    /* Pairs with the host's store when the communicator is aborted. */
    if (llane_load_system32(&poll->words->abort) == 0)
        return false;
    llane_lane_kill(poll->cells, poll->words, LLANE_DEAD_ABORT);
    return true;
}

#endif
