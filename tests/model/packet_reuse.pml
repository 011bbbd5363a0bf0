/*
 * Reuse of slots by one-shot and two-shot operations of both packet families in any mixture: N ranks
 * that never stop, and a network that holds posted stores back and delivers them in any order.
 * Everything counts round a small circle, so the search covers every program of any length.
 *
 * Operation t has a kind that all ranks agree on: a family, and one-shot of one or two packets, or
 * two-shot with one packet a shard, of which all but rank 0's may be missing. A family's slot has two
 * generations of two words, one a packet: one-shot uses word 0 or both, two-shot word 0 for
 * contributions and word 1 for results. A word's content is 1 + the number of the operation that
 * wrote it, modulo 4, in its family; 0: nothing that a reader would take.
 *
 * LL: a reader takes only its own operation's word; from then on it is as good as nothing, since
 * flags do not come back (packet_ll.pml). Sentinel: a reader takes whatever is there, and re-arms the
 * word (0) at some later moment of its operation.
 *
 * Checked: a sentinel reader takes its operation's word (assert); nobody waits for ever (invalid end
 * state); no two stores to one word are under way at once (assert).
 *
 * Switches: ONE_GENERATION, NO_REARM, REARM_SUMS (contributions only), ONE_COUNTER (sentinel
 * generations by the number of LL operations), EARLY_SUM (results sent before all contributions
 * came): each must fail. KINDS: which kinds there are, a bit each (FAMILIES and SHAPES below).
 */
#ifndef N
#define N 2
#endif
#ifndef KINDS
#define KINDS 255
#endif

/* Kind k: bit 0 tells the family, the rest the shape. */
#define LL 0
#define SENTINEL 1
#define FAMILY(k) ((k)&1)
#define ONE_SHOT_1 0
#define ONE_SHOT_2 1
#define TWO_SHOT 2
#define TWO_SHOT_SHORT 3
#define SHAPE(k) ((k) >> 1)
#define IS_TWO_SHOT(k) (SHAPE(k) >= TWO_SHOT)
/* Whether a rank has a shard. */
#define HAS_SHARD(k, r) (SHAPE(k) == TWO_SHOT || (r) == 0)

#ifdef ONE_GENERATION
#define GENERATION(number) 0
#else
#define GENERATION(number) ((number)&1)
#endif

#define AT(owner, source, f, g, w) (((((owner)*N + (source)) * 2 + (f)) * 2 + (g)) * 2 + (w))
byte slot[N * N * 8];
byte posted[N * N * 8];

/* 1 + the kind of operation t, counted modulo 4; 0: nobody has begun it. */
byte agreed[4];

#define POST(owner, source, w)                                                                     \
    assert(posted[AT(owner, source, f, g, w)] == 0);                                               \
    posted[AT(owner, source, f, g, w)] = 1 + number[f]

/* Of a rank: what it still waits for, and what it has taken and not re-armed. */
#define BIT(source, w) (1 << ((source)*2 + (w)))
#define SUMS (BIT(0, 0) | BIT(1, 0) | BIT(2, 0))

#ifdef NO_REARM
#define MUST_REARM(w) false
#else
#ifdef REARM_SUMS
#define MUST_REARM(w) (w == 0 || !IS_TWO_SHOT(k))
#else
#define MUST_REARM(w) true
#endif
#endif

#define TAKE(source, w)                                                                            \
    ::d_step                                                                                       \
    {                                                                                              \
        (missing & BIT(source, w)) && (f == LL -> slot[AT(me, source, f, g, w)] == 1 + number[f] : \
                                                  slot[AT(me, source, f, g, w)] != 0) ->           \
        assert(slot[AT(me, source, f, g, w)] == 1 + number[f]);                                    \
        missing = missing & ~BIT(source, w);                                                       \
        if                                                                                         \
            ::f == LL -> slot[AT(me, source, f, g, w)] = 0                                         \
            ::f == SENTINEL && MUST_REARM(w) -> dirty = dirty | BIT(source, w)                     \
            ::else                                                                                 \
        fi                                                                                         \
    }

