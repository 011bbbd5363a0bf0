/*
 * comm_options: what a communicator's ncclConfig_t, NCCL's variables and its parent say that llane has
 * to know. The layout that a caller's ncclConfig_t has follows from its version, which the caller's
 * header wrote. Pure but for the environment.
 */
#ifndef LLANE_COMM_OPTIONS_H
#define LLANE_COMM_OPTIONS_H

#include "nccl_abi.h"

enum { LLANE_NAME_BYTES = 64 };

struct llane_comm_options {
    int max_ctas;     /* NCCL_MAX_CTAS, else the config's; 0: no limit */
    int split_share;  /* children made by ncclCommSplit share the parent's resources, hence order */
    int shrink_share; /* likewise by ncclCommShrink */
    int is_blocking;  /* else calls return before they are done, as ncclInProgress */
    int graph_usage;  /* 2: graphs and eager calls mix, and are ordered (NCCL's default) */
    int is_launch_ordered; /* NCCL orders the launches of all communicators of a device */
    int has_common_id;     /* NCCL_COMM_ID is set, or was for its parent */
    int is_guessed; /* its config, or that which it inherits, was read before llane was there */
    char name[LLANE_NAME_BYTES]; /* the config's commName, as copied below; "": none */
};

/* config and parent may be NULL; as NCCL does, a child without a config takes its parent's. */
struct llane_comm_options llane_comm_options_read(const ncclConfig_t *config,
                                                  const struct llane_comm_options *parent);

/* Cut to fit, and with '?' for what is not plain in JSON and in a line of text; NULL gives "". */
void llane_comm_name_copy(const char *name, char out[LLANE_NAME_BYTES]);

#endif
