/*
 * tuning_text: a tuning table and what it holds for, as the text of a file. Pure.
 *
 *     llane tuning 1
 *     = llane 0.1.0 ...          the key: lines that begin with "= "
 *     = gpu 0 ...
 *     float 256 lane one-shot ll 0 0
 *     float 65536 nccl
 *     sum 0123456789abcdef
 *
 * An entry: class, largest message in bytes, path, and for the lane algorithm, packet, the most blocks
 * and the threads of a block (0: by size). Sizes without an entry are the model's. sum is FNV-1a over
 * the text before its line.
 */
#ifndef LLANE_TUNING_TEXT_H
#define LLANE_TUNING_TEXT_H

#include "tuning.h"

enum { LLANE_TUNING_TEXT_BYTES = 16384, LLANE_TUNING_KEY_BYTES = 4096 };

uint64_t llane_tuning_hash(const void *bytes, size_t n);

/* The text's length; 0: it does not fit. key: lines, each with its newline, none empty. */
size_t llane_tuning_print(const char *key, const struct llane_tuning *tuning, char *text,
                          size_t text_bytes);

/*
 * 0, or LLANE_EINVAL: no such text, or damaged. key_out (LLANE_TUNING_KEY_BYTES) is what it holds for.
 * A table that is parsed may still name what a communicator cannot do: llane_route_can_use.
 */
int llane_tuning_parse(const char *text, size_t n, char *key_out, struct llane_tuning *out);

#endif
