/*
 * Proves that tables survive their files, that damaged, foreign and half-written ones are refused,
 * and that many writers of one file leave a whole one.
 */
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "err.h"
#include "tuning_cache.h"

static char folder[] = "/tmp/llane_tuning_XXXXXX";
static const char key[] = "llane 0.1.0\ngpu 00112233\ngpu 44556677\n";

static struct llane_tuning example(uint16_t n_threads)
{
    struct llane_tuning tuning = {0};
    tuning.choice[LLANE_TUNING_FLOAT][0] =
        (struct llane_tuning_choice){LLANE_TUNING_LANE, LLANE_ONE_SHOT, LLANE_SENTINEL, 16, 0};
    tuning.choice[LLANE_TUNING_FLOAT][5] =
        (struct llane_tuning_choice){LLANE_TUNING_LANE, LLANE_TWO_SHOT, LLANE_LL, 0, n_threads};
    tuning.choice[LLANE_TUNING_FLOAT][LLANE_TUNING_BUCKETS - 1].path = LLANE_TUNING_NCCL;
    tuning.choice[LLANE_TUNING_INTEGER][7].path = LLANE_TUNING_NCCL;
    return tuning;
}

static size_t print_example(char *text)
{
    const struct llane_tuning tuning = example(256);
    size_t n = llane_tuning_print(key, &tuning, text, LLANE_TUNING_TEXT_BYTES);
    assert_true(n > 0);
    return n;
}

static int parses(const char *text, size_t n)
{
    char key_out[LLANE_TUNING_KEY_BYTES];
    struct llane_tuning out;
    char *copy = malloc(n + 1); /* exactly so long, for the sanitizer */
    memcpy(copy, text, n);
    int err = llane_tuning_parse(copy, n, key_out, &out);
    free(copy);
    assert_true(err == 0 || err == LLANE_EINVAL);
    return !err;
}

/* ---- text ---- */

static void tuning_text__what_was_printed__comes_back(void **state)
{
    (void)state;
    char text[LLANE_TUNING_TEXT_BYTES], key_out[LLANE_TUNING_KEY_BYTES];
    size_t n = print_example(text);
    const struct llane_tuning expected = example(256);
    struct llane_tuning out;
    assert_int_equal(llane_tuning_parse(text, n, key_out, &out), 0);
    assert_string_equal(key_out, key);
    assert_memory_equal(&out, &expected, sizeof out);
    assert_non_null(strstr(text, "\nfloat 256 lane two-shot ll 0 256\n"));
    assert_non_null(strstr(text, "\ninteger 1024 nccl\n"));
    assert_non_null(strstr(text, "\nfloat 67108864 nccl\n"));
}

static void tuning_text__any_byte_changed__refused(void **state)
{
    (void)state;
    char text[LLANE_TUNING_TEXT_BYTES];
    size_t n = print_example(text);
    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] ^= (char)(1 << bit);
            assert_false(parses(text, n));
            text[i] ^= (char)(1 << bit);
        }
    }
    assert_true(parses(text, n));
}

static void tuning_text__cut_or_longer__refused(void **state)
{
    (void)state;
    char text[LLANE_TUNING_TEXT_BYTES];
    size_t n = print_example(text);
    for (size_t i = 0; i < n; i++) {
        assert_false(parses(text, i));
    }
    text[n] = '\n';
    assert_false(parses(text, n + 1));
}

static void tuning_text__no_room__says_so(void **state)
{
    (void)state;
    char text[LLANE_TUNING_TEXT_BYTES];
    const struct llane_tuning tuning = example(256);
    size_t n = print_example(text);
    assert_int_equal(llane_tuning_print(key, &tuning, text, n), 0);
    assert_int_equal(llane_tuning_print(key, &tuning, text, n + 1), n);
}

/* The sum is right, the content is not. */
static int parses_with_sum(const char *body)
{
    char text[LLANE_TUNING_TEXT_BYTES];
    int n = snprintf(text, sizeof text, "llane tuning 1\n%s", body);
    n += snprintf(text + n, sizeof text - (size_t)n, "sum %016llx\n",
                  (unsigned long long)llane_tuning_hash(text, (size_t)n));
    return parses(text, (size_t)n);
}

