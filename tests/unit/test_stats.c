/* Proves that sizes fall into the bucket that their description says, that placeholders in the file's
 * name are replaced, that the file comes whole or not at all and through no link, and that the lane and
 * NCCL are compared only where both were timed. */
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "err.h"
#include "sizes.h"
#include "stats.h"
#include "stats_write.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test_stats.XXXXXX");
    return mkdtemp(folder) ? chdir(folder) : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return chdir("/") || system(command);
}

static void bucket__every_size__is_the_smallest_that_holds_it(void **state)
{
    (void)state;
    for (uint64_t bytes = 0; bytes < 70000; bytes++) {
        int expected = 0;
        for (uint64_t most = 1; most < bytes; most *= 2) {
            expected++;
        }
        assert_int_equal(llane_size_bucket(bytes), expected);
    }
    assert_int_equal(llane_size_bucket(1ull << 34), 34);
    assert_int_equal(llane_size_bucket((1ull << 34) + 1), 35);
    assert_int_equal(llane_size_bucket(UINT64_MAX), LLANE_SIZE_BUCKETS - 1);
    assert_true(llane_size_most_bytes(LLANE_SIZE_BUCKETS - 1) == UINT64_MAX);
}

static void file_name__placeholders__are_replaced(void **state)
{
    (void)state;
    char name[256], expected[512], host[128];
    gethostname(host, sizeof host);
    assert_int_equal(llane_stats_file_name("a%r-%p-%h%%%x%", 7, name, sizeof name), 0);
    snprintf(expected, sizeof expected, "a7-%d-%s%%%%x%%", (int)getpid(), host);
    assert_string_equal(name, expected);
}

static void file_name__too_long__is_refused(void **state)
{
    (void)state;
    char name[8];
    assert_int_equal(llane_stats_file_name("1234567", 0, name, sizeof name), 0);
    assert_int_equal(llane_stats_file_name("12345678", 0, name, sizeof name), LLANE_EINVAL);
    assert_int_equal(llane_stats_file_name("123456%r", 10, name, sizeof name), LLANE_EINVAL);
    assert_int_equal(llane_stats_file_name("", 0, name, sizeof name), LLANE_EINVAL);
}

static void write_word(FILE *file)
{
    fputs("word", file);
}

