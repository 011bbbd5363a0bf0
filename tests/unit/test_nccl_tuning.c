/* Proves that a tuning file means what nccl_tuning.h says, that a wrong one is refused with its line,
 * and that through every version of the tuner table NCCL's choice changes as the file says, and
 * without a file not by one byte. */
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

#include "err.h"
#include "nccl_tuning.h"
#include "tuner_abi.h"

extern const struct llane_tuner_v1 ncclTunerPlugin_v1;
extern const struct llane_tuner_v2 ncclTunerPlugin_v2;
extern const struct llane_tuner_v3 ncclTunerPlugin_v3;
extern const struct llane_tuner_v4 ncclTunerPlugin_v4;
extern const struct llane_tuner_v5 ncclTunerPlugin_v5;
extern const struct llane_tuner_v6 ncclTunerPlugin_v6;

static struct llane_nccl_tuning *parse(const char *text)
{
    struct llane_nccl_tuning *tuning = NULL;
    int line;
    const char *why;
    assert_int_equal(llane_nccl_tuning_parse(text, &tuning, &line, &why), 0);
    return tuning;
}

static void parse__fields__are_read(void **state)
{
    (void)state;
    struct llane_nccl_tuning *t =
        parse("# heading below\n\n"
              "Collective,from,to,ranks,nodes,algorithm,protocol,channels\n"
              "allreduce, 1K ,64K,8,1,Ring,LL,4 # comment\r\n"
              "\n"
              "broadcast,0,*,*,*,tree,simple,*");
    assert_int_equal(t->n_rows, 2);
    const struct llane_nccl_tuning_row *r = &t->rows[0];
    assert_true(r->func == 4 && r->min_bytes == 1024 && r->max_bytes == 65536 && r->n_ranks == 8 &&
                r->n_nodes == 1 && r->algorithm == 1 && r->protocol == 0 && r->n_channels == 4);
    r = &t->rows[1];
    assert_true(r->func == 0 && r->min_bytes == 0 && r->max_bytes == UINT64_MAX && !r->n_ranks &&
                !r->n_nodes && r->algorithm == 0 && r->protocol == 2 && !r->n_channels);
    free(t);
}

static void parse__wrong_line__is_refused_with_its_number(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "gather,0,1,*,*,ring,ll,*",
        "allreduce,0,1,*,*,ring,ll",
        "allreduce,0,1,*,*,ring,ll,*,*",
        "allreduce,2,1,*,*,ring,ll,*",
        "allreduce,-1,1,*,*,ring,ll,*",
        "allreduce,0,1,0,*,ring,ll,*",
        "allreduce,0,1,*,x,ring,ll,*",
        "allreduce,0,1,*,*,star,ll,*",
        "allreduce,0,1,*,*,ring,ll256,*",
        "allreduce,0,1,*,*,ring,ll,0",
        "allreduce,0,1,*,*,ring,ll,65",
        "allreduce,0,1,*,*,ring,ll,",
        "allreduce,0,1,*,*,ringringringringringringring,ll,*",
        "collective",
        ",,,,,,,",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256];
        int line = 0;
        const char *why = NULL;
        struct llane_nccl_tuning *tuning = NULL;
        snprintf(text, sizeof text, "\nallreduce,0,1,*,*,ring,ll,*\n%s\n", wrong[i]);
        assert_int_equal(llane_nccl_tuning_parse(text, &tuning, &line, &why), LLANE_EINVAL);
        assert_int_equal(line, 3);
        assert_non_null(why);
        assert_null(tuning);
    }
}

static int found(const struct llane_nccl_tuning *t, int func, uint64_t bytes, uint64_t ranks,
                 uint64_t nodes)
{
    const struct llane_nccl_call call = {func, bytes, ranks, nodes};
    const struct llane_nccl_tuning_row *row = llane_nccl_tuning_find(t, &call);
    return row ? (int)(row - t->rows) : -1;
}

static void find__first_line_that_fits__holds(void **state)
{
    (void)state;
    struct llane_nccl_tuning *t = parse("allreduce,100,200,4,1,ring,ll,*\n"
                                        "allreduce,150,300,*,*,tree,ll,*\n"
                                        "reduce,0,*,*,2,ring,simple,*\n");
    assert_int_equal(found(t, 4, 99, 4, 1), -1);
    assert_int_equal(found(t, 4, 100, 4, 1), 0);
    assert_int_equal(found(t, 4, 200, 4, 1), 0);
    assert_int_equal(found(t, 4, 201, 4, 1), 1);
    assert_int_equal(found(t, 4, 150, 8, 1), 1);
    assert_int_equal(found(t, 4, 120, 8, 1), -1);
    assert_int_equal(found(t, 4, 301, 8, 1), -1);
    assert_int_equal(found(t, 1, 1ull << 40, 8, 2), 2);
    assert_int_equal(found(t, 1, 5, 8, 1), -1);
    assert_int_equal(found(t, 0, 5, 8, 2), -1);
    assert_int_equal(found(t, 4, 160, 0, 0), 1); /* sizes not known: only a line for any */
    free(t);
}

