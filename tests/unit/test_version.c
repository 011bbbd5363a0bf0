// Proves that the build id llane compares between ranks is the one the linker gave this very object.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "version.h"

static void build_id__asked__is_what_readelf_prints(void **state)
{
    (void)state;
    char path[512], command[600], line[256], expected[128] = "none";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    snprintf(command, sizeof command, "readelf -n '%s'", path);
    FILE *notes = popen(command, "r");
    assert_non_null(notes);
    while (fgets(line, sizeof line, notes)) {
        sscanf(line, " Build ID: %127s", expected);
    }
    pclose(notes);
    assert_string_equal(llane_build_id(), expected);
    assert_ptr_equal(llane_build_id(), llane_build_id());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(build_id__asked__is_what_readelf_prints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
