/*
 * runtime: what llane does when the process ends. Called once, by the destructor of the object.
 * Blocking: a second at most. Errors: none.
 */
#ifndef LLANE_RUNTIME_H
#define LLANE_RUNTIME_H

/* Ends set-ups under way and prints statistics. Frees nothing: the process's end does. */
void llane_runtime_exit(void);

#endif
