#include "probe.h"

#include "backoff.h"
#include "config.h"
#include "err.h"

enum { PROBE_THREADS = 128 };

const char *llane_probe_text(uint32_t result)
{
    switch (result) {
    case LLANE_PROBE_GOOD:
        return "good";
    case LLANE_PROBE_MISSING:
        return "nothing arrived";
    case LLANE_PROBE_WRONG:
        return "wrong data arrived";
    default:
        return "not checked";
    }
}

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

/* The check is bounded on the GPU; a cancelled one is ended by the abort word. */
static int wait_for(struct CUstream_st *stream, struct llane_staging const *staging,
                    const _Atomic int *cancel)
{
    struct llane_backoff backoff = {0};
    int is_done = 0;
    for (;;) {
        int err = llane_gpu_stream_query(stream, &is_done);
        if (err || is_done) {
            return err;
        }
        if (llane_is_canceled(cancel)) {
            __atomic_store_n(&staging->mapped->words.abort, 1, __ATOMIC_RELEASE);
            return LLANE_ECANCELED;
        }
        llane_backoff_sleep(&backoff);
    }
}

int llane_probe_run(const struct llane_staging *staging, uint8_t *const *bases, int rank,
                    int n_ranks, uint64_t nonce, struct CUstream_st *stream,
                    const _Atomic int *cancel, int *peer_out, uint32_t *result_out)
{
    struct llane_probe_args args = {
        .nonce = nonce,
        .timeout_ns = llane_config()->probe_timeout_ms * 1000000ull,
        .rank = (uint32_t)rank,
        .n_ranks = (uint32_t)n_ranks,
        .result = staging->mapped_device->probe_result,
        .words = &staging->mapped_device->words,
    };
    for (int r = 0; r < n_ranks; r++) {
        args.send[r] = llane_staging_probe_area(bases[r], (uint32_t)rank);
        args.recv[r] = llane_staging_probe_area(staging->base, (uint32_t)r);
    }
    int err = launch(LLANE_KERNEL_PROBE_SEND, &args, stream);
    if (!err) {
        err = launch(LLANE_KERNEL_PROBE_CHECK, &args, stream);
    }
    if (!err) {
        err = wait_for(stream, staging, cancel);
    }
    for (int r = 0; r < n_ranks && !err; r++) {
        uint32_t result = __atomic_load_n(&staging->mapped->probe_result[r], __ATOMIC_ACQUIRE);
        if (r != rank && result != LLANE_PROBE_GOOD) {
            *peer_out = r;
            *result_out = result;
            err = LLANE_EREFUSED;
        }
    }
    return err;
}
