/*
 * doctor_source: the one place through which a machine is looked at, either the live one or a
 * recording of another (--root), and where a recording is written (--record).
 *
 * A recording is a folder of plain files, no links:
 *   DIR/<path>           a file of /sys, /proc or /etc, as it read
 *   DIR/<path>.link      where a symbolic link led
 *   DIR/<path>.error     why a file could not be read: EACCES, EIO, ...
 *   DIR/sys/bus/pci/devices/<address>/config   configuration space as hexadecimal lines
 *   DIR/llane/<name>     an answer that is no file: nvml, measured, loaded, kernel-log, process, ranks
 *
 * Owns: nothing but the names it was given. Threads: one. Blocking: as a file read.
 * Errors: negative errno values; a recording is never followed out of its folder.
 */
#ifndef DOCTOR_SOURCE_H
#define DOCTOR_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "doctor_text.h"

enum { DOCTOR_NAME_BYTES = 64, DOCTOR_CONFIG_BYTES = 4096 };

struct doctor_source {
    const char *root;   /* the recording that is read; NULL: this machine */
    const char *record; /* where one is written; NULL: nowhere */
    char trouble[256];  /* why the recording could not be written; "" while all is well */
};

/* A whole file, NUL-terminated, at most cap - 1 bytes (-EFBIG beyond). The number of bytes. */
int doctor_source_read(struct doctor_source *source, const char *path, char *buffer, size_t cap);
/* The same without a limit but 16 MiB. 0 or an error. */
int doctor_source_read_text(struct doctor_source *source, const char *path,
                            struct doctor_text *out);
int doctor_source_link(struct doctor_source *source, const char *path, char *buffer, size_t cap);

struct doctor_names {
    char (*name)[DOCTOR_NAME_BYTES];
    int n;
};
/* Sorted; at most `most` entries (-E2BIG beyond). Names longer than DOCTOR_NAME_BYTES are left out. */
int doctor_source_list(struct doctor_source *source, const char *path, int most,
                       struct doctor_names *out);
void doctor_names_free(struct doctor_names *names);

/*
 * A device's configuration space: 64, 256 or 4096 bytes, as far as this user may read. Live: through
 * libpci, where it is installed, else through sysfs. -EBADMSG: a recording that makes no sense.
 */
int doctor_source_config(struct doctor_source *source, const char *device,
                         uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out);

/*
 * An answer that is no file. Live: collect() writes it (and may return an error, which is recorded
 * too); from a recording: the file, -ENOENT where there is none.
 */
typedef int doctor_collect(void *context, struct doctor_text *out);
int doctor_source_answer(struct doctor_source *source, const char *name, doctor_collect *collect,
                         void *context, struct doctor_text *out);

/* "EACCES" and back; unknown numbers become EIO. */
const char *doctor_errno_name(int err);
int doctor_errno_value(const char *name);

/* doctor_config.c: the live machine's configuration space. */
int doctor_config_live(const char *device, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out);
/* Hexadecimal lines, each "10: 0a 1b ..", as recordings hold them. */
void doctor_config_print(const uint8_t *bytes, size_t n, struct doctor_text *out);
int doctor_config_parse(const char *text, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out);

#endif
