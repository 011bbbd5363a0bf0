#include "key.h"

#include <stdatomic.h>
#include <unistd.h>

#include "peers.h"

enum source { TUNER = 1, UNIQUE_ID, PROCESS, CHILD };

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

void llane_key_of_tuner(uint64_t comm_id, struct llane_board_key *out)
{
    fill(TUNER, &comm_id, sizeof comm_id, out);
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
