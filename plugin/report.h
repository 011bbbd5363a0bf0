/*
 * report: a helper thread that reads the times of calls that have ended (LLANE_AB) and writes a report
 * when the signal of LLANE_REPORT_SIGNAL comes.
 *
 * Owns: the thread, and the signal's action where the program has none of its own.
 * Threads: start and wait_for_look by any; end by the one that ends the process. Blocking: end and
 * wait_for_look, a second at most.
 * Errors: without a thread times are read when a communicator ends, as far as its ring holds them.
 */
#ifndef LLANE_REPORT_H
#define LLANE_REPORT_H

/* Once; further calls do nothing. device: one that the process uses. */
void llane_report_start(int device);
/* A communicator has left the table: until no look is under way that may hold it, and asks its device. */
void llane_report_wait_for_look(void);
void llane_report_end(void);

#endif
