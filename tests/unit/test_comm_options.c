// Proves which of NCCL's variables, a communicator's configuration and its parent's has the last word.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm_options.h"

enum { UNSET = -2147483647 - 1 };

/* ncclConfig_t as NCCL 2.31's header has it, up to launchOrderImplicit. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas, n_channels_per_net_peer;
    int nvlink_centric_sched, graph_usage, num_rma_ctx, max_p2p_peers, graph_stream_ordering;
    int launch_order;
};

static struct config config_of(unsigned version)
{
    return (struct config){
        .size = sizeof(struct config),
        .magic = 0xcafebeef,
        .version = version,
        .blocking = UNSET,
        .max_ctas = UNSET,
        .split_share = UNSET,
        .shrink_share = UNSET,
        .graph_usage = UNSET,
        .launch_order = UNSET,
    };
}

static struct llane_comm_options read_options(const struct config *config,
                                              const struct llane_comm_options *parent)
{
    return llane_comm_options_read((const ncclConfig_t *)config, parent);
}

static int forget_variables(void **state)
{
    (void)state;
    unsetenv("NCCL_MAX_CTAS");
    unsetenv("NCCL_COMM_SPLIT_SHARE_RESOURCES");
    unsetenv("NCCL_COMM_SHRINK_SHARE_RESOURCES");
    unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    unsetenv("NCCL_COMM_ID");
    return 0;
}

static void nothing_said__ncclS_defaults(void **state)
{
    (void)state;
    struct config unset = config_of(23007);
    struct llane_comm_options o = read_options(&unset, NULL);
    assert_int_equal(o.max_ctas, 0);
    assert_int_equal(o.split_share, 0);
    assert_int_equal(o.shrink_share, 0);
    assert_int_equal(o.graph_usage, 2);
    assert_int_equal(o.is_launch_ordered, 0);
}

static void config__launch_order__read_from_2_31_on_and_the_variable_beats_it(void **state)
{
    (void)state;
    struct config config = config_of(23100);
    assert_int_equal(read_options(&config, NULL).is_launch_ordered, 0);
    config.launch_order = 1;
    struct llane_comm_options o = read_options(&config, NULL);
    assert_int_equal(o.is_launch_ordered, 1);
    assert_int_equal(read_options(NULL, &o).is_launch_ordered, 1); /* a child of such a parent */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    assert_int_equal(read_options(&config, NULL).is_launch_ordered, 0);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    config.launch_order = 0;
    assert_int_equal(read_options(&config, NULL).is_launch_ordered, 1);
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    config.launch_order = 1;
    config.version = 23007; /* has no such member */
    assert_int_equal(read_options(&config, NULL).is_launch_ordered, 0);
}

static void comm_id_variable__also_for_children(void **state)
{
    (void)state;
    struct config config = config_of(23100);
    assert_int_equal(read_options(NULL, NULL).has_common_id, 0);
    setenv("NCCL_COMM_ID", "127.0.0.1:23456", 1);
    struct llane_comm_options parent = read_options(NULL, NULL);
    assert_int_equal(parent.has_common_id, 1);
    unsetenv("NCCL_COMM_ID");
    assert_int_equal(read_options(NULL, &parent).has_common_id, 1);
    assert_int_equal(read_options(&config, &parent).has_common_id, 1);
}

static void config__members_of_its_version__read(void **state)
{
    (void)state;
    struct config config = config_of(23007);
    config.max_ctas = 5;
    config.split_share = 1;
    config.graph_usage = 1;
    struct llane_comm_options o = read_options(&config, NULL);
    assert_int_equal(o.max_ctas, 5);
    assert_int_equal(o.split_share, 1);
    assert_int_equal(o.graph_usage, 1);
    config.version = 21800; /* what lies behind splitShare is not the caller's */
    o = read_options(&config, NULL);
    assert_int_equal(o.split_share, 1);
    assert_int_equal(o.graph_usage, 2);
}

static void config__name__read_if_its_version_has_one(void **state)
{
    (void)state;
    struct config config = config_of(22700);
    assert_string_equal(read_options(&config, NULL).name, "");
    config.comm_name = "tp:0 of \"a\\b\"\n\xc3\xa9";
    struct llane_comm_options o = read_options(&config, NULL);
    assert_string_equal(o.name, "tp:0 of ?a?b????");
    assert_string_equal(read_options(NULL, &o).name,
                        o.name); /* as NCCL, a child of such a parent */
    struct config unnamed = config_of(22700);
    assert_string_equal(read_options(&unnamed, &o).name, "");
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    config.comm_name = longer;
    o = read_options(&config, NULL);
    assert_int_equal(strlen(o.name), LLANE_NAME_BYTES - 1);

    config.comm_name = (const char *)1; /* whatever lies there: these have no such member */
    config.version = 22600;
    assert_string_equal(read_options(&config, NULL).name, "");
    config.version = 22700;
    config.size = offsetof(struct config, comm_name);
    assert_string_equal(read_options(&config, NULL).name, "");
    config.size = sizeof config;
    config.magic = 0;
    assert_string_equal(read_options(&config, NULL).name, "");
}

static void variables__set_at_any_time__beat_the_config(void **state)
{
    (void)state;
    struct config config = config_of(23007);
    config.max_ctas = 5;
    config.graph_usage = 1;
    setenv("NCCL_MAX_CTAS", "9", 1);
    setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", 1);
    setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
    struct llane_comm_options o = read_options(&config, NULL);
    assert_int_equal(o.max_ctas, 9);
    assert_int_equal(o.split_share, 1);
    assert_int_equal(o.graph_usage, 0);
    setenv("NCCL_MAX_CTAS", "0", 1); /* NCCL leaves the config's then */
    assert_int_equal(read_options(&config, NULL).max_ctas, 5);
    assert_int_equal(read_options(NULL, NULL).max_ctas, 0);
}

static void child__without_a_config__as_its_parent(void **state)
{
    (void)state;
    const struct llane_comm_options parent = {.max_ctas = 3, .split_share = 1, .graph_usage = 1};
    assert_int_equal(read_options(NULL, &parent).max_ctas, 3);
    assert_int_equal(read_options(NULL, &parent).split_share, 1);
    struct config config = config_of(23007);
    assert_int_equal(read_options(&config, &parent).max_ctas, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_said__ncclS_defaults, forget_variables),
        cmocka_unit_test_teardown(config__launch_order__read_from_2_31_on_and_the_variable_beats_it,
                                  forget_variables),
        cmocka_unit_test_teardown(comm_id_variable__also_for_children, forget_variables),
        cmocka_unit_test_teardown(config__members_of_its_version__read, forget_variables),
        cmocka_unit_test_teardown(config__name__read_if_its_version_has_one, forget_variables),
        cmocka_unit_test_teardown(variables__set_at_any_time__beat_the_config, forget_variables),
        cmocka_unit_test_teardown(child__without_a_config__as_its_parent, forget_variables),
    };
    forget_variables(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
