/*
 * version: what this object is. Threads: any. Blocking: no. Errors: none.
 */
#ifndef LLANE_VERSION_H
#define LLANE_VERSION_H

#ifndef LLANE_VERSION
#define LLANE_VERSION "0.1.0" /* the Makefile's value wins */
#endif

/*
 * The linker's build id of the object that this code is in, hexadecimal: two ranks whose ids differ
 * run different code. "none" if it was linked without one. Static storage.
 */
const char *llane_build_id(void);

#endif
