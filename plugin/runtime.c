#include "runtime.h"

#include "comm.h"
#include "forks.h"
#include "report.h"
#include "setup.h"
#include "stats.h"
#include "watch.h"

void llane_runtime_exit(void)
{
    if (llane_forks_is_passive()) {
        return; /* the parent's communicators and threads are the parent's */
    }
    llane_setup_end_all();
    llane_watch_exit();
    llane_report_end();
    llane_comm_for_all(llane_stats_end);
    llane_stats_end_process();
}
