#include "contexts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "forks.h"

struct record {
    struct record *next;
    uintptr_t slot;
    uintptr_t ctx;
    uint64_t comm_id;
    size_t n_ranks, n_nodes;
    char name[LLANE_NAME_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static struct record *records;
static uintptr_t last_ctx; /* contexts are never used twice, so a late destroy hits nobody else */

static void guard(void)
{
    llane_forks_guard(&lock);
}

/* 0 in a child that is to leave llane alone. */
static int lock_records(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, guard);
    if (llane_forks_is_passive()) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    return 1;
}

static struct record *find_slot(uintptr_t slot)
{
    struct record *record = records;
    while (record && record->slot != slot) {
        record = record->next;
    }
    return record;
}

void *llane_context_add(void **ctx_slot, size_t n_ranks, size_t n_nodes, uint64_t comm_id,
                        const char *name)
{
    uintptr_t ctx = 0;
    if (!lock_records()) {
        return NULL;
    }
    struct record *record = find_slot((uintptr_t)ctx_slot);
    if (!record) {
        record = calloc(1, sizeof *record);
        if (record) {
            record->next = records;
            records = record;
        }
    }
    if (record) {
        ctx = ++last_ctx;
        record->slot = (uintptr_t)ctx_slot;
        record->ctx = ctx;
        record->comm_id = comm_id;
        record->n_ranks = n_ranks;
        record->n_nodes = n_nodes;
        llane_comm_name_copy(name, record->name);
    }
    pthread_mutex_unlock(&lock);
    return (void *)ctx;
}

const void *llane_context_remove(void *ctx)
{
    uintptr_t slot = 0;
    if (!lock_records()) {
        return NULL;
    }
    struct record **link = &records;
    while (*link && (*link)->ctx != (uintptr_t)ctx) {
        link = &(*link)->next;
    }
    struct record *record = *link;
    if (record) {
        *link = record->next;
        slot = record->slot;
    }
    pthread_mutex_unlock(&lock);
    free(record);
    return (const void *)slot;
}

int llane_context_sizes(void *ctx, size_t *n_ranks_out, size_t *n_nodes_out)
{
    if (!lock_records()) {
        return 0;
    }
    const struct record *record = records;
    while (record && record->ctx != (uintptr_t)ctx) {
        record = record->next;
    }
    if (record) {
        *n_ranks_out = record->n_ranks;
        *n_nodes_out = record->n_nodes;
    }
    pthread_mutex_unlock(&lock);
    return record != NULL;
}

static int is_inside(const struct record *record, const void *comm, size_t comm_bytes)
{
    return record->slot - (uintptr_t)comm < comm_bytes;
}

uint64_t llane_context_find(const void *comm, size_t comm_bytes, char name[LLANE_NAME_BYTES])
{
    uint64_t id = 0;
    uintptr_t newest = 0;
    if (!lock_records()) {
        return 0;
    }
    for (const struct record *r = records; r; r = r->next) {
        if (is_inside(r, comm, comm_bytes) && r->comm_id && r->ctx > newest) {
            newest = r->ctx;
            id = r->comm_id;
        }
    }
    for (const struct record *r = records; r && !name[0]; r = r->next) {
        if (is_inside(r, comm, comm_bytes) && r->comm_id == id) {
            memcpy(name, r->name, LLANE_NAME_BYTES);
        }
    }
    pthread_mutex_unlock(&lock);
    return id;
}
