/* One line to the file that RECORD_FILE names, whole even where several processes write. */
#ifndef LLANE_TEST_RECORD_H
#define LLANE_TEST_RECORD_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((format(printf, 1, 2))) static inline void record(const char *fmt, ...)
{
    const char *file = getenv("RECORD_FILE");
    char line[512];
    if (!file)
        return;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        perror("RECORD_FILE");
    close(fd);
}

#endif
