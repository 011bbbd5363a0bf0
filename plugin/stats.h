/*
 * stats: where a communicator's all-reduces went and why, as LLANE_STATS asks: on stderr when it ends
 * or when the process does, or in a file when the process does.
 *
 * Owns: the records of communicators that have ended; a living one's counts are in its struct, under
 * its lock. Threads: any; count and count_error neither allocate nor wait. Blocking: the others, as
 * stderr or the file system. Errors: a file that cannot be written is named on stderr.
 */
#ifndef LLANE_STATS_H
#define LLANE_STATS_H

#include <stdint.h>
#include <stdio.h>

#include "route.h"
#include "sizes.h"

struct llane_comm;

struct llane_stats {
    struct {
        uint64_t calls, bytes;
    } routes[LLANE_SIZE_BUCKETS][LLANE_N_ROUTES];
    uint64_t n_errors; /* calls that returned one, llane's or NCCL's */
};

/* The communicator's lock is held. */
void llane_stats_count(struct llane_stats *stats, enum llane_route route, uint64_t bytes);

/* A communicator's counts so far, to stderr; nothing if neither LLANE_STATS nor LLANE_AB is set. A
 * call under way is waited for, a second at most. */
void llane_stats_print_now(struct llane_comm *comm);

/* A communicator ends, or the process does with it alive. */
void llane_stats_end(struct llane_comm *comm);

/* After the last of them, once. */
void llane_stats_end_process(void);

/*
 * The name of the file: %p, %r and %h in pattern become pid, rank and host; %% is one %. 0, or
 * LLANE_EINVAL where it does not fit. For this module and its test.
 */
int llane_stats_file_name(const char *pattern, int rank, char *out, size_t bytes);

/*
 * write(file) becomes the whole content of the file at path, or that stays as it was: it is written
 * beside it, where nothing else is, and renamed. A device, a pipe, or a link to one or to a descriptor
 * stays, and is written to. 0 or LLANE_ESYS with errno. Does not block.
 */
int llane_stats_write_file(const char *path, void (*write)(FILE *file));

#endif
