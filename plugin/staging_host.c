#include "staging_host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "err.h"
#include "gpu.h"
#include "host_room.h"
#include "log.h"
#include "numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE_BYTES = 4096 };
static const uint64_t HUGE_PAGE_BYTES = 2 << 20;

static uint64_t round_up(uint64_t bytes, uint64_t grain)
{
    return (bytes + grain - 1) / grain * grain;
}

static uint64_t n_generations(enum llane_packet packet)
{
    return packet == LLANE_LL ? 2 : LLANE_SHARED_GENERATIONS;
}

static uint64_t slot_at(uint32_t n_ranks, const uint64_t slot_bytes[LLANE_N_PACKETS],
                        enum llane_packet packet)
{
    uint64_t at = round_up((uint64_t)n_ranks * LLANE_PROBE_BYTES, PAGE_BYTES);
    for (int p = 0; p < (int)packet; p++) {
        at += n_generations((enum llane_packet)p) * slot_bytes[p];
    }
    return at;
}

/* Parts do not share pages, huge ones where a part is large enough for one. */
uint64_t llane_staging_host_part_bytes(uint32_t n_ranks, const uint64_t slot_bytes[LLANE_N_PACKETS])
{
    uint64_t bytes = slot_at(n_ranks, slot_bytes, LLANE_N_PACKETS);
    return round_up(bytes, bytes < HUGE_PAGE_BYTES ? PAGE_BYTES : HUGE_PAGE_BYTES);
}

static uint8_t *part_of(const struct llane_staging_host *m, uint8_t *base, uint32_t rank)
{
    return base + rank * m->part_bytes;
}

uint8_t *llane_staging_host_probe_area(const struct llane_staging_host *m, uint32_t writer,
                                       uint32_t reader)
{
    return part_of(m, m->device, writer) + (uint64_t)reader * LLANE_PROBE_BYTES;
}

uint8_t *llane_staging_host_slot(const struct llane_staging_host *m, enum llane_packet packet,
                                 uint32_t writer)
{
    return part_of(m, m->device, writer) + slot_at(m->n_ranks, m->slot_bytes, packet);
}

/* Before a page of the part exists. */
static void place(struct llane_staging_host *m, uint8_t *part, int node)
{
    const char *obstacle = node < 0 ? "the GPU's node is not known" : llane_numa_obstacle();
    if (!obstacle && llane_numa_prefer(part, m->part_bytes, node)) {
        obstacle = "the kernel refuses (in a container: --cap-add SYS_NICE)";
    }
    if (obstacle) {
        snprintf(m->placement, sizeof m->placement, "not placed: %s", obstacle);
    } else {
        snprintf(m->placement, sizeof m->placement, "on node %d", node);
    }
    /* Where the system gives huge pages to those who ask; else nothing comes of it. */
    (void)madvise(part, m->part_bytes, MADV_HUGEPAGE);
}

static void check_placement(struct llane_staging_host *m, const uint8_t *part, int node)
{
    int n_there, n_pages;
    if (node < 0 || llane_numa_count(part, m->part_bytes, node, &n_there, &n_pages)) {
        return;
    }
    size_t used = strlen(m->placement);
    snprintf(m->placement + used, sizeof m->placement - used, " (%d of %d pages there)", n_there,
             n_pages);
}

/* All pages of the part, while a lack of them is still an answer and no signal. */
static int populate(uint8_t *part, uint64_t bytes)
{
    if (madvise(part, bytes, MADV_POPULATE_WRITE) && errno != EINVAL) {
        return LLANE_ESYS; /* EINVAL: before Linux 5.14 */
    }
    return 0;
}

int llane_staging_host_take(struct llane_staging_host *m, struct llane_board *board, int node,
                            const _Atomic int *cancel)
{
    char text[192];
    void *memory;
    m->part_bytes = llane_staging_host_part_bytes(m->n_ranks, m->slot_bytes);
    uint64_t bytes = m->n_ranks * m->part_bytes;
    int err = llane_host_room_check("", bytes, text, sizeof text);
    if (err) {
        LLANE_INFO("rank %u: no host memory: %s", m->rank, text);
        return err;
    }
    err = llane_board_share(board, bytes, cancel, &memory);
    if (err) {
        goto explain;
    }
    m->base = memory;
    uint8_t *part = part_of(m, m->base, m->rank);
    place(m, part, node);
    if ((err = populate(part, m->part_bytes))) {
        goto explain;
    }
    check_placement(m, part, node);
    memset(part + slot_at(m->n_ranks, m->slot_bytes, LLANE_SENTINEL), 0xff,
           LLANE_SHARED_GENERATIONS * m->slot_bytes[LLANE_SENTINEL]);
    return 0;

explain:
    if (err == LLANE_ESYS) {
        LLANE_INFO("rank %u: host memory of %" PRIu64 " KiB: %s", m->rank, bytes >> 10,
                   strerror(errno));
    }
    return err;
}

int llane_staging_host_pin(struct llane_staging_host *m)
{
    void *device;
    uint64_t bytes = m->n_ranks * m->part_bytes;
    int err = llane_gpu_host_register(m->base, bytes, &device);
    if (err) {
        char text[192];
        llane_host_room_explain_pinning(bytes, text, sizeof text);
        LLANE_INFO("rank %u: pinning host memory: %s%s", m->rank, llane_gpu_error(), text);
        return err;
    }
    m->device = device;
    return 0;
}
