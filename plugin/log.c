#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config.h"

enum { LINE_BYTES = 1024 };

/* NCCL's subsystem bits: lines at INFO are shown for INIT, ENV and TUNING by default or on request;
 * INIT is what users leave on. */
static const unsigned long SUBSYSTEM_INIT = 0x1;

/* Published by a release store, read with acquire: pairs with llane_log_set_nccl. */
static _Atomic(llane_nccl_logger) nccl_logger;

void llane_log_set_nccl(llane_nccl_logger logger) {
    if (logger) {
        atomic_store_explicit(&nccl_logger, logger, memory_order_release);
    }
}

int llane_log_has_nccl(void) {
    return atomic_load_explicit(&nccl_logger, memory_order_acquire) != NULL;
}

void llane_log(enum llane_log_level level, const char *file, int line, const char *format, ...) {
    int saved_errno = errno;
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    llane_nccl_logger logger = atomic_load_explicit(&nccl_logger, memory_order_acquire);
    if (logger) {
        logger(level, level == LLANE_LOG_WARN ? ~0UL : SUBSYSTEM_INIT, file, line, "LLANE %s", text);
    } else if (level == LLANE_LOG_WARN || llane_config_debug_is_info()) {
        fprintf(stderr, "llane [%d] %s%s\n", (int)getpid(), level == LLANE_LOG_WARN ? "WARN " : "",
                text);
    }
    errno = saved_errno;
}
