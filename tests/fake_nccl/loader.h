/* loader.c's and plugins.c's own: opening a plugin by the chosen version's rules. */
#ifndef FAKE_NCCL_LOADER_H
#define FAKE_NCCL_LOADER_H

#include "fake.h"

enum fake_plugin { FAKE_PLUGIN_NET, FAKE_PLUGIN_TUNER, FAKE_PLUGIN_PROFILER, FAKE_PLUGIN_ENV };

typedef void (*fake_logger)(int level, unsigned long flags, const char *file, int line,
                            const char *fmt, ...);

/* A handle to close, or NULL. */
void *fake_plugin_open(enum fake_plugin plugin);
/* The first of PREFIX_vN found, N from `versions` (ends with 0): N and its table, or 0. */
int fake_plugin_find(void *library, const char *prefix, const int *versions, void **table_out);

#endif
