#include "interpose.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"
#include "elf_image.h"
#include "err.h"
#include "forks.h"
#include "hooks.h"
#include "log.h"

#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOB_DAT = R_X86_64_GLOB_DAT, ABSOLUTE = R_X86_64_64 };
enum { CAN_REDIRECT = 1 };
#elif defined(__aarch64__)
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOB_DAT = R_AARCH64_GLOB_DAT, ABSOLUTE = R_AARCH64_ABS64 };
enum { CAN_REDIRECT = 1 };
#else
enum { JUMP_SLOT = -1, GLOB_DAT = -1, ABSOLUTE = -1 };
enum { CAN_REDIRECT = 0 };
#endif

enum { MAX_FOUND = 2 * LLANE_MAX_NCCL_COPIES, MAX_SITES = 256 };

/* A word to be rewritten, and with what. */
struct site {
    uintptr_t *at;
    uintptr_t value;
    uint32_t copy;
};

/* One libnccl; copy i is what llane_nccl_copies[i] and the hooks of set i stand for. */
struct copy {
    struct llane_elf_image image;
    uintptr_t original[LLANE_N_HOOKS]; /* of the ncclX before it was rewritten, 0 if it has none */
    int is_redirected;                 /* its .dynsym is rewritten, so slots may follow */
    uint32_t n_sites;                  /* slots of other objects that lead to its hooks now */
};

static pthread_mutex_t scan_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the atomics */
static struct copy copies[LLANE_MAX_NCCL_COPIES];
static uint32_t n_copies, n_refused;
static struct site sites[MAX_SITES];
static struct {
    char path[sizeof llane_nccl_copies[0].path];
    const char *why;
} refused; /* the last object that was left alone, for the log line */
static int is_embedded_said, is_surplus_said, is_processor_said, are_own_calls_said;

/* The dynamic linker's count of loads and unloads when the last scan began. Relaxed: a stale value
 * costs a needless scan, and the thread that loaded an object sees its own count move. */
static _Atomic unsigned long long scanned_events;
/* 1 after a scan redirected something: the next call goes over all slots again. Relaxed: the lock
 * orders what the second pass reads. */
static atomic_int is_recheck_due;

static void guard_scans(void)
{
    llane_forks_guard(&scan_lock);
}

/* 0 in a child that is to leave llane alone: another thread may have held the lock, and the state. */
static int lock_scans(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, guard_scans);
    if (llane_forks_is_passive()) {
        return 0;
    }
    pthread_mutex_lock(&scan_lock);
    return 1;
}

/* ---- writing ---- */

static uintptr_t page_of(const uintptr_t *at)
{
    return (uintptr_t)at & -(uintptr_t)sysconf(_SC_PAGESIZE);
}

/* An executable page may be touched only if it ends before the first code: in older link layouts
 * the symbol table shares a segment with .text, and the page loses PROT_EXEC for a moment. */
static int is_page_writable_at_all(const struct llane_elf_image *image, uintptr_t page)
{
    int protection = llane_elf_protection(image, page);
    uintptr_t end = page + (uintptr_t)sysconf(_SC_PAGESIZE);
    return protection != PROT_NONE && (!(protection & PROT_EXEC) || end <= image->init);
}

static void refuse(const struct llane_elf_image *image, const char *why)
{
    snprintf(refused.path, sizeof refused.path, "%s",
             *image->path ? image->path : "the main program");
    refused.why = why;
}

/* Opens the page for writing, or gives it the protection that its object asks for. */
static int set_page(const struct llane_elf_image *image, uintptr_t page, int is_open)
{
    int protection = llane_elf_protection(image, page);
    if (is_open) {
        protection = (protection & ~PROT_EXEC) | PROT_READ | PROT_WRITE;
    }
    return mprotect((void *)page, (size_t)sysconf(_SC_PAGESIZE), protection);
}

/* Is sites[i] the first of the list on its page? */
static int is_first_on_page(int i)
{
    for (int j = 0; j < i; j++) {
        if (page_of(sites[j].at) == page_of(sites[i].at)) {
            return 0;
        }
    }
    return 1;
}

static void restore_pages(const struct llane_elf_image *image, int n)
{
    for (int i = 0; i < n; i++) {
        if (is_first_on_page(i)) {
            set_page(image, page_of(sites[i].at), 0);
        }
    }
}

