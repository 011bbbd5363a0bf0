/* See watch.h: what changed between samples, the CSV, the summary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "watch.h"

enum { HEARTBEAT_SECONDS = 600, MOST_LOG_LINES = 20 };

struct state {
    struct doctor_link link;
    double seconds;
};

struct drop {
    double start, length;
    struct doctor_link lowest;
    int is_open, is_load_known;
};

struct life { /* one device's */
    struct watch_reading last;
    int is_known; /* it was read at least once */
    struct state states[WATCH_MAX_STATES];
    int n_states;
    struct drop drops[WATCH_MAX_DROPS];
    int n_drops;
    uint64_t n_drops_in_all, n_changes;
    double idle_low_s, gone_s, gone_since; /* gone_since < 0: it is there */
    int n_vanished;
    uint64_t aer_first[DOCTOR_N_AER];
    int64_t replays_first;
    uint64_t errors[DOCTOR_N_AER];
    int64_t replays;
    double throttled_s, capped_s;
    int64_t throttle_seen;
};

struct watch_track {
    const struct watch_device *devices;
    int n;
    FILE *csv, *say;
    double clock_at_start, last, heartbeat;
    int n_samples;
    uint64_t n_xids;
    int worst_xid;
    struct life lives[];
};

/* ---- words ---- */

static void stamp(const struct watch_track *t, double seconds, char *text, size_t cap)
{
    time_t when = (time_t)(t->clock_at_start + seconds);
    struct tm tm;
    if (t->clock_at_start <= 0 || !localtime_r(&when, &tm) ||
        !strftime(text, cap, "%Y-%m-%d %H:%M:%S", &tm)) {
        snprintf(text, cap, "%10.3f s", seconds);
    }
}

static void say(struct watch_track *t, double seconds, int device, const char *what)
{
    char when[40];
    stamp(t, seconds, when, sizeof when);
    fprintf(t->say, "%s  %s%s%s\n", when, device >= 0 ? t->devices[device].label : "",
            device >= 0 ? ": " : "", what);
}

static void throttle_text(int64_t bits, char *text, size_t cap)
{
    static const struct {
        int64_t bit;
        const char *name;
    } names[] = {{0x8, "hardware slowdown"},
                 {0x20, "software thermal"},
                 {0x40, "hardware thermal"},
                 {0x80, "power brake"}};
    size_t n = 0;
    snprintf(text, cap, "none");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (bits > 0 && (bits & names[i].bit) && n < cap) {
            n += (size_t)snprintf(text + n, cap - n, "%s%s", n ? " + " : "", names[i].name);
        }
    }
}

/*
 * The bits that are a fault's. 0x1 is idle, 0x2 a clock that someone asked for, and 0x4, the power
 * cap, comes and goes in every busy GPU: its time is summed up, its changes are no news.
 */
static int64_t slowing(int64_t bits)
{
    return bits > 0 ? bits & (0x8 | 0x20 | 0x40 | 0x80) : 0;
}

/* ---- the CSV ---- */

static void row(struct watch_track *t, double seconds, int i, const struct watch_reading *r,
                const char *event)
{
    const struct watch_device *d = &t->devices[i];
    if (!t->csv) {
        return;
    }
    fprintf(t->csv, "%.3f,%s,%d,%d,%.1f,%d,%llu,%llu,%llu,%lld,%lld,%lld,%lld,%s\n", seconds,
            d->name, d->gpu, r->is_present, r->link.speed / 10.0, r->link.width,
            (unsigned long long)r->aer[0], (unsigned long long)r->aer[1],
            (unsigned long long)r->aer[2], (long long)r->replays, (long long)r->throttle,
            (long long)r->temperature, (long long)r->utilization, event);
}

struct watch_track *watch_track_start(const struct watch_device *devices, int n, FILE *csv,
                                      FILE *to, double clock_at_start)
{
    struct watch_track *t = calloc(1, sizeof *t + (size_t)n * sizeof *t->lives);
    if (!t) {
        return NULL;
    }
    t->devices = devices;
    t->n = n;
    t->csv = csv;
    t->say = to;
    t->clock_at_start = clock_at_start;
    for (int i = 0; i < n; i++) {
        t->lives[i].gone_since = -1;
    }
    if (csv) {
        fprintf(csv,
                "seconds,device,gpu,present,gt_s,width,corrected,nonfatal,fatal,replays,throttle,"
                "temperature_c,utilization,event\n");
    }
    return t;
}

