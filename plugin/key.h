/*
 * key: the communicator id that all its ranks can compute, and nobody else shares. Pure but for
 * llane_key_of_process, which counts.
 *
 * Which source a communicator uses must be the same on all ranks: a tuner's id where there is one,
 * else what the creating call showed.
 */
#ifndef LLANE_KEY_H
#define LLANE_KEY_H

#include <stdint.h>

#include "board.h"
#include "nccl_abi.h"

/* NCCL >= 2.28: the id that the tuner's init got. */
void llane_key_of_tuner(uint64_t comm_id, struct llane_board_key *out);

void llane_key_of_unique_id(const ncclUniqueId *id, struct llane_board_key *out);

/* For ncclCommInitAll: all ranks are in this process. A new key at each call. */
void llane_key_of_process(struct llane_board_key *out);

/* number: how many children the parent has had, this one included; color: LLANE_KEY_SHRINK or
 * ncclCommSplit's. */
enum { LLANE_KEY_SHRINK = -2 };
void llane_key_of_child(const struct llane_board_key *parent, uint64_t number, int color,
                        struct llane_board_key *out);

#endif
