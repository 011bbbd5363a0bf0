/*
 * Stream capture and graphs.
 *
 * A capture holds its operations in issue order, each on a branch = one of the capturing streams;
 * branch 0 is the origin. Replay gives branch 0 to the launching stream and every other branch to a
 * stream of the graph's own, so that branches run at the same time, as they may on a GPU. Waits
 * between branches are nodes that name an earlier node.
 */
#define _GNU_SOURCE
#include "emu.h"
#include "emu_internal.h"

#include <stdlib.h>
#include <string.h>

enum { GRAPH_MAGIC = 0x47524148, MAX_BRANCHES = 64 };
static const size_t no_node = (size_t)-1;

struct node {
    struct emu_op *op;
    uint32_t branch;
    size_t previous; /* in the branch */
};

/* What a graph keeps alive. */
struct retained {
    void (*release)(void *arg);
    void *arg;
    struct retained *next;
};

struct emu_capture {
    uint64_t id;
    struct retained *retained;
    bool invalid;
    enum emu_capture_mode mode;
    pthread_t thread;
    struct node *nodes;
    size_t n_nodes, capacity;
    struct CUstream_st *branches[MAX_BRANCHES];
    size_t last[MAX_BRANCHES];
    uint32_t n_branches;
    struct emu_capture *next; /* live captures */
};

