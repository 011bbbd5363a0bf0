#include "numa.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "err.h"

/* The library's thin wrappers of system calls, which print nothing when they fail, as its own calls do. */
static struct {
    int (*available)(void);
    int (*max_node_number)(void);
    long (*mbind)(void *from, unsigned long bytes, int mode, const unsigned long *nodes,
                  unsigned long n_nodes, unsigned flags);
    long (*move_pages)(int pid, unsigned long n, void **pages, const int *nodes, int *status,
                       int flags);
    int max_node;
} lib;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *obstacle;

enum { PREFERRED = 1, BITS = 8 * sizeof(unsigned long), MAX_NODES = 1024, MOST_PAGES = 64 };

static int find(void *handle, const char *name, void *function_out)
{
    void *address = dlsym(handle, name);
    memcpy(function_out, &address, sizeof address);
    return address ? 0 : LLANE_ENOSYS;
}

static void load(void)
{
    void *handle = dlopen("libnuma.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        obstacle = "libnuma.so.1 is not installed";
        return;
    }
    if (find(handle, "numa_available", &lib.available) ||
        find(handle, "numa_max_node", &lib.max_node_number) || find(handle, "mbind", &lib.mbind) ||
        find(handle, "move_pages", &lib.move_pages)) {
        obstacle = "libnuma.so.1 lacks a call";
    } else if (lib.available() < 0) {
        obstacle = "the kernel does not tell nodes apart";
    } else if ((lib.max_node = lib.max_node_number()) == 0) {
        obstacle = "the machine has one node";
    }
}

const char *llane_numa_obstacle(void)
{
    pthread_once(&once, load);
    return obstacle;
}

int llane_numa_prefer(void *from, size_t bytes, int node)
{
    if (llane_numa_obstacle() || node < 0 || node > lib.max_node || node >= MAX_NODES) {
        return LLANE_ENOSYS;
    }
    unsigned long nodes[MAX_NODES / BITS] = {0};
    nodes[(unsigned)node / BITS] = 1ul << (unsigned)node % BITS;
    return lib.mbind(from, bytes, PREFERRED, nodes, MAX_NODES, 0) ? LLANE_ESYS : 0;
}

int llane_numa_count(const void *from, size_t bytes, int node, int *n_there_out, int *n_pages_out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    size_t step = n > MOST_PAGES ? n / MOST_PAGES : 1;
    void *pages[MOST_PAGES];
    int status[MOST_PAGES];
    int n_pages = 0;
    if (llane_numa_obstacle()) {
        return LLANE_ENOSYS;
    }
    for (size_t i = 0; i < n && n_pages < MOST_PAGES; i += step) {
        pages[n_pages++] = (char *)(void *)(size_t)from + i * page;
    }
    /* No nodes to move them to: only asks. */
    if (lib.move_pages(0, (unsigned long)n_pages, pages, NULL, status, 0)) {
        return LLANE_ESYS;
    }
    *n_there_out = 0;
    for (int i = 0; i < n_pages; i++) {
        *n_there_out += status[i] == node;
    }
    *n_pages_out = n_pages;
    return 0;
}