/* ---- through the tables ---- */

enum { ALGOS = 7, PROTOS = 3, ALL_REDUCE = 4 };

/* What a table of NCCL's looks like: times, and -1 where it cannot. */
static void fill(float costs[ALGOS][PROTOS])
{
    for (int a = 0; a < ALGOS; a++) {
        for (int p = 0; p < PROTOS; p++) {
            costs[a][p] = (a == 1 && p == 1) || a > 3 ? -1.0f : 1.5f + (float)(a * PROTOS + p);
        }
    }
}

struct answer {
    float costs[ALGOS][PROTOS];
    int algo, proto, n_channels;
};

/* Asks the table of a version as NCCL does, on a communicator of 4 ranks on one node. */
static void ask(int version, size_t bytes, struct answer *answer)
{
    void *ctx = NULL;
    int domains[3] = {1, 4, 4};
    float **costs = (float **)answer->costs;
    switch (version) {
    case 1:
        ncclTunerPlugin_v1.init(4, 1, NULL);
        assert_int_equal(ncclTunerPlugin_v1.get_coll_info(ALL_REDUCE, bytes, 0, 0, 1, &answer->algo,
                                                          &answer->proto, &answer->n_channels),
                         0);
        break;
    case 2:
        ncclTunerPlugin_v2.init(4, 1, NULL, &ctx);
        assert_int_equal(ncclTunerPlugin_v2.get_coll_info(ctx, ALL_REDUCE, bytes, 0, 0, 1,
                                                          &answer->algo, &answer->proto,
                                                          &answer->n_channels),
                         0);
        break;
    case 3:
        ncclTunerPlugin_v3.init(4, 1, NULL, &ctx);
        assert_int_equal(ncclTunerPlugin_v3.get_coll_info(ctx, ALL_REDUCE, bytes, 1, costs, ALGOS,
                                                          PROTOS, &answer->n_channels),
                         0);
        break;
    case 4:
        ncclTunerPlugin_v4.init(4, 1, NULL, &ctx);
        assert_int_equal(ncclTunerPlugin_v4.get_coll_info(ctx, ALL_REDUCE, bytes, 1, costs, ALGOS,
                                                          PROTOS, 0, &answer->n_channels),
                         0);
        break;
    case 5:
        ncclTunerPlugin_v5.init(&ctx, 77, 4, 1, NULL, domains, NULL);
        assert_int_equal(ncclTunerPlugin_v5.get_coll_info(ctx, ALL_REDUCE, bytes, 1, costs, ALGOS,
                                                          PROTOS, 0, &answer->n_channels),
                         0);
        break;
    default:
        ncclTunerPlugin_v6.init(&ctx, 78, 4, 1, NULL, domains, NULL);
        assert_int_equal(ncclTunerPlugin_v6.get_coll_info(ctx, ALL_REDUCE, bytes, 1, costs, ALGOS,
                                                          PROTOS, 0, &answer->n_channels),
                         0);
        break;
    }
}

/* The answer of a process of its own, with a tuning file of this content; NULL: none. */
static struct answer ask_in_child(int version, const char *file_text, const char *enable)
{
    struct answer answer;
    char path[] = "/tmp/test_nccl_tuning.XXXXXX";
    int fd = mkstemp(path), pipes[2], status;
    assert_true(fd >= 0);
    assert_int_equal(pipe(pipes), 0);
    if (file_text) {
        assert_int_equal(write(fd, file_text, strlen(file_text)), strlen(file_text));
    }
    close(fd);
    pid_t child = fork();
    if (!child) {
        setenv("LLANE_ENABLE", enable, 1);
        unsetenv("LLANE_NCCL_TUNING");
        if (file_text) {
            setenv("LLANE_NCCL_TUNING", path, 1);
        }
        memset(&answer, 0, sizeof answer);
        fill(answer.costs);
        answer.algo = answer.proto = -1;
        ask(version, 4096, &answer);
        _exit(write(pipes[1], &answer, sizeof answer) != (ssize_t)sizeof answer);
    }
    assert_int_equal(read(pipes[0], &answer, sizeof answer), sizeof answer);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    close(pipes[0]);
    close(pipes[1]);
    unlink(path);
    return answer;
}

