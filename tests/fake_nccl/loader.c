/*
 * Plugins: which names are tried, with which flags, which symbols in which order, and when a library
 * is closed, each as the chosen NCCL version does it. The tables of the plugins are in plugins.c.
 */
#include "loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct fake_plugin_kind {
    const char *variable, *prefix;
    int since;         /* of the variable */
    int literal_since; /* before that, only the file prefix-NAME.so is tried; 0: literal only too */
    int now_since;     /* RTLD_NOW from here on, RTLD_LAZY before */
} g_kinds[] = {
    [FAKE_PLUGIN_NET] = {"NCCL_NET_PLUGIN", "libnccl-net", 0, 22100, 0},
    [FAKE_PLUGIN_TUNER] = {"NCCL_TUNER_PLUGIN", "libnccl-tuner", 21900, 0, 22600},
    [FAKE_PLUGIN_PROFILER] = {"NCCL_PROFILER_PLUGIN", "libnccl-profiler", 22300, 0, 0},
    [FAKE_PLUGIN_ENV] = {"NCCL_ENV_PLUGIN", "libnccl-env", 22807, 0, 0},
};

/* From 2.27 a path or a library's file name is taken literally only. */
static bool is_file_name(const char *name)
{
    size_t n = strlen(name);
    return strchr(name, '/') ||
           (strncmp(name, "lib", 3) == 0 && n >= 3 && strcmp(name + n - 3, ".so") == 0);
}

static void *try_open(enum fake_plugin plugin, const char *file)
{
    int flags = RTLD_LOCAL | (fake_version() >= g_kinds[plugin].now_since ? RTLD_NOW : RTLD_LAZY);
    void *library = dlopen(file, flags);
    if (library)
        FAKE_INFO("%s: loaded %s", g_kinds[plugin].variable, file);
    else
        FAKE_INFO("%s: %s", g_kinds[plugin].variable, dlerror());
    return library;
}

/* `as` names the kind whose flags hold: a tuner may be looked for under the net plugin's names. */
static void *open_as(enum fake_plugin as, enum fake_plugin plugin, const char *value)
{
    const struct fake_plugin_kind *kind = &g_kinds[plugin];
    int version = fake_version();
    char name[4096];
    void *library = NULL;
    if (!value || !*value) {
        snprintf(name, sizeof(name), "%s.so", kind->prefix);
        return try_open(as, name);
    }
    if (version >= 22600) /* names are cut at 254 characters */
        snprintf(name, 255, "%s", value);
    else
        snprintf(name, sizeof(name), "%s", value);
    if (version >= kind->literal_since && (library = try_open(as, name)))
        return library;
    bool is_literal_only = (plugin == FAKE_PLUGIN_TUNER && version < 22100) ||
                           (plugin == FAKE_PLUGIN_PROFILER && version < 22600) ||
                           (version >= 22700 && is_file_name(value));
    if (is_literal_only)
        return NULL;
    snprintf(name, version >= 22600 ? 255 : sizeof(name), "%s-%s.so", kind->prefix, value);
    return try_open(as, name);
}

static bool is_none(const char *value)
{
    return value && fake_version() >= 22700 && strcasecmp(value, "none") == 0;
}

void *fake_plugin_open(enum fake_plugin plugin)
{
    const struct fake_plugin_kind *kind = &g_kinds[plugin];
    if (fake_version() < kind->since)
        return NULL;
    const char *value =
        plugin == FAKE_PLUGIN_ENV ? getenv(kind->variable) : fake_getenv(kind->variable);
    if (is_none(value))
        return NULL;
    void *library = open_as(plugin, plugin, value);
    /* 2.21 to 2.25 look for a tuner in the net plugin's library last. */
    if (!library && plugin == FAKE_PLUGIN_TUNER && fake_version() >= 22100 &&
        fake_version() < 22600)
        library = open_as(plugin, FAKE_PLUGIN_NET, fake_getenv(g_kinds[FAKE_PLUGIN_NET].variable));
    return library;
}

