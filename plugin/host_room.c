#include "host_room.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "err.h"

/* The first number in a file. 0: no such file, or "max". */
static int read_number(const char *root, const char *path, uint64_t *out)
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s%s", root, path);
    FILE *file = fopen(name, "re");
    int n = file ? fscanf(file, "%" SCNu64, out) : 0;
    if (file) {
        fclose(file);
    }
    return n == 1;
}

/* What the process's control group may still take. 0: no limit found. */
static int room_of_group(const char *root, uint64_t *out)
{
    static const char *const files[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    uint64_t limit, used;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (read_number(root, files[i][0], &limit) && read_number(root, files[i][1], &used)) {
            *out = limit > used ? limit - used : 0;
            return 1;
        }
    }
    return 0;
}

static int room_of_machine(const char *root, uint64_t *out)
{
    char name[PATH_MAX], line[128];
    uint64_t kib = 0;
    int is_found = 0;
    snprintf(name, sizeof name, "%s/proc/meminfo", root);
    FILE *file = fopen(name, "re");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        is_found = sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1;
    }
    if (file) {
        fclose(file);
    }
    *out = kib << 10;
    return is_found;
}

int llane_host_room_check(const char *root, uint64_t bytes, char *text, size_t text_bytes)
{
    uint64_t room;
    if (room_of_group(root, &room) && room < bytes) {
        snprintf(text, text_bytes,
                 "%" PRIu64 " KiB are needed and the container has %" PRIu64
                 " KiB left: raise its limit (docker run --memory)",
                 bytes >> 10, room >> 10);
        return LLANE_ENOMEM;
    }
    if (room_of_machine(root, &room) && room < bytes) {
        snprintf(text, text_bytes,
                 "%" PRIu64 " KiB are needed and the machine has %" PRIu64 " KiB available",
                 bytes >> 10, room >> 10);
        return LLANE_ENOMEM;
    }
    return 0;
}

void llane_host_room_explain_pinning(uint64_t bytes, char *text, size_t text_bytes)
{
    struct rlimit limit;
    text[0] = '\0';
    if (!getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        snprintf(text, text_bytes,
                 ": %" PRIu64 " KiB are to be pinned and the limit of locked memory is %" PRIu64
                 " KiB: raise it (ulimit -l unlimited, docker run --ulimit memlock=-1)",
                 bytes >> 10, (uint64_t)limit.rlim_cur >> 10);
    }
}
