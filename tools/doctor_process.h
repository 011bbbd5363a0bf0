/* doctor_process: limits, namespaces and environment of this process, as lines of an answer. */
#ifndef DOCTOR_PROCESS_H
#define DOCTOR_PROCESS_H

#include <sched.h>

#include "doctor_text.h"

/* program: a path whose NCCL is looked for, or NULL. A doctor_collect. */
int doctor_collect_process(void *program, struct doctor_text *out);

/* "0-3,8" from a mask, and back: which of a list's CPUs are in another list. */
void doctor_cpu_list(const cpu_set_t *set, char *out, size_t cap);
int doctor_cpu_parse(const char *list, cpu_set_t *out);

#endif
