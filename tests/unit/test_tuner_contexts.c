// Proves that a communicator is matched with the tuner context whose slot lies inside it, and with no
// other, whatever the order in which NCCL makes and ends contexts, and from several threads at once.
// ALSO: tsan
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tuner_contexts.h"

struct comm {
    char before[100];
    void *ctx;
    char after[100];
};

static uint64_t id_of(const struct comm *comm)
{
    uint64_t id = 0;
    return llane_tuner_find(comm, sizeof *comm, &id) ? id : 0;
}

static void find__slot_inside_communicator__returns_its_id(void **state)
{
    (void)state;
    struct comm comms[3];
    for (int i = 0; i < 3; i++) {
        comms[i].ctx = llane_tuner_add(&comms[i].ctx, 4, 1, 100 + (uint64_t)i);
        assert_non_null(comms[i].ctx);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(id_of(&comms[i]), 100 + i);
        llane_tuner_remove(comms[i].ctx);
        assert_int_equal(id_of(&comms[i]), 0);
    }
}

static void find__range_ends_at_the_slot__finds_nothing(void **state)
{
    (void)state;
    struct comm comm;
    uint64_t id;
    void *ctx = llane_tuner_add(&comm.ctx, 2, 1, 5);
    assert_false(llane_tuner_find(&comm, offsetof(struct comm, ctx), &id));
    assert_true(llane_tuner_find(&comm, offsetof(struct comm, ctx) + 1, &id));
    assert_true(llane_tuner_find(&comm.ctx, 1, &id));
    assert_false(llane_tuner_find(comm.after, sizeof comm.after, &id));
    llane_tuner_remove(ctx);
}

static void add__same_slot_again__the_last_one_counts(void **state)
{
    (void)state;
    struct comm comm;
    void *first = llane_tuner_add(&comm.ctx, 2, 1, 6);
    void *second = llane_tuner_add(&comm.ctx, 2, 1, 7);
    assert_ptr_not_equal(first, second);
    assert_int_equal(id_of(&comm), 7);
    llane_tuner_remove(first); /* a late destroy of the replaced context */
    assert_int_equal(id_of(&comm), 7);
    llane_tuner_remove(second);
    assert_int_equal(id_of(&comm), 0);
}

static void find__no_id_known__is_found_with_zero(void **state)
{
    (void)state;
    struct comm comm;
    uint64_t id = 1;
    void *ctx = llane_tuner_add(&comm.ctx, 2, 1, 0);
    assert_true(llane_tuner_find(&comm, sizeof comm, &id));
    assert_int_equal(id, 0);
    llane_tuner_remove(ctx);
    llane_tuner_remove(ctx);
    llane_tuner_remove(NULL);
}

static void *add_and_remove(void *number)
{
    uint64_t id = (uint64_t)(uintptr_t)number;
    for (int i = 0; i < 2000; i++) {
        struct comm *comm = malloc(sizeof *comm);
        comm->ctx = llane_tuner_add(&comm->ctx, 2, 1, id);
        if (id_of(comm) != id) {
            return "wrong id";
        }
        llane_tuner_remove(comm->ctx);
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
        cmocka_unit_test(find__no_id_known__is_found_with_zero),
        cmocka_unit_test(add__from_several_threads__each_finds_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
