/*
 * stats: where a communicator's all-reduces went and why, printed to stderr when it ends or when the
 * process does, with LLANE_STATS=1.
 *
 * Owns: nothing; the counts live in struct llane_comm, written under its lock. Blocking: stderr.
 */
#ifndef LLANE_STATS_H
#define LLANE_STATS_H

#include <stdint.h>

#include "route.h"

struct llane_comm;

void llane_stats_count(struct llane_comm *comm, enum llane_route route, uint64_t bytes);
void llane_stats_print_if_asked(struct llane_comm *comm);

/* At exit: what the process took for all its lanes together. */
void llane_stats_print_process_if_asked(void);

#endif
