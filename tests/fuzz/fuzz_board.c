/*
 * The board with anything in its memory: another process of this user may write there what it likes.
 * Nothing read there may be used as an index, a size or an address, and no call may go on for ever. The
 * first three bytes are the number of ranks, this rank, and whether this rank makes the board; the rest
 * is put over its memory, again between the calls. libFuzzer's entry; tests/unit/test_board_fuzz.c runs
 * the seeds and changed copies of them without libFuzzer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plugin/board.h"
#include "plugin/switch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Header and verdicts; then switch, places and presences. */
enum { VERDICT_BYTES = 256, SPOILED_BYTES = 10 << 10 };

static void spoil(uint8_t *memory, const uint8_t *data, size_t n, size_t from, size_t to)
{
    for (size_t at = from; at < to; at += n) {
        memcpy(memory + at, data, to - at < n ? to - at : n);
    }
}

static void use(struct llane_board *board, int n_ranks, int rank, uint8_t *memory,
                const uint8_t *data, size_t n)
{
    static const _Atomic int cancel = 1;
    uint8_t record[LLANE_BOARD_RECORD_BYTES];
    struct llane_verdict verdict;
    uint64_t s;
    char words[256];
    for (int step = 0; step < LLANE_BOARD_STEPS; step++) {
        spoil(memory, data + (size_t)step % n, n - (size_t)step % n, 16, VERDICT_BYTES);
        llane_board_vote(board, step, data[0] & 1 ? LLANE_BOARD_REASON_FIRST : 0, record, 64);
        (void)llane_board_wait(board, step, &cancel, &verdict);
        (void)llane_board_record(board, step, step, record, sizeof record);
        llane_board_refuse(board, step, LLANE_BOARD_REASON_FIRST);
    }
    spoil(memory, data, n, 0, SPOILED_BYTES);
    for (int r = 0; r < n_ranks; r++) {
        (void)llane_board_pid(board, r);
        (void)llane_board_is_gone(board, r, r ? LLANE_BOARD_QUICK : LLANE_BOARD_THOROUGH);
    }
    (void)llane_board_is_unused(board);
    (void)llane_board_linger(board, &cancel);
    struct llane_switch *sw = llane_board_switch(board);
    (void)llane_switch_begin(sw, rank, 1);
    llane_switch_uncount(sw, rank, 1);
    (void)llane_switch_propose(sw, n_ranks, &cancel, &s);
    (void)llane_switch_is_confirmed(sw, &s);
    struct llane_check *check = llane_board_check(board);
    const struct llane_check_what what = {data[0], n, 1, 1};
    memcpy(check, data, n < sizeof *check ? n : sizeof *check);
    (void)llane_check_post(check, n_ranks, rank, &what);
    (void)llane_check_tell(check, n_ranks, words, sizeof words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static uint8_t *memory;
    struct llane_board *board;
    if (!memory) {
        memory = mmap(NULL, llane_board_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
        if (memory == MAP_FAILED) {
            abort();
        }
    }
    if (n < 8) {
        return 0;
    }
    struct llane_board_args args = {.build = 1, .n_ranks = 1 + data[0] % LLANE_BOARD_MAX_RANKS};
    args.rank = data[1] % args.n_ranks;
    int is_new = data[2] & 1;
    memset(memory, 0, SPOILED_BYTES);
    if (!is_new) {
        spoil(memory, data + 3, n - 3, 0, SPOILED_BYTES);
    }
    if (llane_board_attach(memory, is_new, &args, &board) == 0) {
        use(board, args.n_ranks, args.rank, memory, data + 3, n - 3);
        llane_board_leave(board);
    }
    return 0;
}
