/* Devices of the emulated GPU, its environment, its errors. */
#define _GNU_SOURCE
#include "emu_internal.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct emu_config config;
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

static _Thread_local char error_text[256] = "no error";
static _Thread_local int current_device;
static uint32_t contexts; /* a bit for each device */
static uint64_t n_resets[EMU_MAX_DEVICES];

/* Bit `to` of word `from`: llane_gpu_peer_enable() was called; relaxed, pairs with itself. */
static uint32_t peers_enabled[EMU_MAX_DEVICES];
/* The same, and memory of `to` was opened; under peers_lock. */
static uint32_t peers_open[EMU_MAX_DEVICES];
static pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER;

int emu_error(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(error_text, sizeof error_text, format, list);
    va_end(list);
    return LLANE_EGPU;
}

void emu_die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("emulated GPU: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

const char *llane_gpu_error(void)
{
    return error_text;
}

int llane_gpu_is_emulated(void)
{
    return 1;
}

const char *llane_gpu_runtime(void)
{
    return "emulation";
}

static void make_uuid(int physical, uint8_t uuid[16])
{
    static const char stem[] = "llane emulated!";
    memcpy(uuid, stem, 15);
    uuid[15] = (uint8_t)physical;
}

static void format_uuid(int physical, char out[64])
{
    uint8_t u[16];
    make_uuid(physical, u);
    char *end = out + sprintf(out, "GPU-");
    for (int i = 0; i < 16; i++)
        end += sprintf(end, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

/* One entry of CUDA_VISIBLE_DEVICES: a number or a (shortened) GPU-uuid; -1 ends the list. */
static int parse_visible(const char *entry, int n_physical)
{
    while (*entry == ' ')
        entry++;
    if (strncmp(entry, "GPU-", 4) == 0) {
        for (int i = 0; i < n_physical; i++) {
            char uuid[64];
            format_uuid(i, uuid);
            if (strncmp(uuid, entry, strlen(entry)) == 0)
                return i;
        }
        return -1;
    }
    char *end;
    long number = strtol(entry, &end, 10);
    if (end == entry || *end != 0 || number < 0 || number >= n_physical)
        return -1;
    return (int)number;
}

static void parse_devices(void)
{
    const char *text = getenv("EMU_DEVICES");
    int n_physical = text ? atoi(text) : 8;
    if (n_physical < 0 || n_physical > EMU_MAX_DEVICES)
        emu_die("EMU_DEVICES=%s is not in 0..%d", text, EMU_MAX_DEVICES);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) {
        for (int i = 0; i < n_physical; i++)
            config.physical[config.n_devices++] = i;
        return;
    }
    char copy[1024], *rest = copy, *entry;
    snprintf(copy, sizeof copy, "%s", visible);
    while ((entry = strsep(&rest, ",")) && config.n_devices < EMU_MAX_DEVICES) {
        int physical = parse_visible(entry, n_physical);
        /* As in CUDA: the first bad entry ends the list, a repeated one empties it. */
        if (physical < 0)
            break;
        for (int i = 0; i < config.n_devices; i++) {
            if (config.physical[i] == physical) {
                config.n_devices = 0;
                return;
            }
        }
        config.physical[config.n_devices++] = physical;
    }
}

/* "*", "host" or a number of a physical device; returns the text after it, NULL when malformed. */
static const char *parse_end(const char *text, int *first, int *last)
{
    if (*text == '*') {
        *first = 0;
        *last = EMU_MAX_DEVICES - 1;
        return text + 1;
    }
    if (strncmp(text, "host", 4) == 0) {
        *first = *last = EMU_HOST;
        return text + 4;
    }
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || number < 0 || number >= EMU_MAX_DEVICES)
        return NULL;
    *first = *last = (int)number;
    return end;
}

static bool has_value(enum emu_fault_kind kind)
{
    return kind == EMU_FAULT_DELAY || kind == EMU_FAULT_FLIP_LATE;
}

/* kind:source>destination[=value] */
static bool parse_fault(const char *text)
{
    static const struct {
        const char *name;
        enum emu_fault_kind kind;
    } kinds[] = {{"mirror:", EMU_FAULT_MIRROR},  {"drop:", EMU_FAULT_DROP},
                 {"delay_us:", EMU_FAULT_DELAY}, {"flip:", EMU_FAULT_FLIP},
                 {"torn:", EMU_FAULT_TORN},      {"flip_late:", EMU_FAULT_FLIP_LATE},
                 {"no_peer:", EMU_FAULT_NO_PEER}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t length = strlen(kinds[i].name);
        if (strncmp(text, kinds[i].name, length) != 0)
            continue;
        int from_first, from_last, to_first, to_last;
        const char *p = parse_end(text + length, &from_first, &from_last);
        if (!p || *p != '>' || from_last == EMU_HOST)
            return false;
        p = parse_end(p + 1, &to_first, &to_last);
        if (!p || has_value(kinds[i].kind) != (*p == '='))
            return false;
        uint32_t value = 0;
        if (*p == '=') {
            char *end;
            value = (uint32_t)strtoul(p + 1, &end, 10);
            p = end;
        }
        if (*p != 0)
            return false;
        bool is_pair = from_first == from_last && to_first == to_last;
        for (int from = from_first; from <= from_last; from++) {
            for (int to = to_first; to <= to_last; to++) {
                /* A device reaches itself unless the pair was spelled out. */
                if (from == to && !is_pair)
                    continue;
                config.faults[from][to] |= (uint8_t)kinds[i].kind;
                if (kinds[i].kind == EMU_FAULT_DELAY)
                    config.delay_us[from][to] = value;
                if (kinds[i].kind == EMU_FAULT_FLIP_LATE)
                    config.n_good[from][to] = value;
                config.has_faults = true;
            }
        }
        return true;
    }
    return false;
}

static void parse_faults(void)
{
    const char *text = getenv("EMU_FAULTS");
    if (!text)
        return;
    char copy[1024], *rest = copy, *entry;
    snprintf(copy, sizeof copy, "%s", text);
    while ((entry = strsep(&rest, ","))) {
        /* A fault that silently is none would make a test pass for nothing. */
        if (*entry && !parse_fault(entry))
            emu_die("EMU_FAULTS: cannot read \"%s\"", entry);
    }
}

static void parse_fail(void)
{
    static const char known[] =
        ",device_count,device_set,identify,malloc,ipc_export,ipc_open,peer_"
        "enable,host_alloc,host_register,memset,"
        "memcpy,stream_create,event_create,timed_event_create,event_record,event_query,wait_"
        "event,capture_begin,capture_wait_external,"
        "capture_record_external,capture_record_extend,capture_retain,primary,launch,kernel_load,";
    const char *text = getenv("EMU_FAIL");
    snprintf(config.fail, sizeof config.fail, ",%s,", text ? text : "");
    char copy[sizeof config.fail], *rest = copy, *entry;
    memcpy(copy, config.fail, sizeof copy);
    while ((entry = strsep(&rest, ","))) {
        char needle[sizeof config.fail + 2];
        snprintf(needle, sizeof needle, ",%s,", entry);
        if (*entry && !strstr(known, needle))
            emu_die("EMU_FAIL: \"%s\" is none of %.*s", entry, (int)sizeof known - 3, known + 1);
    }
}

static void parse_kill(void)
{
    const char *text = getenv("EMU_KILL"), *number = text ? strchr(text, ':') : NULL;
    if (text)
        snprintf(config.kill, sizeof config.kill, "%.*s",
                 number ? (int)(number - text) : (int)strlen(text), text);
    config.n_kill = number ? (uint32_t)strtoul(number + 1, NULL, 10) : 1;
}

static void parse_capture(void)
{
    static const char *const names[] = {[EMU_CAPTURE_THREAD_LOCAL] = "thread",
                                        [EMU_CAPTURE_GLOBAL] = "global",
                                        [EMU_CAPTURE_RELAXED] = "relaxed"};
    const char *text = getenv("EMU_CAPTURE");
    int mode = EMU_CAPTURE_THREAD_LOCAL;
    while (text && mode <= EMU_CAPTURE_RELAXED && strcmp(names[mode], text) != 0)
        mode++;
    if (mode > EMU_CAPTURE_RELAXED)
        emu_die("EMU_CAPTURE: \"%s\" is none of thread, global, relaxed", text);
    config.capture_mode = (enum emu_capture_mode)mode;
}

static uint32_t microseconds(const char *name)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

static void parse_environment(void)
{
    const char *seed = getenv("EMU_SEED"), *peers = getenv("EMU_MAX_PEERS");
    config.end_us = microseconds("EMU_END_US");
    config.query_us = microseconds("EMU_QUERY_US");
    config.load_us = microseconds("EMU_LOAD_US");
    config.max_peers = peers ? atoi(peers) : EMU_MAX_DEVICES;
    config.seed = seed ? strtoull(seed, NULL, 0) : 1;
    parse_devices();
    parse_faults();
    parse_fail();
    parse_kill();
    parse_capture();
}

const struct emu_config *emu_config(void)
{
    pthread_once(&config_once, parse_environment);
    return &config;
}

/* The program's own calls do not count. */
static void check_kill(const char *call)
{
    static uint32_t n_calls;
    char thread[16] = "";
    if (strcmp(call, config.kill) != 0 ||
        pthread_getname_np(pthread_self(), thread, sizeof thread) ||
        strncmp(thread, "llane-", 6) != 0)
        return;
    if (__atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED) == config.n_kill)
        raise(SIGKILL);
}

