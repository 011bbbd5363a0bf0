/*
 * The work itself, on the stream's worker: collectives by chunks through every rank's chunk buffers,
 * sends and receives of a group all at once through a ring a direction. Waits for peers as NCCL's
 * kernels do, without a time limit, until the abort flag is up.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const g_call_names[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                           "AllReduce", "Send",   "Recv"};

const char *fake_call_name(enum fake_call call)
{
    return g_call_names[call];
}

/* Waits until all ranks have posted n steps; false when aborted. */
static bool wait_all_posted(struct fake_link *link, uint64_t n)
{
    unsigned n_polls = 0;
    for (int r = 0; r < link->segment.n_ranks; r++) {
        /* Pairs with the release in run_collective: rank r's chunk is in place. */
        while (atomic_load_explicit(&link->segment.ranks[r].posted, memory_order_acquire) < n) {
            if (atomic_load(&link->abort))
                return false;
            fake_pause(&n_polls);
        }
    }
    return true;
}

static struct fake_chunk *chunk_of(struct fake_link *link, int rank)
{
    return &link->segment.chunks[(size_t)rank * FAKE_DEPTH + link->step % FAKE_DEPTH];
}

/* Ranks that disagree about the next collective would hang or corrupt in NCCL; here it is loud. */
static void check_heads(struct fake_link *link, const struct fake_chunk_head *mine)
{
    for (int r = 0; r < link->segment.n_ranks; r++) {
        const struct fake_chunk_head *theirs = &chunk_of(link, r)->head;
        if (memcmp(mine, theirs, sizeof(*mine)) == 0)
            continue;
        fprintf(
            stderr,
            "fake nccl: communicator %016llx, step %llu: rank %d runs %s of %llu %s (op %u, root "
            "%u), rank %d %s of %llu %s (op %u, root %u)\n",
            (unsigned long long)link->id, (unsigned long long)link->step, link->segment.rank,
            fake_call_name((enum fake_call)mine->call), (unsigned long long)mine->count,
            fake_type_name((ncclDataType_t)mine->type), mine->op, mine->root, r,
            fake_call_name((enum fake_call)theirs->call), (unsigned long long)theirs->count,
            fake_type_name((ncclDataType_t)theirs->type), theirs->op, theirs->root);
        abort();
    }
}

/*
 * One chunk of `some` elements at `first`. ReduceScatter splits the buffer into n parts, one a
 * destination; everything else uses the whole of it.
 */
static void put_chunk(struct fake_link *link, const struct fake_op *op, const void *scalar,
                      size_t first, size_t some)
{
    size_t size = fake_type_bytes(op->type);
    struct fake_chunk *mine = chunk_of(link, link->segment.rank);
    const uint8_t *from = (const uint8_t *)op->send + first * size;
    if (op->call == FAKE_REDUCE_SCATTER) {
        for (int r = 0; r < link->segment.n_ranks; r++)
            memcpy(mine->data + (size_t)r * some * size, from + (size_t)r * op->count * size,
                   some * size);
    } else if (op->call != FAKE_BROADCAST || op->root == link->segment.rank) {
        memcpy(mine->data, from, some * size);
    }
    if (op->is_premul)
        fake_scale(op, scalar,
                   some * (op->call == FAKE_REDUCE_SCATTER ? (size_t)link->segment.n_ranks : 1),
                   mine->data);
}

static void take_chunk(struct fake_link *link, const struct fake_op *op, size_t first, size_t some)
{
    size_t size = fake_type_bytes(op->type);
    int n = link->segment.n_ranks, rank = link->segment.rank;
    uint8_t *to = (uint8_t *)op->recv + first * size;
    const void *from[FAKE_MAX_RANKS];
    for (int r = 0; r < n; r++)
        from[r] = chunk_of(link, r)->data +
                  (op->call == FAKE_REDUCE_SCATTER ? (size_t)rank * some * size : 0);
    switch (op->call) {
    case FAKE_BROADCAST:
        memcpy(to, from[op->root], some * size);
        break;
    case FAKE_ALL_GATHER:
        for (int r = 0; r < n; r++)
            memcpy(to + (size_t)r * op->count * size, from[r], some * size);
        break;
    case FAKE_REDUCE:
        if (rank == op->root)
            fake_reduce(op, from, n, some, to);
        break;
    default:
        fake_reduce(op, from, n, some, to);
    }
}