int fake_plugin_find(void *library, const char *prefix, const int *versions, void **table_out)
{
    for (; *versions; versions++) {
        char name[64];
        snprintf(name, sizeof(name), "%s_v%d", prefix, *versions);
        if ((*table_out = dlsym(library, name)))
            return *versions;
    }
    return 0;
}

/* ---- the net plugin: never one that fits, so it is opened, looked into and closed ---- */
static void look_for_net(void *library)
{
    int newest = fake_version() >= 23000   ? 12
                 : fake_version() >= 22800 ? 11
                 : fake_version() >= 22600 ? 10
                 : fake_version() >= 22400 ? 9
                 : fake_version() >= 22000 ? 8
                                           : 7;
    int oldest = fake_version() >= 22600 ? 6 : 5;
    int versions[16] = {0};
    void *table;
    for (int i = 0; newest - i >= oldest; i++)
        versions[i] = newest - i;
    if (fake_plugin_find(library, "ncclNetPlugin", versions, &table))
        FAKE_WARN("the fake has no use for a real net plugin");
}

static void net_load_once(void)
{
    const char *value = fake_getenv(g_kinds[FAKE_PLUGIN_NET].variable);
    if (is_none(value))
        return;
    char list[4096];
    snprintf(list, sizeof(list), "%s", value ? value : "");
    char *rest = list, *name;
    /* From 2.27 the value is a list. */
    do {
        name = fake_version() >= 22700 ? strsep(&rest, ",") : rest;
        void *library = open_as(FAKE_PLUGIN_NET, FAKE_PLUGIN_NET, name);
        if (library) {
            look_for_net(library);
            dlclose(library);
        }
    } while (fake_version() >= 22700 && rest);
}

void fake_net_load(struct ncclComm *comm)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)comm;
    pthread_once(&once, net_load_once);
}

/* ---- the env plugin ---- */
struct env_v1 {
    const char *name;
    ncclResult_t (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix);
    ncclResult_t (*finalize)(void);
    const char *(*get_env)(const char *name);
};
struct env_v2 {
    const char *name;
    ncclResult_t (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix,
                         fake_logger logger);
    ncclResult_t (*finalize)(void);
    const char *(*get_env)(const char *name);
};
static void *g_env_library;
static int g_env_version;
static void *g_env_table;
static ncclResult_t g_env_result = ncclSuccess;
static const char *(*_Atomic g_get_env)(const char *);

static void env_finalize(void)
{
    /* Pairs with the store in env_load_once. */
    atomic_store(&g_get_env, (const char *(*)(const char *))NULL);
    if (g_env_version == 1)
        ((struct env_v1 *)g_env_table)->finalize();
    else
        ((struct env_v2 *)g_env_table)->finalize();
    if (dlclose(g_env_library) != 0)
        FAKE_WARN("%s", dlerror());
}

static void env_load_once(void)
{
    int version = fake_version();
    int v2_first[] = {2, 1, 0}, v1_only[] = {1, 0};
    g_env_library = fake_plugin_open(FAKE_PLUGIN_ENV);
    if (!g_env_library)
        return;
    g_env_version = fake_plugin_find(g_env_library, "ncclEnvPlugin",
                                     version >= 23004 ? v2_first : v1_only, &g_env_table);
    uint8_t major = (uint8_t)(version / 10000), minor = (uint8_t)(version / 100 % 100);
    uint8_t patch = (uint8_t)(version % 100);
    if (g_env_version == 0) {
        dlclose(g_env_library);
        return;
    }
    if (g_env_version == 1) {
        struct env_v1 *env = g_env_table;
        g_env_result = env->init(major, minor, patch, "");
        atomic_store(&g_get_env, env->get_env); /* read by fake_getenv in any thread */
    } else {
        struct env_v2 *env = g_env_table;
        g_env_result = env->init(major, minor, patch, "", fake_log);
        atomic_store(&g_get_env, env->get_env);
    }
    if (g_env_result == ncclSuccess)
        atexit(env_finalize);
}

ncclResult_t fake_env_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, env_load_once);
    return g_env_result;
}

const char *fake_getenv(const char *name)
{
    const char *(*get)(const char *) = atomic_load(&g_get_env);
    return get ? get(name) : getenv(name);
}
