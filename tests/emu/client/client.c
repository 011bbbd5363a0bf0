/* See client.h. */
#include "client.h"

#include "../ranks.h"
#include "../values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- communicators ---- */
static void wait_ready(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        RANKS_CHECK(ncclCommGetAsyncError(comm, &state));
        ranks_sleep_ms(1);
    }
    RANKS_CHECK(state);
}

static ncclComm_t create(const struct client_member *m, const struct client_options *o,
                         ncclUniqueId id)
{
    ncclComm_t comm = NULL;
    ncclConfig_t config = FAKE_CONFIG_INIT;
    config.comm_name = o->name;
    switch (o->kind) {
    case CLIENT_CONFIG:
        RANKS_CHECK(ncclCommInitRankConfig(&comm, m->n_ranks, id, m->rank, &config));
        break;
    case CLIENT_NONBLOCKING:
        config.blocking = 0;
        ncclResult_t r = ncclCommInitRankConfig(&comm, m->n_ranks, id, m->rank, &config);
        RANKS_CHECK(r == ncclInProgress ? ncclSuccess : r);
        wait_ready(comm);
        break;
    case CLIENT_SCALABLE:
        RANKS_CHECK(ncclCommInitRankScalable(&comm, m->n_ranks, m->rank, 1, &id, &config));
        break;
    default:
        RANKS_CHECK(ncclCommInitRank(&comm, m->n_ranks, id, m->rank));
    }
    return comm;
}

static bool is_split(enum client_kind kind)
{
    return kind == CLIENT_SPLIT || kind == CLIENT_HALVES;
}

/* All members' in one group, as one thread must. */
static void create_in_a_group(const struct client_set *set, ncclUniqueId id, ncclComm_t *comms)
{
    ncclConfig_t config = FAKE_CONFIG_INIT;
    config.comm_name = set->options->name;
    RANKS_CHECK(ncclGroupStart());
    for (int i = 0; i < set->n_members; i++) {
        RANKS_CHECK(llane_gpu_device_set(set->members[i].device));
        RANKS_CHECK(ncclCommInitRankConfig(&comms[i], set->n_members, id, i, &config));
    }
    RANKS_CHECK(ncclGroupEnd());
}

/* Top-level communicators: the c-th of every member, or their parents (c < 0). */
static void create_top(struct client_set *set, int c, ncclUniqueId id)
{
    ncclComm_t comms[CLIENT_MAX] = {NULL};
    if (set->options->n_all && set->options->kind == CLIENT_CONFIG) {
        create_in_a_group(set, id, comms);
    } else if (set->options->n_all) {
        int devices[CLIENT_MAX];
        for (int i = 0; i < set->n_members; i++)
            devices[i] = set->members[i].device;
        RANKS_CHECK(ncclCommInitAll(comms, set->n_members, devices));
    } else {
        comms[0] = create(&set->members[0], set->options, id);
    }
    for (int i = 0; i < set->n_members; i++)
        *(c < 0 ? &set->members[i].parent : &set->members[i].comms[c]) = comms[i];
}

static void create_children(struct client_set *set)
{
    bool is_halves = set->options->kind == CLIENT_HALVES;
    for (int c = 0; c < set->options->n_comms; c++) {
        RANKS_CHECK(ncclGroupStart());
        for (int i = 0; i < set->n_members; i++) {
            struct client_member *m = &set->members[i];
            RANKS_CHECK(ncclCommSplit(m->parent, is_halves ? m->rank % 2 : 0,
                                      is_halves ? m->rank : -m->rank, &m->comms[c], NULL));
        }
        RANKS_CHECK(ncclGroupEnd());
    }
}