static void tuning_text__entries_that_mean_nothing__refused(void **state)
{
    static const char *const bad[] = {
        "double 256 nccl\n",
        "float 257 nccl\n",
        "float 134217728 nccl\n",
        "float 0 nccl\n",
        "float 256 nccl \n",
        "float 256 nccl 1\n",
        "float 256 lane\n",
        "float 256 lane ring ll 0 0\n",
        "float 256 lane one-shot\n",
        "float 256 lane one-shot ll 0\n",
        "float 256 lane one-shot ll 65 0\n",
        "float 256 lane one-shot ll 0 513\n",
        "float 256 lane one-shot ll 0 0 0\n",
        "float 256 lane one-shot ll -1 0\n",
        "float 256 lane one-shot ll 99999999999999999999999 0\n",
        "float  256 nccl\n",
        "float 256 nccl\nfloat 256 nccl\n",
        "float 256 nccl\n= key\n",
        "\n",
        "= \n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parses_with_sum(bad[i])) {
            fail_msg("accepted: %s", bad[i]);
        }
    }
    assert_true(parses_with_sum("= key\nfloat 256 lane one-shot ll 64 512\nfloat 512 nccl\n"));
    assert_true(parses_with_sum(""));
}

/* ---- files ---- */

static void file_of(const char *of, char path[512])
{
    llane_tuning_cache_path(folder, of, path, 512);
}

