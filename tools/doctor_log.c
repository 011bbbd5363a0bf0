/*
 * The kernel's log: errors of PCI Express links (AER), of the NVIDIA driver (Xid), of the IOMMU and of
 * slots, in the words of kernels from 4.x to today's. Lines come from /dev/kmsg, dmesg or a file.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor_machine.h"

/* "6,339,5140900,-;text", "[  5.140900] text" or "Mon 1 12:00:00 host kernel: [ 5.1] text". */
static const char *split_time(const char *line, double *seconds)
{
    unsigned long long usec;
    int n = 0;
    *seconds = -1;
    if (sscanf(line, "%*u,%*u,%llu,%*[^;];%n", &usec, &n) == 1 && n > 0) {
        *seconds = (double)usec / 1e6;
        return line + n;
    }
    const char *open = strchr(line, '[');
    while (open) {
        double value;
        n = 0;
        if (sscanf(open, "[%lf]%n", &value, &n) == 1 && n > 0 && value >= 0 && value < 1e12) {
            *seconds = value;
            return open + n + (open[n] == ' ');
        }
        open = strchr(open + 1, '[');
    }
    return line;
}

/* The first PCI address in the text. */
static int find_address(const char *text, char out[24])
{
    char word[24];
    for (const char *at = text; *at; at++) {
        if (!isxdigit((unsigned char)*at) || (at > text && isalnum((unsigned char)at[-1]))) {
            continue;
        }
        size_t n = strspn(at, "0123456789abcdefABCDEF:.");
        if (n < 5 || n >= sizeof word) {
            continue;
        }
        memcpy(word, at, n);
        word[n] = '\0';
        while (n && (word[n - 1] == ':' || word[n - 1] == '.')) {
            word[--n] = '\0';
        }
        if (strchr(word, ':') && (strchr(word, '.') || strlen(word) >= 7) &&
            !doctor_address(word, out)) {
            return 1;
        }
    }
    out[0] = '\0';
    return 0;
}

static void add_event(struct doctor_machine *m, struct doctor_event event)
{
    for (int i = 0; i < m->n_events; i++) {
        struct doctor_event *old = &m->events[i];
        if (old->kind == event.kind && old->number == event.number &&
            old->severity == event.severity && !strcmp(old->device, event.device)) {
            old->count++;
            return;
        }
    }
    if (m->n_events == DOCTOR_MAX_EVENTS) {
        m->n_events_left_out++;
        return;
    }
    event.count = 1;
    m->events[m->n_events++] = event;
}

static int contains(const char *line, const char *const *words)
{
    for (; *words; words++) {
        if (strstr(line, *words)) {
            return 1;
        }
    }
    return 0;
}

/* "Xid (PCI:0000:02:00): 79, .."; "Xid (0000:01:00): 31"; "Xid: 154, .." without an address. */
static int parse_xid(const char *text, struct doctor_event *event)
{
    const char *xid = strstr(text, "NVRM: Xid");
    char *end;
    if (!xid) {
        return 0;
    }
    xid += strlen("NVRM: Xid");
    const char *colon = strchr(xid, ':');
    if (*xid == ' ' && xid[1] == '(') {
        const char *close = strchr(xid, ')');
        if (!close || close[1] != ':') {
            return 0;
        }
        find_address(xid + 2, event->device);
        colon = close + 1;
    }
    if (!colon) {
        return 0;
    }
    long number = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || number <= 0 || number > 100000) {
        return 0;
    }
    event->kind = DOCTOR_EVENT_XID;
    event->number = (int)number;
    return 1;
}

static int parse_aer(const char *text, struct doctor_event *event)
{
    static const char *const received[] = {"rror received", "rror message received", NULL};
    static const char *const fatal[] = {"(Fatal)", "Uncorrectable (Fatal)", "Fatal error", NULL};
    static const char *const nonfatal[] = {"(Non-Fatal)", "Non-Fatal",     "NonFatal",
                                           "Uncorrected", "Uncorrectable", NULL};
    const char *severity = strstr(text, "severity=");
    if (!severity && !(strstr(text, "AER:") && contains(text, received))) {
        return 0;
    }
    const char *where = severity ? severity : text;
    event->kind = DOCTOR_EVENT_AER;
    event->severity = contains(where, fatal) && !strstr(where, "Non-Fatal") ? DOCTOR_FATAL
                      : contains(where, nonfatal)                           ? DOCTOR_NONFATAL
                                                                            : DOCTOR_COR;
    /* A line of severity= is the device's own; a "received" line speaks for the port. */
    find_address(severity ? text : strstr(text, "received"), event->device);
    if (!event->device[0]) {
        find_address(text, event->device);
    }
    return 1;
}

