/*
 * host_room: is there memory for so many bytes, before a page of it is written? A process that goes
 * beyond its container's limit is killed, with nothing to tell the user why.
 *
 * Owns: nothing. Threads: any. Blocking: reads small files. Errors: LLANE_ENOMEM, with the words.
 */
#ifndef LLANE_HOST_ROOM_H
#define LLANE_HOST_ROOM_H

#include <stddef.h>
#include <stdint.h>

/*
 * 0, also where nothing can be read; LLANE_ENOMEM: text says how much is needed, how much there is and
 * what to change. root: "" but in tests.
 */
int llane_host_room_check(const char *root, uint64_t bytes, char *text, size_t text_bytes);

/* What to change when memory of so many bytes could not be pinned; "" if no limit is below them. */
void llane_host_room_explain_pinning(uint64_t bytes, char *text, size_t text_bytes);

#endif