static void read_file(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

static void print_ab__a_way_was_not_timed__no_comparison(void **state)
{
    (void)state;
    static struct llane_stats_record r = {.has_ab = 1};
    char text[4096], *lane_alone, *both;
    r.ab.sizes[3].calls[LLANE_AB_LANE] = r.ab.sizes[4].calls[LLANE_AB_LANE] = 2;
    r.ab.sizes[3].timed[LLANE_AB_LANE] = r.ab.sizes[4].timed[LLANE_AB_LANE] = 2;
    r.ab.sizes[3].median_us[LLANE_AB_LANE] = r.ab.sizes[4].median_us[LLANE_AB_LANE] = 2;
    r.ab.sizes[4].calls[LLANE_AB_NCCL] = r.ab.sizes[4].timed[LLANE_AB_NCCL] = 1;
    r.ab.sizes[4].median_us[LLANE_AB_NCCL] = 5;
    FILE *file = fopen("ab", "w");
    assert_non_null(file);
    llane_stats_print_ab(&r, file);
    fclose(file);
    read_file("ab", text, sizeof text);
    unlink("ab");
    lane_alone = strstr(text, "to 8 bytes:");
    both = strstr(text, "to 16 bytes:");
    assert_non_null(lane_alone);
    assert_non_null(both);
    assert_non_null(strstr(both, "NCCL/lane 2.50, saved 0.006 ms\n"));
    *both = '\0';
    assert_non_null(strstr(lane_alone, "NCCL 0 calls, none timed; nothing to compare\n"));
}

static int n_files(void)
{
    int n = 0;
    DIR *all = opendir(folder);
    while (readdir(all)) {
        n++;
    }
    closedir(all);
    return n - 2;
}

static void write_file__an_older_one_there__is_replaced_and_nothing_else_left(void **state)
{
    (void)state;
    char text[64];
    FILE *older = fopen("file", "w");
    fputs("something longer", older);
    fclose(older);
    assert_int_equal(llane_stats_write_file("file", write_word), 0);
    read_file("file", text, sizeof text);
    assert_string_equal(text, "word");
    assert_int_equal(n_files(), 1);
}

static void write_file__a_link_stands_there__what_it_names_is_untouched(void **state)
{
    (void)state;
    char text[64];
    FILE *victim = fopen("victim", "w");
    fputs("precious", victim);
    fclose(victim);
    unlink("file");
    assert_int_equal(symlink("victim", "file"), 0);
    assert_int_equal(llane_stats_write_file("file", write_word), 0);
    read_file("victim", text, sizeof text);
    assert_string_equal(text, "precious");
    struct stat info;
    assert_int_equal(lstat("file", &info), 0);
    assert_true(S_ISREG(info.st_mode));
}

static int kind_of(const char *path)
{
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return (int)(info.st_mode & S_IFMT);
}

static void write_file__a_pipe_stands_there__is_written_to_and_stays(void **state)
{
    (void)state;
    char text[64] = "";
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(llane_stats_write_file("pipe", write_word), LLANE_ESYS); /* nobody reads */
    assert_int_equal(errno, ENXIO);
    int reader = open("pipe", O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(llane_stats_write_file("pipe", write_word), 0);
    assert_int_equal(read(reader, text, sizeof text - 1), 4);
    assert_string_equal(text, "word");
    close(reader);
    assert_int_equal(kind_of("pipe"), S_IFIFO);
}

static void write_file__a_link_to_a_device_or_descriptor__stays(void **state)
{
    (void)state;
    char text[64], target[64];
    assert_int_equal(symlink("/dev/null", "null"), 0);
    assert_int_equal(llane_stats_write_file("null", write_word), 0);
    assert_int_equal(kind_of("null"), S_IFLNK);
    int fd = open("log", O_WRONLY | O_CREAT, 0600); /* as /dev/stderr, sent to a file */
    assert_int_equal(write(fd, "log ", 4), 4);
    snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
    assert_int_equal(symlink(target, "stderr"), 0);
    assert_int_equal(llane_stats_write_file("stderr", write_word), 0);
    assert_int_equal(kind_of("stderr"), S_IFLNK);
    close(fd);
    read_file("log", text, sizeof text);
    assert_string_equal(text, "log word");
}

static void write_file__the_device_is_full__is_an_error(void **state)
{
    (void)state;
    assert_int_equal(symlink("/dev/full", "full"), 0);
    assert_int_equal(llane_stats_write_file("full", write_word), LLANE_ESYS);
    assert_int_equal(errno, ENOSPC);
}

static void write_file__cannot_be_renamed__leaves_nothing(void **state)
{
    (void)state;
    assert_int_equal(mkdir("taken", 0700), 0);
    int before = n_files();
    assert_int_equal(llane_stats_write_file("taken", write_word), LLANE_ESYS);
    assert_int_not_equal(errno, 0);
    assert_int_equal(n_files(), before);
    assert_int_equal(llane_stats_write_file("no/such/folder", write_word), LLANE_ESYS);
    assert_int_equal(errno, ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket__every_size__is_the_smallest_that_holds_it),
        cmocka_unit_test(file_name__placeholders__are_replaced),
        cmocka_unit_test(file_name__too_long__is_refused),
        cmocka_unit_test(print_ab__a_way_was_not_timed__no_comparison),
        cmocka_unit_test(write_file__an_older_one_there__is_replaced_and_nothing_else_left),
        cmocka_unit_test(write_file__a_link_stands_there__what_it_names_is_untouched),
        cmocka_unit_test(write_file__a_pipe_stands_there__is_written_to_and_stays),
        cmocka_unit_test(write_file__a_link_to_a_device_or_descriptor__stays),
        cmocka_unit_test(write_file__the_device_is_full__is_an_error),
        cmocka_unit_test(write_file__cannot_be_renamed__leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
