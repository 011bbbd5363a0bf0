/*
 * llane watch: samples links, error counters and throttling until told to stop, prints what changes,
 * keeps a CSV and sums up. Exit 0 quiet, 1 drops or errors, 2 a GPU vanished (or unreadable input).
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "watch.h"

static const char usage[] =
    "llane watch [OPTIONS]\n"
    "  link speed and width, AER and replay counters, Xid and throttling over time: prints "
    "changes,\n"
    "  ends with a summary. Exit status: 0 quiet, 1 drops or errors, 2 a GPU vanished or there "
    "is none.\n"
    "\n"
    "  --every TIME   between samples (1s; ms, s, m, h)\n"
    "  --for TIME     how long (until Ctrl-C)\n"
    "  --log FILE     a CSV: a row for each change, one a device every ten minutes\n"
    "  --plot FILE    draw the CSV at the end (.svg, .png; needs --log and matplotlib)\n"
    "  --root DIR     samples recorded before: a folder each, in the order of their names, as\n"
    "                 llane doctor --record writes them; llane/time in it has its seconds\n";

enum { NVML_RETRY_SAMPLES = 10 };

static volatile sig_atomic_t is_over;

static void on_signal(int number)
{
    (void)number;
    is_over = 1;
}

struct options {
    double every_s, for_s; /* for_s 0: no end */
    const char *log, *plot, *root;
};

