/*
 * Memory of the emulated GPU. A device allocation is a memfd mapped shared; another process maps the
 * same file through /proc/<pid>/fd/<n>. Nothing has a name, so nothing outlives its last user.
 */
#define _GNU_SOURCE
#include "emu_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct handle {
    uint64_t magic;
    int32_t pid, fd;
    uint64_t inode; /* tells whether /proc/<pid>/fd/<fd> is still the same file */
    uint64_t bytes;
    int32_t owner;
};
_Static_assert(sizeof(struct handle) <= sizeof(struct llane_gpu_ipc_handle), "handle too large");
static const uint64_t handle_magic = 0x6c6c616e65656d75; /* "llaneemu" */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_region *regions;
/* Release in free and open; pairs with the acquire in emu_region_generation(). */
static uint64_t generation = 1;
static uint64_t free_calls; /* relaxed counter */
/* What llane_gpu_host_alloc gave, under lock; `device` was current. */
static struct pinned {
    void *base;
    size_t bytes;
    int device;
    struct pinned *next;
} * all_pinned;
/* Threads that wait in llane_gpu_free, by physical device; relaxed: no call is ordered by them. */
static uint32_t n_freeing[EMU_MAX_DEVICES];

static size_t round_up(size_t bytes)
{
    const size_t page = 4096;
    return (bytes + page - 1) & ~(page - 1);
}

static int add_region(void *base, size_t bytes, int owner, bool imported, int fd, uint64_t inode)
{
    struct emu_region *region = calloc(1, sizeof *region);
    if (!region)
        return emu_error("out of host memory");
    region->base = base;
    region->bytes = bytes;
    region->owner = owner;
    region->imported = imported;
    region->fd = fd;
    region->inode = inode;
    pthread_mutex_lock(&lock);
    region->next = regions;
    regions = region;
    __atomic_fetch_add(&generation, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return 0;
}

uint64_t emu_region_generation(void)
{
    return __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
}

struct emu_region *emu_region_find(const void *p)
{
    uintptr_t address = (uintptr_t)p;
    pthread_mutex_lock(&lock);
    struct emu_region *region = regions;
    while (region && address - (uintptr_t)region->base >= region->bytes)
        region = region->next;
    pthread_mutex_unlock(&lock);
    return region;
}

void emu_wait_for_frees(int physical)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    while (__atomic_load_n(&n_freeing[physical], __ATOMIC_RELAXED))
        nanosleep(&pause, NULL);
}

int llane_gpu_malloc(size_t bytes, void **out)
{
    int owner = emu_current_physical();
    if (owner < 0 || emu_check_fail("malloc") || emu_check_unsafe("malloc"))
        return LLANE_EGPU;
    if (bytes == 0) {
        *out = NULL;
        return 0;
    }
    emu_wait_for_frees(owner);
    size_t mapped = round_up(bytes);
    int fd = memfd_create("llane-emu", MFD_CLOEXEC);
    if (fd < 0)
        return emu_error("malloc: memfd_create: %s", strerror(errno));
    void *p = MAP_FAILED;
    struct stat status;
    if (ftruncate(fd, (off_t)mapped) == 0 && fstat(fd, &status) == 0)
        p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        emu_error("malloc of %zu bytes: %s", bytes, strerror(errno));
        goto undo_fd;
    }
    memset(p, 0xA5, mapped); /* nobody may count on zeros */
    if (add_region(p, mapped, owner, false, fd, status.st_ino) < 0)
        goto undo_map;
    *out = p;
    return 0;

undo_map:
    munmap(p, mapped);
undo_fd:
    close(fd);
    return LLANE_EGPU;
}

uint64_t llane_emu_free_calls(void)
{
    return __atomic_load_n(&free_calls, __ATOMIC_RELAXED);
}

