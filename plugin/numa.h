/*
 * numa: on which node of the machine host memory lies. By libnuma where it is installed; a machine of
 * one node needs none.
 *
 * Owns: the library's handle, for the life of the process. Threads: any. Blocking: the first call loads
 * the library. Errors: LLANE_ESYS (errno tells), LLANE_ENOSYS (see llane_numa_obstacle).
 */
#ifndef LLANE_NUMA_H
#define LLANE_NUMA_H

#include <stddef.h>

/* NULL: memory can be placed. Otherwise why not, in words. */
const char *llane_numa_obstacle(void);

/* Pages of the range that are yet to be allocated come from node, if it has some. */
int llane_numa_prefer(void *from, size_t bytes, int node);

/* How many of n_pages_out pages of the range, up to 64 of them, lie on node. */
int llane_numa_count(const void *from, size_t bytes, int node, int *n_there_out, int *n_pages_out);

#endif