/* ---- links ---- */

static int is_idle(const struct watch_reading *r)
{
    return (r->utilization >= 0 || r->pstate >= 0) && r->utilization <= 0 && r->pstate != 0 &&
           r->pstate != 1;
}

static struct state *state_of(struct life *life, struct doctor_link link)
{
    for (int i = 0; i < life->n_states; i++) {
        if (life->states[i].link.speed == link.speed && life->states[i].link.width == link.width) {
            return &life->states[i];
        }
    }
    if (life->n_states == WATCH_MAX_STATES) {
        return &life->states[WATCH_MAX_STATES - 1];
    }
    life->states[life->n_states] = (struct state){.link = link};
    return &life->states[life->n_states++];
}

static void close_drop(struct life *life, double now)
{
    struct drop *d = life->n_drops ? &life->drops[life->n_drops - 1] : NULL;
    if (d && d->is_open) {
        d->length = now - d->start;
        d->is_open = 0;
    }
}

/* What a link should do: what both ends can; where that is not known, the best that was seen. */
static struct doctor_link full(const struct watch_device *device, const struct life *life)
{
    struct doctor_link best = device->most;
    for (int i = 0; i < life->n_states; i++) {
        struct doctor_link seen = life->states[i].link;
        best.speed = !device->most.speed && seen.speed > best.speed ? seen.speed : best.speed;
        best.width = !device->most.width && seen.width > best.width ? seen.width : best.width;
    }
    return best;
}

static void follow_drop(struct watch_track *t, int i, const struct watch_reading *r, double now)
{
    struct life *life = &t->lives[i];
    struct doctor_link best = full(&t->devices[i], life);
    int is_low = r->link.width < best.width || (r->link.speed < best.speed && !is_idle(r));
    struct drop *d = life->n_drops ? &life->drops[life->n_drops - 1] : NULL;
    if (!is_low) {
        close_drop(life, now);
        return;
    }
    if (!d || !d->is_open) {
        life->n_drops_in_all++;
        if (life->n_drops == WATCH_MAX_DROPS) {
            return;
        }
        d = &life->drops[life->n_drops++];
        *d = (struct drop){.start = now,
                           .lowest = r->link,
                           .is_open = 1,
                           .is_load_known = r->utilization >= 0 || r->pstate >= 0};
    }
    d->length = now - d->start;
    if (doctor_link_gbs(r->link) < doctor_link_gbs(d->lowest)) {
        d->lowest = r->link;
    }
}

static void follow_link(struct watch_track *t, int i, const struct watch_reading *r, double now,
                        const char **event)
{
    struct life *life = &t->lives[i];
    const struct watch_reading *last = &life->last;
    char before[32], after[32], what[120];
    state_of(life, r->link);
    int is_news = life->is_known && last->is_present &&
                  (r->link.speed != last->link.speed || r->link.width != last->link.width);
    if (is_news) {
        life->n_changes++;
        *event = "link";
    }
    /* One line a link: its lower end's. The CSV has both. */
    if (is_news && t->devices[i].is_lower_end) {
        doctor_link_text(last->link, before, sizeof before);
        doctor_link_text(r->link, after, sizeof after);
        snprintf(what, sizeof what, "link %s -> %s (%.1f -> %.1f GB/s)%s", before, after,
                 doctor_link_gbs(last->link), doctor_link_gbs(r->link),
                 is_idle(r) && r->link.width == last->link.width ? ", idle" : "");
        say(t, now, i, what);
    }
    if (t->devices[i].is_lower_end) {
        follow_drop(t, i, r, now);
    }
}

/* ---- counters, throttling, presence ---- */

static void follow_counters(struct watch_track *t, int i, const struct watch_reading *r, double now,
                            const char **event)
{
    static const char *const names[] = {"corrected", "non-fatal", "FATAL"};
    struct life *life = &t->lives[i];
    const struct watch_reading *last = &life->last;
    char what[120];
    if (!life->is_known || !last->is_present) {
        return;
    }
    for (int k = 0; k < DOCTOR_N_AER && r->has_aer && last->has_aer; k++) {
        if (r->aer[k] > last->aer[k]) { /* less: the device was reset */
            life->errors[k] += r->aer[k] - last->aer[k];
            snprintf(what, sizeof what, "%s errors +%llu, %llu in all", names[k],
                     (unsigned long long)(r->aer[k] - last->aer[k]), (unsigned long long)r->aer[k]);
            say(t, now, i, what);
            *event = "aer";
        }
    }
    if (r->replays > last->replays && last->replays >= 0) {
        life->replays += r->replays - last->replays;
        snprintf(what, sizeof what, "replays +%lld, %lld in all",
                 (long long)(r->replays - last->replays), (long long)r->replays);
        say(t, now, i, what);
        *event = "replay";
    }
}

