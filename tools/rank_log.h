/*
 * rank_log: what a tool sets in the process of a rank whose log it reads, whatever its user asked NCCL
 * to log and where: llane's lines come with NCCL's INFO lines, and on the pipe that stdout is.
 * Last of all settings, before the process becomes the rank.
 */
#ifndef LLANE_RANK_LOG_H
#define LLANE_RANK_LOG_H

#include <stdlib.h>

/* subsystems: as NCCL_DEBUG_SUBSYS names them. has_stats: llane's counts at the end. */
static inline void rank_log_is_read(const char *subsystems, int has_stats)
{
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_SUBSYS", subsystems, 1);
    unsetenv("NCCL_DEBUG_FILE");
    if (has_stats) {
        setenv("LLANE_STATS", "1", 1);
    } else {
        unsetenv("LLANE_STATS");
    }
}

/* Of a rank whose lines would be mixed up with those of the one that is read. */
static inline void rank_log_is_quiet(void)
{
    setenv("NCCL_DEBUG", "WARN", 1);
    unsetenv("NCCL_DEBUG_FILE");
    unsetenv("LLANE_STATS");
}

#endif
