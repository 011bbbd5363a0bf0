/* Internal results: 0 or a negative LLANE_E*. A failure is logged once, where it is decided. */
#ifndef LLANE_ERR_H
#define LLANE_ERR_H

enum {
    LLANE_EGPU = -1,      /* the GPU runtime refused; llane_gpu_error() has its words */
    LLANE_ESYS = -2,      /* a system call failed; errno was saved in the message */
    LLANE_ENOMEM = -3,    /* out of host memory or a fixed table is full */
    LLANE_EINVAL = -4,    /* an argument or a peer's record makes no sense */
    LLANE_ECANCELED = -5, /* the communicator ended, or the process is leaving */
    LLANE_EREFUSED = -6,  /* a verdict went against the lane */
    LLANE_ENOSYS = -7,    /* this build or this driver has no such thing */
};

#endif