void client_open(struct client_set *set, const ncclUniqueId *ids)
{
    const struct client_options *o = set->options;
    int n_devices;
    RANKS_CHECK(llane_gpu_device_count(&n_devices));
    for (int i = 0; i < set->n_members; i++)
        set->members[i].device = (o->device >= 0 ? o->device : set->members[i].rank) % n_devices;
    if (set->n_members == 1)
        RANKS_CHECK(llane_gpu_device_set(set->members[0].device));
    if (is_split(o->kind)) {
        create_top(set, -1, ids[0]);
        create_children(set);
    }
    for (int c = 0; c < o->n_comms && !is_split(o->kind); c++)
        create_top(set, c, ids[c]);

    size_t room = 0;
    for (int i = 0; i < o->n_counts; i++)
        room = (size_t)o->counts[i] > room ? (size_t)o->counts[i] : room;
    for (int i = 0; i < o->n_offsets; i++)
        room += (size_t)o->offsets[i];
    for (int i = 0; i < set->n_members; i++) {
        struct client_member *m = &set->members[i];
        RANKS_CHECK(llane_gpu_device_set(m->device));
        for (int c = 0; c < o->n_comms; c++) {
            RANKS_CHECK(ncclCommUserRank(m->comms[c], &m->comm_rank[c]));
            RANKS_CHECK(ncclCommCount(m->comms[c], &m->comm_size[c]));
        }
        for (int s = 0; s < o->n_streams; s++)
            RANKS_CHECK(llane_gpu_stream_create(&m->streams[s]));
        RANKS_CHECK(llane_gpu_event_create(0, &m->fork));
        m->slot_bytes = room * 8 + 2 * CLIENT_GUARD_BYTES;
        m->slots = calloc(2 * (size_t)o->batch, sizeof(*m->slots));
        for (int j = 0; j < 2 * o->batch; j++) {
            RANKS_CHECK(llane_gpu_malloc(m->slot_bytes, (void **)&m->slots[j].in));
            RANKS_CHECK(llane_gpu_malloc(m->slot_bytes, (void **)&m->slots[j].out));
            m->slots[j].host = malloc(m->slot_bytes);
        }
    }
}

static void end_comm(ncclComm_t comm, enum client_end how)
{
    if (how == CLIENT_FINALIZE)
        RANKS_CHECK(ncclCommFinalize(comm));
    if (how == CLIENT_ABORT)
        RANKS_CHECK(ncclCommAbort(comm));
    else
        RANKS_CHECK(ncclCommDestroy(comm));
}

void client_close(struct client_set *set)
{
    const struct client_options *o = set->options;
    for (int i = 0; i < set->n_members && o->end != CLIENT_LEAVE; i++) {
        struct client_member *m = &set->members[i];
        RANKS_CHECK(llane_gpu_device_set(m->device));
        for (int c = 0; c < o->n_comms; c++)
            end_comm(m->comms[c], o->end);
        if (m->parent)
            end_comm(m->parent, o->end);
    }
    for (int i = 0; i < set->n_members; i++) {
        struct client_member *m = &set->members[i];
        for (int j = 0; j < 2 * o->batch; j++) {
            RANKS_CHECK(llane_gpu_free(m->slots[j].in));
            RANKS_CHECK(llane_gpu_free(m->slots[j].out));
            free(m->slots[j].host);
        }
        for (int s = 0; s < o->n_streams; s++)
            RANKS_CHECK(llane_gpu_stream_destroy(m->streams[s]));
        RANKS_CHECK(llane_gpu_event_destroy(m->fork));
        free(m->slots);
    }
}

/* ---- one batch of calls ---- */
struct batch {
    struct client_set *set;
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t count;
    int first_slot;
    uint64_t first_call;
};

static bool is_in_place(const struct batch *b, int j)
{
    int in_place = b->set->options->in_place;
    return in_place == 2 ? (b->first_slot + j) % 2 : in_place;
}

static size_t offset_bytes(const struct batch *b, const struct client_member *m, int shift)
{
    const struct client_options *o = b->set->options;
    return (size_t)o->offsets[(m->rank + shift) % o->n_offsets] * values_type_bytes(b->type) +
           CLIENT_GUARD_BYTES;
}

static uint8_t *in_of(const struct batch *b, const struct client_member *m, int j)
{
    return m->slots[b->first_slot + j].in + offset_bytes(b, m, 0);
}

static uint8_t *out_of(const struct batch *b, const struct client_member *m, int j)
{
    if (is_in_place(b, j))
        return in_of(b, m, j);
    return m->slots[b->first_slot + j].out + offset_bytes(b, m, 1);
}

static uint8_t *out_base(const struct batch *b, const struct client_member *m, int j)
{
    const struct client_slot *slot = &m->slots[b->first_slot + j];
    return is_in_place(b, j) ? slot->in : slot->out;
}

