/*
 * Reuse of shared slots: each of N ranks stores into one slot of its own, and all others read there.
 * Ranks never stop, in any mixture of operations, over a network that holds stores back and
 * delivers them in any order. Everything counts round a small circle, so the search covers every program
 * of any length.
 *
 * Operation t has a kind that all ranks agree on: a family, and one-shot of one or two packets, or of one
 * with a copy for each reader, or two-shot with one packet a shard. A slot has N words a generation:
 * one-shot uses word 0, or 0 and 1, or word s for peer me + 1 + s alone; two-shot word s for the
 * contribution to that peer, and word N - 1 for the result.
 * LL has two generations, sentinel four. A word's content is 1 + the number of the operation that
 * wrote it, modulo M, in its family; 0: nothing that a reader would take.
 *
 * LL: a reader takes only its own operation's word. Sentinel: a reader takes whatever is there; when it
 * begins operation k, the writer stores 0 over what it stored in k-2, of which it knows the extent.
 * A kernel ends when what it stored is in place.
 *
 * Checked: a reader takes its operation's word (assert); nobody waits for ever (invalid end state);
 * no two stores to one word are under way at once (assert).
 *
 * Switches: GENERATIONS (of sentinel slots), NO_REARM, REARM_LAST (k-1 instead of k-2), SHORT_EXTENT
 * (contributions only), SHORT_COPIES (of copies, the first), END_EARLY (a kernel ends with stores on their
 * way): each must fail.
 */
#ifndef N
#define N 2
#endif
#ifndef KINDS
#define KINDS 63
#endif
#ifndef GENERATIONS
#define GENERATIONS 4
#endif
#ifndef M
#define M 8
#endif

/* Kind k: bit 0 tells the family, the rest the shape. */
#define LL 0
#define SENTINEL 1
#define FAMILY(k) ((k)&1)
#define ONE_SHOT_1 0
#define ONE_SHOT_2 1
#define TWO_SHOT 2
#define COPIES 3
#define SHAPE(k) ((k) >> 1)
#define EXTENT(k) (SHAPE(k) == TWO_SHOT -> N : (SHAPE(k) == COPIES -> N - 1 : 1 + SHAPE(k)))

#define GENERATION(f, number) ((f) == LL -> (number) & 1 : (number) % GENERATIONS)
#define AT(owner, f, g, w) ((((owner)*2 + (f)) * 4 + (g)) * N + (w))
#define CLEAR 255 /* a store of 0 on its way */
byte slot[N * 8 * N];
byte posted[N * 8 * N];
byte under_way[N]; /* stores of each rank */

/* 1 + the kind of operation t, counted modulo 4; 0: nobody has begun it. */
byte agreed[4];

#define POST(g, w, what)                                                                           \
    assert(posted[AT(me, f, g, w)] == 0);                                                          \
    posted[AT(me, f, g, w)] = what;                                                                \
    under_way[me]++

#define BIT(source, w) (1 << ((source)*N + (w)))
/* The word of rank `source` with its contribution to this rank. */
#define MINE(source) ((me + N - 1 - (source)) % N)

#define TAKE(source, w)                                                                            \
    ::d_step                                                                                       \
    {                                                                                              \
        (missing & BIT(source, w)) && (f == LL -> slot[AT(source, f, g, w)] == 1 + number[f] :     \
                                                  slot[AT(source, f, g, w)] != 0) ->               \
        assert(slot[AT(source, f, g, w)] == 1 + number[f]);                                        \
        missing = missing & ~BIT(source, w);                                                       \
        if                                                                                         \
            ::owes_sum && w == MINE(source) && SHAPE(k) == TWO_SHOT -> sums--                      \
            ::else                                                                                 \
        fi                                                                                         \
    }

#ifdef END_EARLY
#define IS_IN_PLACE true
#else
#define IS_IN_PLACE (under_way[me] == 0)
#endif

#define CHOICE(kind) ::(KINDS & (1 << (kind))) -> agreed[t] = 1 + (kind)

