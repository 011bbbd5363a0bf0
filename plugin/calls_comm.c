/* Communicators: how they come; calls_end.c is how they end. */
#include "calls.h"

#include <stdlib.h>

#include "comm.h"
#include "config.h"
#include "group.h"
#include "interpose.h"
#include "key.h"
#include "startup.h"

/* ---- creation ---- */

/* A communicator under way: its handle is known when the creating call or its group has ended. */
struct birth {
    const struct llane_nccl *nccl;
    ncclComm_t *where;
    int has_key;
    struct llane_board_key key;
    uint64_t shrink; /* as in struct llane_comm */
    struct llane_comm_options options;
    struct llane_comm *shares_with; /* held, or NULL */
    struct llane_comm *parent;      /* held, or NULL */
    uint64_t *n_siblings;           /* the parent's count, this one included */
};

static void forget(const struct birth *birth)
{
    if (birth->parent) {
        llane_comm_release(birth->parent);
    }
    if (birth->shares_with) {
        llane_comm_release(birth->shares_with);
    }
}

/* A child that came to nothing on this rank alone must not count: other ranks never knew of it. */
static void uncount_child(const struct birth *birth)
{
    if (birth->parent) {
        pthread_mutex_lock(&birth->parent->key_lock);
        --*birth->n_siblings;
        pthread_mutex_unlock(&birth->parent->key_lock);
    }
}

static void deliver(const struct birth *birth, ncclResult_t result)
{
    struct llane_comm *comm = NULL;
    if (llane_is_refused(result)) {
        uncount_child(birth);
    } else if (birth->where && *birth->where) {
        comm = llane_comm_add(birth->nccl, *birth->where, birth->has_key ? &birth->key : NULL,
                              &birth->options, birth->shares_with);
    }
    if (comm) {
        comm->shrink = birth->shrink; /* the program has no handle to call it by yet */
        llane_comm_release(comm);
    }
    forget(birth);
}

static void deliver_deferred(void *arg, ncclResult_t result)
{
    deliver(arg, result);
    free(arg);
}

/*
 * Outside a group the handle is entered now; inside one it may be written only when the group
 * ends. Without memory for that the communicator has no id from its creation: NCCL may carry it.
 */
static ncclResult_t born(const struct birth *birth, ncclResult_t result)
{
    llane_group_note(birth->nccl, result);
    if (llane_config()->enable) {
        llane_interpose_scan();
        llane_startup_announce();
    }
    struct birth *later = NULL;
    if (llane_config()->enable && !llane_is_refused(result) && llane_group_is_open(birth->nccl)) {
        later = malloc(sizeof *later);
        if (later) {
            *later = *birth;
        }
        if (later && !llane_group_defer(birth->nccl, deliver_deferred, later)) {
            return result;
        }
        free(later);
        forget(birth);
        return result;
    }
    if (llane_config()->enable) {
        deliver(birth, result);
    }
    return result;
}

static struct birth expect(const struct llane_nccl *nccl, ncclComm_t *where,
                           const ncclConfig_t *config)
{
    return (struct birth){
        .nccl = nccl, .where = where, .options = llane_comm_options_read(config, NULL)};
}

ncclResult_t llane_call_CommInitRank(const struct llane_nccl *nccl, ncclComm_t *comm, int nranks,
                                     ncclUniqueId id, int rank)
{
    struct birth birth = expect(nccl, comm, NULL);
    birth.has_key = 1;
    llane_key_of_unique_id(&id, &birth.key);
    return born(&birth, nccl->CommInitRank(comm, nranks, id, rank));
}

ncclResult_t llane_call_CommInitRankConfig(const struct llane_nccl *nccl, ncclComm_t *comm,
                                           int nranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
    struct birth birth = expect(nccl, comm, config);
    birth.has_key = 1;
    llane_key_of_unique_id(&id, &birth.key);
    return born(&birth, nccl->CommInitRankConfig(comm, nranks, id, rank, config));
}

ncclResult_t llane_call_CommInitRankScalable(const struct llane_nccl *nccl, ncclComm_t *comm,
                                             int nranks, int rank, int n_ids, ncclUniqueId *ids,
                                             ncclConfig_t *config)
{
    struct birth birth = expect(nccl, comm, config);
    if (n_ids >= 1 && ids) {
        birth.has_key = 1;
        llane_key_of_unique_id(&ids[0], &birth.key);
    }
    return born(&birth, nccl->CommInitRankScalable(comm, nranks, rank, n_ids, ids, config));
}

ncclResult_t llane_call_CommInitAll(const struct llane_nccl *nccl, ncclComm_t *comms, int ndev,
                                    const int *devlist)
{
    ncclResult_t result = llane_group_note(nccl, nccl->CommInitAll(comms, ndev, devlist));
    if (llane_is_refused(result)) {
        return result; /* with any number of devices in it */
    }
    struct birth birth = expect(nccl, NULL, NULL);
    birth.has_key = 1;
    llane_key_of_process(&birth.key);
    for (int i = 0; i < ndev; i++) {
        birth.where = &comms[i];
        born(&birth, result);
    }
    return result;
}

