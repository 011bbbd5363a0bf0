/* Proves that settings are read as documented and that a bad one costs a warning, never the job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "err.h"

static int parse(enum llane_config_kind kind, const char *text, uint64_t *out)
{
    return llane_config_parse(kind, text, 0, 1ull << 40, "auto one-shot", out);
}

static void parse__sizes__take_suffixes(void **state)
{
    (void)state;
    uint64_t v;
    assert_int_equal(parse(LLANE_KIND_SIZE, "0", &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(parse(LLANE_KIND_SIZE, "64K", &v), 0);
    assert_int_equal(v, 65536);
    assert_int_equal(parse(LLANE_KIND_SIZE, "1m", &v), 0);
    assert_int_equal(v, 1048576);
    assert_int_equal(parse(LLANE_KIND_SIZE, "2G", &v), 0);
    assert_int_equal(v, 2147483648);
}

static void parse__nonsense__is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "K",
                                      "1KB",
                                      "1.5",
                                      "0x10",
                                      "1e3",
                                      "abc",
                                      "1T",
                                      "99999999999999999999",
                                      "17179869184G"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 7;
        assert_int_equal(parse(LLANE_KIND_SIZE, bad[i], &v), LLANE_EINVAL);
        assert_int_equal(v, 7);
    }
    uint64_t v;
    assert_int_equal(parse(LLANE_KIND_INT, "1K", &v), LLANE_EINVAL);
    assert_int_equal(llane_config_parse(LLANE_KIND_BOOL, "2", 0, 1, "", &v), LLANE_EINVAL);
    assert_int_equal(llane_config_parse(LLANE_KIND_BOOL, "yes", 0, 1, "", &v), LLANE_EINVAL);
}

static void parse__words__are_taken_whole(void **state)
{
    (void)state;
    uint64_t v;
    assert_int_equal(parse(LLANE_KIND_WORD, "auto", &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(parse(LLANE_KIND_WORD, "ONE-SHOT", &v), 0);
    assert_int_equal(v, 1);
    assert_int_equal(parse(LLANE_KIND_WORD, "one", &v), LLANE_EINVAL);
    assert_int_equal(parse(LLANE_KIND_WORD, "1", &v), LLANE_EINVAL);
    assert_int_equal(parse(LLANE_KIND_WORD, "one-shot ", &v), LLANE_EINVAL);
}

/* Runs read() in a child with the given variables; what it wrote to stderr comes back. */
static void in_child(const char *const *variables, struct llane_config *config, char *err,
                     size_t bytes)
{
    int to_parent[2], messages[2];
    assert_int_equal(pipe(to_parent), 0);
    assert_int_equal(pipe(messages), 0);
    pid_t child = fork();
    if (!child) {
        dup2(messages[1], STDERR_FILENO);
        for (int i = 0; variables[i]; i += 2) {
            setenv(variables[i], variables[i + 1], 1);
        }
        const struct llane_config *read_config = llane_config();
        _exit(write(to_parent[1], read_config, sizeof *config) != (ssize_t)sizeof *config);
    }
    close(messages[1]);
    assert_int_equal(read(to_parent[0], config, sizeof *config), sizeof *config);
    size_t used = 0;
    ssize_t got;
    while ((got = read(messages[0], err + used, bytes - 1 - used)) > 0) {
        used += (size_t)got;
    }
    err[used] = '\0';
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    close(messages[0]);
    close(to_parent[0]);
    close(to_parent[1]);
}

static void config__no_variables__defaults_and_silence(void **state)
{
    (void)state;
    struct llane_config config;
    char err[4096];
    in_child((const char *const[]){NULL}, &config, err, sizeof err);
    assert_string_equal(err, "");
    assert_int_equal(config.enable, 1);
    assert_int_equal(config.max_bytes, 256 * 1024);
    assert_int_equal(config.wait, 0);
}

static void config__bad_value__warns_once_with_name_value_range_and_keeps_the_default(void **state)
{
    (void)state;
    struct llane_config config;
    char err[4096];
    in_child((const char *const[]){"LLANE_MAX_BYTES", "lots", "LLANE_MIN_BYTES", "1K", NULL},
             &config, err, sizeof err);
    assert_int_equal(config.max_bytes, 256 * 1024);
    assert_int_equal(config.min_bytes, 1024);
    assert_non_null(strstr(err, "LLANE_MAX_BYTES=lots"));
    assert_non_null(strstr(err, "0 to 64M"));
    assert_non_null(strstr(err, "256K is used"));
    assert_null(strstr(strstr(err, "LLANE_MAX_BYTES") + 1, "LLANE_MAX_BYTES"));
}

static void config__unknown_name__is_warned_about(void **state)
{
    (void)state;
    struct llane_config config;
    char err[4096];
    in_child((const char *const[]){"LLANE_MAX_BYTE", "1K", NULL}, &config, err, sizeof err);
    assert_non_null(strstr(err, "LLANE_MAX_BYTE is not a variable"));
}

static void config__docs_page__is_what_the_table_says(void **state)
{
    (void)state;
    char *fresh;
    size_t bytes;
    FILE *memory = open_memstream(&fresh, &bytes);
    llane_config_write_doc(memory);
    fclose(memory);
    FILE *page = fopen("docs/config.md", "r");
    assert_non_null(page);
    char *committed = calloc(1, bytes + 2);
    size_t got = fread(committed, 1, bytes + 1, page);
    fclose(page);
    assert_int_equal(got, bytes);
    assert_memory_equal(committed, fresh, bytes);
    free(committed);
    free(fresh);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--write-doc")) {
        llane_config_write_doc(stdout);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse__sizes__take_suffixes),
        cmocka_unit_test(parse__nonsense__is_refused),
        cmocka_unit_test(parse__words__are_taken_whole),
        cmocka_unit_test(config__no_variables__defaults_and_silence),
        cmocka_unit_test(config__bad_value__warns_once_with_name_value_range_and_keeps_the_default),
        cmocka_unit_test(config__unknown_name__is_warned_about),
        cmocka_unit_test(config__docs_page__is_what_the_table_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
