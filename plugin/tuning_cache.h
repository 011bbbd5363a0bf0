/*
 * tuning_cache: tables in files, one for each key, in a folder of the user's.
 *
 * Owns: nothing. Threads: any; processes too: a file is complete when it gets its name, and the last
 * one to give it wins. Blocking: on the file system. Errors: LLANE_ESYS (no such file, or the folder
 * cannot be written: fine), LLANE_EINVAL (damaged, foreign or not the user's; warned about here, and
 * to be ignored), LLANE_ENOMEM.
 */
#ifndef LLANE_TUNING_CACHE_H
#define LLANE_TUNING_CACHE_H

#include "tuning_text.h"

/* The file of a key. */
void llane_tuning_cache_path(const char *directory, const char *key, char *path, size_t path_bytes);

int llane_tuning_cache_read(const char *directory, const char *key, struct llane_tuning *out);

/* Makes the folder where it is missing, and the one around it. */
int llane_tuning_cache_write(const char *directory, const char *key,
                             const struct llane_tuning *tuning);

/* A file whose name and key the caller does not know beforehand: for tools. */
int llane_tuning_cache_open(const char *path, char *key_out, struct llane_tuning *out);

#endif