static int parse_time(const char *text, double *seconds_out)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"s", 1}, {"", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    char *end;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (end != text && !strcmp(end, units[i].unit)) {
            *seconds_out = value * units[i].seconds;
            return *seconds_out >= 0.01 && *seconds_out <= 86400.0 * 3650 ? 0 : -1;
        }
    }
    return -1;
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {{"every", required_argument, NULL, 'e'},
                                          {"for", required_argument, NULL, 'f'},
                                          {"log", required_argument, NULL, 'l'},
                                          {"plot", required_argument, NULL, 'p'},
                                          {"root", required_argument, NULL, 'R'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    *o = (struct options){.every_s = 1};
    for (int c; (c = getopt_long(argc, argv, "h", names, NULL)) != -1;) {
        switch (c) {
        case 'e':
        case 'f':
            if (parse_time(optarg, c == 'e' ? &o->every_s : &o->for_s)) {
                fprintf(stderr, "llane watch: '%s': a time from 10ms on, as 500ms, 2s, 5m, 1h\n",
                        optarg);
                return 2;
            }
            break;
        case 'l':
            o->log = optarg;
            break;
        case 'p':
            o->plot = optarg;
            break;
        case 'R':
            o->root = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (optind != argc || (o->plot && !o->log)) {
        fprintf(stderr, "llane watch: %s\n",
                o->plot && !o->log ? "--plot draws what --log wrote: name both"
                                   : "it takes options alone; --help lists them");
        return 2;
    }
    return 0;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_until(double when)
{
    double left = when - now_s();
    if (left > 0 && !is_over) {
        struct timespec nap = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&nap, NULL); /* a signal ends it early */
    }
}

static int refused(const struct options *o, const struct doctor_machine *m)
{
    fprintf(stderr, "llane watch: %s%s%s\n", o->root ? o->root : "", o->root ? ": " : "",
            m->refusal);
    return 2;
}

struct watch {
    struct options options;
    struct doctor_machine *m, *scratch;
    struct watch_device devices[WATCH_MAX_DEVICES];
    struct watch_sample sample;
    int n;
    FILE *csv;
    struct watch_track *track;
};

/* The tree, once; later samples read the chosen devices alone. */
static int choose(struct watch *w, struct doctor_source *source)
{
    w->m->source = source;
    if (doctor_read_pci(w->m) || doctor_read_nvml(w->m) || doctor_topology(w->m)) {
        return refused(&w->options, w->m);
    }
    w->n = watch_choose(w->m, w->devices);
    if (!w->n) {
        fprintf(stderr, "llane watch: no NVIDIA GPU to watch\n");
        return 2;
    }
    return 0;
}

static int start_track(struct watch *w, double clock_at_start)
{
    if (w->options.log) {
        w->csv = fopen(w->options.log, "we");
        if (!w->csv) {
            fprintf(stderr, "llane watch: --log %s: %s\n", w->options.log, strerror(errno));
            return 2;
        }
    }
    w->track = watch_track_start(w->devices, w->n, w->csv, stdout, clock_at_start);
    return w->track ? 0 : 2;
}

static int add(struct watch *w)
{
    if (watch_track_add(w->track, &w->sample)) {
        fprintf(stderr, "llane watch: --log %s: %s\n", w->options.log, strerror(errno));
        return 2;
    }
    return 0;
}

static int watch_live(struct watch *w)
{
    struct doctor_source source = {0};
    struct timespec clock;
    int status = choose(w, &source), log_fd = watch_open_log(), n_samples = 0;
    clock_gettime(CLOCK_REALTIME, &clock);
    if (status || (status = start_track(w, (double)clock.tv_sec))) {
        return status;
    }
    if (log_fd < 0) {
        fprintf(stderr,
                "llane watch: not readable: kernel log: %s; to see Xid lines: as root, or "
                "sysctl kernel.dmesg_restrict=0\n",
                strerror(errno));
    }
    double start = now_s(), next = start;
    while (!is_over && !status) {
        w->sample.seconds = now_s() - start;
        if (watch_read(&source, w->devices, w->n, log_fd, w->scratch, &w->sample)) {
            /* Live files that make no sense are what a dying device shows: it is gone, say. */
            w->scratch->refusal[0] = '\0';
        }
        status = add(w);
        /* A GPU that was lost comes back to NVML only after it starts anew. */
        for (int g = 0; g < w->scratch->n_gpus; g++) {
            if (n_samples % NVML_RETRY_SAMPLES == 0 &&
                (w->scratch->gpus[g].is_lost || w->scratch->gpus[g].error[0])) {
                doctor_nvml_restart();
                break;
            }
        }
        n_samples++;
        next += w->options.every_s;
        if (w->options.for_s > 0 && next - start > w->options.for_s) {
            break;
        }
        if (next < now_s()) {
            next = now_s(); /* the machine slept or reads took long: no burst to catch up */
        }
        sleep_until(next);
    }
    return status;
}

static int watch_recorded(struct watch *w)
{
    struct doctor_source folder = {.root = w->options.root};
    struct doctor_names names;
    char path[4096], text[64];
    int status = 0;
    if (doctor_source_list(&folder, "", 100000, &names) || names.n == 0) {
        fprintf(stderr, "llane watch: --root %s: no folder of samples\n", w->options.root);
        return 2;
    }
    for (int i = 0; i < names.n && !status && !is_over; i++) {
        struct doctor_source source = {.root = path};
        snprintf(path, sizeof path, "%s/%s", w->options.root, names.name[i]);
        if (i == 0 && ((status = choose(w, &source)) || (status = start_track(w, 0)))) {
            break;
        }
        w->sample.seconds = i * w->options.every_s;
        if (doctor_source_read(&source, "/llane/time", text, sizeof text) > 0) {
            char *end;
            double seconds = strtod(text, &end);
            if (end == text || !(seconds >= 0 && seconds < 1e10)) {
                fprintf(stderr, "llane watch: %s: llane/time makes no sense\n", path);
                status = 2;
                break;
            }
            w->sample.seconds = seconds;
        }
        if (watch_read(&source, w->devices, w->n, -1, w->scratch, &w->sample)) {
            status = refused(&w->options, w->scratch);
        } else {
            status = add(w);
        }
    }
    doctor_names_free(&names);
    return status;
}

/* scripts/plot_watch lies beside this program, or where the dispatcher says. */
static int plot(const struct options *o)
{
    const char *program = getenv("WATCH_PLOT");
    pid_t pid = fork();
    int status = -1;
    if (pid == 0) {
        execlp(program ? program : "plot_watch", "plot_watch", o->log, o->plot, (char *)NULL);
        fprintf(stderr, "llane watch: --plot: plot_watch: %s\n", strerror(errno));
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status == 0 ? 0 : 2;
}

static void print_cost(const struct watch *w)
{
    struct rusage use;
    long bytes = w->csv ? ftell(w->csv) : 0;
    double days = w->sample.seconds / 86400;
    getrusage(RUSAGE_SELF, &use);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    printf("this watch cost %.2f s of CPU", cpu);
    if (!w->options.root && w->sample.seconds > 0) {
        printf(" (%.3f %% of one)", 100 * cpu / w->sample.seconds);
    }
    printf(" and %ld bytes of CSV", bytes);
    /* Of a short run the rows at its ends say nothing about a day. */
    if (w->sample.seconds >= 3600 && !w->options.root) {
        printf(" (%.1f MB a day)", (double)bytes / 1e6 / days);
    }
    printf("\n");
}

static int watch(struct watch *w)
{
    int status = w->options.root ? watch_recorded(w) : watch_live(w);
    if (w->track) {
        int said = watch_track_end(w->track, stdout);
        status = status ? status : said;
        print_cost(w);
    }
    if (w->csv && fclose(w->csv)) {
        fprintf(stderr, "llane watch: --log %s: %s\n", w->options.log, strerror(errno));
        status = 2;
    } else if (w->csv && w->options.plot && plot(&w->options)) {
        status = 2;
    }
    doctor_text_free(&w->sample.log);
    free(w->m->devices);
    return status;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct watch *w = calloc(1, sizeof *w);
    struct doctor_machine *m = calloc(1, sizeof *m), *scratch = calloc(1, sizeof *scratch);
    int status = 2;
    if (!w || !m || !scratch) {
        fprintf(stderr, "llane watch: out of memory\n");
    } else if (!(status = parse(argc, argv, &w->options))) {
        w->m = m;
        w->scratch = scratch;
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGHUP, &action, NULL);
        status = watch(w);
    }
    free(m);
    free(scratch);
    free(w);
    return status;
}