/* Writes sites[0..n) of one object, or none of them. */
static int write_sites(const struct llane_elf_image *image, int n)
{
    for (int i = 0; i < n; i++) {
        if (!is_first_on_page(i)) {
            continue;
        }
        uintptr_t page = page_of(sites[i].at);
        if (!is_page_writable_at_all(image, page) || set_page(image, page, 1)) {
            restore_pages(image, i);
            refuse(image, "could not be made writable");
            return LLANE_ESYS;
        }
    }
    for (int i = 0; i < n; i++) {
        /* Release: pairs with the plain load of a caller's indirect call or of the dynamic linker,
         * which must see the copy's table filled. */
        __atomic_store_n(sites[i].at, sites[i].value, __ATOMIC_RELEASE);
    }
    restore_pages(image, n);
    return 0;
}

/* The hook of that name, -1 if there is none. */
static int find_hook(const char *name)
{
    for (int i = 0; i < LLANE_N_HOOKS; i++) {
        if (!strcmp(name, llane_hooks[i].name)) {
            return i;
        }
    }
    return -1;
}

/* 1 and *value, or 0 if the slot that holds *value and was bound by that name is to stay. */
typedef int value_for(const void *context, const char *name, uintptr_t *value, uint32_t *copy);

/* Fills sites with what an object's slots should hold instead; how many, or LLANE_ENOMEM. */
static int collect_slots(const struct llane_elf_image *image, value_for *choose,
                         const void *context)
{
    int n = 0;
    for (int table = 0; table < 2; table++) {
        const ElfW(Rela) *end = image->relocations[table].entries + image->relocations[table].n;
        for (const ElfW(Rela) *r = image->relocations[table].entries; r < end; r++) {
            int type = (int)ELF64_R_TYPE(r->r_info);
            uintptr_t *at = (uintptr_t *)(image->bias + r->r_offset);
            if ((type != JUMP_SLOT && type != GLOB_DAT && (type != ABSOLUTE || r->r_addend)) ||
                (uintptr_t)at % sizeof *at || !llane_elf_contains(image, (uintptr_t)at)) {
                continue;
            }
            const ElfW(Sym) *symbol = &image->symbols[ELF64_R_SYM(r->r_info)];
            /* Relaxed: only compared, and another thread's resolver may be writing it. */
            struct site site = {.at = at, .value = __atomic_load_n(at, __ATOMIC_RELAXED)};
            if (!choose(context, image->strings + symbol->st_name, &site.value, &site.copy)) {
                continue;
            }
            if (n == MAX_SITES) {
                refuse(image, "has too many slots");
                return LLANE_ENOMEM;
            }
            sites[n++] = site;
        }
    }
    return n;
}

/* ---- libnccl itself ---- */

/*
 * What NCCL calls of itself stays with NCCL: its slot leads to the original, whether it was bound
 * to a hook (llane before it in the lookup scope), not bound yet, or already right.
 */
static int original_of(const void *context, const char *name, uintptr_t *value, uint32_t *copy_out)
{
    const struct copy *copy = context;
    int hook = find_hook(name);
    if (hook < 0 || !copy->original[hook] || *value == copy->original[hook]) {
        return 0;
    }
    *value = copy->original[hook];
    *copy_out = (uint32_t)(copy - copies);
    return 1;
}

/* Again after a while: a thread inside the lazy resolver may have stored a hook meanwhile. */
static int keep_own_slots(const struct copy *copy)
{
    int n = collect_slots(&copy->image, original_of, copy);
    return n < 0 ? n : n > 0 ? write_sites(&copy->image, n) : 0;
}

/* Its own slots first: once the symbols are rewritten, one that is not bound yet leads to a hook. */
static void redirect_symbols(struct copy *copy)
{
    uint32_t set = (uint32_t)(copy - copies);
    const ElfW(Sym) * symbols[LLANE_N_HOOKS];
    for (int i = 0; i < LLANE_N_HOOKS; i++) {
        symbols[i] = llane_elf_find(&copy->image, llane_hooks[i].name);
        copy->original[i] = symbols[i] ? copy->image.bias + symbols[i]->st_value : 0;
    }
    if (keep_own_slots(copy)) {
        /* Under the preload and drop-in doors they lead to llane's exported calls all the same. */
        llane_nccl_copies[set].is_left_alone = 1;
        return;
    }
    int n = 0;
    for (int i = 0; i < LLANE_N_HOOKS; i++) {
        if (symbols[i]) {
            sites[n++] = (struct site){(uintptr_t *)(uintptr_t)&symbols[i]->st_value,
                                       (uintptr_t)llane_hooks[i].sets[set] - copy->image.bias, set};
        }
    }
    /* Release: pairs with the acquire load in the hooks. */
    atomic_store_explicit(&llane_nccl_copies[set].is_filled, 1, memory_order_release);
    copy->is_redirected = !write_sites(&copy->image, n);
}

/* ---- slots of other objects ---- */

