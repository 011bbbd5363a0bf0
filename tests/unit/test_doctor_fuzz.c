/* Proves that the doctor's parsers survive every seed of their fuzz target, and changed copies. */
// LDADD: tests/fuzz/fuzz_doctor.c tools/doctor_text.c tools/doctor_source.c tools/doctor_config.c tools/doctor_pci.c tools/doctor_pci_config.c tools/doctor_nvml.c tools/doctor_nvml_live.c tools/doctor_topology.c tools/doctor_log.c tools/doctor_xid.c tools/doctor_process.c tools/doctor_ranks.c tools/doctor_measured.c tools/doctor_rules.c tools/doctor_rules_link.c tools/doctor_rules_error.c tools/doctor_rules_gpu.c tools/doctor_rules_peer.c tools/doctor_rules_process.c tools/doctor_screen.c tools/doctor_json.c
// CFLAGS: -Itools
// ALSO: asan
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_BYTES = 1 << 16, COPIES = 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* What fuzzers do: a byte, a digit, a piece left out or doubled, the end cut off. */
static size_t change(uint8_t *data, size_t n)
{
    for (uint64_t i = draw(8); i < 8 && n > 2; i++) {
        size_t at = 1 + draw(n - 1), piece = draw(16);
        switch (draw(5)) {
        case 0:
            data[at] = (uint8_t)draw(256);
            break;
        case 1:
            data[at] = (uint8_t)('0' + draw(10));
            break;
        case 2:
            piece = piece < n - at ? piece : n - at;
            memmove(data + at, data + at + piece, n - at - piece);
            n -= piece;
            break;
        case 3:
            piece = n + piece <= MOST_BYTES && at + piece <= n ? piece : 0;
            memmove(data + at + piece, data + at, n - at);
            n += piece;
            break;
        default:
            n = draw(8) ? n : at + 1;
            break;
        }
    }
    return n;
}

static int run_seed(const char *path)
{
    static uint8_t seed[MOST_BYTES], copy[MOST_BYTES];
    FILE *file = fopen(path, "rb");
    if (!file) {
        return 0;
    }
    size_t n = fread(seed, 1, sizeof seed, file);
    fclose(file);
    LLVMFuzzerTestOneInput(seed, n);
    for (int i = 0; i < COPIES; i++) {
        memcpy(copy, seed, n);
        LLVMFuzzerTestOneInput(copy, change(copy, n));
    }
    return 1;
}

static void parsers__seeds_and_changed_copies__survive(void **unused)
{
    char folder[512], path[1024], command[1200];
    int n = 0;
    (void)unused;
    snprintf(folder, sizeof folder, "%s/tests/seeds_doctor", getenv("LLANE_BUILD"));
    snprintf(command, sizeof command, "rm -rf '%s'; tests/fuzz/make_seeds_doctor '%s'", folder,
             folder);
    assert_int_equal(system(command), 0);
    DIR *seeds = opendir(folder);
    assert_non_null(seeds);
    for (struct dirent *entry; (entry = readdir(seeds));) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%.200s", folder, entry->d_name);
            n += run_seed(path);
        }
    }
    closedir(seeds);
    assert_true(n > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsers__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
