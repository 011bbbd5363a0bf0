/* See doctor_source.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor_source.h"

enum { MOST_TEXT_BYTES = 16 << 20 };

static const struct errno_name {
    int value;
    const char *name;
} errno_names[] = {
    {ENOENT, "ENOENT"},       {EACCES, "EACCES"}, {EPERM, "EPERM"},   {EIO, "EIO"},
    {ENODEV, "ENODEV"},       {EINVAL, "EINVAL"}, {ENOSYS, "ENOSYS"}, {EOPNOTSUPP, "EOPNOTSUPP"},
    {ETIMEDOUT, "ETIMEDOUT"}, {EFBIG, "EFBIG"},   {ENXIO, "ENXIO"},   {EBUSY, "EBUSY"},
};

const char *doctor_errno_name(int err)
{
    for (size_t i = 0; i < sizeof errno_names / sizeof *errno_names; i++) {
        if (errno_names[i].value == err) {
            return errno_names[i].name;
        }
    }
    return "EIO";
}

int doctor_errno_value(const char *name)
{
    for (size_t i = 0; i < sizeof errno_names / sizeof *errno_names; i++) {
        if (!strcmp(errno_names[i].name, name)) {
            return errno_names[i].value;
        }
    }
    return EIO;
}

/* ---- writing a recording ---- */

static void trouble(struct doctor_source *source, const char *path, int err)
{
    if (!source->trouble[0]) {
        snprintf(source->trouble, sizeof source->trouble, "%.200s: %s", path, strerror(err));
    }
}

static void make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0777);
        *at = '/';
    }
}

static void record(struct doctor_source *source, const char *path, const char *suffix,
                   const char *bytes, size_t n)
{
    char to[PATH_MAX];
    if (!source->record || source->root) {
        return;
    }
    if (snprintf(to, sizeof to, "%s/%s%s", source->record, path, suffix) >= (int)sizeof to) {
        trouble(source, path, ENAMETOOLONG);
        return;
    }
    make_folders(to);
    FILE *file = fopen(to, "we");
    if (!file || fwrite(bytes, 1, n, file) != n) {
        trouble(source, to, errno);
    }
    if (file && fclose(file)) {
        trouble(source, to, errno);
    }
}

static int record_error(struct doctor_source *source, const char *path, int err)
{
    if (err != ENOENT && err != ENOTDIR) {
        const char *name = doctor_errno_name(err);
        record(source, path, ".error", name, strlen(name));
    }
    return -err;
}

/* ---- reading ---- */

/* Below the recording, folder by folder, so that no link leads out of it. */
static int open_below(const char *root, const char *path, int flags)
{
    char part[NAME_MAX + 1];
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (path += strspn(path, "/"); fd >= 0 && *path;) {
        size_t n = strcspn(path, "/");
        int next = -1;
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
        } else {
            memcpy(part, path, n);
            part[n] = '\0';
            path += n + strspn(path + n, "/");
            next =
                openat(fd, part, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (*path ? O_DIRECTORY : flags));
        }
        int err = errno;
        close(fd);
        errno = err;
        fd = next;
    }
    return fd;
}

/* Only regular files in a recording: a FIFO or a link planted there is an error, not a wait. */
static int open_file(const struct doctor_source *source, const char *path)
{
    int fd = source->root ? open_below(source->root, path, O_NONBLOCK)
                          : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0) {
        return errno == ELOOP ? -EINVAL : -errno;
    }
    if (source->root && (fstat(fd, &status) || !S_ISREG(status.st_mode))) {
        close(fd);
        return -EINVAL;
    }
    return fd;
}

static int read_all(int fd, size_t most, struct doctor_text *out)
{
    char chunk[16384];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        if (n == 0) {
            return out->is_broken ? -ENOMEM : 0;
        }
        if (out->n + (size_t)n > most) {
            return -EFBIG;
        }
        doctor_text_add_bytes(out, chunk, (size_t)n);
    }
}

static int read_plain(const struct doctor_source *source, const char *path, size_t most,
                      struct doctor_text *out)
{
    int fd = open_file(source, path);
    if (fd < 0) {
        return fd;
    }
    int err = read_all(fd, most, out);
    close(fd);
    return err;
}

/* A file of a recording, or the error that was recorded in its place. */
static int read_recorded(const struct doctor_source *source, const char *path, const char *suffix,
                         size_t most, struct doctor_text *out)
{
    char full[PATH_MAX];
    struct doctor_text why = {0};
    if (strstr(path, "..") ||
        snprintf(full, sizeof full, "%s%s", path, suffix) >= (int)sizeof full) {
        return -EINVAL;
    }
    int err = read_plain(source, full, most, out);
    if (err != -ENOENT) {
        return err;
    }
    if (snprintf(full, sizeof full, "%s.error", path) < (int)sizeof full &&
        read_plain(source, full, 64, &why) == 0) {
        doctor_trim(why.at ? why.at : (char[1]){0});
        err = -doctor_errno_value(doctor_text_get(&why));
    }
    doctor_text_free(&why);
    return err;
}

