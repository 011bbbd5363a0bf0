/*
 * key: the communicator id that all its ranks can compute, and nobody else shares. Pure but for
 * llane_key_of_process, which counts.
 *
 * Which source a communicator uses must be the same on all ranks: NCCL's own id where there is
 * one, else what the creating call showed.
 */
#ifndef LLANE_KEY_H
#define LLANE_KEY_H

#include <stdint.h>

#include "board.h"
#include "nccl_abi.h"

/*
 * What tells the children to which one parent is shrunk from each other, since NCCL gives all of them
 * one id, and makes their own children's of that. Their number would not do: only the ranks that stay
 * call ncclCommShrink, so that a parent's ranks may count differently. A rank's first shrink of a parent
 * is named by who is left out: all that stay say the same, and for each of them it is the first one of
 * that name. Later ones are nameless, and NCCL's, and so is what comes of them. parents: the parent's
 * own name, 0: it comes of no shrink.
 * GROWN: a rank of what ncclCommGrow made, which can have a lane: no rank of a shrunk parent comes to it.
 * Its children are nameless: some may have new ranks only, which know of no shrink.
 */
enum { LLANE_KEY_NAMELESS = 1, LLANE_KEY_GROWN };
uint64_t llane_key_of_shrink(uint64_t parents, const int *excluded, int n_excluded,
                             uint64_t n_shrinks_before);
/* The name that comes down to what the parent is split or grown to. */
uint64_t llane_key_shrink_of_split(uint64_t parents);
uint64_t llane_key_shrink_of_grow(uint64_t parents);

/* The id that a tuner's or a profiler's init got. shrink: as above; 0: it comes of none. */
void llane_key_of_nccl_id(uint64_t comm_id, uint64_t shrink, struct llane_board_key *out);

void llane_key_of_unique_id(const ncclUniqueId *id, struct llane_board_key *out);

/* For ncclCommInitAll: all ranks are in this process. A new key at each call. */
void llane_key_of_process(struct llane_board_key *out);

/* number: how many splits the parent has had, this one included; color: ncclCommSplit's. Or what
 * llane_key_of_shrink gave and LLANE_KEY_SHRINK. */
enum { LLANE_KEY_SHRINK = -2 };
void llane_key_of_child(const struct llane_board_key *parent, uint64_t number, int color,
                        struct llane_board_key *out);

#endif
