/*
 * Ranks of a job on this machine: which processes they are, what they may run on, which GPU each
 * takes. Found in /proc by the variables that launchers set; nothing is asked of the program.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor_machine.h"
#include "doctor_process.h"

static const char *const rank_variables[] = {"LOCAL_RANK=",        "OMPI_COMM_WORLD_LOCAL_RANK=",
                                             "MPI_LOCALRANKID=",   "MV2_COMM_WORLD_LOCAL_RANK=",
                                             "PALS_LOCAL_RANKID=", "SLURM_LOCALID="};

struct process {
    int pid, parent;
    char environment[16384];
    size_t n_environment;
    char cpus[128];
};

static ssize_t read_proc(int pid, const char *name, char *buffer, size_t cap)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    ssize_t n = read(fd, buffer, cap - 1);
    close(fd);
    buffer[n > 0 ? n : 0] = '\0';
    return n;
}

static const char *variable(const struct process *p, const char *name)
{
    for (const char *at = p->environment; at < p->environment + p->n_environment;
         at += strlen(at) + 1) {
        if (!strncmp(at, name, strlen(name))) {
            return at + strlen(name);
        }
    }
    return NULL;
}

static const char *rank_of(const struct process *p)
{
    for (size_t i = 0; i < sizeof rank_variables / sizeof *rank_variables; i++) {
        const char *value = variable(p, rank_variables[i]);
        if (value && isdigit((unsigned char)*value)) {
            return value;
        }
    }
    return NULL;
}

static int parent_of(int pid)
{
    char text[1024];
    int parent = 0;
    if (read_proc(pid, "stat", text, sizeof text) <= 0) {
        return 0;
    }
    /* The command may hold anything, blanks and parentheses too. */
    const char *after = strrchr(text, ')');
    return after && sscanf(after + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

static int is_below(int pid, int ancestor)
{
    for (int depth = 0; pid > 1 && depth < 64; depth++) {
        if (pid == ancestor) {
            return 1;
        }
        pid = parent_of(pid);
    }
    return 0;
}

static int load(int pid, struct process *p)
{
    char status[4096];
    ssize_t n = read_proc(pid, "environ", p->environment, sizeof p->environment);
    if (n <= 0) {
        return -1;
    }
    p->pid = pid;
    p->n_environment = (size_t)n;
    p->cpus[0] = '\0';
    if (read_proc(pid, "status", status, sizeof status) > 0) {
        const char *cpus = strstr(status, "Cpus_allowed_list:");
        if (cpus && sscanf(cpus, "Cpus_allowed_list: %127[0-9,-]", p->cpus) != 1) {
            p->cpus[0] = '\0';
        }
    }
    return 0;
}

/* A rank's own children (data loaders) inherit its variables: only the topmost counts. */
static int has_rank_above(int pid, int top, const char *rank, struct process *scratch)
{
    for (int up = parent_of(pid), depth = 0; up > 1 && up != top && depth < 64; depth++) {
        const char *theirs = load(up, scratch) ? NULL : rank_of(scratch);
        if (theirs && atoi(theirs) == atoi(rank)) {
            return 1;
        }
        up = parent_of(up);
    }
    return 0;
}

/* What started this process as a rank: the topmost ancestor below init that is not a rank itself. */
static int launcher(struct process *scratch)
{
    int pid = getppid();
    while (pid > 1 && load(pid, scratch) == 0 && rank_of(scratch)) {
        pid = parent_of(pid);
    }
    return pid;
}

static int collect_ranks(void *context, struct doctor_text *out)
{
    int top = *(int *)context, self = (int)getpid();
    struct process *p = calloc(2, sizeof *p);
    DIR *proc = opendir("/proc");
    if (!p || !proc) {
        free(p);
        if (proc) {
            closedir(proc);
        }
        return p ? -ENOENT : -ENOMEM;
    }
    if (!top) {
        top = load(self, &p[0]) == 0 && rank_of(&p[0]) ? launcher(&p[0]) : 0;
    }
    for (struct dirent *entry; top && (entry = readdir(proc));) {
        int pid = atoi(entry->d_name);
        const char *rank;
        if (pid <= 0 || pid == top || !is_below(pid, top) || load(pid, &p[0]) ||
            !(rank = rank_of(&p[0])) || has_rank_above(pid, top, rank, &p[1])) {
            continue;
        }
        const char *visible = variable(&p[0], "CUDA_VISIBLE_DEVICES=");
        doctor_text_add(out, "rank %d pid %d cpus %s visible %s\n", atoi(rank), pid,
                        p[0].cpus[0] ? p[0].cpus : "?", visible && *visible ? visible : "all");
    }
    closedir(proc);
    free(p);
    return out->is_broken ? -ENOMEM : 0;
}

/* ---- reading them ---- */

/* An entry of CUDA_VISIBLE_DEVICES: an index, or the start of a UUID. */
static int gpu_of_entry(const struct doctor_machine *m, const char *entry)
{
    uint64_t index;
    if (!doctor_number(entry, 10, DOCTOR_MAX_GPUS - 1, &index)) {
        return (int)index < m->n_gpus ? (int)index : -1;
    }
    for (int g = 0; g < m->n_gpus; g++) {
        if (!strncmp(m->gpus[g].uuid, entry, strlen(entry))) {
            return g;
        }
    }
    return -1;
}

/* Programs take visible device number LOCAL_RANK, or the only one; NVML knows better. */
static int gpu_of_rank(const struct doctor_machine *m, const struct doctor_rank *r)
{
    char list[128], *rest = NULL;
    const char *entries[DOCTOR_MAX_GPUS];
    int n = 0;
    for (int i = 0; i < m->n_processes; i++) {
        if (m->processes[i].pid == r->pid) {
            return m->processes[i].gpu;
        }
    }
    if (!strcmp(r->visible, "all")) {
        return r->rank < m->n_gpus ? r->rank : -1;
    }
    memcpy(list, r->visible, sizeof list);
    for (char *word = strtok_r(list, ",", &rest); word && n < DOCTOR_MAX_GPUS;
         word = strtok_r(NULL, ",", &rest)) {
        entries[n++] = word;
    }
    return n == 0 ? -1 : gpu_of_entry(m, entries[n == 1 ? 0 : r->rank % n]);
}

static int node_of_cpus(const struct doctor_machine *m, const char *cpus)
{
    cpu_set_t ours, theirs, both;
    int found = -1;
    if (doctor_cpu_parse(cpus, &ours)) {
        return -1;
    }
    for (int node = 0; node < DOCTOR_MAX_NODES; node++) {
        if (!m->node_cpus[node][0] || doctor_cpu_parse(m->node_cpus[node], &theirs)) {
            continue;
        }
        CPU_AND(&both, &ours, &theirs);
        if (CPU_COUNT(&both)) {
            if (found >= 0) {
                return -1;
            }
            found = node;
        }
    }
    return found;
}

int doctor_parse_ranks(struct doctor_machine *m, const char *text)
{
    char line[512];
    uint64_t rank, pid;
    while (doctor_line(&text, line, sizeof line)) {
        char *rest = line, *word[8] = {0};
        int n = 0;
        while (n < 8 && (word[n] = doctor_word(&rest))) {
            n++;
        }
        if (n == 0) {
            continue;
        }
        if (n < 8 || strcmp(word[0], "rank") != 0 || doctor_number(word[1], 10, 4095, &rank) ||
            doctor_number(word[3], 10, INT32_MAX, &pid)) {
            return doctor_refuse(m, "the list of ranks: a line makes no sense");
        }
        if (m->n_ranks == DOCTOR_MAX_RANKS) {
            return doctor_refuse(m, "more than %d ranks", DOCTOR_MAX_RANKS);
        }
        struct doctor_rank *r = &m->ranks[m->n_ranks++];
        r->rank = (int)rank;
        r->pid = (int)pid;
        doctor_copy(r->cpus, sizeof r->cpus, word[5]);
        doctor_copy(r->visible, sizeof r->visible, word[7]);
        r->gpu = gpu_of_rank(m, r);
        r->node_of_cpus = node_of_cpus(m, r->cpus);
    }
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct doctor_rank *left = a, *right = b;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

int doctor_read_ranks(struct doctor_machine *m, int pid)
{
    struct doctor_text text = {0};
    int result = 0;
    int err = doctor_source_answer(m->source, "ranks", collect_ranks, &pid, &text);
    if (err == -EFBIG || err == -EINVAL) {
        result = doctor_refuse(m, "the list of ranks cannot be read: %s", strerror(-err));
    } else if (!err) {
        result = doctor_parse_ranks(m, doctor_text_get(&text));
        qsort(m->ranks, (size_t)m->n_ranks, sizeof *m->ranks, by_rank);
    }
    doctor_text_free(&text);
    return result;
}