static int read_limited(struct doctor_source *source, const char *path, size_t most,
                        struct doctor_text *out)
{
    int err = source->root ? read_recorded(source, path, "", most, out)
                           : read_plain(source, path, most, out);
    if (err) {
        return source->root ? err : record_error(source, path, -err);
    }
    record(source, path, "", doctor_text_get(out), out->n);
    return 0;
}

int doctor_source_read_text(struct doctor_source *source, const char *path, struct doctor_text *out)
{
    return read_limited(source, path, MOST_TEXT_BYTES, out);
}

int doctor_source_read(struct doctor_source *source, const char *path, char *buffer, size_t cap)
{
    struct doctor_text text = {0};
    buffer[0] = '\0';
    int err = read_limited(source, path, cap - 1, &text);
    if (!err) {
        memcpy(buffer, doctor_text_get(&text), text.n + 1);
        err = (int)text.n;
    }
    doctor_text_free(&text);
    return err;
}

int doctor_source_link(struct doctor_source *source, const char *path, char *buffer, size_t cap)
{
    struct doctor_text text = {0};
    int err = 0;
    buffer[0] = '\0';
    if (source->root) {
        err = read_recorded(source, path, ".link", cap - 1, &text);
        if (!err) {
            memcpy(buffer, doctor_text_get(&text), text.n + 1);
            doctor_trim(buffer);
        }
        doctor_text_free(&text);
        return err;
    }
    ssize_t n = readlink(path, buffer, cap - 1);
    if (n < 0) {
        return -errno;
    }
    buffer[n] = '\0';
    record(source, path, ".link", buffer, (size_t)n);
    return 0;
}

/* ---- folders ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

void doctor_names_free(struct doctor_names *names)
{
    free(names->name);
    *names = (struct doctor_names){0};
}

/* A recording may hold NAME, NAME.link or NAME.error: one NAME. False: not an entry. */
static int entry_name(const struct doctor_source *source, const char *entry, char *name)
{
    size_t n = strlen(entry);
    if (entry[0] == '.' || n >= DOCTOR_NAME_BYTES) {
        return 0;
    }
    memcpy(name, entry, n + 1);
    if (source->root) {
        char *dot = strrchr(name, '.');
        if (dot && (!strcmp(dot, ".link") || !strcmp(dot, ".error"))) {
            *dot = '\0';
        }
    }
    return name[0] != '\0';
}

static void sort_unique(struct doctor_names *names)
{
    int n = 0;
    qsort(names->name, (size_t)names->n, sizeof *names->name, by_name);
    for (int i = 0; i < names->n; i++) {
        if (n == 0 || strcmp(names->name[n - 1], names->name[i]) != 0) {
            memmove(names->name[n++], names->name[i], sizeof *names->name);
        }
    }
    names->n = n;
}

int doctor_source_list(struct doctor_source *source, const char *path, int most,
                       struct doctor_names *out)
{
    char name[DOCTOR_NAME_BYTES];
    int err = 0, cap = 0;
    *out = (struct doctor_names){0};
    int fd = source->root ? open_below(source->root, path, O_DIRECTORY)
                          : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        err = -errno;
        if (fd >= 0) {
            close(fd);
        }
        return err;
    }
    for (struct dirent *entry; !err && (entry = readdir(folder));) {
        if (!entry_name(source, entry->d_name, name)) {
            continue;
        }
        if (out->n == 2 * most) { /* twice: a name and its .link are one */
            err = -E2BIG;
        } else if (out->n == cap) {
            cap = cap ? cap * 2 : 64;
            void *more = realloc(out->name, (size_t)cap * sizeof *out->name);
            if (!more) {
                err = -ENOMEM;
            } else {
                out->name = more;
            }
        }
        if (!err) {
            memcpy(out->name[out->n++], name, sizeof name);
        }
    }
    closedir(folder);
    if (!err && out->n) {
        sort_unique(out);
    }
    if (!err && out->n > most) {
        err = -E2BIG;
    }
    if (err) {
        doctor_names_free(out);
    }
    return err;
}

/* ---- configuration space ---- */

int doctor_source_config(struct doctor_source *source, const char *device,
                         uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out)
{
    char path[128];
    struct doctor_text text = {0};
    *n_out = 0;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.40s/config", device);
    if (source->root) {
        int err = read_recorded(source, path, "", 65536, &text);
        if (!err && doctor_config_parse(doctor_text_get(&text), bytes, n_out)) {
            err = -EBADMSG;
        }
        doctor_text_free(&text);
        return err;
    }
    int err = doctor_config_live(device, bytes, n_out);
    if (err) {
        return record_error(source, path, -err);
    }
    doctor_config_print(bytes, *n_out, &text);
    record(source, path, "", doctor_text_get(&text), text.n);
    doctor_text_free(&text);
    return 0;
}

/* ---- answers ---- */

int doctor_source_answer(struct doctor_source *source, const char *name, doctor_collect *collect,
                         void *context, struct doctor_text *out)
{
    char path[80];
    snprintf(path, sizeof path, "/llane/%.60s", name);
    if (source->root) {
        return read_recorded(source, path, "", MOST_TEXT_BYTES, out);
    }
    int err = collect(context, out);
    if (err) {
        return record_error(source, path, -err);
    }
    record(source, path, "", doctor_text_get(out), out->n);
    return 0;
}
