#include "elf_image.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "err.h"

/* Most dynamic linkers relocate the pointers of the dynamic section, some leave them as they are. */
static uintptr_t to_address(const struct llane_elf_image *image, uintptr_t value)
{
    return llane_elf_contains(image, value) ? value : image->bias + value;
}

int llane_elf_contains(const struct llane_elf_image *image, uintptr_t address)
{
    return address - image->start < image->end - image->start;
}

static const ElfW(Dyn) * read_segments(const struct dl_phdr_info *info, struct llane_elf_image *out)
{
    const ElfW(Dyn) *dynamic = NULL;
    out->start = UINTPTR_MAX;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD) {
            out->start = at < out->start ? at : out->start;
            out->end = at + segment->p_memsz > out->end ? at + segment->p_memsz : out->end;
        } else if (segment->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)at;
        }
    }
    return dynamic;
}

int llane_elf_read(const struct dl_phdr_info *info, struct llane_elf_image *out)
{
    *out = (struct llane_elf_image){
        .bias = info->dlpi_addr,
        .path = info->dlpi_name ? info->dlpi_name : "",
        .soname = "",
        .segments = info->dlpi_phdr,
        .n_segments = info->dlpi_phnum,
    };
    const ElfW(Dyn) *dynamic = read_segments(info, out);
    if (!dynamic) {
        return LLANE_EINVAL;
    }
    uintptr_t soname = 0, rela = 0, plt = 0;
    size_t rela_bytes = 0, plt_bytes = 0;
    int has_soname = 0, plt_is_rela = 0;
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        uintptr_t value = entry->d_un.d_val;
        switch (entry->d_tag) {
        case DT_SYMTAB:
            out->symbols = (const ElfW(Sym) *)to_address(out, value);
            break;
        case DT_STRTAB:
            out->strings = (const char *)to_address(out, value);
            break;
        case DT_GNU_HASH:
            out->gnu_hash = (const uint32_t *)to_address(out, value);
            break;
        case DT_HASH:
            out->sysv_hash = (const uint32_t *)to_address(out, value);
            break;
        case DT_SONAME:
            soname = value;
            has_soname = 1;
            break;
        case DT_INIT:
            out->init = to_address(out, value);
            break;
        case DT_RELA:
            rela = to_address(out, value);
            break;
        case DT_RELASZ:
            rela_bytes = value;
            break;
        case DT_JMPREL:
            plt = to_address(out, value);
            break;
        case DT_PLTRELSZ:
            plt_bytes = value;
            break;
        case DT_PLTREL:
            plt_is_rela = value == DT_RELA;
            break;
        default:
            break;
        }
    }
    if (!out->symbols || !out->strings || (!out->gnu_hash && !out->sysv_hash)) {
        return LLANE_EINVAL;
    }
    if (has_soname) {
        out->soname = out->strings + soname;
    }
    if (rela) {
        out->relocations[0].entries = (const ElfW(Rela) *)rela;
        out->relocations[0].n = rela_bytes / sizeof(ElfW(Rela));
    }
    if (plt && plt_is_rela) {
        out->relocations[1].entries = (const ElfW(Rela) *)plt;
        out->relocations[1].n = plt_bytes / sizeof(ElfW(Rela));
    }
    return 0;
}

static int is_definition(const struct llane_elf_image *image, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &image->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && !strcmp(image->strings + symbol->st_name, name);
}

static const ElfW(Sym) * find_gnu(const struct llane_elf_image *image, const char *name)
{
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++) {
        hash = hash * 33 + (unsigned char)*c;
    }
    /* Header: buckets, first hashed symbol, words of the bloom filter, its shift. */
    const uint32_t *header = image->gnu_hash;
    uint32_t n_buckets = header[0], first = header[1], n_words = header[2], shift = header[3];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(header + 4);
    const uint32_t *buckets = (const uint32_t *)(bloom + n_words);
    const uint32_t *chains = buckets + n_buckets;
    enum { WORD_BITS = 8 * sizeof(ElfW(Addr)) };
    if (!n_buckets || !n_words) {
        return NULL;
    }
    ElfW(Addr) word = bloom[hash / WORD_BITS % n_words];
    if (!(word >> hash % WORD_BITS & word >> (hash >> shift) % WORD_BITS & 1)) {
        return NULL;
    }
    uint32_t index = buckets[hash % n_buckets];
    if (index < first) {
        return NULL;
    }
    /* The lowest bit of a chain's word marks its end. */
    for (;; index++) {
        uint32_t chained = chains[index - first];
        if ((chained | 1) == (hash | 1) && is_definition(image, index, name)) {
            return &image->symbols[index];
        }
        if (chained & 1) {
            return NULL;
        }
    }
}

static const ElfW(Sym) * find_sysv(const struct llane_elf_image *image, const char *name)
{
    uint32_t hash = 0;
    for (const char *c = name; *c; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    const uint32_t *buckets = image->sysv_hash + 2;
    uint32_t n_buckets = image->sysv_hash[0];
    const uint32_t *chains = buckets + n_buckets;
    for (uint32_t i = n_buckets ? buckets[hash % n_buckets] : 0; i != STN_UNDEF; i = chains[i]) {
        if (is_definition(image, i, name)) {
            return &image->symbols[i];
        }
    }
    return NULL;
}

const ElfW(Sym) * llane_elf_find(const struct llane_elf_image *image, const char *name)
{
    return image->gnu_hash ? find_gnu(image, name) : find_sysv(image, name);
}

int llane_elf_protection(const struct llane_elf_image *image, uintptr_t page)
{
    uintptr_t mask = -(uintptr_t)sysconf(_SC_PAGESIZE);
    int protection = PROT_NONE, is_relro = 0;
    for (size_t i = 0; i < image->n_segments; i++) {
        const ElfW(Phdr) *segment = &image->segments[i];
        uintptr_t start = image->bias + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type == PT_LOAD && page >= (start & mask) && page < end) {
            protection = (segment->p_flags & PF_R ? PROT_READ : 0) |
                         (segment->p_flags & PF_W ? PROT_WRITE : 0) |
                         (segment->p_flags & PF_X ? PROT_EXEC : 0);
        } else if (segment->p_type == PT_GNU_RELRO) {
            /* The dynamic linker rounds both ends down. */
            is_relro |= page >= (start & mask) && page < (end & mask);
        }
    }
    return is_relro ? protection & ~PROT_WRITE : protection;
}
