/*
 * Peer memory traffic of kernels. Always torn: a 16-byte access is two 8-byte accesses in random
 * order, sometimes with other fibers run between them. EMU_FAULTS adds its own per pair of devices.
 */
#define _GNU_SOURCE
#include "emu_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t llane_emu_timer_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* Every fourth store and every sixteenth load has a gap between its halves. */
enum { STORE_GAP = 4, LOAD_GAP = 16, FLIP_RARITY = 16 };

/* Relaxed: a packet proves itself by its flag, no other data is published with it. Halves pair with
 * load_half() in a kernel of the memory's owner, mostly in another process. */
static void store_half(uint64_t *to, uint64_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

/* Release: also used for words that the host reads with acquire. */
static void store_word(uint32_t *to, uint32_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

/* Pairs with store_half() in a peer's kernel. */
static uint64_t load_half(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static void store_torn(struct emu_worker *worker, uint64_t *to, uint64_t low, uint64_t high)
{
    uint32_t dice = emu_random(&worker->random);
    uint32_t first = dice & 1;
    store_half(&to[first], first ? high : low);
    if ((dice >> 1) % STORE_GAP == 0)
        emu_fiber_give_way();
    store_half(&to[!first], first ? low : high);
}

/* What the fault table says about this device and the memory at p. */
static const struct emu_tlb_entry *look_up(struct emu_worker *worker, const void *p, uint32_t bytes)
{
    if ((uintptr_t)p % bytes != 0)
        emu_die("a kernel made a %u-byte access to %p", bytes, p);
    uint64_t generation = emu_region_generation();
    if (worker->tlb_generation != generation || worker->tlb_device != worker->device) {
        for (int i = 0; i < EMU_TLB_ENTRIES; i++)
            worker->tlb[i].page = 0;
        worker->tlb_generation = generation;
        worker->tlb_device = worker->device;
    }
    uint64_t page = (uintptr_t)p >> 12;
    /* Fibonacci hash: slots lie powers of two apart. */
    struct emu_tlb_entry *entry = &worker->tlb[page * 0x9e3779b97f4a7c15ULL >> 56];
    _Static_assert(EMU_TLB_ENTRIES == 1 << 8, "the hash has 8 bits");
    if (entry->page == page)
        return entry;
    struct emu_region *region = emu_region_find(p);
    uint32_t faults = 0;
    if (region && worker->device >= 0) {
        if (!region->imported && !emu_peer_is_enabled(worker->device, region->owner))
            emu_die("a kernel of device %d touched memory of device %d: peer access is not enabled",
                    worker->device, region->owner);
        faults = emu_config()->faults[worker->device][region->owner] & ~(uint32_t)EMU_FAULT_NO_PEER;
    }
    entry->page = page;
    entry->region = region;
    entry->faults = faults;
    return entry;
}

/* Of an aligned 8-byte word: what this device believes it wrote there. */
static uint64_t *shadow_word(struct emu_region *region, int source, const void *to)
{
    /* One kernel after another of a device uses it; two at once would need a lock here. */
    if (!region->shadow[source]) {
        region->shadow[source] = calloc(region->bytes / 8, 8);
        region->shadow_valid[source] = calloc(region->bytes / 8, 1);
        if (!region->shadow[source] || !region->shadow_valid[source])
            emu_die("out of host memory");
    }
    size_t word = ((uintptr_t)to - (uintptr_t)region->base) / 8;
    if (!region->shadow_valid[source][word]) {
        region->shadow[source][word] =
            load_half((const uint64_t *)(const void *)region->base + word);
        region->shadow_valid[source][word] = 1;
    }
    return &region->shadow[source][word];
}

static void store_later(struct emu_worker *worker, const struct emu_delayed *store,
                        uint64_t delay_us)
{
    if (worker->delayed_count == worker->delayed_capacity) {
        size_t capacity = worker->delayed_capacity ? 2 * worker->delayed_capacity : 1024;
        struct emu_delayed *grown = calloc(capacity, sizeof *grown);
        if (!grown)
            emu_die("out of host memory");
        for (size_t i = 0; i < worker->delayed_count; i++)
            grown[i] =
                worker->delayed[(worker->delayed_first + i) & (worker->delayed_capacity - 1)];
        free(worker->delayed);
        worker->delayed = grown;
        worker->delayed_capacity = capacity;
        worker->delayed_first = 0;
    }
    size_t last =
        (worker->delayed_first + worker->delayed_count++) & (worker->delayed_capacity - 1);
    worker->delayed[last] = *store;
    worker->delayed[last].due_ns = llane_emu_timer_ns() + delay_us * 1000;
}

void emu_access_land(struct emu_worker *worker, bool all)
{
    while (worker->delayed_count > 0) {
        struct emu_delayed *oldest = &worker->delayed[worker->delayed_first];
        if (llane_emu_timer_ns() < oldest->due_ns) {
            if (!all)
                return;
            sched_yield();
            continue;
        }
        uint64_t *to = oldest->to;
        if (oldest->bytes == 4)
            store_word(oldest->to, (uint32_t)oldest->low);
        else
            store_half(to, oldest->low);
        if (oldest->bytes == 16)
            store_half(&to[1], oldest->high);
        worker->delayed_first = (worker->delayed_first + 1) & (worker->delayed_capacity - 1);
        worker->delayed_count--;
    }
}

/* What EMU_FAULTS makes of a store. True: it is done with; false: the caller carries it out. */
static bool store_faulty(struct emu_worker *worker, const struct emu_tlb_entry *entry,
                         struct emu_delayed *store)
{
    uint32_t faults = entry->faults;
    if (faults & EMU_FAULT_DROP)
        return true;
    if (faults & EMU_FAULT_MIRROR) {
        uint64_t *word = shadow_word(entry->region, worker->device, store->to);
        memcpy((uint8_t *)word + (uintptr_t)store->to % 8, &store->low,
               store->bytes < 8 ? store->bytes : 8);
        if (store->bytes == 16)
            *shadow_word(entry->region, worker->device, (uint64_t *)store->to + 1) = store->high;
        return true;
    }
    if ((faults & EMU_FAULT_TORN) && store->bytes == 16 &&
        emu_random(&worker->random) % FLIP_RARITY == 0) {
        store_half(store->to, store->low);
        return true;
    }
    bool flips = (faults & EMU_FAULT_FLIP) != 0;
    if (faults & EMU_FAULT_FLIP_LATE)
        flips |= worker->n_doubtful_stores++ >=
                 emu_config()->n_good[worker->device][entry->region->owner];
    if (flips && emu_random(&worker->random) % FLIP_RARITY == 0) {
        uint32_t bit = emu_random(&worker->random) % (8 * store->bytes);
        *(bit < 64 ? &store->low : &store->high) ^= 1ULL << bit % 64;
    }
    if (faults & EMU_FAULT_DELAY) {
        store_later(worker, store, emu_config()->delay_us[worker->device][entry->region->owner]);
        return true;
    }
    return false;
}

void llane_emu_store16(void *to, uint64_t low, uint64_t high)
{
    struct emu_worker *worker = emu_worker();
    worker->progressed = true;
    const struct emu_tlb_entry *entry = look_up(worker, to, 16);
    struct emu_delayed store = {.to = to, .low = low, .high = high, .bytes = 16};
    if (!entry->faults || !store_faulty(worker, entry, &store))
        store_torn(worker, to, store.low, store.high);
}

void llane_emu_store8(void *to, uint64_t value)
{
    struct emu_worker *worker = emu_worker();
    worker->progressed = true;
    const struct emu_tlb_entry *entry = look_up(worker, to, 8);
    struct emu_delayed store = {.to = to, .low = value, .bytes = 8};
    if (!entry->faults || !store_faulty(worker, entry, &store))
        store_half(to, store.low);
}

void llane_emu_store4(void *to, uint32_t value)
{
    struct emu_worker *worker = emu_worker();
    worker->progressed = true;
    const struct emu_tlb_entry *entry = look_up(worker, to, 4);
    struct emu_delayed store = {.to = to, .low = value, .bytes = 4};
    if (!entry->faults || !store_faulty(worker, entry, &store))
        store_word(to, (uint32_t)store.low);
}

void llane_emu_load16(const void *p, uint64_t *low, uint64_t *high)
{
    struct emu_worker *worker = emu_worker();
    const uint64_t *from = p;
    const struct emu_tlb_entry *entry = look_up(worker, p, 16);
    const struct emu_region *region = entry->region;
    bool is_mirrored = (entry->faults & EMU_FAULT_MIRROR) && region->shadow[worker->device];
    uint32_t dice = emu_random(&worker->random);
    uint32_t first = dice & 1;
    uint64_t half[2];
    half[first] = load_half(&from[first]);
    if ((dice >> 1) % LOAD_GAP == 0)
        emu_fiber_give_way();
    half[!first] = load_half(&from[!first]);
    if (is_mirrored) {
        size_t word = (size_t)(from - (const uint64_t *)(const void *)region->base);
        for (int i = 0; i < 2; i++) {
            if (region->shadow_valid[worker->device][word + (size_t)i])
                half[i] = region->shadow[worker->device][word + (size_t)i];
        }
    }
    *low = half[0];
    *high = half[1];
}
