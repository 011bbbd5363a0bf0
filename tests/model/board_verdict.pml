/*
 * Proves what plugin/board.h promises of rendezvous and verdicts: N ranks arrive (step 0), then vote
 * on one more step, while any rank may die at any point (DEATHS in all), leave where it waits (LEAVES
 * in all), or refuse. When a creator ends before all came, the next rank makes another board.
 *  - All ranks that read a verdict of a step read the same one; YES means that all N voted yes and
 *    that their records can be read.
 *  - Nobody is stuck: waiting for good is possible at arrival alone, and there only while somebody
 *    is not on the board. (`timeout` is true when nothing else in the whole model can move.)
 * Sequentially consistent; each block has one access to what others write.
 *
 * -DLOST_VOTE (count by load and store) -DGIVE_UP_ALONE (decide without the word) -DLATE_RECORD
 * (record after vote) -DNO_DEATH_WATCH -DSILENT_LEAVE (leave without refusing) -DLEAVE_ONCE (look for
 * the open step once, refuse it later) break it; each must be found.
 */
#ifndef N
#define N 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#ifndef LEAVES
#define LEAVES 1
#endif

#define OPEN 0
#define YES 1
#define NO 2
#define NONE 255

typedef board {
    byte state[2];
    byte n_yes[2];
    bool place[N]; /* filled: who it is can be checked */
    bool record[N * 2]
}

board boards[N]; /* the one that rank r would create is boards[r] */
byte server = NONE; /* who holds the socket's name */
bool killed[N];
byte leaves;
bool voted_yes[N * 2];
bool seen_yes[2], seen_no[2];

inline vote_yes(step) {
#ifndef LATE_RECORD
    boards[b].record[2 * r + step] = true;
#endif
    atomic { old_state = boards[b].state[step]; old_n = boards[b].n_yes[step] };
    do
    :: old_state != OPEN -> break
    :: old_state == OPEN ->
        atomic {
            voted_yes[2 * r + step] = true;
            if
#ifdef LOST_VOTE
            :: true ->
#else
            :: boards[b].state[step] == OPEN && boards[b].n_yes[step] == old_n ->
#endif
                boards[b].n_yes[step] = old_n + 1;
                boards[b].state[step] = (old_n + 1 == N -> YES : OPEN);
                old_state = YES /* this vote is done */
#ifndef LOST_VOTE
            :: else ->
                old_state = boards[b].state[step];
                old_n = boards[b].n_yes[step]
#endif
            fi
        }
    od;
    atomic { old_state = 0; old_n = 0 };
#ifdef LATE_RECORD
    boards[b].record[2 * r + step] = true;
#endif
}

/* A loop of compare-and-swaps OPEN -> NO. One step: an OPEN word is changed whatever it counts. */
inline vote_no(step) {
    atomic {
        if
        :: boards[b].state[step] == OPEN -> boards[b].state[step] = NO
        :: else
        fi
    }
}

inline check(step, v) {
    d_step {
        if
        :: v == YES ->
            seen_yes[step] = true;
            i = 0;
            do
            :: i < N ->
                assert(voted_yes[2 * i + step]);
                assert(boards[b].record[2 * i + step]);
                i++
            :: else -> break
            od;
            i = 0
        :: else -> seen_no[step] = true
        fi;
        assert(!(seen_yes[step] && seen_no[step]))
    }
}

/* Killed, and its place says who it was. */
#define IS_DEAD(x) (killed[x] && boards[b].place[x])
#define ANY_DEAD (IS_DEAD(0) || IS_DEAD(1) || IS_DEAD(N - 1))
#define ALL_HERE (boards[b].place[0] && boards[b].place[1] && boards[b].place[N - 1])

/* verdict becomes YES or NO, or OPEN when the rank's communicator ended. */
inline wait(step) {
    do
    :: boards[b].state[step] != OPEN ->
        atomic {
            verdict = boards[b].state[step];
            check(step, verdict);
            server = (verdict == YES && server == r -> NONE : server)
        };
        break
#ifdef GIVE_UP_ALONE
    :: boards[b].state[step] == OPEN && ANY_DEAD -> verdict = NO; check(step, NO); break
#else
#ifndef NO_DEATH_WATCH
    :: boards[b].state[step] == OPEN && ANY_DEAD -> vote_no(step)
#endif
#endif
    :: leaves < LEAVES -> atomic { leaves++; verdict = OPEN }; break
    :: step == 0 && timeout -> assert(!ALL_HERE); verdict = OPEN; break
    od
}

inline leave() {
#ifdef SILENT_LEAVE
    skip
#else
#ifdef LEAVE_ONCE
    if
    :: boards[b].state[0] != YES -> vote_no(0)
    :: else -> vote_no(1)
    fi
#else
    vote_no(0);
    if
    :: boards[b].state[0] == YES -> vote_no(1)
    :: else
    fi
#endif
#endif
}

proctype rank(byte r) {
    byte b = r, i, old_state, old_n, verdict;
    {
        atomic { /* bind or connect */
            if
            :: server != NONE -> b = server
            :: else -> server = r
            fi
        };
        boards[b].place[r] = true;
        vote_yes(0);
        wait(0);
        if
        :: verdict == YES ->
            if
            :: vote_yes(1)
            :: vote_no(1)
            fi;
            wait(1)
        :: else
        fi;
        leave();
        server = (server == r -> NONE : server)
    } unless {
        atomic { /* the kernel closes its socket */
            killed[r];
            server = (server == r -> NONE : server)
        }
    }
}

proctype killer() {
    byte i;
    do
    :: i < DEATHS ->
        i++;
        if
        :: killed[0] = true
        :: killed[1] = true
        :: killed[N - 1] = true
        fi
    :: break
    od
}

init {
    byte r;
    atomic {
        for (r : 0 .. N - 1) {
            run rank(r)
        }
        run killer()
    }
}