static int parse_other(const char *text, struct doctor_event *event)
{
    static const char *const faults[] = {"IO_PAGE_FAULT", "[DMA Read", "[DMA Write", NULL};
    if (contains(text, faults)) {
        event->kind = DOCTOR_EVENT_IOMMU_FAULT;
        const char *request = strstr(text, "Request device [");
        char word[24] = "";
        if (request) {
            /* "[00:12.0]" or "[0x00:0x02.0]" */
            unsigned bus, slot, function;
            request += strlen("Request device [");
            if (sscanf(request, "0x%x:0x%x.%u", &bus, &slot, &function) == 3 ||
                sscanf(request, "%x:%x.%u", &bus, &slot, &function) == 3) {
                snprintf(word, sizeof word, "%02x:%02x.%u", bus & 255, slot & 31, function & 7);
            }
            if (doctor_address(word, event->device)) {
                event->device[0] = '\0';
            }
        } else {
            find_address(text, event->device);
        }
        return 1;
    }
    static const struct {
        const char *words;
        enum doctor_event_kind kind;
    } kinds[] = {{"fallen off the bus", DOCTOR_EVENT_LOST},
                 {"GPU is lost", DOCTOR_EVENT_LOST},
                 {"BAR1 is 0M", DOCTOR_EVENT_BAR},
                 {"I/O region assigned to your NVIDIA device is invalid", DOCTOR_EVENT_BAR},
                 {"mapping of buffer object failed", DOCTOR_EVENT_BAR},
                 {"insufficient power on the PCIe slot", DOCTOR_EVENT_SLOT_POWER},
                 {"available PCIe bandwidth, limited by", DOCTOR_EVENT_LINK_LIMIT},
                 {"DPC: containment event", DOCTOR_EVENT_DPC}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strstr(text, kinds[i].words)) {
            event->kind = kinds[i].kind;
            find_address(text, event->device);
            return 1;
        }
    }
    return 0;
}

int doctor_parse_log(struct doctor_machine *m, const char *text)
{
    char line[1024];
    m->has_log = 1;
    while (doctor_line(&text, line, sizeof line)) {
        struct doctor_event event = {0};
        const char *said = split_time(line, &event.seconds);
        if (parse_xid(said, &event) || parse_aer(said, &event) || parse_other(said, &event)) {
            doctor_copy(event.text, sizeof event.text, said);
            add_event(m, event);
        }
    }
    return 0;
}

/* /dev/kmsg gives one record a read, and EPIPE for records that were overwritten meanwhile. */
static int collect_log(void *context, struct doctor_text *out)
{
    char record[8192];
    (void)context;
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    for (;;) {
        ssize_t n = read(fd, record, sizeof record);
        if (n > 0) {
            /* Further lines of a record are its dictionary. */
            char *end = memchr(record, '\n', (size_t)n);
            doctor_text_add_bytes(out, record, end ? (size_t)(end - record) : (size_t)n);
            doctor_text_add_bytes(out, "\n", 1);
        } else if (n == 0 || (errno != EINTR && errno != EPIPE)) {
            break;
        }
    }
    int err = errno == EAGAIN || errno == 0 ? 0 : -errno;
    close(fd);
    return out->n ? 0 : err;
}

int doctor_read_log(struct doctor_machine *m)
{
    struct doctor_text text = {0};
    errno = 0;
    int err = doctor_source_answer(m->source, "kernel-log", collect_log, NULL, &text);
    int result = 0;
    if (err == -EFBIG || err == -EINVAL) {
        result = doctor_refuse(m, "the kernel's log cannot be read: %s", strerror(-err));
    } else if (err) {
        doctor_note(m, "kernel log", err == -ENOENT ? "there is none here" : strerror(-err),
                    "as root on the host, or: sysctl kernel.dmesg_restrict=0; in a container: "
                    "docker run --device /dev/kmsg");
    } else {
        result = doctor_parse_log(m, doctor_text_get(&text));
    }
    doctor_text_free(&text);
    return result;
}
