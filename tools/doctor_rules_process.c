/* What surrounds a process: container, shared memory, limits, and where a job's ranks run. */
#include <string.h>

#include "doctor_process.h"
#include "doctor_rules.h"

enum { SMALL_SHM_MIB = 256, FREE_SHM_MIB = 32, RDMA_MEMLOCK_MIB = 1024 };

static void judge_container(const struct doctor_machine *m, struct doctor_findings *out)
{
    const struct doctor_system *s = &m->system;
    struct doctor_finding *f;
    if (s->shm_bytes >= 0 && s->shm_bytes >> 20 < SMALL_SHM_MIB) {
        f = doctor_find(
            out, "shm-small", DOCTOR_WARNING, 380, "",
            "/dev/shm is only %lld MiB: NCCL needs 10 to 33 MiB a GPU and dies with \"No "
            "space left on device\"",
            (long long)(s->shm_bytes >> 20));
        doctor_check(f,
                     "docker run --shm-size=1g, or --ipc=host; Kubernetes: an emptyDir of medium "
                     "Memory at /dev/shm");
        doctor_command(f, "df -h /dev/shm");
    } else if (s->shm_bytes >= 0 && s->shm_free_bytes >= 0 &&
               s->shm_free_bytes >> 20 < FREE_SHM_MIB) {
        f = doctor_find(out, "shm-full", DOCTOR_WARNING, 370, "",
                        "/dev/shm is full: %lld MiB of %lld left",
                        (long long)(s->shm_free_bytes >> 20), (long long)(s->shm_bytes >> 20));
        doctor_check(
            f, "files that killed jobs left: look at their owners and ages, then remove them");
        doctor_command(f, "ls -lat /dev/shm");
    }
    if (s->is_container && s->own_ipc_namespace == 1) {
        f = doctor_find(out, "ipc-namespace", DOCTOR_INFO, 48, "",
                        "this container has an IPC namespace of its own: ranks in other containers "
                        "cannot share memory with ranks here");
        doctor_check(f, "one container for all ranks of the host, or --ipc=host on each");
        doctor_command(f, "docker inspect -f '{{.HostConfig.IpcMode}}' NAME");
    }
    if (s->has_rdma && !s->is_memlock_unlimited && s->memlock_bytes >= 0 &&
        s->memlock_bytes >> 20 < RDMA_MEMLOCK_MIB) {
        f = doctor_find(
            out, "memlock", DOCTOR_WARNING, 360, "",
            "only %lld KiB of memory may be locked, and there is an RDMA NIC: ibv_reg_mr "
            "fails with \"Cannot allocate memory\"",
            (long long)(s->memlock_bytes >> 10));
        doctor_check(f, "limits.conf: * - memlock unlimited; containers: --ulimit memlock=-1");
        doctor_check(f, "look inside the launcher (mpirun, slurm): it may have a limit of its own");
        doctor_command(f, "ulimit -l; mpirun -n 1 bash -c 'ulimit -l'");
    }
    if (strstr(s->cmdline, "noaer")) {
        f = doctor_find(
            out, "aer-off", DOCTOR_INFO, 35, "",
            "pci=noaer is on the kernel's command line: link errors are neither counted "
            "nor logged");
        doctor_check(f, "remove it while looking for a fault");
        doctor_command(f, "cat /proc/cmdline");
    }
    if (s->is_virtual && m->n_gpus > 1) {
        f = doctor_find(out, "vm", DOCTOR_INFO, 28, "",
                        "this is a virtual machine (%s): the tree is the host's invention, ACS and "
                        "IOMMU are the host's affair, peer access needs its help",
                        s->hypervisor);
        doctor_check(f, "ask the host's operator for the same report from there");
        doctor_command(f, "llane doctor (on the host)");
    }
}

/* ---- ranks ---- */

static void judge_shared_gpus(const struct doctor_machine *m, struct doctor_findings *out)
{
    for (int a = 0; a < m->n_ranks; a++) {
        for (int b = a + 1; b < m->n_ranks; b++) {
            if (m->ranks[a].gpu < 0 || m->ranks[a].gpu != m->ranks[b].gpu) {
                continue;
            }
            struct doctor_finding *f = doctor_find(
                out, "rank-same-gpu", DOCTOR_WARNING, 440, m->gpus[m->ranks[a].gpu].pci,
                "ranks %d and %d both take GPU %d: NCCL refuses that (\"Duplicate GPU detected\")",
                m->ranks[a].rank, m->ranks[b].rank, m->ranks[a].gpu);
            doctor_check(f,
                         "the program must take device number LOCAL_RANK, or the launcher must set "
                         "CUDA_VISIBLE_DEVICES for each rank");
            doctor_command(f, "tr '\\0' '\\n' < /proc/%d/environ | grep -E 'RANK|VISIBLE'",
                           m->ranks[b].pid);
        }
    }
}