int emu_check_fail(const char *call)
{
    if (emu_config()->kill[0])
        check_kill(call);
    const char *fail = emu_config()->fail;
    if (fail[1] == ',')
        return 0;
    char needle[64];
    snprintf(needle, sizeof needle, ",%s,", call);
    return strstr(fail, needle) ? emu_error("%s: EMU_FAIL", call) : 0;
}

static int check_device(int device)
{
    if (device < 0 || device >= emu_config()->n_devices)
        return emu_error("invalid device ordinal %d of %d", device, config.n_devices);
    return 0;
}

int llane_gpu_device_count(int *n_out)
{
    if (emu_check_fail("device_count"))
        return LLANE_EGPU;
    *n_out = emu_config()->n_devices;
    return 0;
}

int llane_gpu_device_get(int *device_out)
{
    *device_out = current_device;
    return check_device(current_device);
}

int llane_gpu_device_set(int device)
{
    if (emu_check_fail("device_set") || check_device(device))
        return LLANE_EGPU;
    current_device = device;
    return 0;
}

uint64_t llane_gpu_context_id(int device)
{
    /* Acquire pairs with llane_gpu_device_reset. */
    return check_device(device) ? 0 : 1 + __atomic_load_n(&n_resets[device], __ATOMIC_ACQUIRE);
}

