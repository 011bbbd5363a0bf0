#include "peers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "err.h"

struct mapping {
    struct llane_remote_memory memory;
    int device;
    uint8_t *pointer;
    struct mapping *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings; /* under lock */

static pthread_once_t token_once = PTHREAD_ONCE_INIT;
static uint64_t token[2];
static int token_err;

static void draw_token(void)
{
    token_err = getrandom(token, sizeof token, 0) == (ssize_t)sizeof token ? 0 : LLANE_ESYS;
}

int llane_address_space_self(struct llane_address_space *out)
{
    pthread_once(&token_once, draw_token);
    memcpy(out->token, token, sizeof token);
    out->pid = getpid();
    return token_err;
}

int llane_address_space_is_same(const struct llane_address_space *a,
                                const struct llane_address_space *b)
{
    return a->token[0] == b->token[0] && a->token[1] == b->token[1] && a->pid == b->pid;
}

static int map_within_process(const struct llane_remote_memory *memory, int device, uint8_t **out)
{
    int err = memory->device == device ? 0 : llane_gpu_peer_enable(memory->device);
    if (!err) {
        *out = (uint8_t *)(uintptr_t)memory->address; // NOLINT(performance-no-int-to-ptr)
    }
    return err;
}

static int map_from_process(const struct llane_remote_memory *memory, int device, uint8_t **out)
{
    int err = 0;
    if (!memory->is_exported) {
        return LLANE_EREFUSED;
    }
    pthread_mutex_lock(&lock);
    struct mapping *m = mappings;
    while (m &&
           (m->device != device || !llane_address_space_is_same(&m->memory.owner, &memory->owner) ||
            memcmp(&m->memory.handle, &memory->handle, sizeof memory->handle) != 0)) {
        m = m->next;
    }
    if (!m) {
        void *pointer;
        m = malloc(sizeof *m);
        err = m ? llane_gpu_ipc_open(&memory->handle, &pointer) : LLANE_ENOMEM;
        if (err) {
            free(m);
            goto done;
        }
        *m = (struct mapping){*memory, device, pointer, mappings};
        mappings = m;
    }
    *out = m->pointer;
done:
    pthread_mutex_unlock(&lock);
    return err;
}

int llane_peers_map(const struct llane_remote_memory *memory, int device, uint8_t **out)
{
    struct llane_address_space self;
    int err = llane_address_space_self(&self);
    if (err) {
        return err;
    }
    return llane_address_space_is_same(&self, &memory->owner)
               ? map_within_process(memory, device, out)
               : map_from_process(memory, device, out);
}
