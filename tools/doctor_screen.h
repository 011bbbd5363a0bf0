/*
 * doctor_screen: what people read (one screen for four GPUs, 100 columns at most) and what machines
 * read. Owns: nothing. Threads: one. Blocking: as the file. Errors: the file's own.
 */
#ifndef DOCTOR_SCREEN_H
#define DOCTOR_SCREEN_H

#include "doctor_rules.h"

void doctor_print_screen(const struct doctor_machine *m, const struct doctor_findings *findings,
                         int is_verbose, FILE *to);
void doctor_print_json(const struct doctor_machine *m, const struct doctor_findings *findings,
                       FILE *to);

#endif
