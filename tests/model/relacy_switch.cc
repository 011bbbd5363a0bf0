/*
 * Proves, under C++11's weak memory model, what board_switch.pml proves under sequential consistency:
 * two ranks, each with a user and a helper thread, decide alike for each call; and that a rank which
 * answers LIVE may read all that its own helper wrote before its vote, and what the other rank wrote
 * on the board (data races are errors here). Memory orders are those of plugin/switch.c and board.c.
 *
 * The argument WEAK_POST, RELAXED_LOOK or RELAXED_VOTE weakens one order; each must be found. (The pointer
 * that a helper publishes is relaxed here, and a release in plugin/: votes and word must do alone.)
 * Exit 0: nothing found; 1: an error.
 */
#include <string>

#include <relacy/relacy.hpp>

namespace
{

enum { N_RANKS = 2, N_CALLS = 4, N_ROUNDS = 4 };
enum { OPEN, PROPOSED, CONFIRMED, CANCELLED };
enum { UNDECIDED, NCCL, LANE };

/* Changed by main when it is told to break something. */
rl::memory_order store_order = rl::mo_seq_cst, load_order = rl::mo_seq_cst,
                 swap_order = rl::mo_seq_cst, look_order = rl::mo_acquire,
                 vote_order = rl::mo_acq_rel;

unsigned make_word(unsigned state, unsigned s)
{
    return s << 2 | state;
}

const unsigned NEVER = ~0u >> 2;

/* Threads 0 and 1: users of rank 0 and 1. Threads 2 and 3: their helpers; 2 proposes. 4 gives up. */
struct switch_test : rl::test_suite<switch_test, 2 * N_RANKS + 1> {
    rl::atomic<unsigned> word;
    rl::atomic<unsigned> posted[N_RANKS];
    rl::atomic<unsigned> verdict;           /* count of yes */
    rl::atomic<unsigned> attached[N_RANKS]; /* the pointer that a helper publishes */
    rl::var<unsigned> lane[N_RANKS];        /* written by the helper, read by its user when LIVE */
    rl::var<unsigned> record[N_RANKS];      /* on the board, read by the other rank's user */
    unsigned path[N_RANKS][N_CALLS + 1];

    void before()
    {
        word($) = 0;
        verdict($) = 0;
        for (int r = 0; r < N_RANKS; r++) {
            posted[r]($) = 0;
            attached[r]($) = 0;
            lane[r]($) = 0;
            record[r]($) = 0;
            for (int k = 0; k <= N_CALLS; k++) {
                path[r][k] = UNDECIDED;
            }
        }
    }

    unsigned begin(unsigned r, unsigned k)
    {
        unsigned w = word.load(look_order, $); /* the fast path's look */
        if ((w & 3) == CONFIRMED) {
            return k >= w >> 2 ? LANE : NCCL;
        }
        posted[r].store(k + 1, store_order, $); /* B1 */
        w = word.load(load_order, $);           /* B2 */
        for (;;) {
            if ((w & 3) == CONFIRMED) {
                return k >= w >> 2 ? LANE : NCCL;
            }
            if ((w & 3) != PROPOSED || k < w >> 2) {
                return NCCL;
            }
            /* C1 */
            if (word.compare_exchange_strong(w, make_word(CANCELLED, w >> 2), swap_order, $)) {
                return NCCL;
            }
        }
    }

    void user(unsigned r)
    {
        for (unsigned k = 1; k <= N_CALLS; k++) {
            unsigned answer =
                attached[r].load(rl::mo_relaxed, $) != 0 ? begin(r, k) : (unsigned)NCCL;
            path[r][k] = answer;
            if (answer == LANE) {
                RL_ASSERT(lane[r]($) == 1);
                RL_ASSERT(record[1 - r]($) == 1);
            }
        }
    }

    bool read_highest(unsigned &highest)
    {
        highest = 0;
        for (int r = 0; r < N_RANKS; r++) {
            unsigned p = posted[r].load(load_order, $);
            if (p == 0) {
                return false;
            }
            highest = p - 1 > highest ? p - 1 : highest;
        }
        return true;
    }

    void propose()
    {
        unsigned last = 0, margin = 0;
        for (int round = 0; round < N_ROUNDS; round++) {
            unsigned highest;
            if (!read_highest(highest)) {
                rl::yield(1, $);
                continue;
            }
            unsigned s = 1 + highest + margin;
            s = s > last ? s : last + 1;
            last = s;
            unsigned proposed = make_word(PROPOSED, s);
            unsigned w = word.load(rl::mo_relaxed, $);
            if ((w & 3) == CONFIRMED ||
                !word.compare_exchange_strong(w, proposed, swap_order, $)) { /* P1 */
                return;
            }
            bool ok = read_highest(highest) && highest < s; /* P2 */
            unsigned next = make_word(ok ? CONFIRMED : CANCELLED, s);
            if (word.compare_exchange_strong(proposed, next, swap_order, $) && ok) { /* P3 */
                return;
            }
            margin = margin == 0 ? 1 : 2 * margin;
        }
    }

    void helper(unsigned r)
    {
        lane[r]($) = 1;
        record[r]($) = 1;
        attached[r].store(1, rl::mo_relaxed, $);
        verdict.fetch_add(1, vote_order, $); /* V1 */
        if (r == 0) {
            for (int i = 0; i < 8; i++) {
                if (verdict.load(rl::mo_acquire, $) == N_RANKS) { /* V3 */
                    propose();
                    return;
                }
                rl::yield(1, $);
            }
        }
    }

    /* In some runs. */
    void give_up()
    {
        unsigned w = word.load(rl::mo_acquire, $);
        while (
            rl::rand(2) == 0 && (w & 3) != CONFIRMED &&
            !word.compare_exchange_strong(w, make_word(CONFIRMED, NEVER), swap_order, $)) { /* G1 */
        }
    }

    void thread(unsigned index)
    {
        if (index < N_RANKS) {
            user(index);
        } else if (index < 2 * N_RANKS) {
            helper(index - N_RANKS);
        } else {
            give_up();
        }
    }

    void after()
    {
        for (int k = 1; k <= N_CALLS; k++) {
            RL_ASSERT(path[0][k] == path[1][k]);
        }
    }
};

} // namespace

int main(int n_args, char **args)
{
    std::string weaken = n_args > 1 ? args[1] : "";
    if (weaken == "WEAK_POST") {
        store_order = rl::mo_release;
        load_order = rl::mo_acquire;
        swap_order = rl::mo_acq_rel;
    } else if (weaken == "RELAXED_LOOK") {
        look_order = rl::mo_relaxed;
    } else if (weaken == "RELAXED_VOTE") {
        vote_order = rl::mo_relaxed;
    } else if (!weaken.empty()) {
        return 2;
    }
    rl::test_params params;
    params.search_type = rl::random_scheduler_type;
    params.iteration_count = 50000;
    return rl::simulate<switch_test>(params) ? 0 : 1;
}