static struct CUstream_st *stream_of(const struct batch *b, const struct client_member *m, int j)
{
    /* Eager calls take the next stream, so that those beside a graph begin on another than its. */
    return m->streams[(j + (b->first_slot != 0)) % b->set->options->n_streams];
}

/* Bytes from a slot's start to the end of the guard behind what is used, whatever the offset. */
static size_t used_bytes(const struct batch *b, const struct client_member *m, int j)
{
    size_t end = (size_t)(out_of(b, m, j) - out_base(b, m, j)) +
                 b->count * values_type_bytes(b->type) + CLIENT_GUARD_BYTES;
    return end < m->slot_bytes ? end : m->slot_bytes;
}

/* On `stream`, or on each slot's own. */
static void upload(const struct batch *b, struct CUstream_st *stream)
{
    for (int i = 0; i < b->set->n_members; i++) {
        struct client_member *m = &b->set->members[i];
        RANKS_CHECK(llane_gpu_device_set(m->device));
        for (int j = 0; j < b->set->options->batch; j++) {
            int c = j % b->set->options->n_comms;
            struct CUstream_st *s = stream ? stream : stream_of(b, m, j);
            uint8_t *host = m->slots[b->first_slot + j].host;
            values_fill(b->type, b->op, m->comm_rank[c], b->first_call + (uint64_t)j, b->count,
                        host);
            RANKS_CHECK(
                llane_gpu_memset_async(out_base(b, m, j), CLIENT_POISON, used_bytes(b, m, j), s));
            RANKS_CHECK(llane_gpu_memcpy_async(in_of(b, m, j), host,
                                               b->count * values_type_bytes(b->type), s));
            RANKS_CHECK(llane_gpu_stream_synchronize(s)); /* the host buffer is used again */
        }
    }
}

/* A non-blocking communicator may be at a call still, and takes no other meanwhile. */
static void accept(ncclResult_t result, const struct batch *b)
{
    const struct client_options *o = b->set->options;
    RANKS_CHECK(result == ncclInProgress ? ncclSuccess : result);
    for (int c = 0; result == ncclInProgress && c < o->n_comms; c++)
        wait_ready(b->set->members[0].comms[c]);
}

static void issue(const struct batch *b)
{
    const struct client_options *o = b->set->options;
    if (o->is_group)
        RANKS_CHECK(ncclGroupStart());
    for (int j = 0; j < o->batch; j++) {
        if (b->set->n_members > 1)
            RANKS_CHECK(ncclGroupStart());
        for (int i = 0; i < b->set->n_members; i++) {
            struct client_member *m = &b->set->members[i];
            accept(ncclAllReduce(in_of(b, m, j), out_of(b, m, j), b->count, b->type, b->op,
                                 m->comms[j % o->n_comms], stream_of(b, m, j)),
                   b);
        }
        if (b->set->n_members > 1)
            RANKS_CHECK(ncclGroupEnd());
    }
    if (o->is_group)
        accept(ncclGroupEnd(), b);
}

static size_t count_broken_guards(const uint8_t *base, const uint8_t *from, const uint8_t *to,
                                  const uint8_t *end)
{
    size_t n = 0;
    for (const uint8_t *p = base; p < end; p++)
        n += (p < from || p >= to) && *p != CLIENT_POISON;
    return n;
}

static void check(const struct batch *b)
{
    for (int i = 0; i < b->set->n_members; i++) {
        struct client_member *m = &b->set->members[i];
        RANKS_CHECK(llane_gpu_device_set(m->device));
        for (int j = 0; j < b->set->options->batch; j++) {
            uint8_t *host = m->slots[b->first_slot + j].host;
            size_t bytes = used_bytes(b, m, j);
            RANKS_CHECK(llane_gpu_stream_synchronize(stream_of(b, m, j)));
            RANKS_CHECK(llane_gpu_memcpy_async(host, out_base(b, m, j), bytes, m->streams[0]));
            RANKS_CHECK(llane_gpu_stream_synchronize(m->streams[0]));
            const uint8_t *got = host + (out_of(b, m, j) - out_base(b, m, j));
            int c = j % b->set->options->n_comms;
            uint64_t call = b->first_call + (uint64_t)j;
            char words[160] = "";
            size_t n_wrong = values_check(b->type, b->op, m->comm_size[c], call, b->count, got,
                                          words, sizeof(words));
            size_t n_broken = count_broken_guards(
                host, got, got + b->count * values_type_bytes(b->type), host + bytes);
            if ((n_wrong || n_broken) && b->set->n_wrong < 10)
                fprintf(stderr,
                        "rank %d: call %llu on communicator %d, %s %s of %zu: %zu elements wrong, "
                        "first %s; %zu bytes outside changed\n",
                        m->rank, (unsigned long long)call, c, values_type_name(b->type),
                        values_op_name(b->op), b->count, n_wrong, words, n_broken);
            b->set->n_wrong += n_wrong + n_broken;
        }
    }
}

