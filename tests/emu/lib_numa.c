/*
 * Stands in for libnuma.so.1 on a machine of two nodes, and writes down what is asked of it into the file
 * that NUMA_RECORD names: "place PID NODE BYTES" and "look PID PAGES". Pages lie where they were to be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int placed_on = -1; /* set-up's helper thread alone comes here, one communicator at a time */

static void record(const char *what, long a, unsigned long b)
{
    const char *path = getenv("NUMA_RECORD");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s %d %ld %lu\n", what, (int)getpid(), a, b);
        fclose(file);
    }
}

int numa_available(void)
{
    return getenv("NUMA_NONE") ? -1 : 0;
}

int numa_max_node(void)
{
    return getenv("NUMA_ONE_NODE") ? 0 : 1;
}

long mbind(void *from, unsigned long bytes, int mode, const unsigned long *nodes,
           unsigned long n_nodes, unsigned flags)
{
    enum { PREFERRED = 1, NODES = 2 }; /* the kernel's: a full node is no reason to fail */
    if (getenv("NUMA_REFUSE") || (unsigned long)from % 4096 || mode != PREFERRED ||
        n_nodes < NODES || flags) {
        return -1;
    }
    placed_on = nodes[0] == 1 ? 0 : nodes[0] == 2 ? 1 : -1;
    record("place", placed_on, bytes);
    return 0;
}

long move_pages(int pid, unsigned long n, void **pages, const int *nodes, int *status, int flags)
{
    (void)pid;
    (void)pages;
    (void)nodes;
    (void)flags;
    for (unsigned long i = 0; i < n; i++) {
        status[i] = placed_on;
    }
    record("look", 0, n);
    return 0;
}
