/*
 * doctor_text: growing text, and numbers and lines taken from text that nobody vouches for.
 *
 * Owns: a text's memory. Threads: any, one a text. Blocking: no. Errors: a text that cannot grow
 * marks itself broken and stays as it is; parsers return 0 or -1.
 */
#ifndef DOCTOR_TEXT_H
#define DOCTOR_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct doctor_text {
    char *at; /* NUL-terminated once anything was added; NULL before */
    size_t n, cap;
    int is_broken; /* out of memory */
};

__attribute__((format(printf, 2, 3))) void doctor_text_add(struct doctor_text *text,
                                                           const char *format, ...);
void doctor_text_add_bytes(struct doctor_text *text, const char *bytes, size_t n);
void doctor_text_free(struct doctor_text *text);
/* "" for a text that nothing was added to. */
const char *doctor_text_get(const struct doctor_text *text);

/* The whole word is a number of this base (0: 0x.. or decimal) and at most `most`. */
int doctor_number(const char *word, int base, uint64_t most, uint64_t *out);

/* Copies what fits and ends it. Control characters become '?': logs may hold anything. */
void doctor_copy(char *to, size_t cap, const char *from);

/*
 * The next line of a text, without its end, cut at cap - 1; advances *cursor. False at the end.
 * Control characters other than tab become '?', so that what is printed cannot steer a terminal.
 */
int doctor_line(const char **cursor, char *line, size_t cap);

/* Cuts the next blank-separated word off *rest, in place; NULL when there is none. */
char *doctor_word(char **rest);

/* Removes blanks and line ends at the end, in place. */
void doctor_trim(char *line);

#endif
