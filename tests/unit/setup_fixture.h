/* A set-up in which ranks have told each other which GPU each is on, for tests that include one of its
 * steps. */
#ifndef SETUP_FIXTURE_H
#define SETUP_FIXTURE_H

#include <string.h>

#include "plugin/setup_steps.h"

/* As rank sees it; the same object at each call. gpu[r]: rank r's. */
static inline struct llane_setup *setup_of(int n_ranks, int rank, const char *gpu)
{
    static struct llane_setup s;
    static struct llane_comm comm;
    static struct llane_lane lane;
    memset(&s, 0, sizeof s);
    memset(&lane, 0, sizeof lane);
    comm.n_ranks = n_ranks;
    comm.rank = rank;
    s.comm = &comm;
    s.lane = &lane;
    for (int r = 0; r < n_ranks; r++) {
        s.identity[r].gpu.uuid[0] = (uint8_t)gpu[r];
    }
    return &s;
}

#endif
