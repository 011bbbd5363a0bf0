/*
 * ranks: what a rank's process knows of the others before NCCL does, through the folder that
 * prog_ranks made (RANKS_DIR): small files, written once and renamed into place.
 *
 * Blocking: fetch and barrier wait up to a minute, then end the process with a message.
 */
#ifndef LLANE_TEST_RANKS_H
#define LLANE_TEST_RANKS_H

#include "nccl_client.h"

#include <stddef.h>

/* RANK and WORLD_SIZE; 0 and 1 without a harness. */
int ranks_rank(void);
int ranks_size(void);
void ranks_publish(const char *name, const void *data, size_t bytes);
void ranks_fetch(const char *name, void *data, size_t bytes);
/* All WORLD_SIZE ranks; each name once. */
void ranks_barrier(const char *name);
/* Rank 0 makes an id, all get it. `get` is ncclGetUniqueId, however it was found. */
void ranks_unique_id(const char *name, ncclResult_t (*get)(ncclUniqueId *), ncclUniqueId *out);

/* Of a clock that nobody sets. sleep_ms: for at least so long, whatever signals come. */
double ranks_now_ms(void);
void ranks_sleep_ms(long ms);

/* Ends the program with status 1 and the words of the failure. */
#define RANKS_CHECK(call)                                                                          \
    do {                                                                                           \
        int result_ = (int)(call);                                                                 \
        if (result_ != 0)                                                                          \
            ranks_die(__FILE__, __LINE__, #call, result_);                                         \
    } while (0)
__attribute__((noreturn)) void ranks_die(const char *file, int line, const char *what, int result);

#endif