static void follow_throttle(struct watch_track *t, int i, const struct watch_reading *r, double now,
                            const char **event)
{
    struct life *life = &t->lives[i];
    int64_t is = slowing(r->throttle), was = slowing(life->last.throttle);
    char before[80], after[80], what[200];
    life->throttle_seen |= is;
    if (is == was || (!life->is_known && !is)) {
        return;
    }
    throttle_text(was, before, sizeof before);
    throttle_text(is, after, sizeof after);
    snprintf(what, sizeof what, "slowed down by: %s -> %s (%lld C)", before, after,
             (long long)r->temperature);
    say(t, now, i, what);
    *event = "throttle";
}

static int follow_presence(struct watch_track *t, int i, const struct watch_reading *r, double now,
                           const char **event)
{
    struct life *life = &t->lives[i];
    char what[80];
    if (!r->is_present && life->gone_since < 0) {
        if (life->is_known && life->last.is_present) {
            life->n_vanished++;
            say(t, now, i, "VANISHED: it does not answer any more");
            close_drop(life, now);
            *event = "vanished";
        }
        life->gone_since = now;
    } else if (r->is_present && life->gone_since >= 0) {
        life->gone_s += now - life->gone_since;
        snprintf(what, sizeof what, "is back after %.1f s", now - life->gone_since);
        if (life->is_known) {
            say(t, now, i, what);
            *event = "back";
        }
        life->gone_since = -1;
    }
    return r->is_present;
}

static void follow_log(struct watch_track *t, const struct watch_sample *s)
{
    struct doctor_machine *m = calloc(1, sizeof *m);
    char text[240];
    if (!m) {
        return;
    }
    doctor_parse_log(m, doctor_text_get(&s->log));
    for (int i = 0; i < m->n_events; i++) {
        const struct doctor_event *e = &m->events[i];
        if (i == MOST_LOG_LINES) {
            break;
        }
        snprintf(text, sizeof text, "kernel: %s", e->text);
        say(t, s->seconds, -1, text);
        if (e->kind == DOCTOR_EVENT_XID) {
            int weight = doctor_xid_weight(e->number);
            t->n_xids += e->count;
            t->worst_xid = weight > t->worst_xid ? weight : t->worst_xid;
            snprintf(text, sizeof text, "        Xid %d: %s", e->number,
                     doctor_xid_text(e->number));
            fprintf(t->say, "%s\n", text);
        }
    }
    free(m);
}

static void spend(struct life *life, double seconds)
{
    if (life->is_known && life->last.is_present) {
        state_of(life, life->last.link)->seconds += seconds;
        life->throttled_s += slowing(life->last.throttle) ? seconds : 0;
        life->capped_s += life->last.throttle > 0 && (life->last.throttle & 0x4) ? seconds : 0;
    }
}

int watch_track_add(struct watch_track *t, const struct watch_sample *s)
{
    double passed = t->n_samples ? s->seconds - t->last : 0;
    int is_heartbeat = !t->n_samples || s->seconds - t->heartbeat >= HEARTBEAT_SECONDS;
    for (int i = 0; i < t->n; i++) {
        struct life *life = &t->lives[i];
        const struct watch_reading *r = &s->readings[i];
        const char *event = NULL;
        spend(life, passed);
        if (follow_presence(t, i, r, s->seconds, &event)) {
            follow_link(t, i, r, s->seconds, &event);
            follow_counters(t, i, r, s->seconds, &event);
            follow_throttle(t, i, r, s->seconds, &event);
            life->is_known = 1;
        }
        if (event || is_heartbeat) {
            row(t, s->seconds, i, r, event ? event : t->n_samples ? "still" : "start");
        }
        if (r->is_present || life->is_known) {
            life->last = *r;
        }
    }
    follow_log(t, s);
    if (is_heartbeat) {
        t->heartbeat = s->seconds;
    }
    t->last = s->seconds;
    t->n_samples++;
    fflush(t->say);
    return t->csv && (fflush(t->csv) || ferror(t->csv)) ? -1 : 0;
}