static struct answer untouched(void)
{
    struct answer answer;
    memset(&answer, 0, sizeof answer);
    fill(answer.costs);
    answer.algo = answer.proto = -1;
    return answer;
}

static void assert_untouched(int version, const char *file_text, const char *enable)
{
    struct answer expected = untouched(), answer = ask_in_child(version, file_text, enable);
    assert_memory_equal(&answer, &expected, sizeof answer);
}

static void tables__no_file__leave_every_byte(void **state)
{
    (void)state;
    for (int version = 1; version <= 6; version++) {
        assert_untouched(version, NULL, "1");
    }
}

static void tables__line_does_not_fit_or_llane_is_off__leave_every_byte(void **state)
{
    (void)state;
    for (int version = 1; version <= 6; version++) {
        assert_untouched(version, "allreduce,0,4095,*,*,tree,simple,2\n", "1");
        assert_untouched(version, "allreduce,0,*,3,*,tree,simple,2\n", "1");
        assert_untouched(version, "allreduce,0,*,*,2,tree,simple,2\n", "1");
        assert_untouched(version, "allgather,0,*,*,*,tree,simple,2\n", "1");
        assert_untouched(version, "nonsense\n", "1");
        assert_untouched(version, "allreduce,0,*,*,*,tree,simple,2\n", "0");
    }
}

static void tables__line_fits__its_entry_is_the_cheapest(void **state)
{
    (void)state;
    for (int version = 3; version <= 6; version++) {
        struct answer expected = untouched();
        struct answer answer = ask_in_child(version, "allreduce,4K,4K,4,1,tree,simple,2\n", "1");
        expected.costs[0][2] = 0;
        expected.n_channels = 2;
        assert_memory_equal(&answer, &expected, sizeof answer);
        answer = ask_in_child(version, "allreduce,4K,4K,4,1,ring,ll,*\n", "1");
        expected = untouched();
        expected.costs[1][0] = 0;
        assert_memory_equal(&answer, &expected, sizeof answer);
    }
    for (int version = 1; version <= 2; version++) {
        struct answer expected = untouched();
        struct answer answer = ask_in_child(version, "allreduce,4K,4K,*,*,tree,simple,2\n", "1");
        expected.algo = 0;
        expected.proto = 2;
        expected.n_channels = 2;
        assert_memory_equal(&answer, &expected, sizeof answer);
    }
    assert_int_equal(ask_in_child(2, "allreduce,*,4K,4,1,ring,ll,*\n", "1").algo, 1);
}

static void tables__what_NCCL_cannot_do__stays_impossible(void **state)
{
    (void)state;
    for (int version = 3; version <= 6; version++) {
        assert_untouched(version, "allreduce,*,*,*,*,ring,ll128,2\n", "1");
        assert_untouched(version, "allreduce,*,*,*,*,nvls,simple,2\n", "1");
    }
    for (int version = 1; version <= 2; version++) { /* where NCCL would not look */
        assert_untouched(version, "allreduce,*,*,*,*,ring,ll128,2\n", "1");
        assert_untouched(version, "allreduce,*,*,*,*,nvls,simple,2\n", "1");
        assert_untouched(version, "allreduce,*,*,*,*,collnetchain,simple,2\n", "1");
        assert_untouched(version, "allreduce,*,*,*,*,pat,simple,2\n", "1");
    }
}

static void set_cost__table_of_an_older_NCCL_is_smaller__nothing_beyond_it(void **state)
{
    (void)state;
    float costs[2][3] = {{1, 2, 3}, {4, 5, 6}};
    int n_channels = 0;
    const struct llane_nccl_tuning_row row = {.algorithm = LLANE_NCCL_PAT, .n_channels = 4};
    llane_nccl_tuning_set_cost(&row, costs[0], 2, 3, &n_channels);
    for (int i = 0; i < 6; i++) {
        assert_true(costs[i / 3][i % 3] == (float)(i + 1));
    }
    assert_int_equal(n_channels, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse__fields__are_read),
        cmocka_unit_test(parse__wrong_line__is_refused_with_its_number),
        cmocka_unit_test(find__first_line_that_fits__holds),
        cmocka_unit_test(tables__no_file__leave_every_byte),
        cmocka_unit_test(tables__line_does_not_fit_or_llane_is_off__leave_every_byte),
        cmocka_unit_test(tables__line_fits__its_entry_is_the_cheapest),
        cmocka_unit_test(tables__what_NCCL_cannot_do__stays_impossible),
        cmocka_unit_test(set_cost__table_of_an_older_NCCL_is_smaller__nothing_beyond_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
