/*
 * Reuse of slots by ring and one-shot LL operations in any mixture: N ranks that never stop, and a
 * network that holds posted stores back and delivers them in any order. Everything counts round a
 * small circle, so the search covers every program of any length.
 *
 * Operation t has a kind that all ranks agree on: one-shot of one packet, a ring with one packet a
 * shard, or a ring in which shard 0 alone has one. One channel of the ring: the other one is its mirror
 * image and has slots or words of its own. A slot has two generations of a word for each of the ring's
 * steps; one-shot uses word 0. A word's content is 1 + the number of the operation that wrote it, modulo
 * 4; 0: nothing that a reader would take. A reader takes only its own operation's word; from then on it
 * is as good as nothing, since flags do not come back (packet_ll.pml).
 *
 * Checked: no word is overwritten before it was taken (assert); no two stores to one word are under way
 * at once (assert); nobody waits for ever (invalid end state).
 *
 * Switches: ONE_GENERATION, EARLY_SEND (a shard is passed on before it came), ONE_WORD (all steps use
 * word 0): each must fail. KINDS: which kinds there are, a bit each.
 */
#ifndef N
#define N 3
#endif
#ifndef KINDS
#define KINDS 7
#endif

#define ONE_SHOT 0
#define RING 1
#define RING_SHORT 2
#define N_STEPS (2 * N - 2)
#define NEXT ((me + 1) % N)
#define PREVIOUS ((me + N - 1) % N)
/* The shard in hand in a step, and whether it has a packet. */
#define SHARD(step) ((me + 2 * N - (step)) % N)
#define HAS_PACKET(step) (k == RING || SHARD(step) == 0)

#ifdef ONE_GENERATION
#define GENERATION(number) 0
#else
#define GENERATION(number) ((number)&1)
#endif
#ifdef ONE_WORD
#define WORD(step) 0
#else
#define WORD(step) ((step)-1)
#endif

#define PLACE(owner, source, g, w) ((((owner)*N + (source)) * 2 + (g)) * N_STEPS + (w))
#define AT(owner, source, w) PLACE(owner, source, g, w)
byte slot[N * N * 2 * N_STEPS];
byte posted[N * N * 2 * N_STEPS];

/* 1 + the kind of operation t, counted modulo 4; 0: nobody has begun it. */
byte agreed[4];

#define POST(owner, w)                                                                             \
    assert(posted[AT(owner, me, w)] == 0);                                                         \
    posted[AT(owner, me, w)] = 1 + t

#define CHOICE(kind) ::(KINDS & (1 << (kind))) -> agreed[t] = 1 + (kind)

proctype rank(byte me)
{
    byte t, k, g, peer, step, missing;

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
                peer = 0;
                do
                ::peer == N -> break
                ::peer != N && peer == me -> peer++
                ::peer != N && peer != me ->
                    POST(peer, 0);
                    missing = missing | (1 << peer);
                    peer++
                od;
                peer = 0
            ::k != ONE_SHOT ->
                if
                ::HAS_PACKET(0) -> POST(NEXT, 0)
                ::else
                fi;
                step = 1
            fi
        }
        do
        ::atomic { k != ONE_SHOT && step <= N_STEPS && !HAS_PACKET(step) -> step++ }
        ::atomic { k != ONE_SHOT && step <= N_STEPS && HAS_PACKET(step) &&
#ifdef EARLY_SEND
            (missing == 0 || slot[AT(me, PREVIOUS, WORD(step))] == 1 + t) ->
            if
            ::missing == 0 ->
                missing = 1;
                if
                ::step < N_STEPS -> POST(NEXT, WORD(step + 1))
                ::else
                fi
            ::missing != 0 ->
                missing = 0;
                slot[AT(me, PREVIOUS, WORD(step))] = 0;
                step++
            fi
#else
            slot[AT(me, PREVIOUS, WORD(step))] == 1 + t ->
            slot[AT(me, PREVIOUS, WORD(step))] = 0;
            if
            ::step < N_STEPS -> POST(NEXT, WORD(step + 1))
            ::else
            fi;
            step++
#endif
        }
        ::atomic { k == ONE_SHOT && (missing & 1) && slot[AT(me, 0, 0)] == 1 + t ->
            slot[AT(me, 0, 0)] = 0;
            missing = missing & ~1
        }
        ::atomic { k == ONE_SHOT && (missing & 2) && slot[AT(me, 1, 0)] == 1 + t ->
            slot[AT(me, 1, 0)] = 0;
            missing = missing & ~2
        }
#if N > 2
        ::atomic { k == ONE_SHOT && (missing & 4) && slot[AT(me, 2, 0)] == 1 + t ->
            slot[AT(me, 2, 0)] = 0;
            missing = missing & ~4
        }
#endif
        ::atomic { (k == ONE_SHOT && missing == 0) || (k != ONE_SHOT && step > N_STEPS) ->
            step = 0;
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
#if N > 2
#define DELIVER_GENERATION(owner, source, g)                                                       \
    DELIVER(PLACE(owner, source, g, 0))                                                            \
    DELIVER(PLACE(owner, source, g, 1))                                                            \
    DELIVER(PLACE(owner, source, g, 2))                                                            \
    DELIVER(PLACE(owner, source, g, 3))
#else
#define DELIVER_GENERATION(owner, source, g)                                                       \
    DELIVER(PLACE(owner, source, g, 0))                                                            \
    DELIVER(PLACE(owner, source, g, 1))
#endif
#define DELIVER_SLOT(owner, source)                                                                \
    DELIVER_GENERATION(owner, source, 0)                                                           \
    DELIVER_GENERATION(owner, source, 1)

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
