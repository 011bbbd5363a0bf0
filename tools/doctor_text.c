/* See doctor_text.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_text.h"

static int has_room(struct doctor_text *text, size_t more)
{
    if (text->is_broken || more > SIZE_MAX / 4 - text->n) {
        text->is_broken = 1;
        return 0;
    }
    if (text->n + more + 1 <= text->cap) {
        return 1;
    }
    size_t cap = (text->n + more + 1) * 2;
    char *at = realloc(text->at, cap);
    if (!at) {
        text->is_broken = 1;
        return 0;
    }
    text->at = at;
    text->cap = cap;
    return 1;
}

void doctor_text_add_bytes(struct doctor_text *text, const char *bytes, size_t n)
{
    if (!has_room(text, n)) {
        return;
    }
    memcpy(text->at + text->n, bytes, n);
    text->n += n;
    text->at[text->n] = '\0';
}

void doctor_text_add(struct doctor_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !has_room(text, (size_t)n)) {
        return;
    }
    va_start(args, format);
    vsnprintf(text->at + text->n, (size_t)n + 1, format, args);
    va_end(args);
    text->n += (size_t)n;
}

void doctor_text_free(struct doctor_text *text)
{
    free(text->at);
    *text = (struct doctor_text){0};
}

const char *doctor_text_get(const struct doctor_text *text)
{
    return text->at ? text->at : "";
}

int doctor_number(const char *word, int base, uint64_t most, uint64_t *out)
{
    char *end;
    /* strtoull would take a sign and leading blanks. */
    if (!((*word >= '0' && *word <= '9') || (*word >= 'a' && *word <= 'f') ||
          (*word >= 'A' && *word <= 'F'))) {
        return -1;
    }
    errno = 0;
    unsigned long long value = strtoull(word, &end, base);
    if (errno || *end || end == word || value > most) {
        return -1;
    }
    *out = value;
    return 0;
}

static char printable(char c)
{
    unsigned char u = (unsigned char)c;
    return (u < 0x20 && c != '\t') || u == 0x7f ? '?' : c;
}

void doctor_copy(char *to, size_t cap, const char *from)
{
    size_t n = 0;
    for (; from[n] && n < cap - 1; n++) {
        to[n] = printable(from[n]);
    }
    to[n] = '\0';
}

int doctor_line(const char **cursor, char *line, size_t cap)
{
    const char *at = *cursor;
    size_t n = 0;
    if (!*at) {
        return 0;
    }
    for (; *at && *at != '\n'; at++) {
        if (n < cap - 1) {
            line[n++] = printable(*at);
        }
    }
    line[n] = '\0';
    *cursor = *at ? at + 1 : at;
    return 1;
}

char *doctor_word(char **rest)
{
    char *word = *rest + strspn(*rest, " \t");
    if (!*word) {
        return NULL;
    }
    char *end = word + strcspn(word, " \t");
    *rest = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

void doctor_trim(char *line)
{
    size_t n = strlen(line);
    while (n && strchr(" \t\r\n", line[n - 1])) {
        line[--n] = '\0';
    }
}