#define REARM(source, w)                                                                           \
    ::d_step                                                                                       \
    {                                                                                              \
        (dirty & BIT(source, w)) -> slot[AT(me, source, f, g, w)] = 0;                             \
        dirty = dirty & ~BIT(source, w)                                                            \
    }

#ifdef EARLY_SUM
#define MAY_SEND_SUM owes_sum
#else
#define MAY_SEND_SUM (owes_sum && !(missing & SUMS))
#endif

#define CHOICE(kind) ::(KINDS & (1 << (kind))) -> agreed[t] = 1 + (kind)

proctype rank(byte me)
{
    byte t, k, f, g, peer, missing, dirty, number[2];
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
#ifdef ONE_COUNTER
            g = GENERATION(number[LL]);
#else
            g = GENERATION(number[f]);
#endif
            owes_sum = IS_TWO_SHOT(k) && HAS_SHARD(k, me);
            peer = 0;
            do
            ::peer == N -> break
            ::peer != N && peer == me -> peer++
            ::peer != N && peer != me ->
                if
                ::IS_TWO_SHOT(k) ->
                    if
                    ::HAS_SHARD(k, peer) ->
                        POST(peer, me, 0);
                        missing = missing | BIT(peer, 1)
                    ::else
                    fi;
                    if
                    ::HAS_SHARD(k, me) -> missing = missing | BIT(peer, 0)
                    ::else
                    fi
                ::else ->
                    POST(peer, me, 0);
                    missing = missing | BIT(peer, 0);
                    if
                    ::SHAPE(k) == ONE_SHOT_2 ->
                        POST(peer, me, 1);
                        missing = missing | BIT(peer, 1)
                    ::else
                    fi
                fi;
                peer++
            od;
            peer = 0
        }
        do
        ::atomic { missing == 0 && dirty == 0 && !owes_sum ->
            number[f] = (number[f] + 1) & 3;
            t = (t + 1) & 3;
            k = 0; f = 0; g = 0;
            break }
        ::d_step {
            MAY_SEND_SUM ->
            owes_sum = false;
            peer = 0;
            do
            ::peer == N -> break
            ::peer != N && peer == me -> peer++
            ::peer != N && peer != me ->
                POST(peer, me, 1);
                peer++
            od;
            peer = 0 }
        TAKE(0, 0)
        TAKE(0, 1)
        TAKE(1, 0)
        TAKE(1, 1)
        REARM(0, 0)
        REARM(0, 1)
        REARM(1, 0)
        REARM(1, 1)
#if N > 2
        TAKE(2, 0)
        TAKE(2, 1)
        REARM(2, 0)
        REARM(2, 1)
#endif
        od
    od
}

#define DELIVER(i)                                                                                 \
    ::d_step                                                                                       \
    {                                                                                              \
        posted[i] != 0 -> slot[i] = posted[i];                                                     \
        posted[i] = 0                                                                              \
    }
#define DELIVER_SLOT(owner, source)                                                                \
    DELIVER(AT(owner, source, 0, 0, 0))                                                            \
    DELIVER(AT(owner, source, 0, 0, 1))                                                            \
    DELIVER(AT(owner, source, 0, 1, 0))                                                            \
    DELIVER(AT(owner, source, 0, 1, 1))                                                            \
    DELIVER(AT(owner, source, 1, 0, 0))                                                            \
    DELIVER(AT(owner, source, 1, 0, 1))                                                            \
    DELIVER(AT(owner, source, 1, 1, 0))                                                            \
    DELIVER(AT(owner, source, 1, 1, 1))

proctype network()
{
end:
    do
    DELIVER_SLOT(0, 1)
    DELIVER_SLOT(1, 0)
#if N > 2
    DELIVER_SLOT(0, 2)
    DELIVER_SLOT(2, 0)
    DELIVER_SLOT(1, 2)
    DELIVER_SLOT(2, 1)
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
