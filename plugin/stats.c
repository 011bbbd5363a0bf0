#include "stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "comm.h"
#include "config.h"

void llane_stats_count(struct llane_comm *comm, enum llane_route route, uint64_t bytes)
{
    comm->stats[route].calls++;
    comm->stats[route].bytes += bytes;
}

/* One line a communicator, written whole so that ranks' lines do not mix:
 * llane stats: pid P rank R/N id HEX: lane C calls B bytes; NCCL C calls B bytes (reason: C, ...) */
void llane_stats_print_if_asked(struct llane_comm *comm)
{
    if (!llane_config()->stats || !comm->n_ranks) {
        return; /* not asked, or it never reduced */
    }
    uint64_t nccl_calls = 0, nccl_bytes = 0;
    char reasons[768] = "";
    size_t used = 0;
    for (int r = LLANE_ROUTE_LANE + 1; r < LLANE_N_ROUTES; r++) {
        nccl_calls += comm->stats[r].calls;
        nccl_bytes += comm->stats[r].bytes;
        if (comm->stats[r].calls && used < sizeof reasons) {
            int is_inactive = r == LLANE_ROUTE_INACTIVE;
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s%s%s: %" PRIu64,
                                     used ? ", " : "", llane_route_text(r), is_inactive ? ", " : "",
                                     is_inactive ? llane_inactive_text(comm->inactive_reason) : "",
                                     comm->stats[r].calls);
        }
    }
    char line[1200];
    int length =
        snprintf(line, sizeof line,
                 "llane stats: pid %d rank %d/%d id %08" PRIx64 ": lane %" PRIu64 " calls %" PRIu64
                 " bytes; NCCL %" PRIu64 " calls %" PRIu64 " bytes%s%s%s\n",
                 (int)getpid(), comm->rank, comm->n_ranks, comm->key.comm_id[0] >> 32,
                 comm->stats[LLANE_ROUTE_LANE].calls, comm->stats[LLANE_ROUTE_LANE].bytes,
                 nccl_calls, nccl_bytes, used ? " (" : "", reasons, used ? ")" : "");
    if (write(STDERR_FILENO, line, (size_t)length) < 0) {
        return; /* nobody reads */
    }
}

void llane_stats_print_process_if_asked(void)
{
    uint64_t bytes = llane_staging_total_bytes();
    if (!llane_config()->stats || !bytes) {
        return;
    }
    char line[128];
    int length =
        snprintf(line, sizeof line, "llane stats: pid %d: %" PRIu64 " KiB of staging memory\n",
                 (int)getpid(), bytes >> 10);
    if (write(STDERR_FILENO, line, (size_t)length) < 0) {
        return; /* nobody reads */
    }
}
