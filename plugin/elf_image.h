/*
 * elf_image: one loaded object as the dynamic linker sees it, read from memory: its symbols, its
 * relocations and the protection of its pages. Knows nothing about NCCL.
 *
 * Owns nothing: an image points into the object it describes, so it is good inside the
 * dl_iterate_phdr callback that it came from, or as long as the object is pinned.
 * Threads: any. Blocking: no; makes no dl* call. Errors: LLANE_EINVAL for an object that it cannot
 * read.
 */
#ifndef LLANE_ELF_IMAGE_H
#define LLANE_ELF_IMAGE_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct llane_elf_image {
    uintptr_t bias;       /* what is added to addresses in the file */
    uintptr_t start, end; /* extent of its segments in memory */
    const char *path;     /* as loaded; "" for the main program */
    const char *soname;   /* "" if it has none */
    const ElfW(Phdr) * segments;
    size_t n_segments;
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash; /* one of the two is set, or both */
    const uint32_t *sysv_hash;
    uintptr_t init; /* start of .init, the first code in the usual layout; 0 if there is none */
    struct {
        const ElfW(Rela) * entries;
        size_t n;
    } relocations[2]; /* of the object, of its procedure linkage table */
};

int llane_elf_read(const struct dl_phdr_info *info, struct llane_elf_image *out);

/* The defined symbol of that name in this very object; NULL if it has none. */
const ElfW(Sym) * llane_elf_find(const struct llane_elf_image *image, const char *name);

int llane_elf_contains(const struct llane_elf_image *image, uintptr_t address);

/* PROT_* of a page (its first address) once the dynamic linker has finished with the object. */
int llane_elf_protection(const struct llane_elf_image *image, uintptr_t page);

#endif
