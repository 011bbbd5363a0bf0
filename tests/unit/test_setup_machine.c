/* Proves what the model is told of a machine: the generation of the GPUs' links as the kernel spells it, the
 * least of all ranks', how many nodes there are, and which kind of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "plugin/setup_tune.c"
#include "setup_fixture.h"

static void generation__as_the_kernel_spells_speeds__is_read(void **state)
{
    static const struct {
        const char *speed;
        int32_t want;
    } cases[] = {{"64.0 GT/s PCIe", 6}, {"32.0 GT/s PCIe", 5},
                 {"16.0 GT/s PCIe", 4}, {"8.0 GT/s PCIe", 3},
                 {"8 GT/s", 3},         {"5.0 GT/s PCIe", 2},
                 {"2.5 GT/s PCIe", 1},  {"2.5 GT/s", 1},
                 {"Unknown", 0},        {"", 0}};
    static const char folder[] = "/sys/bus/pci/devices/0000:0a:00.0";
    const struct llane_gpu_identity gpu = {.pci = "0000:0A:00.0"}, other = {.pci = "0000:0B:00.0"};
    char path[64];
    (void)state;
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/sys/bus/pci/devices", "tmpfs", 0, NULL)) {
        print_message("no mount namespaces, or no PCI, here\n");
        skip();
    }
    assert_int_equal(mkdir(folder, 0755), 0);
    snprintf(path, sizeof path, "%s/max_link_speed", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "%s\n", cases[i].speed);
        fclose(file);
        assert_int_equal(llane_setup_pcie_generation(&gpu), cases[i].want);
    }
    assert_int_equal(llane_setup_pcie_generation(&other), 0);
}

/* Ranks on these GPUs, with links of these generations, on these nodes. */
static struct llane_route_limits described(int n_ranks, const char *gpu, const int32_t *generation,
                                           const int32_t *node, int has_host_pairs)
{
    struct llane_setup *s = setup_of(n_ranks, 0, gpu);
    s->lane->limits.n_ranks = (uint32_t)n_ranks;
    s->lane->limits.has_host_pairs = (uint32_t)has_host_pairs;
    for (int r = 0; r < n_ranks; r++) {
        s->identity[r].gpu.numa_node = node[r];
        s->identity[r].pcie_generation = generation[r];
    }
    describe_machine(s);
    return s->lane->limits;
}

static void machine__ranks_differ__least_generation_and_all_nodes(void **state)
{
    static const int32_t generations[] = {5, 4, 5, 5}, unknown[] = {5, 0, 5, 5};
    static const int32_t nodes[] = {0, 1, 1, 0}, none[] = {-1, -1, -1, -1};
    (void)state;
    struct llane_route_limits limits = described(4, "abcd", generations, nodes, 0);
    assert_int_equal(limits.generation, 4);
    assert_int_equal(limits.n_sockets, 2);
    assert_int_equal(limits.ranks_per_gpu, 1);
    assert_int_equal(limits.memory, LLANE_MEMORY_PEER);
    limits = described(4, "abcd", unknown, none, 0);
    assert_int_equal(limits.generation, 0);
    assert_int_equal(limits.n_sockets, 1);
}

static void machine__pairs_and_shared_gpus__decide_the_kind_of_memory(void **state)
{
    static const int32_t generations[] = {5, 5, 5}, nodes[] = {0, 0, 0};
    (void)state;
    assert_int_equal(described(3, "abc", generations, nodes, 1).memory, LLANE_MEMORY_HOST);
    assert_int_equal(described(3, "aaa", generations, nodes, 1).memory, LLANE_MEMORY_HOST);
    const struct llane_route_limits one = described(3, "aaa", generations, nodes, 0);
    assert_int_equal(one.memory, LLANE_MEMORY_ONE_GPU);
    assert_int_equal(one.ranks_per_gpu, 3);
    const struct llane_route_limits two = described(3, "aab", generations, nodes, 0);
    assert_int_equal(two.memory, LLANE_MEMORY_PEER);
    assert_int_equal(two.ranks_per_gpu, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation__as_the_kernel_spells_speeds__is_read),
        cmocka_unit_test(machine__ranks_differ__least_generation_and_all_nodes),
        cmocka_unit_test(machine__pairs_and_shared_gpus__decide_the_kind_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
