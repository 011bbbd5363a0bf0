#include "version.h"

#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ID_BYTES = 32 };

static char build_id[2 * MAX_ID_BYTES + 1] = "none";
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int is_here(const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD &&
            (uintptr_t)build_id - info->dlpi_addr - segment->p_vaddr < segment->p_memsz) {
            return 1;
        }
    }
    return 0;
}

static void read_notes(const char *note, const char *end)
{
    while (end - note > (ptrdiff_t)sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) header;
        memcpy(&header, note, sizeof header);
        const char *owner = note + sizeof header;
        const unsigned char *id =
            (const unsigned char *)owner + ((header.n_namesz + 3) & ~(ElfW(Word))3);
        if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == sizeof "GNU" &&
            !memcmp(owner, "GNU", sizeof "GNU") && header.n_descsz <= MAX_ID_BYTES) {
            for (ElfW(Word) i = 0; i < header.n_descsz; i++) {
                snprintf(build_id + 2 * i, 3, "%02x", id[i]);
            }
            return;
        }
        note = (const char *)id + ((header.n_descsz + 3) & ~(ElfW(Word))3);
    }
}

static int visit(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    if (!is_here(info)) {
        return 0;
    }
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_NOTE) {
            const char *notes = (const char *)(info->dlpi_addr + segment->p_vaddr);
            read_notes(notes, notes + segment->p_memsz);
        }
    }
    return 1;
}

static void find_build_id(void)
{
    dl_iterate_phdr(visit, NULL);
}

const char *llane_build_id(void)
{
    pthread_once(&once, find_build_id);
    return build_id;
}
