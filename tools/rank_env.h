/*
 * rank_env: what surrounds the rank processes that a tool starts: how many GPUs there are, what NCCL
 * needs where ranks share one, a private MPS daemon, and the signals at which it has to be ended.
 * Of bench and soak.
 *
 * Owns the daemon and the handlers of the signals. Threads: one, the parent's. Blocking: while the daemon
 * starts and ends. Errors: said on stderr under the tool's name.
 */
#ifndef LLANE_RANK_ENV_H
#define LLANE_RANK_ENV_H

struct rank_env_options {
    const char *tool; /* for messages: "llane-bench" */
    int n_ranks;
    int n_gpus; /* 0: as many as there are */
    int starts_mps;
};

struct rank_env {
    int nccl_version;
    int n_gpus;
    int is_emulated;
    int is_shared; /* several ranks on one GPU */
    int has_mps;   /* where is_shared */
    char gpu[64];
};

/* Sets in this process's environment what the ranks need; starts MPS where asked. 0, or -1. */
int rank_env_prepare(const struct rank_env_options *options, struct rank_env *out);
/* Ends the MPS that prepare started. */
void rank_env_restore(void);

/* In the rank's own process, before it becomes the rank: its signals are as ever, and its environment has
 * what it needs. What the user set stays. */
void rank_env_of_rank(const struct rank_env *env, int rank);

/* From here on signals that end a process are noted. */
void rank_env_catch_signals(void);
int rank_env_signal(void); /* 0: none came */
/* Ends this process as one who was interrupted ends, if it was. */
void rank_env_raise(void);

#endif
