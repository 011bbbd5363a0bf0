/*
 * stats_write: what statistics look like, as text and as JSON. Pure but for the stream: no lock, no
 * communicator is touched. For stats.c.
 */
#ifndef LLANE_STATS_WRITE_H
#define LLANE_STATS_WRITE_H

#include <stdint.h>
#include <stdio.h>

#include "ab.h"
#include "comm_options.h"
#include "shadow.h"
#include "stats.h"

/* What is reported of one communicator. */
struct llane_stats_record {
    struct llane_stats_record *next;
    int rank, n_ranks, inactive_reason;
    uint32_t id;
    char name[LLANE_NAME_BYTES]; /* as llane_comm_name_copy leaves it */
    int64_t setup_ms;
    struct llane_stats stats;
    uint64_t launched[LLANE_SIZE_BUCKETS][LLANE_N_ALGORITHMS][LLANE_N_PACKETS];
    int has_ab, has_shadow;
    struct llane_ab_summary ab;
    struct llane_shadow_summary shadow;
};

/* A communicator's lines; the first is the one that other programs read. */
void llane_stats_print(const struct llane_stats_record *r, FILE *file);
/* What LLANE_AB found on it; nothing if it measured nothing. */
void llane_stats_print_ab(const struct llane_stats_record *r, FILE *file);
/* What the process took for all its lanes together; nothing if nothing. */
void llane_stats_print_process(FILE *file);

/* All of a process, first a list by next. */
void llane_stats_write_text(const struct llane_stats_record *first, FILE *file);
void llane_stats_write_json(const struct llane_stats_record *first, FILE *file);

#endif
