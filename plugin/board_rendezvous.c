#include "board_rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "backoff.h"
#include "err.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3; some hosts demand it (vm.memfd_noexec) */
#endif

enum {
    BACKLOG = 64,
    ACCEPTS_PER_SERVE = 256, /* a flood of connectors must not keep the server from its own work */
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW,
};

/* ---- the name: SipHash-2-4 with the id as key ---- */

static uint64_t rotate_left(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate_left(v[1], 13) ^ v[0];
    v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] = rotate_left(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate_left(v[1], 17) ^ v[2];
    v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] = rotate_left(v[2], 32);
}

/* Of a message of exactly 16 bytes, as two little-endian words. */
static uint64_t sip_hash(const uint64_t key[2], const uint64_t message[2])
{
    const uint64_t blocks[3] = {message[0], message[1], (uint64_t)16 << 56};
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575U, key[1] ^ 0x646f72616e646f6dU,
                     key[0] ^ 0x6c7967656e657261U, key[1] ^ 0x7465646279746573U};
    for (int i = 0; i < 3; i++) {
        v[3] ^= blocks[i];
        sip_round(v);
        sip_round(v);
        v[0] ^= blocks[i];
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) {
        sip_round(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void llane_rendezvous_name(const uint64_t id[2], uint32_t uid, int n_ranks,
                           char out[LLANE_RENDEZVOUS_NAME_BYTES])
{
    uint64_t who = (uint64_t)uid << 32 | (uint32_t)n_ranks;
    uint64_t low = sip_hash(id, (uint64_t[2]){who, 1});
    uint64_t high = sip_hash(id, (uint64_t[2]){who, 2});
    snprintf(out, LLANE_RENDEZVOUS_NAME_BYTES, "llane-board-%016llx%016llx",
             (unsigned long long)high, (unsigned long long)low);
}

static socklen_t make_address(const char *name, struct sockaddr_un *out)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    size_t n = strnlen(name, LLANE_RENDEZVOUS_NAME_BYTES - 1);
    memcpy(out->sun_path + 1, name, n); /* sun_path[0] == 0: abstract */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static int is_same_user(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == geteuid();
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void close_keeping_errno(int fd)
{
    int saved = errno;
    close(fd);
    errno = saved;
}

/* ---- creator ---- */

static int make_memory(struct llane_rendezvous *meet)
{
    int fd = memfd_create("llane-board", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) {
        fd = memfd_create("llane-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        return LLANE_ESYS;
    }
    /* Nobody reaches it by name; 0600 is for whoever finds it under /proc. */
    if (fchmod(fd, S_IRUSR | S_IWUSR) != 0 || ftruncate(fd, (off_t)meet->bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0) {
        goto undo_fd;
    }
    meet->memory = mmap(NULL, meet->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (meet->memory == MAP_FAILED) {
        meet->memory = NULL;
        goto undo_fd;
    }
    meet->memory_fd = fd;
    return 0;

undo_fd:
    close_keeping_errno(fd);
    return LLANE_ESYS;
}

/* 1: this rank is the creator now. 0: another one holds the name. Negative: an error. */
static int try_create(const char *name, struct llane_rendezvous *meet)
{
    struct sockaddr_un address;
    socklen_t address_bytes = make_address(name, &address);
    int rc;
    int fd = new_socket();
    if (fd < 0) {
        return LLANE_ESYS;
    }
    if (bind(fd, (struct sockaddr *)&address, address_bytes) != 0) {
        rc = errno == EADDRINUSE ? 0 : LLANE_ESYS;
        goto undo_fd;
    }
    rc = make_memory(meet);
    if (rc != 0) {
        goto undo_fd;
    }
    /* Clients may queue from here on; none gets the memory before the first serve. */
    if (listen(fd, BACKLOG) != 0) {
        rc = LLANE_ESYS;
        goto undo_memory;
    }
    meet->listener = fd;
    meet->is_creator = 1;
    return 1;

undo_memory:
    munmap(meet->memory, meet->bytes);
    meet->memory = NULL;
    close_keeping_errno(meet->memory_fd);
    meet->memory_fd = -1;
undo_fd:
    close_keeping_errno(fd);
    return rc;
}

static void send_memory(int to, int memory_fd)
{
    char byte = 'L'; /* a message needs one byte to carry a descriptor */
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof(control));
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &memory_fd, sizeof(int));
    /* A client that is gone, or out of descriptors, is no concern of ours: it connects again. */
    (void)sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void llane_rendezvous_serve(struct llane_rendezvous *meet)
{
    if (meet->listener < 0) {
        return;
    }
    for (int i = 0; i < ACCEPTS_PER_SERVE; i++) {
        int client = accept4(meet->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client < 0) {
            return; /* none waiting, or out of descriptors: the next round tries again */
        }
        if (is_same_user(client)) {
            send_memory(client, meet->memory_fd);
        }
        close(client);
    }
}

void llane_rendezvous_stop(struct llane_rendezvous *meet)
{
    if (meet->listener >= 0) {
        /* A child forked meanwhile may hold the socket open: turn clients away nevertheless. */
        if (meet->owner == getpid()) {
            shutdown(meet->listener, SHUT_RDWR);
        }
        close(meet->listener);
        meet->listener = -1;
    }
    if (meet->memory_fd >= 0) {
        close(meet->memory_fd);
        meet->memory_fd = -1;
    }
}

void llane_rendezvous_end(struct llane_rendezvous *meet)
{
    llane_rendezvous_stop(meet);
    if (meet->memory != NULL) {
        munmap(meet->memory, meet->bytes);
        meet->memory = NULL;
    }
}

/* ---- client ---- */

/* One message; the first descriptor in it, every further one closed. -1: none yet or none at all. */
static int receive_descriptor(int from, int *is_over_out)
{
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        *is_over_out = 0;
        return -1;
    }
    *is_over_out = 1;
    if (n < 0) {
        return -1;
    }
    int first = -1;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL;
         part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n_fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n_fds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
            if (first < 0) {
                first = fd;
            } else {
                close(fd);
            }
        }
    }
    return first;
}

/* The order matters: what is sealed cannot change its size after it was measured. */
static void *map_received(int fd, size_t bytes)
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0 ||
        file.st_size != (off_t)bytes) {
        return NULL;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* 1: got the memory. 0: nobody there, or nobody fit to trust. Negative: an error. */
static int try_connect(const char *name, const _Atomic int *cancel, struct llane_rendezvous *meet)
{
    struct sockaddr_un address;
    socklen_t address_bytes = make_address(name, &address);
    int rc = 0;
    int fd = new_socket();
    if (fd < 0) {
        return LLANE_ESYS;
    }
    if (connect(fd, (struct sockaddr *)&address, address_bytes) != 0 || !is_same_user(fd)) {
        goto undo_fd; /* no server, a full queue, or a stranger's: the caller tries again */
    }
    struct llane_backoff backoff = {0};
    int is_over = 0;
    int memory_fd = receive_descriptor(fd, &is_over);
    while (!is_over) {
        if (llane_is_canceled(cancel)) {
            rc = LLANE_ECANCELED;
            goto undo_fd;
        }
        llane_backoff_sleep(&backoff);
        memory_fd = receive_descriptor(fd, &is_over);
    }
    if (memory_fd >= 0) {
        meet->memory = map_received(memory_fd, meet->bytes);
        rc = meet->memory != NULL;
        close(memory_fd);
    }

undo_fd:
    close_keeping_errno(fd);
    return rc;
}

int llane_rendezvous_find(const char *name, size_t bytes, const _Atomic int *cancel,
                          struct llane_rendezvous *out)
{
    *out = (struct llane_rendezvous){
        .bytes = bytes, .listener = -1, .memory_fd = -1, .owner = getpid()};
    struct llane_backoff backoff = {0};
    for (;;) {
        if (llane_is_canceled(cancel)) {
            return LLANE_ECANCELED;
        }
        int rc = try_connect(name, cancel, out);
        if (rc == 0) {
            rc = try_create(name, out);
        }
        if (rc != 0) {
            return rc < 0 ? rc : 0;
        }
        llane_backoff_sleep(&backoff);
    }
}
