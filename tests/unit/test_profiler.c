// Proves that the profiler table of every version asks for no events, never fails, and keeps what init
// was told until it is finalized.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "contexts.h"
#include "profiler_abi.h"

extern const struct llane_profiler_v1 ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3;
extern const struct llane_profiler_v4 ncclProfiler_v4;
extern const struct llane_profiler_v5 ncclProfiler_v5, ncclProfiler_v6;

struct comm {
    char before[40];
    void *ctx;
    char after[40];
};

static ncclResult_t init(int version, void **ctx, int *mask)
{
    static const struct llane_profiler_v1 *const old[] = {&ncclProfiler_v1, &ncclProfiler_v2,
                                                          &ncclProfiler_v3};
    if (version < 4) {
        return old[version - 1]->init(ctx, mask);
    }
    return version == 4 ? ncclProfiler_v4.init(ctx, mask, "tp", 77, 1, 2, 0, NULL)
                        : (version == 5 ? &ncclProfiler_v5 : &ncclProfiler_v6)
                              ->init(ctx, 77, mask, "tp", 1, 2, 0, NULL);
}

static void every_version__init_to_finalize__no_events_and_the_id(void **state)
{
    (void)state;
    for (int version = 1; version <= 6; version++) {
        struct comm comm;
        int mask = -1;
        char name[LLANE_NAME_BYTES] = "";
        assert_int_equal(init(version, &comm.ctx, &mask), ncclSuccess);
        assert_int_equal(mask, 0);
        assert_non_null(comm.ctx); /* else NCCL does not finalize it */
        assert_int_equal(llane_context_find(&comm, sizeof comm, name), version < 4 ? 0 : 77);
        assert_string_equal(name, version < 4 ? "" : "tp");
        void *event = &comm;
        assert_int_equal(ncclProfiler_v1.start_event(comm.ctx, &event, NULL), ncclSuccess);
        assert_null(event);
        assert_int_equal(ncclProfiler_v1.record_event_state(NULL, 0, NULL), ncclSuccess);
        assert_int_equal(ncclProfiler_v1.stop_event(NULL), ncclSuccess);
        assert_int_equal(ncclProfiler_v6.finalize(comm.ctx), ncclSuccess);
        assert_int_equal(llane_context_find(&comm, sizeof comm, name), 0);
    }
    assert_int_equal(ncclProfiler_v1.finalize(NULL), ncclSuccess); /* NCCL before 2.28 does */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_version__init_to_finalize__no_events_and_the_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
