/*
 * nccl_tuning: which algorithm, protocol and number of channels NCCL shall use for the calls that stay
 * with it, from the file that LLANE_NCCL_TUNING names. Without one nothing is ever changed.
 *
 * Owns: one immutable table, read by the first caller of llane_nccl_tuning(). Threads: any. Blocking:
 * that first call reads a file (a tuner's init, never a collective). Errors: a file with a mistake is
 * warned about with its line and not used at all.
 *
 * A line of the file: collective,bytes from,bytes to,ranks,nodes,algorithm,protocol,channels. The
 * first line that fits a call holds. Sizes take K, M and G; "*" fits everything, or leaves NCCL's
 * number of channels. Empty lines, what follows a "#", and a first line that begins with "collective"
 * are passed over.
 */
#ifndef LLANE_NCCL_TUNING_H
#define LLANE_NCCL_TUNING_H

#include <stddef.h>
#include <stdint.h>

/* NCCL's own numbers: ncclFunc_t, NCCL_ALGO_*, NCCL_PROTO_*. */
enum {
    LLANE_NCCL_FUNC_BROADCAST,
    LLANE_NCCL_FUNC_REDUCE,
    LLANE_NCCL_FUNC_ALL_GATHER,
    LLANE_NCCL_FUNC_REDUCE_SCATTER,
    LLANE_NCCL_FUNC_ALL_REDUCE,
};
enum {
    LLANE_NCCL_TREE,
    LLANE_NCCL_RING,
    LLANE_NCCL_COLLNET_DIRECT,
    LLANE_NCCL_COLLNET_CHAIN,
    LLANE_NCCL_NVLS,
    LLANE_NCCL_NVLS_TREE,
    LLANE_NCCL_PAT,
};
enum { LLANE_NCCL_LL, LLANE_NCCL_LL128, LLANE_NCCL_SIMPLE };

enum { LLANE_NCCL_TUNING_BYTES = 1 << 20, LLANE_NCCL_TUNING_CHANNELS = 64 };

struct llane_nccl_tuning_row {
    uint64_t min_bytes, max_bytes;
    uint64_t n_ranks, n_nodes; /* 0: any */
    int func, algorithm, protocol;
    int n_channels; /* 0: NCCL's */
};

struct llane_nccl_tuning {
    size_t n_rows;
    struct llane_nccl_tuning_row rows[];
};

/* A call that NCCL asks about; n_ranks 0: not known, so that only rows for any number fit. */
struct llane_nccl_call {
    int func;
    uint64_t bytes, n_ranks, n_nodes;
};

/*
 * text ends with a zero byte. 0 and a table to be freed; else LLANE_EINVAL, or LLANE_ENOMEM, with the
 * line and what is wrong with it.
 */
int llane_nccl_tuning_parse(const char *text, struct llane_nccl_tuning **out, int *line_out,
                            const char **why_out);

/* NULL: NCCL's choice stands. */
const struct llane_nccl_tuning_row *llane_nccl_tuning_find(const struct llane_nccl_tuning *tuning,
                                                           const struct llane_nccl_call *call);

/*
 * Makes the row's entry of a table of costs the cheapest, as tuners from v3 on do; an entry that NCCL
 * marked as impossible stays so, and then nothing changes.
 */
void llane_nccl_tuning_set_cost(const struct llane_nccl_tuning_row *row, float *costs, int n_algos,
                                int n_protos, int *n_channels);

/*
 * As tuners v1 and v2 do, where NCCL takes the answer unseen: rows that it might not be able to carry
 * out (LL128, which is unsafe over PCIe; CollNet, NVLS where not supported) are passed over.
 */
void llane_nccl_tuning_set_choice(const struct llane_nccl_tuning_row *row, int has_coll_net,
                                  int has_nvls, int *algo, int *proto, int *n_channels);

/* The table that LLANE_NCCL_TUNING names; NULL: none. */
const struct llane_nccl_tuning *llane_nccl_tuning(void);

#endif