int llane_gpu_device_reset(void)
{
    emu_device_drain(current_device);
    emu_events_lose(current_device);
    emu_memory_lose(current_device);
    __atomic_fetch_add(&n_resets[current_device], 1, __ATOMIC_RELEASE);
    return 0;
}

/* EMU_FAIL=primary: the program's own context is current. */
int llane_gpu_context_is_primary(int *primary_out)
{
    *primary_out = emu_check_fail("primary") == 0;
    return 0;
}

int llane_gpu_identify(int device, struct llane_gpu_identity *out)
{
    if (emu_check_fail("identify") || check_device(device))
        return LLANE_EGPU;
    int physical = config.physical[device];
    memset(out, 0, sizeof *out);
    make_uuid(physical, out->uuid);
    const char *cc = getenv("EMU_CC"); /* 80 is 8.0 */
    out->cc_major = cc ? atoi(cc) / 10 : 9;
    out->cc_minor = cc ? atoi(cc) % 10 : 0;
    out->n_sms = 8;
    const char *nodes = getenv("EMU_NODES"); /* "0011": devices 2 and 3 hang off node 1 */
    out->numa_node = nodes && physical < (int)strlen(nodes) ? nodes[physical] - '0' : -1;
    snprintf(out->pci, sizeof out->pci, "0000:%02x:00.0", (unsigned)physical + 1);
    return 0;
}

int emu_current_device(void)
{
    return current_device;
}

int emu_current_physical(void)
{
    if (check_device(current_device))
        return -1;
    /* Relaxed, as its reading: a number of its own. */
    __atomic_fetch_or(&contexts, 1U << current_device, __ATOMIC_RELAXED);
    return config.physical[current_device];
}

uint32_t llane_emu_contexts(void)
{
    return __atomic_load_n(&contexts, __ATOMIC_RELAXED);
}

void emu_set_current_device(int device)
{
    current_device = device;
}

int emu_peer_open(const char *call, int to)
{
    int from = config.physical[current_device], can = 0;
    if (config.faults[from][to] & EMU_FAULT_NO_PEER)
        return emu_error("%s: peer access is not supported between devices %d and %d", call, from,
                         to);
    pthread_mutex_lock(&peers_lock);
    if (from != to && !(peers_open[from] >> to & 1U)) {
        can = __builtin_popcount(peers_open[from]) < config.max_peers;
        peers_open[from] |= (uint32_t)can << to;
    } else {
        can = 1;
    }
    pthread_mutex_unlock(&peers_lock);
    return can ? 0 : emu_error("%s: peer mapping resources exhausted (too many peers)", call);
}

int llane_gpu_peer_enable(int peer_device)
{
    if (emu_check_fail("peer_enable") || check_device(current_device) || check_device(peer_device))
        return LLANE_EGPU;
    if (peer_device == current_device)
        return emu_error("device %d is no peer of itself", peer_device);
    if (emu_peer_open("peer_enable", config.physical[peer_device]))
        return LLANE_EGPU;
    __atomic_fetch_or(&peers_enabled[config.physical[current_device]],
                      1U << config.physical[peer_device], __ATOMIC_RELAXED);
    return 0;
}

bool emu_peer_is_enabled(int from, int to)
{
    return from == to || (__atomic_load_n(&peers_enabled[from], __ATOMIC_RELAXED) >> to & 1U);
}
