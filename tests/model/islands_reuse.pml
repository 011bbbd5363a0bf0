/*
 * Reuse of slots by islands and one-shot LL operations in any mixture; otherwise as ring_reuse.pml.
 *
 * Kinds: one-shot of one packet; islands with one packet a shard; islands in which shard 0 alone has
 * one. A slot's generation has word 0 for results and one-shot, word 1 for contributions and partial
 * results.
 *
 * Checked: no word is overwritten before it was taken (assert); no two stores to one word are under way
 * at once (assert); nobody waits for ever (invalid end state).
 *
 * Switches: ONE_GENERATION; EARLY (owners send before their inputs came): each must fail.
 */
#ifndef N
#define N 3
#endif
#ifndef KINDS
#define KINDS 7
#endif

#define ONE_SHOT 0
#define ISLANDS 1
#define N_SHARDS (N / 2)
#define N_LOWER (N - N_SHARDS)
#define IS_UPPER (me >= N_LOWER)
#define FIRST (IS_UPPER -> N_LOWER : 0)
#define IN_ISLAND(r) (((r) >= N_LOWER) == IS_UPPER)
#define OWN (me - FIRST)
#define TWIN (IS_UPPER -> me - N_LOWER : me + N_LOWER)
#define HAS_PACKET(shard) ((shard) < N_SHARDS && (k == ISLANDS || (shard) == 0))
#define RESULT 0
#define INPUT 1

#ifdef ONE_GENERATION
#define GENERATION(number) 0
#else
#define GENERATION(number) ((number)&1)
#endif

#define PLACE(owner, source, g, w) ((((owner)*N + (source)) * 2 + (g)) * 2 + (w))
byte slot[N * N * 4];
byte posted[N * N * 4];

/* 1 + the kind of operation t, counted modulo 4; 0: nobody has begun it. */
byte agreed[4];

#define POST(owner, w)                                                                             \
    assert(posted[PLACE(owner, me, g, w)] == 0);                                                   \
    posted[PLACE(owner, me, g, w)] = 1 + t
#define BIT(source, w) (1 << ((source)*2 + (w)))

#define TAKE(source, w)                                                                            \
    ::d_step                                                                                       \
    {                                                                                              \
        (missing & BIT(source, w)) && slot[PLACE(me, source, g, w)] == 1 + t ->                    \
        slot[PLACE(me, source, g, w)] = 0;                                                         \
        missing = missing & ~BIT(source, w)                                                        \
    }
#define CHOICE(kind) ::(KINDS & (1 << (kind))) -> agreed[t] = 1 + (kind)

#ifdef EARLY
#define MAY_SEND true
#else
#define MAY_SEND (missing == 0)
#endif

/* Runs `what` for each other rank r. */
#define FOR_PEERS(what)                                                                            \
    r = 0;                                                                                         \
    do                                                                                             \
    ::r == N -> break                                                                              \
    ::r != N && r == me -> r++                                                                     \
    ::r != N && r != me ->                                                                         \
        if                                                                                         \
        what                                                                                       \
        ::else                                                                                     \
        fi;                                                                                        \
        r++                                                                                        \
    od;                                                                                            \
    r = 0

/* Stages: 0 contributions sent, inputs awaited; 1 a lower owner awaits its result; 2 others' results;
 * 3 the end. */
proctype rank(byte me)
{
    byte t, k, g, r, stage;
    short missing;

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
                fi;
                agreed[(t + 2) & 3] = 0
            fi;
            k = agreed[t] - 1;
            g = GENERATION(t);
            if
            ::k == ONE_SHOT ->
                FOR_PEERS(::true -> POST(r, RESULT); missing = missing | BIT(r, RESULT));
                stage = 3
            ::else ->
                FOR_PEERS(::IN_ISLAND(r) && HAS_PACKET(r - FIRST) -> POST(r, INPUT));
                stage = 2;
                if
                ::HAS_PACKET(OWN) ->
                    FOR_PEERS(::IN_ISLAND(r) || (IS_UPPER && r == TWIN) ->
                              missing = missing | BIT(r, INPUT));
                    stage = 0
                ::else ->
                    FOR_PEERS(::IN_ISLAND(r) && HAS_PACKET(r - FIRST) ->
                              missing = missing | BIT(r, RESULT))
                fi
            fi
        }
        do
        TAKE(0, 0)
        TAKE(0, 1)
        TAKE(1, 0)
        TAKE(1, 1)
        TAKE(2, 0)
        TAKE(2, 1)
#if N > 3
        TAKE(3, 0)
        TAKE(3, 1)
#endif
        ::atomic { stage == 0 && MAY_SEND ->
            if
            ::IS_UPPER ->
                FOR_PEERS(::IN_ISLAND(r) || r == TWIN -> POST(r, RESULT));
                FOR_PEERS(::IN_ISLAND(r) && HAS_PACKET(r - FIRST) ->
                          missing = missing | BIT(r, RESULT));
                stage = 2
            ::else ->
                POST(TWIN, INPUT);
                missing = missing | BIT(TWIN, RESULT);
                stage = 1
            fi
        }
        ::atomic { stage == 1 && missing == 0 ->
            FOR_PEERS(::IN_ISLAND(r) -> POST(r, RESULT));
            FOR_PEERS(::IN_ISLAND(r) && HAS_PACKET(r - FIRST) -> missing = missing | BIT(r, RESULT));
            stage = 2
        }
        ::atomic { stage >= 2 && missing == 0 ->
            stage = 0;
            k = 0;
            g = 0;
            t = (t + 1) & 3;
            break
        }
        od
    od
}

#define DELIVER(i)                                                                                 \
    ::d_step                                                                                       \
    {                                                                                              \
        posted[i] != 0 -> assert(slot[i] == 0);                                                    \
        slot[i] = posted[i];                                                                       \
        posted[i] = 0                                                                              \
    }
#define DELIVER_SLOT(owner, source)                                                                \
    DELIVER(PLACE(owner, source, 0, 0))                                                            \
    DELIVER(PLACE(owner, source, 0, 1))                                                            \
    DELIVER(PLACE(owner, source, 1, 0))                                                            \
    DELIVER(PLACE(owner, source, 1, 1))
#define DELIVER_PAIR(a, b)                                                                         \
    DELIVER_SLOT(a, b)                                                                             \
    DELIVER_SLOT(b, a)

proctype network()
{
end:
    do
    DELIVER_PAIR(0, 1)
    DELIVER_PAIR(0, 2)
    DELIVER_PAIR(1, 2)
#if N > 3
    DELIVER_PAIR(0, 3)
    DELIVER_PAIR(1, 3)
    DELIVER_PAIR(2, 3)
#endif
    od
}

init
{
    atomic {
        run network();
        run rank(0);
        run rank(1);
        run rank(2);
#if N > 3
        run rank(3)
#endif
    }
}