int llane_gpu_free(void *p)
{
    __atomic_fetch_add(&free_calls, 1, __ATOMIC_RELAXED);
    if (emu_check_unsafe("free"))
        return LLANE_EGPU;
    if (!p)
        return 0;
    /* Looked up before the wait as CUDA does: a bad pointer fails at once. */
    struct emu_region *region = emu_region_find(p);
    if (!region || region->base != p || region->imported)
        return emu_error("free: %p is no allocation of this process", p);
    __atomic_fetch_add(&n_freeing[region->owner], 1, __ATOMIC_RELAXED);
    for (int device = 0; device < emu_config()->n_devices; device++) {
        if (emu_config()->physical[device] == region->owner)
            emu_device_drain(device);
    }
    __atomic_fetch_sub(&n_freeing[region->owner], 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    struct emu_region **link = &regions;
    while (*link && *link != region)
        link = &(*link)->next;
    bool was_there = *link != NULL;
    if (was_there)
        *link = region->next;
    __atomic_fetch_add(&generation, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    if (!was_there)
        return emu_error("free: %p freed twice", p);
    munmap(region->base, region->bytes);
    close(region->fd);
    for (int i = 0; i < EMU_MAX_DEVICES; i++) {
        free(region->shadow[i]);
        free(region->shadow_valid[i]);
    }
    free(region);
    return 0;
}

int llane_gpu_ipc_export(void *base, struct llane_gpu_ipc_handle *out)
{
    if (emu_check_fail("ipc_export"))
        return LLANE_EGPU;
    struct emu_region *region = emu_region_find(base);
    if (!region || region->base != base || region->imported)
        return emu_error("ipc_export: %p is no allocation of this process", base);
    struct handle handle = {.magic = handle_magic,
                            .pid = getpid(),
                            .fd = region->fd,
                            .inode = region->inode,
                            .bytes = region->bytes,
                            .owner = region->owner};
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &handle, sizeof handle);
    return 0;
}

/* The mapping made by an earlier open of the same handle. */
static void *find_imported(uint64_t inode)
{
    void *base = NULL;
    pthread_mutex_lock(&lock);
    for (struct emu_region *region = regions; region && !base; region = region->next) {
        if (region->imported && region->inode == inode)
            base = region->base;
    }
    pthread_mutex_unlock(&lock);
    return base;
}

int llane_gpu_ipc_open(const struct llane_gpu_ipc_handle *bytes, void **out)
{
    struct handle handle;
    memcpy(&handle, bytes->bytes, sizeof handle);
    if (emu_current_physical() < 0 || emu_check_fail("ipc_open") || emu_check_unsafe("ipc_open"))
        return LLANE_EGPU;
    if (handle.magic != handle_magic || handle.owner < 0 || handle.owner >= EMU_MAX_DEVICES)
        return emu_error("ipc_open: not a handle");
    if (handle.pid == getpid())
        return emu_error("ipc_open: the handle was made by this very process");
    emu_wait_for_frees(emu_current_physical());
    if (emu_peer_open("ipc_open", handle.owner))
        return LLANE_EGPU;
    if ((*out = find_imported(handle.inode)))
        return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return emu_error("ipc_open: %s: %s", path, strerror(errno));
    struct stat status;
    void *p = MAP_FAILED;
    if (fstat(fd, &status) < 0 || status.st_ino != handle.inode) {
        emu_error("ipc_open: the exporter has freed this memory");
        goto undo_fd;
    }
    p = mmap(NULL, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        emu_error("ipc_open: mmap: %s", strerror(errno));
        goto undo_fd;
    }
    if (add_region(p, handle.bytes, handle.owner, true, -1, handle.inode) < 0)
        goto undo_map;
    close(fd);
    *out = p;
    return 0;

undo_map:
    munmap(p, handle.bytes);
undo_fd:
    close(fd);
    return LLANE_EGPU;
}

int llane_gpu_host_alloc(size_t bytes, void **host_out, void **device_out)
{
    if (emu_current_physical() < 0 || emu_check_fail("host_alloc") ||
        emu_check_unsafe("host_alloc"))
        return LLANE_EGPU;
    emu_wait_for_frees(emu_current_physical());
    void *p =
        mmap(NULL, round_up(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return emu_error("host_alloc of %zu bytes: %s", bytes, strerror(errno));
    struct pinned *pinned = calloc(1, sizeof *pinned);
    if (!pinned)
        return emu_error("out of host memory");
    *pinned = (struct pinned){p, round_up(bytes), emu_current_device(), NULL};
    pthread_mutex_lock(&lock);
    pinned->next = all_pinned;
    all_pinned = pinned;
    pthread_mutex_unlock(&lock);
    *host_out = *device_out = p;
    return 0;
}

/* No access from here on, and no other mapping in its place. */
static void close_off(void *base, size_t bytes)
{
    if (mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        emu_die("mmap: %s", strerror(errno));
}

/* What the process itself allocated there. Imported and registered memory stays. */
void emu_memory_lose(int device)
{
    int physical = emu_config()->physical[device];
    pthread_mutex_lock(&lock);
    for (struct emu_region *region = regions; region; region = region->next) {
        if (!region->imported && region->owner == physical)
            close_off(region->base, region->bytes);
    }
    for (struct pinned *pinned = all_pinned; pinned; pinned = pinned->next) {
        if (pinned->device == device)
            close_off(pinned->base, pinned->bytes);
    }
    pthread_mutex_unlock(&lock);
}

/* As device memory of nobody in particular: stores to it can be faulty. */
int llane_gpu_host_register(void *host, size_t bytes, void **device_out)
{
    if (emu_current_physical() < 0 || emu_check_fail("host_register") ||
        emu_check_unsafe("host_register"))
        return LLANE_EGPU;
    emu_wait_for_frees(emu_current_physical());
    *device_out = host;
    return add_region(host, round_up(bytes), EMU_HOST, true, -1, 0) ? LLANE_EGPU : 0;
}
