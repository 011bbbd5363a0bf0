/*
 * Measurements: llane-measure runs beside the doctor, since a GPU that misbehaves may take the
 * process that asks it along. Its lines:
 *   measured-by WORDS    emulated    gpu 0 ADDRESS
 *   claim 0 1 yes|no     ipc 0 1 yes|no WHY    probe 0 1 good|missing|wrong|unchecked
 *   pair 0 1 LATENCY_US WRITE_GBS READ_GBS     host 0 LATENCY_US TO_GBS FROM_GBS     trouble WORDS
 * and, while every GPU is kept busy, the links' state is read: "link ADDRESS SPEED WIDTH".
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "doctor_machine.h"

enum { MEASURE_SECONDS = 90, LOAD_SECONDS = 20, SETTLE_MS = 800 };

struct child {
    pid_t pid;
    int out;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int start(const char *program, const char *option, struct child *child)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC)) {
        return -errno;
    }
    child->pid = fork();
    if (child->pid == 0) {
        setpgid(0, 0);
        dup2(pipe_fds[1], 1);
        execl(program, program, option, (char *)NULL);
        _exit(127);
    }
    int err = errno;
    close(pipe_fds[1]);
    if (child->pid < 0) {
        close(pipe_fds[0]);
        return -err;
    }
    child->out = pipe_fds[0];
    return 0;
}

/* Until the end, or until `word` came; 1 when it took too long. */
static int listen_to(const struct child *child, double seconds, const char *word,
                     struct doctor_text *out)
{
    char chunk[4096];
    double end = now_s() + seconds;
    for (;;) {
        struct pollfd fd = {.fd = child->out, .events = POLLIN};
        double left = end - now_s();
        if (left <= 0 || (word && strstr(doctor_text_get(out), word))) {
            return left <= 0;
        }
        if (poll(&fd, 1, (int)(left * 1000) + 1) <= 0) {
            continue;
        }
        ssize_t n = read(child->out, chunk, sizeof chunk);
        if (n <= 0) {
            return 0;
        }
        doctor_text_add_bytes(out, chunk, (size_t)n);
    }
}

