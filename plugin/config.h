/*
 * config: the process's settings, read once from the environment; the only module that calls getenv.
 *
 * Owns: one immutable struct. Threads: any; the first caller parses. Blocking: no. Errors: a bad
 * value is warned about once, with variable, value and range, and the default is used; unknown
 * LLANE_* names are warned about.
 */
#ifndef LLANE_CONFIG_H
#define LLANE_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "config_table.h"

#define LLANE_FIELD_BOOL uint64_t
#define LLANE_FIELD_INT uint64_t
#define LLANE_FIELD_SIZE uint64_t
#define LLANE_FIELD_WORD uint64_t
#define LLANE_FIELD_TEXT const char *
struct llane_config {
#define LLANE_FIELD(field, variable, kind, def, min, max, words, doc) LLANE_FIELD_##kind field;
    LLANE_CONFIG(LLANE_FIELD)
#undef LLANE_FIELD
};

const struct llane_config *llane_config(void);

/* The environment as NCCL's env plugin door hands it on. */
const char *llane_config_getenv(const char *name);

/* NCCL_DEBUG asks for INFO or more: governs lines written before NCCL's logger is known. */
int llane_config_debug_is_info(void);

/* NCCL_DEBUG asks for INFO and NCCL_DEBUG_SUBSYS for collective calls. Cheap. */
int llane_config_debug_has_calls(void);

/* NCCL's own variables that change what llane has to do; as NCCL does, read when a communicator is
 * created (it puts its configuration file into the environment). 1 and the number if set. */
int llane_config_nccl_number(const char *name, int *out);
/* NCCL_COMM_ID is set, so that all unique ids are one. */
int llane_config_nccl_comm_id(void);
/* NCCL_CHECK_POINTERS or NCCL_CHECK_MODE ask NCCL to look at every call's arguments. */
int llane_config_nccl_checks(void);

/* $XDG_CACHE_HOME/llane, or .cache/llane in the home folder; 0: neither is named. */
int llane_config_cache_directory(char *path, size_t bytes);

/* 1 if name stands in LD_PRELOAD: tells the preload door from the others. */
int llane_config_is_preloaded(const char *name);

/*
 * Parses one value of a table row's kind; 0 or LLANE_EINVAL. words: names divided by spaces, for
 * WORD. For the parser and its tests.
 */
enum llane_config_kind {
    LLANE_KIND_BOOL,
    LLANE_KIND_INT,
    LLANE_KIND_SIZE,
    LLANE_KIND_WORD,
    LLANE_KIND_TEXT, /* not for llane_config_parse: any text is taken */
};
int llane_config_parse(enum llane_config_kind kind, const char *text, uint64_t min, uint64_t max,
                       const char *words, uint64_t *out);

/* docs/config.md, generated. */
void llane_config_write_doc(FILE *file);

#endif
