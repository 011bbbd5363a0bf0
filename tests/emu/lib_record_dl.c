// LDADD: -ldl
/*
 * Preloaded into a test: writes down what libnccl asks of the dynamic linker, one line a call, to the
 * file that RECORD_FILE names. Its own object is in between, so libraries are found by
 * LD_LIBRARY_PATH, not by libnccl's RUNPATH.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fcntl.h>

static void record(const void *caller, const char *fmt, ...)
{
    Dl_info info;
    const char *file = getenv("RECORD_FILE");
    if (!file || !dladdr(caller, &info) || !strstr(info.dli_fname, "libnccl.so.2"))
        return;
    char line[4400];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        perror("RECORD_FILE");
    close(fd);
}

static void *real(const char *name)
{
    return dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
}

void *dlopen(const char *name, int flags)
{
    void *(*next)(const char *, int);
    *(void **)&next = real("dlopen");
    void *library = next(name, flags);
    record(__builtin_return_address(0), "open %s %s %s %s\n", name,
           flags & RTLD_NOW ? "now" : "lazy", flags & RTLD_GLOBAL ? "global" : "local",
           library ? "found" : "missing");
    return library;
}

void *dlsym(void *library, const char *name)
{
    void *(*next)(void *, const char *);
    *(void **)&next = real("dlsym");
    void *symbol = next(library, name);
    record(__builtin_return_address(0), "sym %s %s\n", name, symbol ? "found" : "missing");
    return symbol;
}

int dlclose(void *library)
{
    int (*next)(void *);
    *(void **)&next = real("dlclose");
    record(__builtin_return_address(0), "close\n");
    return next(library);
}