static int finish(struct child *child)
{
    int status = 0;
    kill(-child->pid, SIGKILL);
    close(child->out);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static int collect_measured(void *program, struct doctor_text *out)
{
    struct child child = {0};
    if (!program) {
        return -ENOENT;
    }
    int err = start(program, "--pairs", &child);
    if (err) {
        return err;
    }
    if (listen_to(&child, MEASURE_SECONDS, "\nend\n", out)) {
        doctor_text_add(out, "\ntrouble no end within %d s: a kernel or the driver hangs\n",
                        MEASURE_SECONDS);
    } else if (!strstr(doctor_text_get(out), "\nend\n")) {
        doctor_text_add(out, "\ntrouble the measuring program ended early\n");
    }
    finish(&child);
    return 0;
}

struct load {
    struct doctor_machine *m;
    const char *program;
};

static int collect_loaded(void *context, struct doctor_text *out)
{
    struct load *load = context;
    struct child child = {0};
    struct doctor_text said = {0};
    if (!load->program) {
        return -ENOENT;
    }
    int err = start(load->program, "--load", &child);
    if (err) {
        return err;
    }
    if (listen_to(&child, LOAD_SECONDS, "loading\n", &said) ||
        !strstr(doctor_text_get(&said), "loading\n")) {
        err = -ETIMEDOUT;
    } else {
        struct doctor_source live = {0};
        struct timespec settle = {0, SETTLE_MS * 1000000L};
        nanosleep(&settle, NULL);
        for (int i = 0; i < load->m->n_devices; i++) {
            char path[160], speed[64], width[32];
            const char *name = load->m->devices[i].name;
            snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/current_link_speed", name);
            int n = doctor_source_read(&live, path, speed, sizeof speed);
            snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/current_link_width", name);
            if (n > 0 && doctor_source_read(&live, path, width, sizeof width) > 0) {
                doctor_trim(speed);
                doctor_trim(width);
                doctor_text_add(out, "link %s %d %s\n", name, doctor_parse_speed(speed), width);
            }
        }
    }
    finish(&child);
    doctor_text_free(&said);
    return err;
}

/* ---- reading them ---- */

static int decimal(const char *word, double most, double *out)
{
    char *end;
    double value = strtod(word, &end);
    if (end == word || *end || !(value >= 0 && value <= most)) {
        return -1;
    }
    *out = value;
    return 0;
}

static void set_pair(struct doctor_pair *pair, const char *kind, const char *value, char *rest)
{
    if (!strcmp(kind, "claim")) {
        doctor_copy(pair->claim, sizeof pair->claim, value);
    } else if (!strcmp(kind, "ipc")) {
        doctor_copy(pair->ipc, sizeof pair->ipc, value);
        doctor_copy(pair->ipc_why, sizeof pair->ipc_why, rest);
    } else {
        doctor_copy(pair->probe, sizeof pair->probe, value);
    }
}

/* CUDA numbers the GPUs its own way: `map` leads from its number to ours. */
static int measured_line(struct doctor_machine *m, int *map, char *line)
{
    char *rest = line, *kind = doctor_word(&rest), address[24];
    uint64_t a, b;
    double values[3];
    if (!kind || !strcmp(kind, "end")) {
        return 0;
    }
    if (!strcmp(kind, "measured-by")) {
        doctor_copy(m->measured_by, sizeof m->measured_by, rest);
        return 0;
    }
    if (!strcmp(kind, "emulated")) {
        m->is_emulated = 1;
        return 0;
    }
    if (!strcmp(kind, "trouble")) {
        doctor_copy(m->measured_trouble, sizeof m->measured_trouble, rest);
        return 0;
    }
    char *word = doctor_word(&rest);
    if (!word || doctor_number(word, 10, DOCTOR_MAX_GPUS - 1, &a)) {
        return -1;
    }
    if (!strcmp(kind, "gpu")) {
        if (doctor_address(rest, address)) {
            return -1;
        }
        map[a] = doctor_find_gpu(m, address);
        return 0;
    }
    int is_host = !strcmp(kind, "host"), to = map[a];
    if (!is_host) {
        word = doctor_word(&rest);
        if (!word || doctor_number(word, 10, DOCTOR_MAX_GPUS - 1, &b)) {
            return -1;
        }
    }
    if (is_host || !strcmp(kind, "pair")) {
        for (int i = 0; i < 3; i++) {
            word = doctor_word(&rest);
            if (!word || decimal(word, 1e9, &values[i])) {
                return -1;
            }
        }
        if (is_host && to >= 0) {
            m->host[to] = (struct doctor_host_path){values[0], values[1], values[2]};
        } else if (!is_host && to >= 0 && map[b] >= 0) {
            struct doctor_pair *pair = &m->pairs[to][map[b]];
            pair->latency_us = values[0];
            pair->write_gbs = values[1];
            pair->read_gbs = values[2];
        }
        return 0;
    }
    word = doctor_word(&rest);
    if (!word ||
        (strcmp(kind, "claim") != 0 && strcmp(kind, "ipc") != 0 && strcmp(kind, "probe") != 0)) {
        return -1;
    }
    if (to >= 0 && map[b] >= 0) {
        set_pair(&m->pairs[to][map[b]], kind, word, rest);
    }
    return 0;
}

int doctor_parse_measured(struct doctor_machine *m, const char *text)
{
    char line[256], copy[256];
    int map[DOCTOR_MAX_GPUS];
    for (int i = 0; i < DOCTOR_MAX_GPUS; i++) {
        map[i] = -1;
    }
    /* Twice: a pair's line may come before its second GPU has told its address. */
    for (int pass = 0; pass < 2; pass++) {
        for (const char *at = text; doctor_line(&at, line, sizeof line);) {
            memcpy(copy, line, sizeof copy);
            if (measured_line(m, map, line)) {
                return doctor_refuse(m, "the measurements: this line makes no sense: '%.80s'",
                                     copy);
            }
        }
    }
    m->has_measured = 1;
    return 0;
}

int doctor_parse_loaded(struct doctor_machine *m, const char *text)
{
    char line[160];
    uint64_t speed, width;
    while (doctor_line(&text, line, sizeof line)) {
        char *rest = line, *kind = doctor_word(&rest), *name = doctor_word(&rest);
        char *first = doctor_word(&rest), *second = doctor_word(&rest);
        if (!kind) {
            continue;
        }
        if (strcmp(kind, "link") != 0 || !name || !first || !second ||
            doctor_number(first, 10, 10000, &speed) || doctor_number(second, 10, 255, &width)) {
            return doctor_refuse(m, "the links under load: a line makes no sense");
        }
        int d = doctor_find_device(m, name);
        if (d >= 0) {
            m->devices[d].loaded = (struct doctor_link){(int)speed, width <= 32 ? (int)width : 0};
        }
    }
    m->has_loaded = 1;
    return 0;
}

int doctor_read_measured(struct doctor_machine *m, const char *program)
{
    struct doctor_text measured = {0}, loaded = {0};
    struct load load = {m, program};
    const char *missing = "build it where nvcc is (make tools-gpu) and put it beside llane-doctor; "
                          "not with --no-measure";
    const char *failing =
        "start `llane-measure-gpu --pairs` and `--load` by hand: what do they say?";
    int result = 0;
    int err = doctor_source_answer(m->source, "loaded", collect_loaded, &load, &loaded);
    if (!err) {
        result = doctor_parse_loaded(m, doctor_text_get(&loaded));
    } else if (m->n_gpus) {
        doctor_note(m, "links under load",
                    err == -ENOENT ? "llane-measure-gpu is not here" : strerror(-err),
                    err == -ENOENT ? missing : failing);
    }
    err = doctor_source_answer(m->source, "measured", collect_measured, (void *)program, &measured);
    if (!err && !result) {
        result = doctor_parse_measured(m, doctor_text_get(&measured));
    } else if (err && m->n_gpus) {
        doctor_note(m, "peer access",
                    err == -ENOENT ? "llane-measure-gpu is not here" : strerror(-err),
                    err == -ENOENT ? missing : failing);
    }
    doctor_text_free(&measured);
    doctor_text_free(&loaded);
    return result;
}
