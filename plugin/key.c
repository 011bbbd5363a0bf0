#include "key.h"

#include <stdatomic.h>
#include <unistd.h>

#include "peers.h"

enum source { NCCL_ID = 1, UNIQUE_ID, PROCESS, CHILD, EXCLUDED };

/* FNV-1a, run twice from different bases: ids must not collide by chance, nothing more; a guessed id
 * meets the board's own checks. */
static uint64_t hash(uint64_t base, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t h = 0xcbf29ce484222325ull ^ base;
    for (size_t i = 0; i < bytes; i++) {
        h = (h ^ at[i]) * 0x100000001b3ull;
    }
    return h ^ (h >> 29);
}

static void fill(enum source source, const void *data, size_t bytes, struct llane_board_key *out)
{
    out->comm_id[0] = hash((uint64_t)source, data, bytes);
    out->comm_id[1] = hash(~(uint64_t)source, data, bytes);
}

uint64_t llane_key_shrink_of_split(uint64_t parents)
{
    return parents == LLANE_KEY_GROWN ? LLANE_KEY_NAMELESS : parents;
}

uint64_t llane_key_shrink_of_grow(uint64_t parents)
{
    return parents && parents != LLANE_KEY_GROWN ? LLANE_KEY_NAMELESS : LLANE_KEY_GROWN;
}

uint64_t llane_key_of_shrink(uint64_t parents, const int *excluded, int n_excluded,
                             uint64_t n_shrinks_before)
{
    uint64_t both[2] = {parents, 0};
    for (int i = 0; i < n_excluded && excluded; i++) {
        /* A sum: the order is each caller's own. */
        both[1] += hash(EXCLUDED, &excluded[i], sizeof excluded[i]);
    }
    uint64_t name = hash(EXCLUDED, both, sizeof both);
    int is_parent_nameless = llane_key_shrink_of_split(parents) == LLANE_KEY_NAMELESS;
    return is_parent_nameless || n_shrinks_before || name <= LLANE_KEY_GROWN ? LLANE_KEY_NAMELESS
                                                                             : name;
}

void llane_key_of_nccl_id(uint64_t comm_id, uint64_t shrink, struct llane_board_key *out)
{
    const uint64_t both[2] = {comm_id, shrink == LLANE_KEY_GROWN ? 0 : shrink};
    fill(NCCL_ID, both, sizeof both, out);
}

void llane_key_of_unique_id(const ncclUniqueId *id, struct llane_board_key *out)
{
    fill(UNIQUE_ID, id, sizeof *id, out);
}

void llane_key_of_process(struct llane_board_key *out)
{
    static _Atomic uint64_t counter;
    struct {
        struct llane_address_space space;
        uint64_t number;
    } mine = {.number = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed)};
    llane_address_space_self(&mine.space);
    fill(PROCESS, &mine, sizeof mine, out);
}

void llane_key_of_child(const struct llane_board_key *parent, uint64_t number, int color,
                        struct llane_board_key *out)
{
    struct {
        struct llane_board_key parent;
        uint64_t number;
        int64_t color;
    } child = {*parent, number, color};
    fill(CHILD, &child, sizeof child, out);
}
