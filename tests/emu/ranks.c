/* See ranks.h. */
#include "ranks.h"

#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int ranks_rank(void)
{
    return number("RANK", 0);
}

int ranks_size(void)
{
    return number("WORLD_SIZE", 1);
}

double ranks_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

void ranks_sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0) {
    }
}

void ranks_die(const char *file, int line, const char *what, int result)
{
    fprintf(stderr, "rank %d: %s:%d: %s = %d (%s)\n", ranks_rank(), file, line, what, result,
            llane_gpu_error());
    fflush(NULL);
    _exit(1);
}

static void path_of(const char *name, char *out, size_t bytes)
{
    const char *dir = getenv("RANKS_DIR");
    if (!dir) {
        fprintf(stderr, "RANKS_DIR is not set: start this program with prog_ranks\n");
        _exit(1);
    }
    snprintf(out, bytes, "%s/%s", dir, name);
}

void ranks_publish(const char *name, const void *data, size_t bytes)
{
    char path[512], temporary[600];
    path_of(name, path, sizeof(path));
    snprintf(temporary, sizeof(temporary), "%s.%d.tmp", path, (int)getpid());
    FILE *file = fopen(temporary, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0 ||
        rename(temporary, path) != 0)
        ranks_die(__FILE__, __LINE__, path, -1);
}

void ranks_fetch(const char *name, void *data, size_t bytes)
{
    char path[512];
    path_of(name, path, sizeof(path));
    for (int i = 0; i < 60000; i++) {
        FILE *file = fopen(path, "rb");
        if (file) {
            size_t n = fread(data, 1, bytes, file);
            fclose(file);
            if (n == bytes)
                return;
        }
        struct timespec t = {.tv_nsec = 1000000};
        nanosleep(&t, NULL);
    }
    fprintf(stderr, "rank %d: waited a minute for %s\n", ranks_rank(), name);
    _exit(1);
}

void ranks_barrier(const char *name)
{
    char file[256], byte = 0;
    snprintf(file, sizeof(file), "%s.at.%d", name, ranks_rank());
    ranks_publish(file, &byte, 1);
    for (int r = 0; r < ranks_size(); r++) {
        snprintf(file, sizeof(file), "%s.at.%d", name, r);
        ranks_fetch(file, &byte, 1);
    }
}

void ranks_unique_id(const char *name, ncclResult_t (*get)(ncclUniqueId *), ncclUniqueId *out)
{
    if (ranks_rank() == 0) {
        RANKS_CHECK(get(out));
        if (ranks_size() > 1)
            ranks_publish(name, out, sizeof(*out));
    } else {
        ranks_fetch(name, out, sizeof(*out));
    }
}
