/*
 * doctor_rules: what is wrong with a machine, costliest first, each with what to check in which order.
 *
 * Owns: nothing. Threads: any. Blocking: no. Errors: none; a full list drops what comes last.
 * docs/doctor.md explains every id.
 */
#ifndef DOCTOR_RULES_H
#define DOCTOR_RULES_H

#include "doctor_machine.h"

enum { DOCTOR_MAX_FINDINGS = 160, DOCTOR_MAX_CHECKS = 6 };

/* Also the exit status of the worst finding. */
enum doctor_weight { DOCTOR_INFO = 0, DOCTOR_WARNING = 1, DOCTOR_BROKEN = 2 };

struct doctor_finding {
    const char *id;
    enum doctor_weight weight;
    int cost;       /* 0..1000: what it takes from collectives, for the order among equals */
    char where[24]; /* a PCI address; "" for the machine */
    char what[400];
    const char *checks[DOCTOR_MAX_CHECKS];
    int n_checks;
    char command[240];
};

struct doctor_findings {
    struct doctor_finding list[DOCTOR_MAX_FINDINGS];
    int n;
    char verdict[800]; /* what llane would choose, and why */
};

void doctor_judge(const struct doctor_machine *m, struct doctor_findings *out);
enum doctor_weight doctor_worst(const struct doctor_findings *findings);

/* ---- between the rules' files ---- */

/* A finding to be completed by the caller; a scratch one when the list is full. */
__attribute__((format(printf, 6, 7))) struct doctor_finding *
doctor_find(struct doctor_findings *out, const char *id, enum doctor_weight weight, int cost,
            const char *where, const char *format, ...);
void doctor_check(struct doctor_finding *f, const char *text);
__attribute__((format(printf, 2, 3))) void doctor_command(struct doctor_finding *f,
                                                          const char *format, ...);

/* A physical link, named by its lower end. */
struct doctor_hop {
    int lower, upper; /* devices; upper -1 where the tree does not show it */
};
/* The links from a device up to its root port; inside a switch there is none. */
int doctor_hops(const struct doctor_machine *m, int device,
                struct doctor_hop hops[DOCTOR_MAX_DEPTH]);
/* What both ends can do, and what they do now (under load where that was read). */
struct doctor_link doctor_hop_most(const struct doctor_machine *m, struct doctor_hop hop);
struct doctor_link doctor_hop_now(const struct doctor_machine *m, struct doctor_hop hop,
                                  int *is_loaded_out);
/* "GPU 0, GPU 3": those below a device; how many. */
int doctor_gpus_below(const struct doctor_machine *m, int device, char *text, size_t cap);
/* Pairs that have no NVLink reach each other through PCI Express. */
int doctor_has_pci_pairs(const struct doctor_machine *m);

void doctor_rules_link(const struct doctor_machine *m, struct doctor_findings *out);
void doctor_rules_error(const struct doctor_machine *m, struct doctor_findings *out);
void doctor_rules_gpu(const struct doctor_machine *m, struct doctor_findings *out);
void doctor_rules_peer(const struct doctor_machine *m, struct doctor_findings *out);
void doctor_rules_process(const struct doctor_machine *m, struct doctor_findings *out);
void doctor_verdict(const struct doctor_machine *m, struct doctor_findings *out);

#endif
