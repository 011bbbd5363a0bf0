// Proves that a communicator is matched with the plugin contexts whose slots lie inside it, and with no
// others, whatever the order in which NCCL makes and ends contexts, and from several threads at once.
// ALSO: tsan
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "contexts.h"

struct comm {
    char before[100];
    void *ctx;
    char between[100];
    void *profiler;
    char after[100];
};

static uint64_t id_of(const struct comm *comm)
{
    char name[LLANE_NAME_BYTES] = "";
    return llane_context_find(comm, sizeof *comm, name);
}

static void *add(void **slot, uint64_t id)
{
    return llane_context_add(slot, 2, 1, id, NULL);
}

static void find__slot_inside_communicator__returns_its_id(void **state)
{
    (void)state;
    struct comm comms[3];
    for (int i = 0; i < 3; i++) {
        comms[i].ctx = add(&comms[i].ctx, 100 + (uint64_t)i);
        assert_non_null(comms[i].ctx);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(id_of(&comms[i]), 100 + i);
        llane_context_remove(comms[i].ctx);
        assert_int_equal(id_of(&comms[i]), 0);
    }
}

static void find__range_ends_at_the_slot__finds_nothing(void **state)
{
    (void)state;
    struct comm comm;
    char name[LLANE_NAME_BYTES] = "";
    void *ctx = add(&comm.ctx, 5);
    assert_int_equal(llane_context_find(&comm, offsetof(struct comm, ctx), name), 0);
    assert_int_equal(llane_context_find(&comm, offsetof(struct comm, ctx) + 1, name), 5);
    assert_int_equal(llane_context_find(&comm.ctx, 1, name), 5);
    assert_int_equal(llane_context_find(comm.between, sizeof comm.between, name), 0);
    llane_context_remove(ctx);
}

static void add__same_slot_again__the_last_one_counts(void **state)
{
    (void)state;
    struct comm comm;
    void *first = add(&comm.ctx, 6);
    void *second = add(&comm.ctx, 7);
    assert_ptr_not_equal(first, second);
    assert_int_equal(id_of(&comm), 7);
    llane_context_remove(first); /* a late destroy of the replaced context */
    assert_int_equal(id_of(&comm), 7);
    llane_context_remove(second);
    assert_int_equal(id_of(&comm), 0);
}

/* A tuner of NCCL 2.27 has no id, its profiler has one. */
static void find__one_of_two_plugins_has_an_id__it_counts(void **state)
{
    (void)state;
    for (int is_tuner_first = 0; is_tuner_first < 2; is_tuner_first++) {
        struct comm comm;
        char name[LLANE_NAME_BYTES] = "";
        void *tuner = is_tuner_first ? add(&comm.ctx, 0) : NULL;
        void *profiler = llane_context_add(&comm.profiler, 2, 1, 8, "tp");
        tuner = is_tuner_first ? tuner : add(&comm.ctx, 0);
        assert_int_equal(llane_context_find(&comm, sizeof comm, name), 8);
        assert_string_equal(name, "tp");
        strcpy(name, "known"); /* by a creation hook */
        assert_int_equal(llane_context_find(&comm, sizeof comm, name), 8);
        assert_string_equal(name, "known");
        llane_context_remove(profiler);
        assert_int_equal(id_of(&comm), 0);
        llane_context_remove(tuner);
        llane_context_remove(tuner);
        llane_context_remove(NULL);
    }
}

/* One that NCCL never ended, in memory that another communicator has now. */
static void find__a_record_is_left_over__the_newest_counts(void **state)
{
    (void)state;
    struct comm comm;
    char name[LLANE_NAME_BYTES] = "";
    add(&comm.ctx, 8);
    void *left = llane_context_add((void **)(void *)comm.between, 2, 1, 9, "left");
    assert_int_equal(id_of(&comm), 9);
    void *ctx = llane_context_add(&comm.ctx, 2, 1, 10, "new");
    assert_int_equal(llane_context_find(&comm, sizeof comm, name), 10);
    assert_string_equal(name, "new");
    llane_context_remove(ctx);
    ctx = add(&comm.ctx, 11);
    name[0] = '\0';
    assert_int_equal(llane_context_find(&comm, sizeof comm, name), 11);
    assert_string_equal(name, "");
    llane_context_remove(ctx);
    llane_context_remove(left);
}

static void *add_and_remove(void *number)
{
    uint64_t id = (uint64_t)(uintptr_t)number;
    for (int i = 0; i < 2000; i++) {
        struct comm *comm = malloc(sizeof *comm);
        comm->ctx = add(&comm->ctx, id);
        if (id_of(comm) != id) {
            return "wrong id";
        }
        llane_context_remove(comm->ctx);
        free(comm);
    }
    return NULL;
}

static void add__from_several_threads__each_finds_its_own(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_and_remove, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failure = NULL;
        pthread_join(threads[i], &failure);
        assert_null(failure);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find__slot_inside_communicator__returns_its_id),
        cmocka_unit_test(find__range_ends_at_the_slot__finds_nothing),
        cmocka_unit_test(add__same_slot_again__the_last_one_counts),
        cmocka_unit_test(find__one_of_two_plugins_has_an_id__it_counts),
        cmocka_unit_test(find__a_record_is_left_over__the_newest_counts),
        cmocka_unit_test(add__from_several_threads__each_finds_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
