#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config.h"

enum { LINE_BYTES = 1024 };

/* NCCL's subsystem bits. INIT is what users leave on; COLL is a line a call. */
static const unsigned long SUBSYSTEM_INIT = 0x1, SUBSYSTEM_COLL = 0x2;

/* Published by a release store, read with acquire: pairs with llane_log_set_nccl. */
static _Atomic(llane_nccl_logger) nccl_logger;

void llane_log_set_nccl(llane_nccl_logger logger)
{
    if (logger) {
        atomic_store_explicit(&nccl_logger, logger, memory_order_release);
    }
}

int llane_log_wants_calls(void)
{
    return llane_config_debug_has_calls();
}

void llane_log(enum llane_log_level level, const char *file, int line, const char *format, ...)
{
    int saved_errno = errno;
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    llane_nccl_logger logger = atomic_load_explicit(&nccl_logger, memory_order_acquire);
    if (logger) {
        unsigned long subsystem = level == LLANE_LOG_CALL ? SUBSYSTEM_COLL : SUBSYSTEM_INIT;
        logger(level == LLANE_LOG_WARN ? LLANE_LOG_WARN : LLANE_LOG_INFO,
               level == LLANE_LOG_WARN ? ~0UL : subsystem, file, line, "LLANE %s", text);
    } else if (level == LLANE_LOG_WARN || llane_config_debug_is_info()) {
        fprintf(stderr, "llane [%d] %s%s\n", (int)getpid(), level == LLANE_LOG_WARN ? "WARN " : "",
                text);
    }
    errno = saved_errno;
}