static void run_collective(struct fake_link *link, const struct fake_op *op)
{
    size_t size = fake_type_bytes(op->type);
    size_t room = FAKE_CHUNK_BYTES / size;
    if (op->call == FAKE_REDUCE_SCATTER)
        room /= (size_t)link->segment.n_ranks;
    uint8_t scalar[8];
    memcpy(scalar, op->scalar, sizeof(scalar));
    if (op->scalar_device)
        memcpy(scalar, op->scalar_device, size);

    struct fake_chunk_head head = {.call = op->call,
                                   .type = (uint32_t)op->type,
                                   .op = op->is_premul ? 99 : (uint32_t)op->op,
                                   .root = (uint32_t)op->root,
                                   .count = op->count};
    struct fake_rank *mine = &link->segment.ranks[link->segment.rank];
    for (size_t first = 0; first < op->count; first += room, link->step++) {
        size_t some = op->count - first < room ? op->count - first : room;
        /*
         * The buffer was last used two steps ago. All ranks have read it there: each posted the step
         * in between after that, and this rank saw all of those posts.
         */
        put_chunk(link, op, scalar, first, some);
        chunk_of(link, link->segment.rank)->head = head;
        atomic_store_explicit(&mine->posted, link->step + 1, memory_order_release);
        if (!wait_all_posted(link, link->step + 1))
            return;
        check_heads(link, &head);
        take_chunk(link, op, first, some);
    }
}

/* Moves one piece if there is room or data; true if it did. *done counts the bytes of this op. */
static bool move_piece(struct fake_link *link, const struct fake_op *op, size_t *done)
{
    int n = link->segment.n_ranks, rank = link->segment.rank;
    size_t total = op->count * fake_type_bytes(op->type);
    if (op->call == FAKE_SEND) {
        struct fake_channel *c = &link->segment.channels[rank * n + op->root];
        uint64_t written = atomic_load_explicit(&c->written, memory_order_relaxed); /* our own */
        /* Acquires the receiver's reads, so that the piece may be overwritten. */
        if (written - atomic_load_explicit(&c->read, memory_order_acquire) >= FAKE_DEPTH)
            return false;
        size_t some = total - *done < FAKE_P2P_BYTES ? total - *done : FAKE_P2P_BYTES;
        memcpy(c->data[written % FAKE_DEPTH], (const uint8_t *)op->send + *done, some);
        c->bytes[written % FAKE_DEPTH] = (uint32_t)some;
        *done += some;
        atomic_store_explicit(&c->written, written + 1, memory_order_release);
        return true;
    }
    struct fake_channel *c = &link->segment.channels[op->root * n + rank];
    uint64_t read = atomic_load_explicit(&c->read, memory_order_relaxed); /* our own */
    if (atomic_load_explicit(&c->written, memory_order_acquire) == read)
        return false;
    size_t some = c->bytes[read % FAKE_DEPTH];
    if (some > total - *done) {
        fprintf(stderr, "fake nccl: rank %d receives %zu bytes from %d, which sends more\n", rank,
                total, op->root);
        abort();
    }
    memcpy((uint8_t *)op->recv + *done, c->data[read % FAKE_DEPTH], some);
    *done += some;
    atomic_store_explicit(&c->read, read + 1, memory_order_release);
    return true;
}

/* Operations of one direction and peer go in order; all others side by side. */
static void run_pairwise(struct fake_link *link, const struct fake_op *ops)
{
    size_t n_ops = 0;
    for (const struct fake_op *op = ops; op; op = op->next)
        n_ops++;
    size_t *done = calloc(n_ops, sizeof(*done));
    unsigned n_polls = 0;
    for (bool is_over = false; !is_over && !atomic_load(&link->abort);) {
        bool has_moved = false;
        bool is_taken[2][FAKE_MAX_RANKS] = {{false}};
        size_t i = 0;
        is_over = true;
        for (const struct fake_op *op = ops; op; op = op->next, i++) {
            bool *taken = &is_taken[op->call == FAKE_RECV][op->root];
            if (done[i] == op->count * fake_type_bytes(op->type))
                continue;
            is_over = false;
            if (!*taken && move_piece(link, op, &done[i]))
                has_moved = true;
            *taken = true;
        }
        if (has_moved)
            n_polls = 0;
        else if (!is_over)
            fake_pause(&n_polls);
    }
    free(done);
}

void fake_work_run(void *arg)
{
    struct fake_work *work = arg;
    struct fake_link *link = work->link;
    /* Pairs with itself: NCCL's order on a communicator leaves no two works at once. */
    if (atomic_exchange(&link->busy, 1)) {
        fprintf(stderr,
                "fake nccl: two operations of communicator %016llx run at once on rank %d\n",
                (unsigned long long)link->id, link->segment.rank);
        abort();
    }
    if (atomic_load(&link->abort)) {
        /* left at once, as a kernel that sees the flag */
    } else if (work->ops->call < FAKE_SEND) {
        run_collective(link, work->ops);
    } else {
        run_pairwise(link, work->ops);
    }
    atomic_store(&link->busy, 0);
}

void fake_work_end(void *arg)
{
    struct fake_work *work = arg;
    struct fake_link *link = work->link;
    fake_work_free(work);
    atomic_fetch_sub(&link->in_flight, 1); /* the last touch: fake_comm_drain waits for it */
}

void fake_work_free(struct fake_work *work)
{
    for (struct fake_op *op = work->ops, *next; op; op = next) {
        next = op->next;
        free(op);
    }
    free(work);
}
