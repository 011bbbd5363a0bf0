/*
 * Removes the rendezvous files that killed processes left in /dev/shm: those on which nobody holds a
 * lock. Used by every starter, and by the harness after it had to kill ranks.
 */
#ifndef FAKE_NCCL_SHM_SWEEP_H
#define FAKE_NCCL_SHM_SWEEP_H

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAKE_SHM_PREFIX "llane-fake-nccl-"

static inline void fake_shm_sweep(void)
{
    DIR *dir = opendir("/dev/shm");
    if (!dir)
        return;
    int at = dirfd(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, FAKE_SHM_PREFIX, strlen(FAKE_SHM_PREFIX)) != 0)
            continue;
        int fd = openat(at, e->d_name, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (fcntl(fd, F_OFD_SETLK, &all) == 0)
            unlinkat(at, e->d_name, 0); /* a starter that opened it meanwhile sees the link count */
        close(fd);
    }
    closedir(dir);
}

#endif
