/* Proves that the doctor's parsers survive every seed of their fuzz target, and changed copies. */
// LDADD: tests/fuzz/fuzz_doctor.c tools/doctor_text.c tools/doctor_source.c tools/doctor_config.c tools/doctor_pci.c tools/doctor_pci_config.c tools/doctor_nvml.c tools/doctor_nvml_live.c tools/doctor_topology.c tools/doctor_log.c tools/doctor_xid.c tools/doctor_process.c tools/doctor_ranks.c tools/doctor_measured.c tools/doctor_rules.c tools/doctor_rules_link.c tools/doctor_rules_error.c tools/doctor_rules_gpu.c tools/doctor_rules_peer.c tools/doctor_rules_process.c tools/doctor_screen.c tools/doctor_json.c
// CFLAGS: -Itools
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fuzz/seeds.h"

static void parsers__seeds_and_changed_copies__survive(void **unused)
{
    char folder[512], command[1200];
    (void)unused;
    snprintf(folder, sizeof folder, "%s/tests/seeds_doctor", getenv("LLANE_BUILD"));
    snprintf(command, sizeof command, "rm -rf '%s'; tests/fuzz/make_seeds_doctor '%s'", folder,
             folder);
    assert_int_equal(system(command), 0);
    assert_true(seeds_run(folder) > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsers__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
