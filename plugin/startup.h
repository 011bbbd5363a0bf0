/*
 * startup: which door llane came in by, and the one line that says so. door.c holds the constructor
 * alone, so that what merely links llane's modules (unit tests, tools) is not taken over.
 *
 * Threads: any. Blocking: as a scan of interpose and the logger. Errors: none.
 * With LLANE_ENABLE=0 only llane_startup_announce() may be called, and does nothing.
 */
#ifndef LLANE_STARTUP_H
#define LLANE_STARTUP_H

#include "log.h"

/* The constructor. */
void llane_startup_load(void);

/* The init of a plugin of this kind, a literal: hands on the logger, redirects libnccls that have come
 * since, says the line. logger is NULL from env plugins before NCCL 2.30 and profilers before 2.27. */
void llane_startup_plugin(const char *kind, llane_nccl_logger logger);

/*
 * The line, once: "llane VERSION: door DOOR, NCCL X.Y.Z at PATH, N call sites redirected". For
 * creation hooks under doors that bring no logger: call it after the creating call has returned,
 * since NCCL's logger may have come during it.
 */
void llane_startup_announce(void);

#endif
