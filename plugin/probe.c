#include "probe.h"

#include <string.h>

#include "backoff.h"
#include "config.h"
#include "err.h"

enum { PROBE_THREADS = 128 };

static int launch(enum llane_kernel kernel, const struct llane_probe_args *args,
                  struct CUstream_st *stream)
{
    const struct llane_gpu_launch request = {
        .kernel = llane_kernel_table[kernel],
        .args = args,
        .args_bytes = sizeof *args,
        .n_blocks = 1,
        .n_threads = PROBE_THREADS,
        .stream = stream,
    };
    return llane_gpu_launch(&request);
}

/* The check is bounded on the GPU; a cancelled one is ended by the abort word, as is one that has not
 * even begun when it should have ended twice. */
static int wait_for(struct CUstream_st *stream, struct llane_staging const *staging,
                    const _Atomic int *cancel)
{
    int64_t deadline_ms = llane_now_ms() + 2 * (int64_t)llane_config()->probe_timeout_ms + 1000;
    struct llane_backoff backoff = {0};
    int is_done = 0;
    for (;;) {
        int err = llane_gpu_stream_query(stream, &is_done);
        if (err || is_done) {
            return err ? err : llane_staging_is_aborted(staging) ? LLANE_ECANCELED : 0;
        }
        err = llane_is_canceled(cancel)      ? LLANE_ECANCELED
              : llane_now_ms() > deadline_ms ? LLANE_EREFUSED
                                             : 0;
        if (err) {
            llane_staging_abort(staging);
            return err;
        }
        llane_backoff_sleep(&backoff);
    }
}

int llane_probe_run(const struct llane_probe *probe, struct CUstream_st *stream,
                    const _Atomic int *cancel, uint32_t result_out[LLANE_MAX_RANKS])
{
    const struct llane_staging *staging = probe->staging;
    struct llane_probe_args args = {
        .nonce = probe->nonce,
        .timeout_ns = llane_config()->probe_timeout_ms * 1000000ull,
        .rank = (uint32_t)probe->rank,
        .n_ranks = (uint32_t)probe->n_ranks,
        .peers = probe->peers,
        .result = staging->mapped_device->probe_result,
        .words = &staging->mapped_device->words,
    };
    memcpy(args.send, probe->send, sizeof args.send);
    memcpy(args.recv, probe->recv, sizeof args.recv);
    int err = launch(LLANE_KERNEL_PROBE_SEND, &args, stream);
    if (!err) {
        err = launch(LLANE_KERNEL_PROBE_CHECK, &args, stream);
    }
    if (!err) {
        err = wait_for(stream, staging, cancel);
    }
    for (int r = 0; r < probe->n_ranks && !err; r++) {
        result_out[r] = __atomic_load_n(&staging->mapped->probe_result[r], __ATOMIC_ACQUIRE);
    }
    return err;
}