proctype rank(byte me)
{
    byte t, k, f, g, w, peer, sums, number[2], last, before_last;
    short missing;
    bool owes_sum;

    do
    ::true ->
        atomic {
            if
            ::agreed[t] != 0
            ::else ->
                if
                CHOICE(0)
                CHOICE(1)
                CHOICE(2)
                CHOICE(3)
                CHOICE(4)
                CHOICE(5)
                CHOICE(6)
                CHOICE(7)
                fi;
                agreed[(t + 2) & 3] = 0
            fi;
            k = agreed[t] - 1;
            f = FAMILY(k);
            g = GENERATION(f, number[f]);
            w = 0;
            do
            ::w == (SHAPE(k) == TWO_SHOT -> N - 1 : EXTENT(k)) -> break
            ::else ->
                POST(g, w, 1 + number[f]);
                w++
            od;
            w = 0;
#ifndef NO_REARM
            if
            ::f == SENTINEL ->
#ifdef REARM_LAST
                g = (g + GENERATIONS - 1) % GENERATIONS;
                before_last = last;
#else
                g = (g + GENERATIONS + GENERATIONS - 2) % GENERATIONS;
#endif
                do
                ::w == before_last -> break
                ::else ->
                    POST(g, w, CLEAR);
                    w++
                od;
                w = 0;
                g = GENERATION(f, number[f])
            ::else
            fi;
#endif
            owes_sum = SHAPE(k) == TWO_SHOT;
            sums = (owes_sum -> N - 1 : 0);
            peer = 0;
            do
            ::peer == N -> break
            ::peer != N && peer == me -> peer++
            ::peer != N && peer != me ->
                if
                ::SHAPE(k) == TWO_SHOT -> missing = missing | BIT(peer, MINE(peer)) | BIT(peer, N - 1)
                ::SHAPE(k) == ONE_SHOT_1 -> missing = missing | BIT(peer, 0)
                ::SHAPE(k) == ONE_SHOT_2 -> missing = missing | BIT(peer, 0) | BIT(peer, 1)
                ::SHAPE(k) == COPIES -> missing = missing | BIT(peer, MINE(peer))
                fi;
                peer++
            od;
            peer = 0
        }
        do
        ::atomic { missing == 0 && !owes_sum && IS_IN_PLACE ->
            if
            ::f == SENTINEL ->
                before_last = last;
#ifdef SHORT_EXTENT
                last = (SHAPE(k) == TWO_SHOT -> N - 1 : EXTENT(k))
#elif defined(SHORT_COPIES)
                last = (SHAPE(k) == COPIES -> 1 : EXTENT(k))
#else
                last = EXTENT(k)
#endif
            ::else
            fi;
            number[f] = (number[f] + 1) % M;
            t = (t + 1) & 3;
            k = 0; f = 0; g = 0;
            break }
        ::d_step {
            owes_sum && sums == 0 ->
            owes_sum = false;
            POST(g, N - 1, 1 + number[f]) }
        TAKE(0, 0)
        TAKE(0, 1)
        TAKE(1, 0)
        TAKE(1, 1)
#if N > 2
        TAKE(0, 2)
        TAKE(1, 2)
        TAKE(2, 0)
        TAKE(2, 1)
        TAKE(2, 2)
#endif
        od
    od
}

#define DELIVER(owner, f, g, w)                                                                    \
    ::d_step                                                                                       \
    {                                                                                              \
        posted[AT(owner, f, g, w)] != 0 ->                                                         \
        slot[AT(owner, f, g, w)] =                                                                 \
            (posted[AT(owner, f, g, w)] == CLEAR -> 0 : posted[AT(owner, f, g, w)]);               \
        posted[AT(owner, f, g, w)] = 0;                                                            \
        under_way[owner]--                                                                         \
    }
#if N > 2
#define DELIVER_GENERATION(owner, f, g)                                                            \
    DELIVER(owner, f, g, 0) DELIVER(owner, f, g, 1) DELIVER(owner, f, g, 2)
#else
#define DELIVER_GENERATION(owner, f, g) DELIVER(owner, f, g, 0) DELIVER(owner, f, g, 1)
#endif
#define DELIVER_SLOT(owner)                                                                        \
    DELIVER_GENERATION(owner, 0, 0)                                                                \
    DELIVER_GENERATION(owner, 0, 1)                                                                \
    DELIVER_GENERATION(owner, 1, 0)                                                                \
    DELIVER_GENERATION(owner, 1, 1)                                                                \
    DELIVER_GENERATION(owner, 1, 2)                                                                \
    DELIVER_GENERATION(owner, 1, 3)

proctype network()
{
end:
    do
    DELIVER_SLOT(0)
    DELIVER_SLOT(1)
#if N > 2
    DELIVER_SLOT(2)
#endif
    od
}

init
{
    atomic {
        run network();
        run rank(0);
        run rank(1);
#if N > 2
        run rank(2)
#endif
    }
}
