/*
 * llane doctor: what is wrong with this machine's GPUs, links and settings, costliest first, with what
 * to check. Exit 0 healthy, 1 warnings, 2 broken (or input that makes no sense).
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "doctor_screen.h"

static const char usage[] =
    "llane doctor [OPTIONS] [-- CMD ...]\n"
    "  what is wrong with this machine's GPUs, links and settings, costliest first, with what to "
    "check;\n"
    "  as root it sees more. Exit status: 0 healthy, 1 warnings, 2 broken or unreadable input.\n"
    "\n"
    "  --json            for machines\n"
    "  --verbose         notes with their checks too, all PCI devices\n"
    "  --no-measure      neither load the GPUs nor measure between them\n"
    "  --program PATH    which NCCL a program uses, shared or static\n"
    "  --record DIR      write what was read, to be looked at elsewhere\n"
    "  --root DIR        look at such a recording instead of this machine\n"
    "  --after SECONDS   with CMD: look at its ranks after this long (5)\n"
    "  -- CMD ...        start a job (mpirun, torchrun) and check where its ranks run; inside a "
    "job\n"
    "                    (mpirun llane doctor) the first rank reports on all\n";

struct options {
    const char *root, *record, *program;
    char *const *command;
    int is_json, is_verbose, no_measure;
    unsigned after_s;
};

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {{"json", no_argument, NULL, 'j'},
                                          {"verbose", no_argument, NULL, 'v'},
                                          {"no-measure", no_argument, NULL, 'n'},
                                          {"program", required_argument, NULL, 'p'},
                                          {"record", required_argument, NULL, 'r'},
                                          {"root", required_argument, NULL, 'R'},
                                          {"after", required_argument, NULL, 'a'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    uint64_t seconds;
    *o = (struct options){.after_s = 5};
    for (int c; (c = getopt_long(argc, argv, "+h", names, NULL)) != -1;) {
        switch (c) {
        case 'j':
            o->is_json = 1;
            break;
        case 'v':
            o->is_verbose = 1;
            break;
        case 'n':
            o->no_measure = 1;
            break;
        case 'p':
            o->program = optarg;
            break;
        case 'r':
            o->record = optarg;
            break;
        case 'R':
            o->root = optarg;
            break;
        case 'a':
            if (doctor_number(optarg, 10, 3600, &seconds)) {
                fprintf(stderr, "llane doctor: --after %s: seconds, 0 to 3600\n", optarg);
                return 2;
            }
            o->after_s = (unsigned)seconds;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (argv[optind] && strcmp(argv[optind - 1], "--") != 0) {
        fprintf(stderr, "llane doctor: '%s' not expected; a command goes behind --\n",
                argv[optind]);
        return 2;
    }
    o->command = argv[optind] ? &argv[optind] : NULL;
    if (o->root && (o->record || o->command || o->program)) {
        fprintf(stderr,
                "llane doctor: --root looks at a recording: --record, --program and CMD need "
                "the machine itself\n");
        return 2;
    }
    return 0;
}

enum { NOT_STARTED = 127 }; /* as shells say it */

/* Its output goes to stderr, so that stdout is the report's alone. */
static pid_t start_command(char *const *command)
{
    pid_t pid = fork();
    if (pid == 0) {
        dup2(2, 1);
        execvp(command[0], command);
        fprintf(stderr, "llane doctor: %s: %s\n", command[0], strerror(errno));
        _exit(NOT_STARTED);
    }
    return pid;
}

/* The measuring program lies beside this one; the dispatcher may name another. */
static const char *find_measure(char *path, size_t cap)
{
    const char *given = getenv("LLANE_MEASURE");
    ssize_t n;
    if (given) {
        return access(given, X_OK) == 0 ? given : NULL;
    }
    n = readlink("/proc/self/exe", path, cap - 1);
    if (n <= 0) {
        return NULL;
    }
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) + 20 >= cap) {
        return NULL;
    }
    memcpy(slash, "/llane-measure-gpu", sizeof "/llane-measure-gpu");
    return access(path, X_OK) == 0 ? path : NULL;
}

static int read_machine(struct doctor_machine *m, const struct options *o, int pid)
{
    char path[4096];
    const char *measure = o->no_measure || o->root ? NULL : find_measure(path, sizeof path);
    int has_gpu = 0;
    if (doctor_read_pci(m) || doctor_read_nvml(m) || doctor_read_system(m, o->program) ||
        doctor_topology(m) || doctor_read_log(m)) {
        return -1;
    }
    for (int g = 0; g < m->n_gpus; g++) {
        has_gpu |= m->gpus[g].index >= 0;
    }
    /* An emulating measure needs no GPU: tests ask for it by name. */
    if ((m->n_gpus || o->root || getenv("LLANE_MEASURE")) &&
        doctor_read_measured(m, has_gpu || getenv("LLANE_MEASURE") ? measure : NULL)) {
        return -1;
    }
    for (int g = 0; g < m->n_gpus; g++) {
        m->gpus[g].loaded =
            m->gpus[g].device >= 0 ? m->devices[m->gpus[g].device].loaded : (struct doctor_link){0};
    }
    return doctor_read_ranks(m, pid);
}

/* This process's number in a job on this host; -1 outside one. */
static int local_rank(void)
{
    static const char *const names[] = {"LOCAL_RANK",        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID",   "MV2_COMM_WORLD_LOCAL_RANK",
                                        "PALS_LOCAL_RANKID", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        uint64_t rank;
        if (value && !doctor_number(value, 10, 65535, &rank)) {
            return (int)rank;
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct options o;
    int status = parse(argc, argv, &o);
    struct stat folder;
    pid_t pid = 0;
    if (status) {
        return status;
    }
    if (o.root && (stat(o.root, &folder) || !S_ISDIR(folder.st_mode))) {
        fprintf(stderr, "llane doctor: --root %s: no folder\n", o.root);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    /* Inside a job every rank runs a doctor: the first reports, the others stay to be looked at. */
    int rank = o.command || o.root ? -1 : local_rank();
    if (rank > 0) {
        sleep(o.after_s);
        return 0;
    }
    if (rank == 0) {
        sleep(1); /* until the others are there */
    }
    struct doctor_source source = {.root = o.root, .record = o.record};
    struct doctor_machine *m = calloc(1, sizeof *m);
    struct doctor_findings *findings = calloc(1, sizeof *findings);
    if (!m || !findings) {
        fprintf(stderr, "llane doctor: out of memory\n");
        free(m);
        free(findings);
        return 2;
    }
    m->source = &source;
    if (o.command) {
        pid = start_command(o.command);
        sleep(o.after_s);
    }
    if (read_machine(m, &o, (int)pid)) {
        fprintf(stderr, "llane doctor: %s%s%s\n", o.root ? o.root : "", o.root ? ": " : "",
                m->refusal);
        status = 2;
    } else {
        doctor_judge(m, findings);
        if (o.is_json) {
            doctor_print_json(m, findings, stdout);
        } else {
            doctor_print_screen(m, findings, o.is_verbose, stdout);
        }
        status = (int)doctor_worst(findings);
    }
    if (source.trouble[0]) {
        fprintf(stderr, "llane doctor: --record: %s\n", source.trouble);
        status = 2;
    }
    fflush(stdout);
    if (pid > 0) {
        fprintf(stderr, "llane doctor: waiting for %s to end\n", o.command[0]);
        int ended = 0;
        while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
        }
        if (WIFEXITED(ended) && WEXITSTATUS(ended) == NOT_STARTED) {
            status = 2; /* the child said why */
        }
    }
    free(m->devices);
    free(m);
    free(findings);
    return status;
}
