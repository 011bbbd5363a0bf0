/*
 * watch: links, error counters and throttling over time. A sample is what the tracked devices say at
 * one moment; the tracker prints what changed, keeps the CSV and, at the end, sums up.
 *
 * Owns: the samples' device list and the tracker's states, both bounded. Threads: one. Blocking: as
 * reads of sysfs and NVML. Errors: a device that cannot be read is "gone" and may come back; -1 only
 * for input that makes no sense (a recording) or a CSV that cannot be written.
 */
#ifndef WATCH_H
#define WATCH_H

#include "doctor_machine.h"

enum {
    WATCH_MAX_DEVICES = 128,
    WATCH_MAX_STATES = 24, /* speeds and widths that one device is seen at */
    WATCH_MAX_DROPS = 512, /* kept a device; later ones are counted */
};

struct watch_reading {
    int is_present; /* sysfs has it and its link is readable */
    struct doctor_link link;
    uint64_t aer[DOCTOR_N_AER];
    int has_aer;
    /* GPUs, through NVML; -1 unknown */
    int64_t replays, throttle, temperature, utilization;
    int pstate;
};

struct watch_device {
    char name[DOCTOR_NAME_BYTES];
    char label[64];          /* "GPU 0 (0000:01:00.0)" */
    int gpu;                 /* -1: a bridge */
    int is_lower_end;        /* of a link, which is judged here */
    struct doctor_link most; /* of that link; zero where unknown */
};

struct watch_sample {
    double seconds; /* since the first */
    struct watch_reading readings[WATCH_MAX_DEVICES];
    struct doctor_text log; /* new lines of the kernel's log */
};

/* The GPUs of a machine that was read, and every link above them. The number of devices. */
int watch_choose(const struct doctor_machine *m, struct watch_device devices[WATCH_MAX_DEVICES]);
/* Live sources are asked for what changes alone; *log_fd is /dev/kmsg, opened at its end, or -1. */
int watch_read(struct doctor_source *source, const struct watch_device *devices, int n, int log_fd,
               struct doctor_machine *scratch, struct watch_sample *out);
int watch_open_log(void);

struct watch_track;
/* csv: NULL for none; say: where changes are printed. */
struct watch_track *watch_track_start(const struct watch_device *devices, int n, FILE *csv,
                                      FILE *say, double clock_at_start);
int watch_track_add(struct watch_track *track, const struct watch_sample *sample);
/* Prints the summary; 0 quiet, 1 drops or errors, 2 a GPU vanished or broke. Frees it. */
int watch_track_end(struct watch_track *track, FILE *to);

#endif