struct CUgraphExec_st {
    uint32_t magic;
    pthread_mutex_t mutex; /* one launch at a time is put together */
    struct node *nodes;
    size_t n_nodes;
    uint32_t n_branches;
    struct CUstream_st *branches[MAX_BRANCHES]; /* [0] unused */
    struct emu_position previous;               /* end of the last launch */
    struct retained *retained;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_capture *live;
static uint64_t last_id;

static _Thread_local bool mode_is_relaxed;

bool emu_exchange_relaxed(bool is_relaxed)
{
    bool before = mode_is_relaxed;
    mode_is_relaxed = is_relaxed;
    return before;
}

int llane_gpu_capture_mode_relax(void)
{
    if (emu_current_physical() < 0)
        return LLANE_EGPU;
    (void)emu_exchange_relaxed(true);
    return 0;
}

/* With the lock held: must this thread, whose own mode is not relaxed, not make unsafe calls? */
static bool forbids(const struct emu_capture *capture)
{
    return capture->mode == EMU_CAPTURE_GLOBAL || (capture->mode == EMU_CAPTURE_THREAD_LOCAL &&
                                                   pthread_equal(capture->thread, pthread_self()));
}

int emu_check_unsafe(const char *call)
{
    bool is_forbidden = false;
    if (mode_is_relaxed)
        return 0;
    pthread_mutex_lock(&lock);
    for (struct emu_capture *capture = live; capture; capture = capture->next) {
        if (forbids(capture))
            capture->invalid = is_forbidden = true;
    }
    pthread_mutex_unlock(&lock);
    return is_forbidden ? emu_error("%s: not permitted while a thread captures", call) : 0;
}

bool emu_stream_is_capturing(struct CUstream_st *stream)
{
    /* Relaxed: the thread that issues to a stream is the one that began or joined the capture, or is
     * ordered after it by the program. Pairs with the stores in set_capture(). */
    return __atomic_load_n(&stream->capture, __ATOMIC_RELAXED) != NULL;
}

/* With the lock held. */
static void set_capture(struct CUstream_st *stream, struct emu_capture *capture, uint32_t branch)
{
    stream->branch = branch;
    /* Relaxed, pairs with emu_stream_is_capturing(). */
    __atomic_store_n(&stream->capture, capture, __ATOMIC_RELAXED);
}

void emu_capture_invalidate(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    if (stream->capture)
        stream->capture->invalid = true;
    pthread_mutex_unlock(&lock);
}

/* With the lock held; takes op over. Returns the node, or no_node and an error. */
static size_t append(struct emu_capture *capture, uint32_t branch, struct emu_op *op)
{
    if (!op)
        return no_node;
    if (capture->n_nodes == capture->capacity) {
        size_t capacity = capture->capacity ? 2 * capture->capacity : 64;
        struct node *grown = realloc(capture->nodes, capacity * sizeof *grown);
        if (!grown) {
            free(op);
            emu_error("out of host memory");
            return no_node;
        }
        capture->nodes = grown;
        capture->capacity = capacity;
    }
    size_t number = capture->n_nodes++;
    capture->nodes[number] = (struct node){op, branch, capture->last[branch]};
    capture->last[branch] = number;
    return number;
}

int emu_capture_append(struct CUstream_st *stream, struct emu_op *op)
{
    int rc = LLANE_EGPU;
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = stream->capture;
    if (!capture || capture->invalid) {
        emu_error("the stream's capture has been invalidated");
        free(op);
    } else if (append(capture, stream->branch, op) != no_node) {
        rc = 0;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int llane_gpu_capture_id(struct CUstream_st *handle, uint64_t *id_out)
{
    *id_out = 0;
    /* The legacy stream never captures. */
    if ((uintptr_t)handle <= 1)
        return 0;
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    if (!emu_stream_is_capturing(stream))
        return 0;
    pthread_mutex_lock(&lock);
    if (stream->capture)
        *id_out = stream->capture->id;
    pthread_mutex_unlock(&lock);
    return 0;
}

int emu_capture_place(struct CUstream_st *stream, uint64_t *id_out, size_t *node_out)
{
    int rc = 0;
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = stream->capture;
    if (!capture || capture->invalid) {
        rc = emu_error("the stream's capture has been invalidated");
    } else {
        *id_out = capture->id;
        *node_out = capture->last[stream->branch];
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* With the lock held: makes the stream a branch of the capture. */
static int join(struct emu_capture *capture, struct CUstream_st *stream)
{
    if (capture->n_branches == MAX_BRANCHES)
        return emu_error("too many streams in one capture");
    uint32_t branch = capture->n_branches++;
    capture->branches[branch] = stream;
    capture->last[branch] = no_node;
    set_capture(stream, capture, branch);
    return 0;
}

int emu_capture_join(struct CUstream_st *stream, uint64_t id, size_t node)
{
    int rc = LLANE_EGPU;
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = live;
    while (capture && capture->id != id)
        capture = capture->next;
    if (!capture) {
        emu_error("a wait for an event of a capture that has ended");
    } else if (capture->invalid) {
        emu_error("the capture has been invalidated");
    } else if (stream->capture && stream->capture != capture) {
        stream->capture->invalid = capture->invalid = true;
        emu_error("a wait would merge two captures");
    } else if (stream->capture || join(capture, stream) == 0) {
        struct emu_op *op = emu_op_new(EMU_OP_WAIT_NODE, 0);
        if (op)
            op->u.node = node;
        if (append(capture, stream->branch, op) != no_node)
            rc = 0;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* With the lock held; NULL and an error if the stream does not capture. */
static struct emu_capture *capture_of(struct CUstream_st *handle)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    struct emu_capture *capture = stream ? stream->capture : NULL;
    if (!capture || capture->invalid) {
        emu_error("the stream is not capturing, or no longer can");
        return NULL;
    }
    return capture;
}

/* Nodes have names by their number, so that a name is never NULL. */
static void *name_of(size_t node)
{
    return node == no_node ? NULL : (void *)(uintptr_t)(node + 1);
}

int llane_gpu_capture_node(struct CUstream_st *handle, void **node_out)
{
    *node_out = NULL;
    pthread_mutex_lock(&lock);
    const struct emu_capture *capture = capture_of(handle);
    if (capture)
        *node_out = name_of(capture->last[emu_stream_resolve(handle)->branch]);
    pthread_mutex_unlock(&lock);
    return capture ? 0 : LLANE_EGPU;
}

/* From is to, or comes after it: nodes name only earlier ones. */
static bool is_behind(const struct emu_capture *capture, size_t from, size_t to)
{
    while (from != no_node && from > to) {
        const struct node *node = &capture->nodes[from];
        if (node->op->kind == EMU_OP_WAIT_NODE && is_behind(capture, node->op->u.node, to))
            return true;
        from = node->previous;
    }
    return from == to;
}

int llane_gpu_capture_is_behind(struct CUstream_st *handle, const void *node, int *is_behind_out)
{
    *is_behind_out = 0;
    pthread_mutex_lock(&lock);
    const struct emu_capture *capture = capture_of(handle);
    if (capture)
        *is_behind_out = is_behind(capture, capture->last[emu_stream_resolve(handle)->branch],
                                   (uintptr_t)node - 1);
    pthread_mutex_unlock(&lock);
    return capture ? 0 : LLANE_EGPU;
}

static int append_event(struct CUstream_st *handle, struct CUevent_st *event, enum emu_op_kind kind,
                        const char *call, void **node_out)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream || emu_event_check(event) || emu_check_fail(call))
        return LLANE_EGPU;
    int rc = LLANE_EGPU;
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = stream->capture;
    struct emu_op *op = capture ? emu_op_new(kind, 0) : NULL;
    if (!capture || capture->invalid) {
        emu_error("%s: the stream is not capturing", call);
        free(op);
    } else if (op) {
        op->u.event = event;
        size_t before = capture->last[stream->branch];
        if (append(capture, stream->branch, op) != no_node) {
            rc = 0;
            /* A record is nobody's predecessor. */
            if (kind == EMU_OP_RECORD_EXTERNAL)
                capture->last[stream->branch] = before;
            if (node_out)
                *node_out = op;
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int llane_gpu_capture_wait_external(struct CUstream_st *stream, struct CUevent_st *event)
{
    return append_event(stream, event, EMU_OP_WAIT_EXTERNAL, "capture_wait_external", NULL);
}

int llane_gpu_capture_record_external(struct CUstream_st *stream, struct CUevent_st *event,
                                      void **node_out)
{
    return append_event(stream, event, EMU_OP_RECORD_EXTERNAL, "capture_record_external", node_out);
}

int llane_gpu_capture_record_extend(struct CUstream_st *handle, void *node)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream || emu_check_fail("capture_record_extend"))
        return LLANE_EGPU;
    bool found = false;
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = stream->capture;
    for (size_t i = 0; capture && !capture->invalid && i < capture->n_nodes && !found; i++) {
        const struct emu_op *op = capture->nodes[i].op;
        found = op == node && op->kind == EMU_OP_RECORD_EXTERNAL;
    }
    pthread_mutex_unlock(&lock);
    /* Nothing to add: replay records at the graph's end, after every node. */
    return found ? 0 : emu_error("capture_record_extend: no such node in the stream's capture");
}

int llane_gpu_capture_retain(struct CUstream_st *handle, void (*release)(void *arg), void *arg)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    struct retained *retained = malloc(sizeof *retained);
    if (!stream || !retained || emu_check_fail("capture_retain")) {
        free(retained);
        return LLANE_EGPU;
    }
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = stream->capture;
    if (capture) {
        *retained = (struct retained){release, arg, capture->retained};
        capture->retained = retained;
    }
    pthread_mutex_unlock(&lock);
    if (!capture) {
        free(retained);
        return emu_error("capture_retain: the stream is not capturing");
    }
    return 0;
}

static void release_all(struct retained *retained)
{
    for (struct retained *next; retained; retained = next) {
        next = retained->next;
        retained->release(retained->arg);
        free(retained);
    }
}

int llane_gpu_capture_begin(struct CUstream_st *handle)
{
    if ((uintptr_t)handle <= 1)
        return emu_error("the legacy stream cannot capture");
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream || emu_check_fail("capture_begin"))
        return LLANE_EGPU;
    struct emu_capture *capture = calloc(1, sizeof *capture);
    if (!capture)
        return emu_error("out of host memory");
    int rc = 0;
    pthread_mutex_lock(&lock);
    if (stream->capture) {
        rc = emu_error("the stream captures already");
    } else {
        capture->id = ++last_id;
        capture->thread = pthread_self();
        capture->mode = emu_config()->capture_mode;
        /* The node that a record before any operation stands for. */
        rc = join(capture, stream);
        if (append(capture, 0, emu_op_new(EMU_OP_START, 0)) == no_node) {
            set_capture(stream, NULL, 0);
            rc = LLANE_EGPU;
        }
    }
    if (rc == 0) {
        capture->next = live;
        live = capture;
    }
    pthread_mutex_unlock(&lock);
    if (rc < 0) {
        free(capture->nodes);
        free(capture);
    }
    return rc;
}

/* Every branch's last node must be an ancestor of the origin's last node. */
static bool is_joined(const struct emu_capture *capture)
{
    bool *reached = calloc(capture->n_nodes, 1);
    if (!reached)
        return false;
    reached[capture->last[0]] = true;
    /* Edges point to earlier nodes only, so one pass from the end sees them all. */
    for (size_t i = capture->n_nodes; i-- > 0;) {
        const struct node *node = &capture->nodes[i];
        if (!reached[i])
            continue;
        if (node->previous != no_node)
            reached[node->previous] = true;
        if (node->op->kind == EMU_OP_WAIT_NODE)
            reached[node->op->u.node] = true;
    }
    bool joined = true;
    for (uint32_t branch = 1; branch < capture->n_branches; branch++)
        joined = joined && reached[capture->last[branch]];
    free(reached);
    return joined;
}

static void free_nodes(struct node *nodes, size_t n_nodes)
{
    for (size_t i = 0; i < n_nodes; i++)
        free(nodes[i].op);
    free(nodes);
}

/* A capture's, ready to run. Outside this file a graph is that, not yet instantiated. */
static struct CUgraphExec_st *exec_new(struct emu_capture *capture)
{
    struct CUgraphExec_st *exec = calloc(1, sizeof *exec);
    if (!exec)
        return NULL;
    exec->magic = GRAPH_MAGIC;
    pthread_mutex_init(&exec->mutex, NULL);
    exec->n_branches = capture->n_branches;
    for (uint32_t branch = 1; branch < exec->n_branches; branch++) {
        exec->branches[branch] = emu_stream_new(capture->branches[branch]->device);
        if (!exec->branches[branch])
            emu_die("out of host memory");
    }
    exec->nodes = capture->nodes;
    exec->n_nodes = capture->n_nodes;
    exec->retained = capture->retained;
    capture->retained = NULL;
    capture->nodes = NULL;
    capture->n_nodes = 0;
    return exec;
}

int llane_gpu_capture_end_graph(struct CUstream_st *handle, struct CUgraph_st **graph_out)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    *graph_out = NULL;
    pthread_mutex_lock(&lock);
    struct emu_capture *capture = stream->capture;
    if (!capture || stream->branch != 0) {
        pthread_mutex_unlock(&lock);
        return emu_error("capture_end: %s", capture ? "not the stream that began the capture"
                                                    : "the stream is not capturing");
    }
    if (capture->mode != EMU_CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        pthread_mutex_unlock(&lock);
        return emu_error("capture_end: another thread began the capture");
    }
    struct emu_capture **link = &live;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    for (uint32_t branch = 0; branch < capture->n_branches; branch++)
        set_capture(capture->branches[branch], NULL, 0);
    pthread_mutex_unlock(&lock);

    int rc = 0;
    if (capture->invalid)
        rc = emu_error("capture_end: the capture was invalidated");
    else if (!is_joined(capture))
        rc = emu_error("capture_end: a forked stream was not joined");
    else if (!(*graph_out = (struct CUgraph_st *)exec_new(capture)))
        rc = emu_error("out of host memory");
    free_nodes(capture->nodes, capture->n_nodes);
    release_all(capture->retained);
    free(capture);
    return rc;
}

int llane_gpu_graph_instantiate(struct CUgraph_st *graph, struct CUgraphExec_st **exec_out)
{
    struct CUgraphExec_st *exec = (struct CUgraphExec_st *)graph;
    int rc = emu_check_unsafe("graph_instantiate");
    if (rc)
        (void)llane_gpu_graph_destroy(exec);
    *exec_out = rc ? NULL : exec;
    return rc;
}

int llane_gpu_capture_end(struct CUstream_st *stream, struct CUgraphExec_st **exec_out)
{
    struct CUgraph_st *graph;
    *exec_out = NULL;
    int rc = llane_gpu_capture_end_graph(stream, &graph);
    return rc ? rc : llane_gpu_graph_instantiate(graph, exec_out);
}

static bool exec_is_good(const struct CUgraphExec_st *exec)
{
    return exec && exec->magic == GRAPH_MAGIC;
}

static struct emu_op *copy_op(const struct emu_op *op)
{
    struct emu_op *copy = emu_op_new(op->kind, op->args_bytes);
    if (copy)
        memcpy(copy, op, sizeof *op + op->args_bytes);
    return copy;
}

/* Puts one node's work into its branch's stream; at[] gets its position. */
static int replay_node(const struct node *node, struct CUstream_st *stream, struct emu_position *at,
                       size_t number)
{
    int rc = 0;
    switch (node->op->kind) {
    case EMU_OP_START:
    case EMU_OP_RECORD_EXTERNAL:
        break;
    case EMU_OP_WAIT_NODE:
        rc = emu_stream_push_wait(stream, at[node->op->u.node]);
        break;
    case EMU_OP_WAIT_EXTERNAL:
        rc = emu_stream_push_wait(stream, emu_event_last(node->op->u.event));
        break;
    default: {
        struct emu_op *op = copy_op(node->op);
        if (op)
            emu_stream_push(stream, op);
        else
            rc = LLANE_EGPU;
    }
    }
    at[number] = emu_stream_position(stream);
    return rc;
}

int llane_gpu_graph_launch(struct CUgraphExec_st *exec, struct CUstream_st *handle)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream)
        return LLANE_EGPU;
    if (!exec_is_good(exec))
        return emu_error("%p is no graph", (void *)exec);
    if (emu_stream_is_capturing(stream))
        return emu_error("a graph launch in a capture: the emulation has no child graphs");
    struct emu_position *at = calloc(exec->n_nodes, sizeof *at);
    if (!at)
        return emu_error("out of host memory");
    pthread_mutex_lock(&exec->mutex);
    /* A graph does not overlap itself. */
    int rc = emu_stream_push_wait(stream, exec->previous);
    for (size_t i = 0; i < exec->n_nodes && rc == 0; i++) {
        const struct node *node = &exec->nodes[i];
        rc = replay_node(node, node->branch ? exec->branches[node->branch] : stream, at, i);
    }
    for (size_t i = 0; i < exec->n_nodes && rc == 0; i++) {
        if (exec->nodes[i].op->kind == EMU_OP_RECORD_EXTERNAL)
            emu_event_record_now(exec->nodes[i].op->u.event, stream);
    }
    exec->previous = emu_stream_position(stream);
    pthread_mutex_unlock(&exec->mutex);
    free(at);
    return rc;
}

static size_t count_nodes(const struct CUgraphExec_st *exec, enum emu_op_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < exec->n_nodes; i++)
        n += exec->nodes[i].op->kind == kind;
    return n;
}

size_t llane_emu_graph_waits(const struct CUgraphExec_st *exec)
{
    return count_nodes(exec, EMU_OP_WAIT_NODE);
}

size_t llane_emu_graph_nodes(const struct CUgraphExec_st *exec)
{
    return exec->n_nodes - count_nodes(exec, EMU_OP_START) - count_nodes(exec, EMU_OP_WAIT_NODE);
}

int llane_gpu_graph_destroy(struct CUgraphExec_st *exec)
{
    if (!exec_is_good(exec))
        return emu_error("%p is no graph", (void *)exec);
    exec->magic = 0;
    for (uint32_t branch = 1; branch < exec->n_branches; branch++)
        emu_stream_retire(exec->branches[branch]);
    free_nodes(exec->nodes, exec->n_nodes);
    release_all(exec->retained);
    pthread_mutex_destroy(&exec->mutex);
    free(exec);
    return 0;
}
