// Whether there is room for pinned host memory is told before any of it is written, in numbers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "err.h"
#include "host_room.h"

static char root[] = "/tmp/llane-room-XXXXXX";

static void put(const char *path, const char *text)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", root, path);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put_away(const char *path)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", root, path);
    unlink(name);
}

static int make_tree(void **state)
{
    static const char *const folders[] = {"/proc", "/sys", "/sys/fs", "/sys/fs/cgroup",
                                          "/sys/fs/cgroup/memory"};
    (void)state;
    if (!mkdtemp(root)) {
        return 1;
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", root, folders[i]);
        mkdir(name, 0700);
    }
    return 0;
}

static int remove_tree(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command); // NOLINT(cert-env33-c)
}

static void expect(uint64_t bytes, int result, const char *words)
{
    char text[256] = "";
    assert_int_equal(llane_host_room_check(root, bytes, text, sizeof text), result);
    if (!strstr(text, words)) {
        fail_msg("\"%s\" lacks \"%s\"", text, words);
    }
}

static void room__nothing_can_be_read__goes_on(void **state)
{
    (void)state;
    expect(1ull << 40, 0, "");
}

static void room__container_limit__named_with_flag(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/memory.current", "1048576\n");
    expect(1ull << 40, 0, "");
    put("/sys/fs/cgroup/memory.max", "9437184\n");
    expect(8 << 20, 0, "");
    expect((8 << 20) + 1024, LLANE_ENOMEM,
           "8193 KiB are needed and the container has 8192 KiB left: raise its limit (docker run "
           "--memory)");
    put("/sys/fs/cgroup/memory.current", "10000000\n"); /* beyond it already */
    expect(1024, LLANE_ENOMEM, "has 0 KiB left");
    put_away("/sys/fs/cgroup/memory.max");
    put_away("/sys/fs/cgroup/memory.current");
}

static void room__older_container_limit__named(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    expect(1 << 20, 0, "");
    expect(2 << 20, LLANE_ENOMEM, "has 1024 KiB left");
    put_away("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    put_away("/sys/fs/cgroup/memory/memory.usage_in_bytes");
}

static void room__machine_is_short__named(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemTotal:  9999 kB\nMemFree:  10 kB\nMemAvailable:    2048 kB\n");
    expect(2 << 20, 0, "");
    expect(4 << 20, LLANE_ENOMEM, "4096 KiB are needed and the machine has 2048 KiB available");
    put_away("/proc/meminfo");
}

static void pinning__limit_below__named_with_what_to_change(void **state)
{
    char text[256];
    struct rlimit limit;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = 64 << 10;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    llane_host_room_explain_pinning(32 << 10, text, sizeof text);
    assert_string_equal(text, "");
    llane_host_room_explain_pinning(4 << 20, text, sizeof text);
    assert_non_null(strstr(text, "4096 KiB are to be pinned and the limit of locked memory is 64"));
    assert_non_null(strstr(text, "--ulimit memlock=-1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room__nothing_can_be_read__goes_on),
        cmocka_unit_test(room__container_limit__named_with_flag),
        cmocka_unit_test(room__older_container_limit__named),
        cmocka_unit_test(room__machine_is_short__named),
        cmocka_unit_test(pinning__limit_below__named_with_what_to_change),
    };
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
