/*
 * device: a communicator's device is current for a few calls; what was current before comes back.
 * Threads: any. Blocking: no. Errors: the device's, LLANE_EGPU.
 */
#ifndef LLANE_DEVICE_H
#define LLANE_DEVICE_H

#include "gpu.h"

/* previous_out: for llane_device_leave. Not to be left after an error. */
static inline int llane_device_enter(int device, int *previous_out)
{
    int err = llane_gpu_device_get(previous_out);
    return err || *previous_out == device ? err : llane_gpu_device_set(device);
}

/* The program has reset the device since its context had this number (llane_gpu_context_id): what was
 * made then is gone. */
static inline int llane_device_was_reset(int device, uint64_t context)
{
    return context != llane_gpu_context_id(device);
}

/* err, what the calls came to, goes before an error of its own. */
static inline int llane_device_leave(int device, int previous, int err)
{
    int restore_err = previous == device ? 0 : llane_gpu_device_set(previous);
    return err ? err : restore_err;
}

#endif
