#include "tuning_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "err.h"
#include "log.h"

void llane_tuning_cache_path(const char *directory, const char *key, char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/tuning-%016" PRIx64 ".txt", directory,
             llane_tuning_hash(key, strlen(key)));
}

static int is_ours(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & (S_IWGRP | S_IWOTH));
}

/* The length; -1: it cannot be read, or is longer. */
static ssize_t read_all(int fd, char *text, size_t bytes)
{
    size_t used = 0;
    ssize_t n = 1;
    while (used < bytes && (n = read(fd, text + used, bytes - used)) != 0) {
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        used += n > 0 ? (size_t)n : 0;
    }
    return n == 0 ? (ssize_t)used : -1;
}

/* NONBLOCK: a pipe under that name does not hold us up. */
int llane_tuning_cache_open(const char *path, char *key_out, struct llane_tuning *out)
{
    char text[LLANE_TUNING_TEXT_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno != ELOOP) {
        return LLANE_ESYS;
    }
    ssize_t n = fd >= 0 && is_ours(fd) ? read_all(fd, text, sizeof text) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (n < 0) {
        LLANE_WARN("calibration: %s is no file of this user's alone; ignored", path);
        return LLANE_EINVAL;
    }
    int err = llane_tuning_parse(text, (size_t)n, key_out, out);
    if (err) {
        LLANE_WARN("calibration: %s is damaged; ignored (remove it)", path);
    }
    return err;
}

int llane_tuning_cache_read(const char *directory, const char *key, struct llane_tuning *out)
{
    char path[PATH_MAX], its_key[LLANE_TUNING_KEY_BYTES];
    llane_tuning_cache_path(directory, key, path, sizeof path);
    int err = llane_tuning_cache_open(path, its_key, out);
    if (!err && strcmp(its_key, key) != 0) {
        LLANE_WARN("calibration: %s is about other GPUs or versions than its name says; ignored",
                   path);
        err = LLANE_EINVAL;
    }
    if (!err) {
        LLANE_INFO("calibration: %s read", path);
    }
    return err;
}

static void make_folder(const char *directory)
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", directory);
    char *slash = strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = '\0';
        (void)mkdir(parent, 0700); /* there already, or the next one fails */
    }
    (void)mkdir(directory, 0700); /* likewise, and the file */
}

static int write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);
        if (done < 0 && errno != EINTR) {
            return LLANE_ESYS;
        }
        text += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

static int write_file(const char *path, const char *text, size_t n)
{
    char temporary[PATH_MAX];
    uint64_t random = 0;
    (void)!getrandom(&random, sizeof random, GRND_NONBLOCK); /* O_EXCL sees to the rest */
    int length =
        snprintf(temporary, sizeof temporary, "%s.%d.%016" PRIx64, path, (int)getpid(), random);
    if (length < 0 || (size_t)length >= sizeof temporary) {
        return LLANE_ESYS;
    }
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return LLANE_ESYS;
    }
    int err = write_all(fd, text, n);
    if (close(fd) || err || rename(temporary, path)) {
        int why = errno;
        (void)unlink(temporary);
        errno = why;
        return LLANE_ESYS;
    }
    return 0;
}

int llane_tuning_cache_write(const char *directory, const char *key,
                             const struct llane_tuning *tuning)
{
    char path[PATH_MAX], text[LLANE_TUNING_TEXT_BYTES];
    size_t n = llane_tuning_print(key, tuning, text, sizeof text);
    if (!n) {
        return LLANE_ENOMEM;
    }
    make_folder(directory);
    llane_tuning_cache_path(directory, key, path, sizeof path);
    int err = write_file(path, text, n);
    LLANE_INFO("calibration: %s %s%s", path, err ? "could not be written: " : "written",
               err ? strerror(errno) : "");
    return err;
}