static int hook_of(const void *context, const char *name, uintptr_t *value, uint32_t *copy_out)
{
    (void)context;
    for (uint32_t c = 0; c < n_copies; c++) {
        if (!copies[c].is_redirected || !llane_elf_contains(&copies[c].image, *value)) {
            continue;
        }
        /* The name too: pncclX has the same address, and who asked for it means the original. */
        int hook = find_hook(name);
        if (hook >= 0 && copies[c].original[hook] == *value) {
            *value = (uintptr_t)llane_hooks[hook].sets[c];
            *copy_out = c;
            return 1;
        }
    }
    return 0;
}

static int redirect_object(struct dl_phdr_info *info, size_t bytes, void *n_refused_out)
{
    (void)bytes;
    struct llane_elf_image image;
    if (llane_elf_read(info, &image) || llane_elf_contains(&image, (uintptr_t)copies) ||
        llane_elf_find(&image, "pncclAllReduce")) {
        return 0;
    }
    int n = collect_slots(&image, hook_of, NULL);
    if (n < 0 || (n > 0 && write_sites(&image, n))) {
        ++*(uint32_t *)n_refused_out;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        copies[sites[i].copy].n_sites++;
    }
    return 0;
}

/* ---- finding ---- */

struct found {
    struct llane_elf_image image;
    int is_pinned;
    char path[sizeof llane_nccl_copies[0].path];
};

struct search {
    struct found found[MAX_FOUND];
    int n;
    char embedded_path[256]; /* an object that has NCCL inside and is no libnccl */
};

static int read_events(struct dl_phdr_info *info, size_t bytes, void *events_out)
{
    (void)bytes;
    *(unsigned long long *)events_out = info->dlpi_adds + info->dlpi_subs;
    return 1;
}

static int is_libnccl(const struct llane_elf_image *image)
{
    const char *slash = strrchr(image->path, '/');
    const char *file = slash ? slash + 1 : image->path;
    return !strncmp(image->soname, "libnccl", 7) || !strncmp(file, "libnccl", 7);
}

static int find_copy(struct dl_phdr_info *info, size_t bytes, void *search_out)
{
    (void)bytes;
    struct search *search = search_out;
    struct llane_elf_image image;
    if (llane_elf_read(info, &image) || !llane_elf_find(&image, "pncclAllReduce")) {
        return 0;
    }
    if (!is_libnccl(&image)) {
        snprintf(search->embedded_path, sizeof search->embedded_path, "%s",
                 *image.path ? image.path : "the main program");
    } else if (search->n < MAX_FOUND) {
        struct found *found = &search->found[search->n++];
        found->image = image;
        snprintf(found->path, sizeof found->path, "%s", image.path);
    }
    return 0;
}