/*
 * What shares the parent's resources shares its order, with that of whatever it shares itself. NCCL goes
 * by the parent's config (its init.cc: comm->shareResources). Where that was not seen, a child whose
 * own one says so is taken for one: programs give all their communicators the same.
 */
static void share(struct birth *birth, struct llane_comm *parent, int parent_says, int child_says)
{
    if (parent_says || (parent->options.is_guessed && child_says)) {
        birth->shares_with = parent->shares_with ? parent->shares_with : parent;
        llane_comm_hold(birth->shares_with);
    }
}

/*
 * A child; takes over the caller's hold on the parent. Its id comes from its parent's, so all its ranks
 * derive the same one, if the parent has one at all.
 */
static void expect_split(struct birth *birth, struct llane_comm *parent, int color,
                         const ncclConfig_t *config)
{
    pthread_mutex_lock(&parent->key_lock);
    birth->has_key = parent->has_key;
    llane_key_of_child(&parent->key, ++parent->n_splits, color, &birth->key);
    pthread_mutex_unlock(&parent->key_lock);
    birth->shrink = llane_key_shrink_of_split(parent->shrink);
    birth->parent = parent;
    birth->n_siblings = &parent->n_splits;
    birth->options = llane_comm_options_read(config, &parent->options);
    share(birth, parent, parent->options.split_share, birth->options.split_share);
}

static void expect_shrunk(struct birth *birth, struct llane_comm *parent, const int *excluded,
                          int n_excluded, int is_abort, const ncclConfig_t *config)
{
    pthread_mutex_lock(&parent->key_lock);
    birth->shrink = llane_key_of_shrink(parent->shrink, excluded, n_excluded, parent->n_shrinks++);
    birth->has_key = parent->has_key && birth->shrink != LLANE_KEY_NAMELESS;
    llane_key_of_child(&parent->key, birth->shrink, LLANE_KEY_SHRINK, &birth->key);
    pthread_mutex_unlock(&parent->key_lock);
    birth->parent = parent;
    birth->n_siblings = &parent->n_shrinks;
    birth->options = llane_comm_options_read(config, &parent->options);
    if (!is_abort) { /* NCCL shares nothing with an aborted parent */
        share(birth, parent, parent->options.shrink_share, birth->options.shrink_share);
    }
}

ncclResult_t llane_call_CommSplit(const struct llane_nccl *nccl, ncclComm_t parent, int color,
                                  int key, ncclComm_t *comm, ncclConfig_t *config)
{
    struct birth birth = expect(nccl, comm, config);
    struct llane_comm *known = llane_comm_acquire_or_add(nccl, parent);
    if (!known) {
        return llane_group_note(nccl, nccl->CommSplit(parent, color, key, comm, config));
    }
    expect_split(&birth, known, color, config);
    if (color == NCCL_SPLIT_NOCOLOR) {
        birth.where = NULL; /* no communicator, but counted */
    }
    return born(&birth, nccl->CommSplit(parent, color, key, comm, config));
}

ncclResult_t llane_call_CommShrink(const struct llane_nccl *nccl, ncclComm_t parent, int *excluded,
                                   int n_excluded, ncclComm_t *comm, ncclConfig_t *config,
                                   int flags)
{
    struct birth birth = expect(nccl, comm, config);
    struct llane_comm *known = llane_comm_acquire_or_add(nccl, parent);
    if (!known) {
        return llane_group_note(
            nccl, nccl->CommShrink(parent, excluded, n_excluded, comm, config, flags));
    }
    /* Where NCCL refuses the arguments, the parent goes on. */
    int is_abort = (flags & NCCL_SHRINK_ABORT) && comm && excluded && n_excluded > 0;
    if (is_abort) {
        llane_comm_retire(known, 1); /* NCCL waits for the parent's stream: our word first */
    }
    expect_shrunk(&birth, known, excluded, n_excluded, is_abort, config);
    return born(&birth, nccl->CommShrink(parent, excluded, n_excluded, comm, config, flags));
}

/*
 * Its new ranks know the unique id, its old ones the parent: only NCCL's own id is known to all. That
 * is not enough where the parent comes of a shrink.
 */
ncclResult_t llane_call_CommGrow(const struct llane_nccl *nccl, ncclComm_t parent, int nranks,
                                 const ncclUniqueId *id, int rank, ncclComm_t *comm,
                                 ncclConfig_t *config)
{
    struct birth birth = expect(nccl, comm, config);
    struct llane_comm *known = llane_comm_acquire_or_add(nccl, parent);
    birth.shrink = llane_key_shrink_of_grow(known ? known->shrink : 0);
    if (known) {
        birth.options = llane_comm_options_read(config, &known->options);
        llane_comm_release(known);
    }
    return born(&birth, nccl->CommGrow(parent, nranks, id, rank, comm, config));
}