static int node_of_rank_gpu(const struct doctor_machine *m, const struct doctor_rank *r)
{
    const struct doctor_device *d = r->gpu >= 0 ? doctor_gpu_device(m, r->gpu) : NULL;
    return d ? d->node : -1;
}

static void judge_binding(const struct doctor_machine *m, struct doctor_findings *out)
{
    char far[160] = "", loose[80] = "";
    size_t n_far = 0, n_loose = 0;
    int first = -1;
    for (int i = 0; i < m->n_ranks; i++) {
        const struct doctor_rank *r = &m->ranks[i];
        int node = node_of_rank_gpu(m, r);
        if (node < 0 || m->system.n_nodes < 2) {
            continue;
        }
        if (r->node_of_cpus >= 0 && r->node_of_cpus != node && n_far < sizeof far - 60) {
            n_far += (size_t)snprintf(far + n_far, sizeof far - n_far,
                                      "%srank %d: CPUs of node %d, GPU %d of node %d",
                                      n_far ? "; " : "", r->rank, r->node_of_cpus, r->gpu, node);
            first = first < 0 ? i : first;
        } else if (r->node_of_cpus < 0 && n_loose < sizeof loose - 8) {
            n_loose += (size_t)snprintf(loose + n_loose, sizeof loose - n_loose, "%s%d",
                                        n_loose ? ", " : "", r->rank);
        }
    }
    if (n_far) {
        const struct doctor_device *d = doctor_gpu_device(m, m->ranks[first].gpu);
        struct doctor_finding *f = doctor_find(out, "rank-binding", DOCTOR_WARNING, 320, "",
                                               "ranks run on CPUs far from their GPU: %s", far);
        doctor_check(
            f, "mpirun --map-by numa --bind-to numa, srun --gpus-per-task=1 --gpu-bind=closest");
        doctor_check(f, "torchrun: numactl around the program, or one launcher a socket");
        doctor_command(f, "numactl --cpunodebind=%d --membind=%d PROGRAM", d->node, d->node);
    }
    if (n_loose) {
        struct doctor_finding *f = doctor_find(
            out, "rank-loose", DOCTOR_INFO, 38, "",
            "ranks %s may run on any socket: the scheduler may put them far from their GPU", loose);
        doctor_check(f, "bind each to its GPU's node, as in rank-binding");
        doctor_command(f, "nvidia-smi topo -m (column CPU Affinity)");
    }
}

/* A ring over the ranks crosses between two sockets twice at best. */
static void judge_neighbours(const struct doctor_machine *m, struct doctor_findings *out)
{
    int crossings = 0, nodes_seen = 0;
    uint64_t mask = 0;
    for (int i = 0; i < m->n_ranks; i++) {
        int here = node_of_rank_gpu(m, &m->ranks[i]);
        int next = node_of_rank_gpu(m, &m->ranks[(i + 1) % m->n_ranks]);
        if (here < 0 || here > 63 || next < 0) {
            return;
        }
        crossings += here != next;
        nodes_seen += !(mask >> here & 1);
        mask |= 1ull << here;
    }
    if (nodes_seen < 2 || crossings <= nodes_seen) {
        return;
    }
    struct doctor_finding *f = doctor_find(
        out, "rank-order", DOCTOR_WARNING, 160, "",
        "neighbouring ranks have GPUs on different sockets: %d crossings around the ring, "
        "%d would do",
        crossings, nodes_seen);
    doctor_check(f, "give ranks their GPUs in the order of sockets (CUDA_VISIBLE_DEVICES)");
    doctor_command(f, "nvidia-smi topo -m");
}

void doctor_rules_process(const struct doctor_machine *m, struct doctor_findings *out)
{
    judge_container(m, out);
    judge_shared_gpus(m, out);
    judge_binding(m, out);
    judge_neighbours(m, out);
}
