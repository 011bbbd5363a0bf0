/*
 * Configuration space: from libpci where it is installed (opened at run time, so that its absence
 * stops nothing), else from sysfs; and the hexadecimal lines that recordings hold.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doctor_source.h"

#if defined __has_include
#if __has_include(<pci/pci.h>)
#define HAVE_LIBPCI 1
#include <pci/pci.h>
#endif
#endif

static int read_sysfs(const char *device, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out)
{
    char path[128];
    size_t n = 0;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.40s/config", device);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    while (n < DOCTOR_CONFIG_BYTES) {
        ssize_t got = pread(fd, bytes + n, DOCTOR_CONFIG_BYTES - n, (off_t)n);
        if (got <= 0) {
            break;
        }
        n += (size_t)got;
    }
    close(fd);
    *n_out = n;
    return n < 64 ? -EIO : 0;
}

#ifdef HAVE_LIBPCI
static struct libpci {
    struct pci_access *access;
    struct pci_dev *(*get_dev)(struct pci_access *, int, int, int, int);
    void (*free_dev)(struct pci_dev *);
    int (*read_block)(struct pci_dev *, int, u8 *, int);
    jmp_buf on_error;
} libpci;

/* libpci expects its error handler not to return. */
static void libpci_error(char *message, ...) __attribute__((noreturn));
static void libpci_error(char *message, ...)
{
    (void)message;
    longjmp(libpci.on_error, 1);
}

static void libpci_quiet(char *message, ...)
{
    (void)message;
}

static int open_libpci(void)
{
    static int is_tried;
    if (is_tried) {
        return libpci.access != NULL;
    }
    is_tried = 1;
    void *library = dlopen("libpci.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return 0;
    }
    struct pci_access *(*alloc)(void);
    void (*init)(struct pci_access *);
    *(void **)&alloc = dlsym(library, "pci_alloc");
    *(void **)&init = dlsym(library, "pci_init");
    *(void **)&libpci.get_dev = dlsym(library, "pci_get_dev");
    *(void **)&libpci.free_dev = dlsym(library, "pci_free_dev");
    *(void **)&libpci.read_block = dlsym(library, "pci_read_block");
    if (!alloc || !init || !libpci.get_dev || !libpci.free_dev || !libpci.read_block ||
        setjmp(libpci.on_error)) {
        return 0;
    }
    struct pci_access *access = alloc();
    access->method = PCI_ACCESS_SYS_BUS_PCI; /* others poke at ports */
    access->error = libpci_error;
    access->warning = libpci_quiet;
    init(access);
    libpci.access = access;
    return 1;
}

/* As much as there is: all, the first 256 bytes, or the 64 that every user may read. */
static int read_libpci(const char *device, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out)
{
    static const int sizes[] = {DOCTOR_CONFIG_BYTES, 256, 64};
    unsigned domain, bus, slot, function;
    if (!open_libpci() || sscanf(device, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 ||
        setjmp(libpci.on_error)) {
        return -ENOSYS;
    }
    struct pci_dev *dev =
        libpci.get_dev(libpci.access, (int)domain, (int)bus, (int)slot, (int)function);
    int err = -EIO;
    for (int i = 0; dev && i < 3; i++) {
        if (libpci.read_block(dev, 0, bytes, sizes[i])) {
            *n_out = (size_t)sizes[i];
            err = 0;
            break;
        }
    }
    if (dev) {
        libpci.free_dev(dev);
    }
    return err;
}
#else
static int read_libpci(const char *device, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out)
{
    (void)device, (void)bytes, (void)n_out;
    return -ENOSYS;
}
#endif

int doctor_config_live(const char *device, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out)
{
    int err = read_libpci(device, bytes, n_out);
    return err ? read_sysfs(device, bytes, n_out) : 0;
}

void doctor_config_print(const uint8_t *bytes, size_t n, struct doctor_text *out)
{
    for (size_t i = 0; i < n; i += 16) {
        doctor_text_add(out, "%02zx:", i);
        for (size_t k = i; k < n && k < i + 16; k++) {
            doctor_text_add(out, " %02x", bytes[k]);
        }
        doctor_text_add(out, "\n");
    }
}

static int is_byte(const char *word)
{
    return isxdigit((unsigned char)word[0]) && isxdigit((unsigned char)word[1]) && !word[2];
}

/* Lines of zero bytes may be left out; lines come in order. The size is what the last line ends at. */
int doctor_config_parse(const char *text, uint8_t bytes[DOCTOR_CONFIG_BYTES], size_t *n_out)
{
    char line[128];
    uint64_t at, value;
    size_t n = 0;
    memset(bytes, 0, DOCTOR_CONFIG_BYTES);
    while (doctor_line(&text, line, sizeof line)) {
        char *rest = line, *word = doctor_word(&rest);
        if (!word) {
            continue;
        }
        size_t end = strlen(word);
        if (word[end - 1] != ':') {
            return -1;
        }
        word[end - 1] = '\0';
        if (doctor_number(word, 16, DOCTOR_CONFIG_BYTES - 1, &at) || at < n) {
            return -1;
        }
        while ((word = doctor_word(&rest))) {
            if (at == DOCTOR_CONFIG_BYTES || !is_byte(word) ||
                doctor_number(word, 16, 255, &value)) {
                return -1;
            }
            bytes[at++] = (uint8_t)value;
        }
        n = at;
    }
    *n_out = n;
    return n ? 0 : -1;
}