static void put_file(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int read_of(const char *of)
{
    struct llane_tuning out;
    return llane_tuning_cache_read(folder, of, &out);
}

static void cache__written__read_back_by_its_key_alone(void **state)
{
    (void)state;
    const struct llane_tuning tuning = example(128);
    struct llane_tuning out;
    struct stat st;
    char path[512];
    assert_int_equal(read_of("first\n"), LLANE_ESYS);
    assert_int_equal(llane_tuning_cache_write(folder, "first\n", &tuning), 0);
    assert_int_equal(llane_tuning_cache_read(folder, "first\n", &out), 0);
    assert_memory_equal(&out, &tuning, sizeof out);
    assert_int_equal(read_of("second\n"), LLANE_ESYS);
    file_of("first\n", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void cache__missing_folders__are_made(void **state)
{
    (void)state;
    char below[256];
    struct llane_tuning out;
    const struct llane_tuning tuning = example(128);
    snprintf(below, sizeof below, "%s/cache/llane", folder);
    assert_int_equal(llane_tuning_cache_write(below, key, &tuning), 0);
    assert_int_equal(llane_tuning_cache_read(below, key, &out), 0);
}

static void cache__file_of_another_key_under_this_name__refused(void **state)
{
    (void)state;
    char theirs[512], ours[512];
    const struct llane_tuning tuning = example(128);
    assert_int_equal(llane_tuning_cache_write(folder, "theirs\n", &tuning), 0);
    file_of("theirs\n", theirs);
    file_of("ours\n", ours);
    assert_int_equal(rename(theirs, ours), 0);
    assert_int_equal(read_of("ours\n"), LLANE_EINVAL);
}

static void cache__damaged_foreign_or_no_file__refused_and_then_replaced(void **state)
{
    (void)state;
    static char large[2 * LLANE_TUNING_TEXT_BYTES];
    const struct llane_tuning tuning = example(128);
    char path[512], elsewhere[512];
    memset(large, 'x', sizeof large - 1);
    file_of("mine\n", path);
    put_file(path, "", 0600);
    assert_int_equal(read_of("mine\n"), LLANE_EINVAL);
    put_file(path, "llane tuning 1\nfloat", 0600);
    assert_int_equal(read_of("mine\n"), LLANE_EINVAL);
    put_file(path, large, 0600);
    assert_int_equal(read_of("mine\n"), LLANE_EINVAL);
    assert_int_equal(llane_tuning_cache_write(folder, "mine\n", &tuning), 0);
    assert_int_equal(read_of("mine\n"), 0);
    assert_int_equal(chmod(path, 0666), 0); /* anybody may have written it */
    assert_int_equal(read_of("mine\n"), LLANE_EINVAL);
    assert_int_equal(unlink(path), 0);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_int_equal(read_of("mine\n"), LLANE_EINVAL);
    assert_int_equal(llane_tuning_cache_write(folder, "mine\n", &tuning), 0);
    assert_int_equal(access(elsewhere, F_OK), -1); /* the link was replaced, not followed */
    assert_int_equal(read_of("mine\n"), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(read_of("mine\n"), LLANE_EINVAL); /* and does not wait for a writer */
    assert_int_equal(unlink(path), 0);
}

static int n_files(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        n += entry->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

/* As a user whom permissions bind, for the tests may run as root. */
static int write_as_nobody(void)
{
    const struct llane_tuning tuning = example(128);
    return (getuid() == 0 && (setgid(65534) || setuid(65534))) ||
           llane_tuning_cache_write(folder, "read-only\n", &tuning) != LLANE_ESYS;
}

static void cache__read_only_folder__not_written_and_nothing_left(void **state)
{
    (void)state;
    int status, before = n_files();
    assert_int_equal(chmod(folder, 0555), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        _exit(write_as_nobody());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(status, 0);
    assert_int_equal(n_files(), before);
}

enum { WRITERS = 4, WRITES = 40 };

static int write_and_read(int writer)
{
    for (int i = 0; i < WRITES; i++) {
        const struct llane_tuning tuning = example((uint16_t)(64 + 32 * writer));
        struct llane_tuning out;
        if (llane_tuning_cache_write(folder, "many\n", &tuning) ||
            llane_tuning_cache_read(folder, "many\n", &out)) {
            return 1;
        }
        uint16_t n_threads = out.choice[LLANE_TUNING_FLOAT][5].n_threads;
        if (n_threads < 64 || n_threads > 64 + 32 * WRITERS || n_threads % 32) {
            return 2;
        }
    }
    return 0;
}

static void cache__many_writers_of_one_file__always_a_whole_one(void **state)
{
    (void)state;
    int status, bad = 0, before = n_files();
    for (int w = 0; w < WRITERS; w++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            _exit(write_and_read(w));
        }
    }
    for (int w = 0; w < WRITERS; w++) {
        assert_true(wait(&status) > 0);
        bad |= status;
    }
    assert_int_equal(bad, 0);
    assert_int_equal(n_files(), before + 1);
}

/* ---- verdicts: what tests/unit/test_calibrate.c does not come to ---- */

static void tuning__buckets__hold_what_they_say(void **state)
{
    (void)state;
    assert_int_equal(llane_tuning_bucket(1), 0);
    assert_int_equal(llane_tuning_bucket(8), 0);
    assert_int_equal(llane_tuning_bucket(9), 1);
    assert_int_equal(llane_tuning_bucket(256), 5);
    assert_int_equal(llane_tuning_bucket(64 << 20), LLANE_TUNING_BUCKETS - 1);
    assert_int_equal(llane_tuning_bucket(UINT64_MAX), LLANE_TUNING_BUCKETS - 1);
    uint32_t ladder[LLANE_TUNING_SIZES];
    assert_int_equal(llane_tuning_ladder(255, ladder), 0);
    assert_int_equal(llane_tuning_ladder(256 << 10, ladder), 6);
    assert_int_equal(llane_tuning_bucket_bytes(ladder[5]), 256 << 10);
    assert_int_equal(llane_tuning_ladder(64 << 20, ladder), LLANE_TUNING_SIZES);
}

static void tuning__a_time_that_is_none__is_never_the_best(void **state)
{
    (void)state;
    int agrees;
    const struct llane_tuning_times times = {
        {{10, -1, 0, (float)(0.0 / 0.0), 5, 4}, {10, -1, 0, 1, 5, 4}}};
    assert_int_equal(llane_tuning_judge(&times, 6, 0x1f, 0, &agrees), 4);
    assert_true(agrees);
    assert_int_equal(llane_tuning_judge(&times, 6, 0x3f, 0, &agrees), 5);
    assert_int_equal(llane_tuning_judge(&times, 6, 0x3f, 2, &agrees), 2);
    assert_false(agrees);
}

/* ---- noise ---- */

enum { SIZES = 6, KERNELS = 4, TRIALS = 200 };

/*
 * One H200, ranks under MPS: two-shot and one-shot, LL and sentinel, 256 bytes to 256 KiB
 * (docs/tuning.md; where it was not measured, what its neighbours make likely); and one standard
 * deviation of a sample, as minima and 99th percentiles of 30 of them have it (docs/measurements).
 * Calibration's medians of 5 shorter ones are taken to be as far off.
 */
static const struct {
    const char *name;
    double us[SIZES][KERNELS]; /* one-shot LL and sentinel, two-shot LL and sentinel */
    double noise;
} seen[] = {
    {"2 ranks",
     {{1.79, 1.79, 2.20, 2.31},
      {1.81, 1.83, 2.20, 2.25},
      {1.85, 1.91, 2.24, 2.30},
      {2.10, 1.95, 2.50, 2.42},
      {2.50, 2.37, 3.10, 2.83},
      {8.00, 5.96, 7.50, 5.28}},
     0.012},
    {"4 ranks",
     {{2.34, 2.36, 3.17, 3.30},
      {2.35, 2.38, 3.14, 3.30},
      {2.61, 2.54, 3.40, 3.50},
      {2.81, 2.91, 3.70, 3.65},
      {4.76, 3.80, 5.50, 4.95},
      {14.0, 8.55, 9.38, 5.86}},
     0.045},
    {"8 ranks",
     {{3.72, 3.56, 6.30, 6.38},
      {3.82, 3.62, 6.30, 6.32},
      {4.18, 3.94, 6.30, 6.30},
      {4.83, 4.40, 7.00, 6.92},
      {6.73, 5.82, 8.00, 7.70},
      {20.5, 13.0, 12.0, 8.66}},
     0.065},
};

static uint32_t random_state;

static double uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) / (double)(1u << 24);
}

static double normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += uniform();
    }
    return sum;
}

/* Three widths of each kernel. */
static double true_us(const double us[KERNELS], int candidate)
{
    int width = candidate / KERNELS;
    return us[candidate % KERNELS] * (1 + 0.02 * width);
}

/* What a calibration reads: each kernel in three widths, hardly different. Of busy figures some were
 * taken while the GPU had other work. */
static struct llane_tuning_times read_times(const double us[KERNELS], double noise, double busy)
{
    struct llane_tuning_times times = {0};
    for (int c = 0; c < 3 * KERNELS; c++) {
        for (int pass = 0; pass < LLANE_TUNING_PASSES; pass++) {
            double read = true_us(us, c) * (1 + noise * normal());
            times.us[pass][c] = (float)(uniform() < busy ? read * (1.3 + 1.2 * uniform()) : read);
        }
    }
    return times;
}

/* Tables of TRIALS in which all sizes agree. On an idle GPU what is chosen is never much slower than the
 * default. */
static int n_kept(const double us[SIZES][KERNELS], double noise, double busy)
{
    int n = 0;
    random_state = 1;
    for (int trial = 0; trial < TRIALS; trial++) {
        int all = 1;
        for (int size = 0; size < SIZES; size++) {
            struct llane_tuning_times times = read_times(us[size], noise, busy);
            for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
                int agrees, is_ll = of == LLANE_TUNING_INTEGER;
                int best = llane_tuning_judge(&times, 3 * KERNELS, is_ll ? 0x555 : 0xfff,
                                              is_ll ? 0 : 1, &agrees);
                assert_true(busy > 0 || true_us(us[size], best) <= 1.15 * us[size][is_ll ? 0 : 1]);
                all &= agrees;
            }
        }
        n += all;
    }
    return n;
}

