#include "liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct process_stat {
    long pid;
    long n_threads;
    uint64_t start;
    char state;
};

/* Fields of /proc/PID/stat after the command name, counted from the state as 0. */
enum { FIELD_N_THREADS = 17, FIELD_START = 19 };

/* Returns 0, or an errno value. */
static int read_stat(const char *path, struct process_stat *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    char text[1024];
    ssize_t n = read(fd, text, sizeof(text) - 1);
    int failure = n < 0 ? errno : 0; /* ESRCH: the process went between open and read */
    close(fd);
    if (n <= 0) {
        return failure != 0 ? failure : EIO;
    }
    text[n] = '\0';
    char *field = strrchr(text, ')'); /* the name itself may hold spaces and parentheses */
    if (field == NULL || field[1] != ' ') {
        return EIO;
    }
    field += 2;
    out->pid = strtol(text, NULL, 10);
    out->state = *field;
    for (int i = 0; i <= FIELD_START; i++) {
        if (i == FIELD_N_THREADS) {
            out->n_threads = strtol(field, NULL, 10);
        } else if (i == FIELD_START) {
            out->start = strtoull(field, NULL, 10);
            return 0;
        }
        field = strchr(field, ' ');
        if (field == NULL) {
            return EIO;
        }
        field++;
    }
    return EIO;
}

void llane_liveness_self(struct llane_liveness *out)
{
    memset(out, 0, sizeof(*out));
    out->pid = (int32_t)getpid();
    struct process_stat self;
    struct stat ns;
    /* A /proc of another pid namespace shows us under another number: its pids are not ours. */
    if (read_stat("/proc/self/stat", &self) == 0 && self.pid == out->pid &&
        stat("/proc/self/ns/pid", &ns) == 0) {
        out->start = self.start;
        out->pid_namespace = ns.st_ino;
    }
}

/* Its memory is being written to a core file, which may take minutes: it will do nothing else. */
static int is_dumping(int32_t pid)
{
    static const char key[] = "\nCoreDumping:\t1";
    char path[64], text[4096];
    snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return strstr(text, key) != NULL;
}

int llane_liveness_is_gone(const struct llane_liveness *self, const struct llane_liveness *other)
{
    if (self->pid_namespace == 0 || self->pid_namespace != other->pid_namespace) {
        return 0;
    }
    char path[64];
    struct process_stat now = {0};
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)other->pid);
    int failure = read_stat(path, &now);
    if (failure != 0) {
        return failure == ENOENT || failure == ESRCH;
    }
    if (now.start != other->start) {
        return 1;
    }
    /* A leader that left by pthread_exit is 'Z' too while its other threads live. */
    return (now.state == 'Z' || now.state == 'X') && now.n_threads <= 1;
}

int llane_liveness_is_ending(const struct llane_liveness *self, const struct llane_liveness *other)
{
    return llane_liveness_is_gone(self, other) ||
           (self->pid_namespace != 0 && self->pid_namespace == other->pid_namespace &&
            is_dumping(other->pid));
}