/* ---- graphs: the member's first stream carries the capture, the others are forked from it ---- */
static void capture(const struct batch *b)
{
    const struct client_options *o = b->set->options;
    for (int i = 0; i < b->set->n_members; i++) {
        struct client_member *m = &b->set->members[i];
        RANKS_CHECK(llane_gpu_capture_begin(m->streams[0]));
        RANKS_CHECK(llane_gpu_event_record(m->fork, m->streams[0]));
        for (int s = 1; s < o->n_streams; s++)
            RANKS_CHECK(llane_gpu_stream_wait_event(m->streams[s], m->fork));
    }
    issue(b);
    for (int i = 0; i < b->set->n_members; i++) {
        struct client_member *m = &b->set->members[i];
        for (int s = 1; s < o->n_streams; s++) {
            RANKS_CHECK(llane_gpu_event_record(m->fork, m->streams[s]));
            RANKS_CHECK(llane_gpu_stream_wait_event(m->streams[0], m->fork));
        }
        RANKS_CHECK(llane_gpu_capture_end_graph(m->streams[0], &m->captured));
    }
    for (int i = 0; i < b->set->n_members; i++) { /* this thread captures no longer */
        struct client_member *m = &b->set->members[i];
        RANKS_CHECK(llane_gpu_graph_instantiate(m->captured, &m->graph));
    }
}

static void replay(const struct batch *b)
{
    for (int i = 0; i < b->set->n_members; i++) {
        struct client_member *m = &b->set->members[i];
        RANKS_CHECK(llane_gpu_device_set(m->device));
        RANKS_CHECK(llane_gpu_graph_launch(m->graph, m->streams[0]));
    }
}

/* Graph and eager calls follow each other without a wait between, in turns either first. */
static void run_once(const struct batch *graph, const struct batch *eager, bool is_eager_first)
{
    if (graph)
        upload(graph, NULL);
    if (eager)
        upload(eager, NULL);
    if (eager && is_eager_first)
        issue(eager);
    if (graph)
        replay(graph);
    if (eager && !is_eager_first)
        issue(eager);
    for (int i = 0; graph && i < graph->set->n_members; i++)
        RANKS_CHECK(llane_gpu_stream_synchronize(graph->set->members[i].streams[0]));
    if (graph)
        check(graph);
    if (eager)
        check(eager);
}

void client_run(struct client_set *set, ncclDataType_t type, ncclRedOp_t op, size_t count)
{
    const struct client_options *o = set->options;
    struct batch graph = {.set = set, .type = type, .op = op, .count = count};
    struct batch eager = graph;
    eager.first_slot = o->batch;
    if (o->is_graph)
        capture(&graph);
    for (int k = 0; k < o->n_iterations; k++) {
        ranks_sleep_ms(o->sleep_ms + o->skew_ms * set->members[0].rank);
        graph.first_call = set->n_calls;
        if (o->is_graph)
            set->n_calls += (uint64_t)o->batch;
        eager.first_call = set->n_calls;
        bool has_eager = !o->is_graph || o->is_mixed;
        if (has_eager)
            set->n_calls += (uint64_t)o->batch;
        run_once(o->is_graph ? &graph : NULL, has_eager ? &eager : NULL, k % 2);
    }
    for (int i = 0; o->is_graph && i < set->n_members; i++)
        RANKS_CHECK(llane_gpu_graph_destroy(set->members[i].graph));
}
