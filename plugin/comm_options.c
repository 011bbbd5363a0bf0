#include "comm_options.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "config.h"

enum { GRAPHS_MIX = 2 };
static const unsigned magic = 0xcafebeef; /* of a config that was initialised */

/* Members in the order in which versions added them; the comment names the first version. */
struct layout {
    size_t size;
    unsigned magic, version;
    int blocking;                                      /* 2.14 */
    int cga_cluster_size, min_ctas, max_ctas;          /* 2.17 */
    const char *net_name;                              /* 2.17 */
    int split_share;                                   /* 2.18 */
    int traffic_class;                                 /* 2.26 */
    const char *comm_name;                             /* 2.27 */
    int collnet_enable, cta_policy, shrink_share;      /* 2.27 */
    int nvls_ctas;                                     /* 2.27 */
    int n_channels_per_net_peer, nvlink_centric_sched; /* 2.28 */
    int graph_usage;                                   /* 2.29 */
    int n_rma_ctx, max_p2p_peers, graph_ordering;      /* 2.30 */
    int launch_order;                                  /* 2.31 */
};

/* A member that the caller's header has, and the caller set. */
#define READ(config, member, since, otherwise)                                                     \
    ((config) && (config)->version >= (since) &&                                                   \
             (config)->size >= offsetof(struct layout, member) + sizeof((config)->member) &&       \
             (config)->member != INT_MIN                                                           \
         ? (config)->member                                                                        \
         : (otherwise))

void llane_comm_name_copy(const char *name, char out[LLANE_NAME_BYTES])
{
    size_t n = name ? strnlen(name, LLANE_NAME_BYTES - 1) : 0;
    for (size_t i = 0; i < n; i++) {
        int is_plain = name[i] >= ' ' && name[i] <= '~' && name[i] != '"' && name[i] != '\\';
        out[i] = (char)(is_plain ? name[i] : '?');
    }
    out[n] = '\0';
}

struct llane_comm_options llane_comm_options_read(const ncclConfig_t *config,
                                                  const struct llane_comm_options *parent)
{
    const struct layout *given = (const void *)config;
    struct llane_comm_options options = {.is_blocking = 1, .graph_usage = GRAPHS_MIX};
    if (!given && parent) {
        options = *parent;
    }
    options.has_common_id = (parent && parent->has_common_id) || llane_config_nccl_comm_id();
    options.is_blocking = READ(given, blocking, 21400, options.is_blocking);
    options.max_ctas = READ(given, max_ctas, 21700, options.max_ctas);
    options.split_share = READ(given, split_share, 21800, options.split_share);
    options.shrink_share = READ(given, shrink_share, 22700, options.shrink_share);
    options.graph_usage = READ(given, graph_usage, 22900, options.graph_usage);
    options.is_launch_ordered = READ(given, launch_order, 23100, options.is_launch_ordered);
    if (given && given->magic == magic && given->version >= 22700 &&
        given->size >= offsetof(struct layout, collnet_enable)) {
        llane_comm_name_copy(given->comm_name, options.name);
    }
    (void)llane_config_nccl_number("NCCL_COMM_SPLIT_SHARE_RESOURCES", &options.split_share);
    (void)llane_config_nccl_number("NCCL_COMM_SHRINK_SHARE_RESOURCES", &options.shrink_share);
    (void)llane_config_nccl_number("NCCL_LAUNCH_ORDER_IMPLICIT", &options.is_launch_ordered);
    int most, mixing;
    if (llane_config_nccl_number("NCCL_MAX_CTAS", &most) && most > 0) {
        options.max_ctas = most;
    }
    if (llane_config_nccl_number("NCCL_GRAPH_MIXING_SUPPORT", &mixing) &&
        (mixing == 0 || mixing == 1)) {
        options.graph_usage = mixing ? GRAPHS_MIX : 0;
    }
    if (options.max_ctas < 0) {
        options.max_ctas = 0;
    }
    return options;
}
