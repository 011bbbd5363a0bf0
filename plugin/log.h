/*
 * log: one line a message, through NCCL's logger once a plugin table brought one (NCCL_DEBUG then
 * governs it), before that to stderr under the same variable: warnings by default, all with INFO.
 *
 * Threads: any. Blocking: as the logger or stderr. Errors: none. errno is preserved.
 */
#ifndef LLANE_LOG_H
#define LLANE_LOG_H

/* The first two are NCCL's own numbers. CALL is INFO about one collective call. */
enum llane_log_level { LLANE_LOG_WARN = 2, LLANE_LOG_INFO = 3, LLANE_LOG_CALL = 4 };

/* NCCL's logger, as every plugin ABI passes it. */
typedef void (*llane_nccl_logger)(int level, unsigned long flags, const char *file, int line,
                                  const char *format, ...);
void llane_log_set_nccl(llane_nccl_logger logger);

/* 1 where NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS ask for a line about every call. */
int llane_log_wants_calls(void);

__attribute__((format(printf, 4, 5))) void llane_log(enum llane_log_level level, const char *file,
                                                     int line, const char *format, ...);

#define LLANE_WARN(...) llane_log(LLANE_LOG_WARN, __FILE__, __LINE__, __VA_ARGS__)
#define LLANE_INFO(...) llane_log(LLANE_LOG_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define LLANE_CALL(...) llane_log(LLANE_LOG_CALL, __FILE__, __LINE__, __VA_ARGS__)

#endif
