/* See watch.h: one sample. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "doctor_rules.h"
#include "watch.h"

int watch_choose(const struct doctor_machine *m, struct watch_device devices[WATCH_MAX_DEVICES])
{
    struct doctor_hop hops[DOCTOR_MAX_DEPTH];
    int n = 0;
    for (int g = 0; g < m->n_gpus; g++) {
        for (int at = m->gpus[g].device; at >= 0; at = m->devices[at].parent) {
            const struct doctor_device *d = &m->devices[at];
            int is_known = 0;
            for (int i = 0; i < n; i++) {
                is_known |= !strcmp(devices[i].name, d->name);
            }
            if (is_known || n == WATCH_MAX_DEVICES) {
                continue;
            }
            struct watch_device *w = &devices[n++];
            memcpy(w->name, d->name, sizeof w->name);
            doctor_device_text(m, at, w->label, sizeof w->label);
            w->gpu = at == m->gpus[g].device ? g : -1;
        }
        /* A link is judged at its lower end, by what both ends can do. */
        int n_hops = m->gpus[g].device >= 0 ? doctor_hops(m, m->gpus[g].device, hops) : 0;
        for (int h = 0; h < n_hops; h++) {
            for (int i = 0; i < n; i++) {
                if (!strcmp(devices[i].name, m->devices[hops[h].lower].name)) {
                    devices[i].is_lower_end = 1;
                    devices[i].most = doctor_hop_most(m, hops[h]);
                }
            }
        }
    }
    return n;
}

static int attribute(struct doctor_source *source, const char *device, const char *name, char *text,
                     size_t cap)
{
    char path[160];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/%s", device, name);
    int n = doctor_source_read(source, path, text, cap);
    doctor_trim(text);
    return n;
}

static int read_device(struct doctor_machine *scratch, const char *name, struct watch_reading *r)
{
    static const char *const kinds[] = {"aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"};
    char text[2048];
    uint64_t width;
    struct doctor_aer aer;
    if (attribute(scratch->source, name, "current_link_speed", text, sizeof text) < 0) {
        return 0;
    }
    r->link.speed = doctor_parse_speed(text);
    if (attribute(scratch->source, name, "current_link_width", text, sizeof text) < 0) {
        return 0;
    }
    if (text[0] && doctor_number(text, 10, 255, &width)) {
        return doctor_refuse(scratch, "current_link_width of %s makes no sense: '%.40s'", name,
                             text);
    }
    r->link.width = text[0] && width <= 32 ? (int)width : 0;
    /* A device that fell off reads all ones: an unknown speed and a width that no link has. */
    r->is_present = r->link.speed != 0 || r->link.width != 0;
    for (int k = 0; k < DOCTOR_N_AER && r->is_present; k++) {
        if (attribute(scratch->source, name, kinds[k], text, sizeof text) > 0) {
            if (doctor_parse_aer(scratch, name, text, &aer)) {
                return -1;
            }
            r->aer[k] = aer.total;
            r->has_aer = 1;
        }
    }
    return 0;
}

static int read_gpus(struct doctor_machine *scratch, const struct watch_device *devices, int n,
                     struct watch_sample *out)
{
    struct doctor_text text = {0};
    int few = 1, result = 0;
    scratch->n_gpus = scratch->n_notes = 0;
    if (!doctor_source_answer(scratch->source, "nvml", doctor_collect_nvml, &few, &text)) {
        result = doctor_parse_nvml(scratch, doctor_text_get(&text));
    }
    doctor_text_free(&text);
    for (int i = 0; i < n && !result; i++) {
        int g = doctor_find_gpu(scratch, devices[i].name);
        if (g >= 0) {
            struct watch_reading *r = &out->readings[i];
            r->replays = scratch->gpus[g].replays;
            r->throttle = scratch->gpus[g].throttle;
            r->temperature = scratch->gpus[g].temperature;
            r->utilization = scratch->gpus[g].utilization;
            r->pstate = scratch->gpus[g].pstate;
        }
    }
    return result;
}

int watch_open_log(void)
{
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        lseek(fd, 0, SEEK_END);
    }
    return fd;
}

/* One record a read; EPIPE says that some were overwritten before they were read. */
static void read_log(int fd, struct doctor_text *out)
{
    char record[8192];
    for (int i = 0; i < 1000; i++) {
        ssize_t n = read(fd, record, sizeof record);
        if (n > 0) {
            char *end = memchr(record, '\n', (size_t)n);
            doctor_text_add_bytes(out, record, end ? (size_t)(end - record) : (size_t)n);
            doctor_text_add_bytes(out, "\n", 1);
        } else if (n == 0 || (errno != EPIPE && errno != EINTR)) {
            return;
        }
    }
}

static int no_collect(void *context, struct doctor_text *out)
{
    (void)context, (void)out;
    return -ENOENT;
}

int watch_read(struct doctor_source *source, const struct watch_device *devices, int n, int log_fd,
               struct doctor_machine *scratch, struct watch_sample *out)
{
    static const struct watch_reading unknown = {
        .replays = -1, .throttle = -1, .temperature = -1, .utilization = -1, .pstate = -1};
    scratch->source = source;
    for (int i = 0; i < n; i++) {
        out->readings[i] = unknown;
        if (read_device(scratch, devices[i].name, &out->readings[i])) {
            return -1;
        }
    }
    if (read_gpus(scratch, devices, n, out)) {
        return -1;
    }
    doctor_text_free(&out->log);
    if (source->root) {
        doctor_source_answer(source, "kernel-log", no_collect, NULL, &out->log);
    } else if (log_fd >= 0) {
        read_log(log_fd, &out->log);
    }
    return 0;
}
