#include "check.h"

#include <inttypes.h>
#include <stdio.h>

#include "err.h"
#include "nccl_abi.h"

enum { N_BUILT_IN = ncclAvg + 1 };

/* ---- a rank's calls ---- */

/* An operation that a rank made itself has a handle of that rank's: all are one to the check. */
static uint64_t pack(const struct llane_check_what *what)
{
    uint64_t op = what->op >= 0 && what->op < N_BUILT_IN ? (uint64_t)what->op : N_BUILT_IN;
    return (uint64_t)(uint32_t)what->type | op << 32;
}

static void write_call(struct llane_check_call *call, const struct llane_check_what *what)
{
    atomic_store_explicit(&call->number, 0, memory_order_relaxed);
    /* W1 pairs with R2: who sees one of these finds no old number any more. */
    atomic_store_explicit(&call->count, what->count, memory_order_release);
    atomic_store_explicit(&call->what, pack(what), memory_order_release);
    /* Sequentially consistent, as the look at the others' numbers in R1: of two ranks one sees both. */
    atomic_store_explicit(&call->number, what->number, memory_order_seq_cst); /* W2 */
}

/* 0: that rank has not posted this call, or is far ahead. */
static int read_call(const struct llane_check *check, int rank, uint64_t number,
                     struct llane_check_what *out)
{
    const struct llane_check_call *call = &check->calls[rank][number % LLANE_CHECK_CALLS];
    if (atomic_load_explicit(&call->number, memory_order_seq_cst) !=
        number) { /* R1 pairs with W2 */
        return 0;
    }
    uint64_t count = atomic_load_explicit(&call->count, memory_order_acquire); /* R2 */
    uint64_t what = atomic_load_explicit(&call->what, memory_order_acquire);
    *out = (struct llane_check_what){number, count, (int)(uint32_t)what, (int)(what >> 32)};
    return atomic_load_explicit(&call->number, memory_order_relaxed) == number;
}

/* ---- the verdict: [16] call number, [8] a rank, [0] a larger rank ---- */

static void disagree(struct llane_check *check, uint64_t number, int a, int b)
{
    uint64_t none = 0;
    uint64_t low = (uint64_t)(a < b ? a : b), high = (uint64_t)(a < b ? b : a);
    /* The first one stays. Release pairs with tell's acquire: both calls are there. */
    atomic_compare_exchange_strong_explicit(&check->verdict, &none, number << 16 | low << 8 | high,
                                            memory_order_acq_rel, memory_order_relaxed);
}

int llane_check_post(struct llane_check *check, int n_ranks, int rank,
                     const struct llane_check_what *what)
{
    write_call(&check->calls[rank][what->number % LLANE_CHECK_CALLS], what);
    for (int r = 0; r < n_ranks; r++) {
        struct llane_check_what theirs;
        if (r != rank && read_call(check, r, what->number, &theirs) &&
            (theirs.count != what->count || pack(&theirs) != pack(what))) {
            disagree(check, what->number, rank, r);
        }
    }
    return atomic_load_explicit(&check->verdict, memory_order_relaxed) ? LLANE_EREFUSED : 0;
}

static const char *name_of(int i, const char *const *names, int n)
{
    return i >= 0 && i < n ? names[i] : "unknown";
}

static void describe(const struct llane_check *check, int rank, uint64_t number, char *words,
                     size_t bytes)
{
    static const char *const types[] = {"int8",    "uint8",    "int32",      "uint32",
                                        "int64",   "uint64",   "float16",    "float32",
                                        "float64", "bfloat16", "float8e4m3", "float8e5m2"};
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "an operator of its own"};
    struct llane_check_what what;
    if (read_call(check, rank, number, &what)) {
        snprintf(words, bytes, "rank %d %" PRIu64 " %s %s", rank, what.count,
                 name_of(what.type, types, (int)(sizeof types / sizeof *types)),
                 name_of(what.op, ops, (int)(sizeof ops / sizeof *ops)));
    } else {
        snprintf(words, bytes, "rank %d another one", rank);
    }
}

int llane_check_tell(const struct llane_check *check, int n_ranks, char *words, size_t bytes)
{
    uint64_t verdict = atomic_load_explicit(&check->verdict, memory_order_acquire);
    int a = (int)(verdict >> 8 & 0xff), b = (int)(verdict & 0xff);
    if (!verdict) {
        return 0;
    }
    char of_a[96] = "?", of_b[96] = "?";
    if (a < n_ranks && b < n_ranks) {
        describe(check, a, verdict >> 16, of_a, sizeof of_a);
        describe(check, b, verdict >> 16, of_b, sizeof of_b);
    }
    snprintf(words, bytes, "all-reduce call %" PRIu64 ": %s, %s", verdict >> 16, of_a, of_b);
    return 1;
}