static void tuning__noise_of_an_idle_gpu__agrees(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        int n = n_kept(seen[i].us, seen[i].noise, 0);
        /* Before any size is measured once more. */
        if (n < TRIALS * 3 / 4) {
            fail_msg("%s: %d of %d tables kept", seen[i].name, n, (int)TRIALS);
        }
    }
}

static void tuning__other_work_on_the_gpu__differs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        int n = n_kept(seen[i].us, seen[i].noise, 0.3);
        if (n > TRIALS / 20) {
            fail_msg("%s: %d of %d tables kept", seen[i].name, n, (int)TRIALS);
        }
    }
}

/* Clocks that rise make all of the second pass faster, which changes no comparison. */
static void tuning__second_pass_is_faster_for_all__agrees(void **state)
{
    (void)state;
    int agrees;
    const struct llane_tuning_times times = {
        {{11.8F, 12.0F, 9.6F, 9.5F, 14.2F}, {10.0F, 10.1F, 8.0F, 8.1F, 12.0F}}};
    assert_in_range(llane_tuning_judge(&times, 5, 0x1f, 0, &agrees), 2, 3);
    assert_true(agrees);
}

/* However wide the noise: a kernel that one pass alone has far ahead. */
static void tuning__one_pass_has_another_far_ahead__differs(void **state)
{
    (void)state;
    int agrees;
    const struct llane_tuning_times times = {
        {{10.0F, 6.0F, 12.0F, 10.0F, 9.0F}, {10.0F, 10.2F, 10.5F, 12.2F, 11.0F}}};
    assert_int_equal(llane_tuning_judge(&times, 5, 0x1f, 0, &agrees), 0);
    assert_false(agrees);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tuning_text__what_was_printed__comes_back),
        cmocka_unit_test(tuning_text__any_byte_changed__refused),
        cmocka_unit_test(tuning_text__cut_or_longer__refused),
        cmocka_unit_test(tuning_text__no_room__says_so),
        cmocka_unit_test(tuning_text__entries_that_mean_nothing__refused),
        cmocka_unit_test(cache__written__read_back_by_its_key_alone),
        cmocka_unit_test(cache__missing_folders__are_made),
        cmocka_unit_test(cache__file_of_another_key_under_this_name__refused),
        cmocka_unit_test(cache__damaged_foreign_or_no_file__refused_and_then_replaced),
        cmocka_unit_test(cache__read_only_folder__not_written_and_nothing_left),
        cmocka_unit_test(cache__many_writers_of_one_file__always_a_whole_one),
        cmocka_unit_test(tuning__buckets__hold_what_they_say),
        cmocka_unit_test(tuning__a_time_that_is_none__is_never_the_best),
        cmocka_unit_test(tuning__noise_of_an_idle_gpu__agrees),
        cmocka_unit_test(tuning__other_work_on_the_gpu__differs),
        cmocka_unit_test(tuning__second_pass_is_faster_for_all__agrees),
        cmocka_unit_test(tuning__one_pass_has_another_far_ahead__differs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
