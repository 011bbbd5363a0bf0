/*
 * Proves that the ranks switch to the lane at one call number or never (plugin/switch.h, claims 1 to 5):
 * whenever two ranks have decided where call k goes, they decided the same. Sequentially consistent,
 * every interleaving of N ranks with K calls each. A rank may find the board at any time (calls
 * before that post nothing), may stand by, and may see calls refused and uncounted (REFUSALS in
 * all). A rank or the proposer that dies is covered: it is an interleaving in which it takes no
 * further step, and what is asserted is asserted at each decision. Whoever finds it dead gives the switch
 * up, at any time. User calls never wait: users have no blocking step, and must reach their end.
 *
 * -DNO_REREAD -DPOST_LATE -DNO_CANCEL -DNO_POST_CHECK -DPROPOSE_ANEW break the protocol; each must be found.
 */
#ifndef N
#define N 3
#endif
#ifndef K
#define K 3
#endif
#ifndef REFUSALS
#define REFUSALS 1
#endif

#define OPEN 0
#define PROPOSED 1
#define CONFIRMED 2
#define CANCELLED 3
#define NEVER (K + 2) /* beyond every call and every proposal */

#define UNDECIDED 0
#define NCCL 1
#define LANE 2

typedef calls { byte path[K + 1] };

byte state = OPEN; /* the word: read and written together, in one step */
byte number;
byte posted[N];
calls rank[N];
byte refusals;
byte n_attached, n_done;

/* Ghost: no step of its own. Or NCCL refuses the call and the number will be used again. */
inline accept_or_refuse() {
    if
    :: refusals < REFUSALS ->
        refusals++;
        is_refused = true
    :: true ->
        rank[r].path[k] = answer;
        assert(rank[0].path[k] == UNDECIDED || rank[0].path[k] == answer);
        assert(rank[1].path[k] == UNDECIDED || rank[1].path[k] == answer);
        assert(rank[N - 1].path[k] == UNDECIDED || rank[N - 1].path[k] == answer);
        k++
    fi;
    w_state = OPEN; /* forget, so that equal states are one */
    w_number = 0;
    answer = UNDECIDED
}

/* What the word, as loaded, says about call k. */
inline judge() {
    answer = NCCL;
    if
    :: w_state == CONFIRMED && k >= w_number -> answer = LANE
    :: w_state == PROPOSED && k >= w_number -> answer = UNDECIDED
    :: else
    fi;
#ifdef NO_CANCEL
    if
    :: answer == UNDECIDED -> answer = NCCL
    :: else
    fi
#endif
}

/* Each atomic block has one access to what others write: B1, B2, C1, or the uncount. */
proctype user(byte r) {
    byte k = 1, w_state, w_number, answer;
    bool is_attached, is_refused;
    do
    :: k > K -> break
    :: k <= K && !is_attached ->
        atomic { /* the helper thread published nothing so far */
            answer = NCCL;
            accept_or_refuse();
            is_refused = false
        }
    :: k <= K && !is_attached -> atomic { is_attached = true; n_attached++ }
    :: k <= K && is_attached && posted[r] < k -> posted[r] = k /* stand by: k - 1 was the last */
    :: atomic { /* final: no post is needed any more */
        k <= K && is_attached && state == CONFIRMED ->
            w_state = state;
            w_number = number;
            judge();
            accept_or_refuse()
        };
        if
        :: is_refused -> atomic { posted[r] = k; is_refused = false } /* uncount */
        :: else
        fi
    :: k <= K && is_attached ->
#ifndef POST_LATE
        posted[r] = k + 1; /* B1 */
#endif
        atomic { /* B2 */
            w_state = state;
            w_number = number;
            judge();
#ifndef POST_LATE
            if
            :: answer != UNDECIDED -> accept_or_refuse()
            :: else
            fi
#endif
        };
#ifdef POST_LATE
        atomic {
            posted[r] = k + 1;
            if
            :: answer != UNDECIDED -> accept_or_refuse()
            :: else
            fi
        };
#endif
        if
        :: w_state == PROPOSED ->
            atomic { /* C1, a compare-and-swap */
                if
                :: state == w_state && number == w_number ->
                    state = CANCELLED;
                    answer = NCCL
                :: else ->
                    w_state = state;
                    w_number = number;
                    judge();
                    assert(answer != UNDECIDED) /* wait-free: no third look */
                fi;
                accept_or_refuse()
            }
        :: else
        fi;
        if
        :: is_refused -> atomic { posted[r] = k; is_refused = false } /* uncount */
        :: else
        fi
    od;
    atomic {
        n_done++;
        if
        :: !is_attached -> n_attached++ /* too late for any call */
        :: else
        fi
    }
}

/* One rank's number a step. */
inline read_highest() {
    i = 0;
    highest = 0;
    do
    :: i < N ->
        d_step {
            if
            :: posted[i] > highest + 1 -> highest = posted[i] - 1
            :: else
            fi;
            i++
        }
    :: else -> break
    od
}

#define ALL_POSTED (posted[0] > 0 && posted[1] > 0 && posted[N - 1] > 0)

proctype proposer() {
    byte i, highest, s, last;
end_wait_for_verdict:
    n_attached == N;
#ifndef NO_POST_CHECK
end_wait_for_posts:
    ALL_POSTED;
#endif
    do
    :: read_highest();
        atomic { /* P1 */
            s = highest + 1;
            if
            :: s++ /* a margin */
            :: true
            fi;
            s = (s <= last -> last + 1 : s);
            last = s;
            if
            :: s > K + 1 -> break /* beyond every call: nothing can differ any more */
            :: else
            fi;
#ifndef PROPOSE_ANEW
            if
            :: state == CONFIRMED -> break /* given up */
            :: else
            fi;
#endif
            state = PROPOSED;
            number = s
        };
#ifndef NO_REREAD
        read_highest(); /* P2 */
#else
        highest = 0;
#endif
        atomic { /* P3 */
            if
            :: state == PROPOSED && highest < s -> state = CONFIRMED; break
            :: state == PROPOSED && highest >= s -> state = CANCELLED
            :: else
            fi
        }
    od
}

/* G1 */
proctype watch() {
    if
    :: atomic { state != CONFIRMED -> state = CONFIRMED; number = NEVER }
    :: true
    fi
}

init {
    byte r;
    atomic {
        for (r : 0 .. N - 1) {
            run user(r)
        }
        run proposer();
        run watch()
    };
    n_done == N /* a user that could be stuck would leave this waiting: an invalid end state */
}