/* ---- the summary ---- */

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The usual time between drops, where three of four are within 15 % of it; else 0. */
static double period(const struct life *life)
{
    static double gaps[WATCH_MAX_DROPS];
    int n = life->n_drops - 1, near = 0;
    if (n < 3) {
        return 0;
    }
    for (int i = 0; i < n; i++) {
        gaps[i] = life->drops[i + 1].start - life->drops[i].start;
    }
    qsort(gaps, (size_t)n, sizeof *gaps, by_value);
    double median = gaps[n / 2];
    for (int i = 0; i < n; i++) {
        near += fabs(gaps[i] - median) <= 0.15 * median;
    }
    return near * 4 >= n * 3 ? median : 0;
}

static void print_drops(struct watch_track *t, const struct life *life, FILE *to)
{
    char when[40], link[32];
    for (int i = 0; i < life->n_drops; i++) {
        const struct drop *d = &life->drops[i];
        if (i == 20) {
            fprintf(to, "    .. and %llu more\n", (unsigned long long)(life->n_drops_in_all - 20));
            break;
        }
        stamp(t, d->start, when, sizeof when);
        doctor_link_text(d->lowest, link, sizeof link);
        fprintf(to, "    drop at %s for %.1f s%s, down to %s%s\n", when, d->length,
                d->is_open ? " (not over)" : "", link, d->is_load_known ? "" : " (load unknown)");
    }
    double every = period(life);
    if (every > 0) {
        fprintf(to,
                "    about every %.1f s: look for what runs that often (polling, power states, a "
                "cron job)\n",
                every);
    }
}

static int sum_up(struct watch_track *t, int i, FILE *to)
{
    struct life *life = &t->lives[i];
    char link[32], why[80];
    int status = 0;
    if (!t->devices[i].is_lower_end && !life->errors[0] && !life->errors[1] && !life->errors[2] &&
        !life->n_vanished) {
        return 0; /* the other end of its link says the rest */
    }
    fprintf(to, "%s\n", t->devices[i].label);
    for (int k = 0; k < life->n_states && t->devices[i].is_lower_end; k++) {
        doctor_link_text(life->states[k].link, link, sizeof link);
        fprintf(to, "    %-14s %5.1f GB/s  %10.1f s  %5.1f %%\n", link,
                doctor_link_gbs(life->states[k].link), life->states[k].seconds,
                t->last > 0 ? 100 * life->states[k].seconds / t->last : 100.0);
    }
    if (life->gone_since >= 0) {
        life->gone_s += t->last - life->gone_since;
    }
    if (life->n_vanished || life->gone_s > 0 || life->gone_since >= 0) {
        fprintf(to, "    vanished %d times, gone for %.1f s%s\n", life->n_vanished, life->gone_s,
                life->gone_since >= 0 ? ", still gone" : "");
        status = 2;
    }
    if (life->n_drops_in_all) {
        fprintf(to, "    %llu drops\n", (unsigned long long)life->n_drops_in_all);
        print_drops(t, life, to);
        status = status ? status : 1;
    }
    if (life->errors[0] || life->errors[1] || life->errors[2] || life->replays) {
        fprintf(to, "    errors: corrected %llu, non-fatal %llu, fatal %llu; replays %lld\n",
                (unsigned long long)life->errors[0], (unsigned long long)life->errors[1],
                (unsigned long long)life->errors[2], (long long)life->replays);
        status = life->errors[2] ? 2 : status ? status : 1;
    }
    if (life->throttled_s > 0 || life->throttle_seen) {
        throttle_text(life->throttle_seen, why, sizeof why);
        fprintf(to, "    slowed down for %.1f s by: %s\n", life->throttled_s, why);
        status = status ? status : 1;
    }
    if (life->capped_s > 0) {
        fprintf(to, "    at its power cap for %.1f s\n", life->capped_s);
    }
    return status;
}

int watch_track_end(struct watch_track *t, FILE *to)
{
    int worst = t->worst_xid;
    fprintf(to, "\n%d samples in %.1f s\n", t->n_samples, t->last);
    for (int i = 0; i < t->n; i++) {
        int status = sum_up(t, i, to);
        worst = status > worst ? status : worst;
        if (t->csv) {
            row(t, t->last, i, &t->lives[i].last, "end");
        }
    }
    if (t->n_xids) {
        fprintf(to, "Xid lines: %llu\n", (unsigned long long)t->n_xids);
    }
    free(t);
    return worst;
}