/* Keeps the object loaded from here on; LLANE_EINVAL if it is no longer the one that was found. */
static int pin(const struct found *found)
{
    struct link_map *map = NULL;
    void *handle = dlopen(found->path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (!handle) {
        dlerror(); /* the program must not find our failure in its own check */
        return LLANE_EINVAL;
    }
    /* The handle stays open: the process keeps what its hooks call. */
    return !dlinfo(handle, RTLD_DI_LINKMAP, &map) && map->l_addr == found->image.bias
               ? 0
               : LLANE_EINVAL;
}

static int is_known(const struct found *found)
{
    for (uint32_t c = 0; c < n_copies; c++) {
        if (copies[c].image.start == found->image.start) {
            return 1;
        }
    }
    return 0;
}

/* Takes in a pinned copy; NULL if there is no room or it is no NCCL after all. */
static struct copy *add_copy(const struct found *found)
{
    if (n_copies == LLANE_MAX_NCCL_COPIES) {
        if (!is_surplus_said) {
            LLANE_WARN("more than %d libnccls in one process: %s is not redirected",
                       LLANE_MAX_NCCL_COPIES, found->path);
        }
        is_surplus_said = 1;
        return NULL;
    }
    struct llane_nccl *nccl = &llane_nccl_copies[n_copies];
    if (llane_nccl_fill(nccl, &found->image) || nccl->GetVersion(&nccl->version)) {
        return NULL;
    }
    snprintf(nccl->path, sizeof nccl->path, "%s", found->path);
    struct copy *copy = &copies[n_copies];
    copy->image = found->image;
    copy->image.path = nccl->path;
    n_copies++;
    return copy;
}

static void say_embedded(const char *path)
{
    if (!is_embedded_said) {
        LLANE_WARN("NCCL is linked statically into %s: its calls cannot be redirected and stay "
                   "with NCCL; a shared libnccl.so.2 is needed",
                   path);
    }
    is_embedded_said = 1;
}

static void say_copy_left_alone(const struct copy *copy)
{
    if (llane_nccl_copies[copy - copies].is_left_alone) {
        LLANE_WARN("%s %s: what NCCL calls of itself would come to llane, so all calls stay with "
                   "NCCL, without a lane",
                   refused.path, refused.why);
    } else {
        LLANE_WARN("the symbols of %s %s: NCCL calls are not redirected", refused.path,
                   refused.why);
    }
}

static void say_own_calls_may_come(void)
{
    if (!are_own_calls_said) {
        LLANE_WARN("%s %s: what NCCL calls of itself may come to llane", refused.path, refused.why);
    }
    are_own_calls_said = 1;
}

static void say_what_was_left_alone(const char *embedded_path, uint32_t n_refused_before)
{
    if (n_refused > n_refused_before) {
        LLANE_WARN("%s %s: its NCCL calls are not redirected", refused.path, refused.why);
    }
    if (*embedded_path) {
        say_embedded(embedded_path);
    }
    if (n_copies && !CAN_REDIRECT && !is_processor_said) {
        LLANE_WARN("NCCL calls are not redirected on this processor; use the preload door");
        is_processor_said = 1;
    }
}

/* The copy after llane in its own lookup scope (preload, drop-in), else the first one found. */
static void choose_default(void)
{
    uintptr_t next = (uintptr_t)dlsym(RTLD_NEXT, "pncclAllReduce");
    if (!next) {
        dlerror(); /* as in pin() */
    }
    if (!lock_scans()) {
        return;
    }
    const struct llane_nccl *choice = n_copies ? &llane_nccl_copies[0] : NULL;
    for (uint32_t c = 0; c < n_copies; c++) {
        if (llane_elf_contains(&copies[c].image, next)) {
            choice = &llane_nccl_copies[c];
        }
    }
    pthread_mutex_unlock(&scan_lock);
    if (choice) {
        llane_nccl_default_set(choice);
    }
}

void llane_interpose_scan(void)
{
    unsigned long long events = 0;
    dl_iterate_phdr(read_events, &events);
    int is_recheck = atomic_exchange_explicit(&is_recheck_due, 0, memory_order_relaxed);
    if (!is_recheck && atomic_load_explicit(&scanned_events, memory_order_relaxed) == events) {
        return;
    }
    struct search search = {.n = 0};
    dl_iterate_phdr(find_copy, &search);
    /* Outside the lock: a thread that holds the dynamic linker's may be waiting for ours. */
    for (int i = 0; i < search.n; i++) {
        search.found[i].is_pinned = !pin(&search.found[i]);
    }

    if (!lock_scans()) {
        return;
    }
    int n_new = 0;
    for (int i = 0; i < search.n; i++) {
        if (!search.found[i].is_pinned || is_known(&search.found[i])) {
            continue;
        }
        struct copy *copy = add_copy(&search.found[i]);
        if (copy && CAN_REDIRECT && llane_config()->enable) {
            redirect_symbols(copy);
            n_new += copy->is_redirected;
            if (!copy->is_redirected) {
                say_copy_left_alone(copy);
            }
        }
    }
    uint32_t n_refused_before = n_refused;
    if (n_new || is_recheck) {
        n_refused = 0;
        for (uint32_t c = 0; c < n_copies; c++) {
            if (copies[c].is_redirected && keep_own_slots(&copies[c])) {
                say_own_calls_may_come(); /* too late to leave it alone: communicators may exist */
            }
        }
        dl_iterate_phdr(redirect_object, &n_refused);
    }
    say_what_was_left_alone(search.embedded_path, n_refused_before);
    pthread_mutex_unlock(&scan_lock);

    if (n_new) {
        atomic_store_explicit(&is_recheck_due, 1, memory_order_relaxed);
    }
    choose_default();
    atomic_store_explicit(&scanned_events, events, memory_order_relaxed);
}

void llane_interpose_summarize(struct llane_interpose_summary *out)
{
    *out = (struct llane_interpose_summary){0};
    if (!lock_scans()) {
        return;
    }
    out->n_copies = n_copies;
    out->n_refused = n_refused;
    for (uint32_t c = 0; c < n_copies; c++) {
        out->n_redirected += (uint32_t)copies[c].is_redirected;
        out->n_sites[c] = copies[c].n_sites;
    }
    pthread_mutex_unlock(&scan_lock);
}

void llane_interpose_check_logger(uintptr_t logger)
{
    Dl_info where;
    const char *path = dladdr((void *)logger, &where) ? where.dli_fname : "the program";
    int is_covered = 0;
    if (!lock_scans()) {
        return;
    }
    for (uint32_t c = 0; c < n_copies; c++) {
        is_covered |= llane_elf_contains(&copies[c].image, logger);
    }
    if (!is_covered) {
        say_embedded(path);
    }
    pthread_mutex_unlock(&scan_lock);
}
