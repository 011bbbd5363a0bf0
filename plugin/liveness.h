/*
 * liveness: telling whether another process still lives, by pid and start time (a pid alone is
 * reused). Owns nothing. Any thread; reads /proc, does not block. Errors: none; what cannot be
 * known is reported as "not gone".
 */
#ifndef LLANE_LIVENESS_H
#define LLANE_LIVENESS_H

#include <stdint.h>

struct llane_liveness {
    uint64_t start;         /* clock ticks after boot */
    uint64_t pid_namespace; /* inode; 0 where /proc does not show this process under its own pid */
    int32_t pid;
    int32_t reserved;
};

void llane_liveness_self(struct llane_liveness *out);

/*
 * 1 only when the process is certainly gone (a zombie is gone). 0 when it lives, when it is in
 * another pid namespace than the caller `self`, or when /proc cannot tell.
 */
int llane_liveness_is_gone(const struct llane_liveness *self, const struct llane_liveness *other);

/* As is_gone, and 1 also when it is on its way out: it crashed, and its core is being written. */
int llane_liveness_is_ending(const struct llane_liveness *self, const struct llane_liveness *other);

#endif
