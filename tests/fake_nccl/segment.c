/*
 * The shared memory of one communicator. A file in /dev/shm named from the communicator's id carries
 * the mapping from the first rank that joins to the last, and is unlinked there. Byte r + 1 of the
 * file is locked by rank r (an open file description lock, so threads count like processes and a
 * killed rank lets go); byte 0 guards the initialisation.
 */
#define _GNU_SOURCE
#include "fake.h"

#include "shm_sweep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static int lock_byte(int fd, int command, short type, int byte, short *type_out)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int r = fcntl(fd, command, &lock);
    if (type_out)
        *type_out = lock.l_type;
    return r;
}

/* Opens (or creates) the file and locks this rank's byte; a file unlinked meanwhile is left. */
static int open_locked(const char *name, int rank, const atomic_int *abort)
{
    unsigned n_polls = 0;
    while (!atomic_load(abort)) {
        int fd = shm_open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        struct stat st;
        if (lock_byte(fd, F_OFD_SETLK, F_WRLCK, rank + 1, NULL) == 0 && fstat(fd, &st) == 0 &&
            st.st_nlink > 0)
            return fd;
        close(fd); /* a sweep or a second process of this rank holds it */
        fake_pause(&n_polls);
    }
    errno = ECANCELED;
    return -1;
}

static size_t align_up(size_t n)
{
    return (n + 4095) & ~(size_t)4095;
}

static void lay_out(struct fake_segment *s)
{
    size_t n = (size_t)s->n_ranks;
    uint8_t *p = s->base;
    s->ranks = (struct fake_rank *)p;
    p += align_up(n * sizeof(struct fake_rank));
    s->chunks = (struct fake_chunk *)p;
    p += align_up(n * FAKE_DEPTH * sizeof(struct fake_chunk));
    s->channels = (struct fake_channel *)p;
}

static size_t size_of(int n_ranks)
{
    size_t n = (size_t)n_ranks;
    return align_up(n * sizeof(struct fake_rank)) +
           align_up(n * FAKE_DEPTH * sizeof(struct fake_chunk)) +
           align_up(n * n * sizeof(struct fake_channel));
}

static uint64_t host_hash(void)
{
    uint64_t h = 1469598103934665603u;
    const char *id = fake_getenv("NCCL_HOSTID");
    for (; id && *id; id++)
        h = (h ^ (uint8_t)*id) * 1099511628211u;
    return h;
}

static void count_nodes(struct fake_segment *s)
{
    s->n_nodes = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        int q = 0;
        while (q < r && s->ranks[q].host_hash != s->ranks[r].host_hash)
            q++;
        s->n_nodes += q == r;
    }
}

/* Waits for all ranks; looks now and then whether those that came are still alive. */
static ncclResult_t wait_for_all(struct fake_segment *s, const atomic_int *abort)
{
    unsigned n_polls = 0;
    for (;;) {
        int n_here = 0;
        for (int r = 0; r < s->n_ranks; r++) /* pairs with the store in fake_segment_join */
            n_here += (int)atomic_load_explicit(&s->ranks[r].attached, memory_order_acquire);
        if (n_here == s->n_ranks)
            return ncclSuccess;
        if (atomic_load(abort))
            return ncclInternalError;
        for (int r = 0; n_polls % 256 == 255 && r < s->n_ranks; r++) {
            short held = F_WRLCK;
            if (r == s->rank || !atomic_load(&s->ranks[r].attached))
                continue;
            if (lock_byte(s->fd, F_OFD_GETLK, F_WRLCK, r + 1, &held) == 0 && held == F_UNLCK) {
                FAKE_WARN("rank %d died before all %d ranks had joined", r, s->n_ranks);
                return ncclRemoteError;
            }
        }
        fake_pause(&n_polls);
    }
}

ncclResult_t fake_segment_join(uint64_t id, int rank, int n_ranks, const atomic_int *abort,
                               struct fake_segment *out)
{
    fake_shm_sweep();
    char name[64];
    const char *tag = getenv("FAKE_NCCL_SHM_TAG"); /* a test's own, to tell what it left */
    snprintf(name, sizeof(name), "/" FAKE_SHM_PREFIX "%.20s-%016llx", tag ? tag : "",
             (unsigned long long)id);
    struct fake_segment s = {.rank = rank, .n_ranks = n_ranks, .bytes = size_of(n_ranks)};
    ncclResult_t result = ncclSystemError;
    s.fd = open_locked(name, rank, abort);
    if (s.fd < 0) {
        FAKE_WARN("cannot open /dev/shm%s: %s", name, strerror(errno));
        return ncclSystemError;
    }
    struct stat st;
    if (lock_byte(s.fd, F_OFD_SETLKW, F_WRLCK, 0, NULL) != 0 || fstat(s.fd, &st) != 0)
        goto undo_open;
    if (st.st_size == 0 && ftruncate(s.fd, (off_t)s.bytes) != 0)
        goto undo_open;
    if (st.st_size != 0 && (size_t)st.st_size != s.bytes) {
        FAKE_WARN("rank %d joins %d ranks, but others joined another number", rank, n_ranks);
        result = ncclInvalidUsage;
        goto undo_open;
    }
    lock_byte(s.fd, F_OFD_SETLK, F_UNLCK, 0, NULL);
    s.base = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
    if (s.base == MAP_FAILED)
        goto undo_open;
    lay_out(&s);
    s.ranks[rank].host_hash = host_hash();
    /* Publishes this rank's record; pairs with the load in wait_for_all. */
    atomic_store_explicit(&s.ranks[rank].attached, 1, memory_order_release);
    result = wait_for_all(&s, abort);
    shm_unlink(name);
    if (result != ncclSuccess)
        goto undo_map;
    count_nodes(&s);
    *out = s;
    return ncclSuccess;

undo_map:
    munmap(s.base, s.bytes);
undo_open:
    close(s.fd);
    return result;
}

void fake_segment_leave(struct fake_segment *s)
{
    munmap(s->base, s->bytes);
    close(s->fd);
}

ncclResult_t fake_segment_exchange(struct fake_segment *s, uint64_t n, const int in[2],
                                   const atomic_int *abort, int (*out)[2])
{
    /* Both loops pair with the releases below: a record is rewritten when all have read it. */
    unsigned n_polls = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        while (atomic_load_explicit(&s->ranks[r].exchange_read, memory_order_acquire) < n) {
            if (atomic_load(abort))
                return ncclInternalError;
            fake_pause(&n_polls);
        }
    }
    s->ranks[s->rank].exchange[0] = in[0];
    s->ranks[s->rank].exchange[1] = in[1];
    atomic_store_explicit(&s->ranks[s->rank].exchange_posted, n + 1, memory_order_release);
    for (int r = 0; r < s->n_ranks; r++) {
        while (atomic_load_explicit(&s->ranks[r].exchange_posted, memory_order_acquire) < n + 1) {
            if (atomic_load(abort))
                return ncclInternalError;
            fake_pause(&n_polls);
        }
        if (out) {
            out[r][0] = s->ranks[r].exchange[0];
            out[r][1] = s->ranks[r].exchange[1];
        }
    }
    atomic_store_explicit(&s->ranks[s->rank].exchange_read, n + 1, memory_order_release);
    return ncclSuccess;
}
