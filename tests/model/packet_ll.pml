/*
 * Flags of LL packets: they come round again, and the stripe makes that harmless. N ranks, OPS
 * operations, slots of two generations of W words, and a network that holds posted stores back and
 * delivers them in any order. A word stands for one 8-byte half {payload, flag} and is whole; its
 * content here is the number of the operation that wrote it, 0 when clean, so that a reader can be
 * asked whether it took the right one. (The kernels' wrap leaves out 2 and 3 as well, for the four
 * generations of packet_shared.pml; what counts here is that an even number follows.)
 *
 * Flags come from a small space 1..M that wraps to an even number as the kernels' does (M, 2, 3, ...). In operations
 * whose flag is BIG or BIG+1 all sources store W words. In the others the ranks from LONG on store
 * one and the rest W, as in a two-shot operation where the last shard is shorter: when a BIG flag comes
 * round again, what it left of these ranks behind the first word must be gone. Every EVERY-th
 * operation of a generation zeroes one word of each slot (a stripe), unless the operation uses it.
 *
 * Checked: a reader that sees its flag reads its operation's word (assert); nobody waits for ever
 * (invalid end state); the network never holds words of two operations of one parity (assert).
 *
 * Switches: ONE_GENERATION, NO_STRIPE, SKIP_ONE (M, 1, 2, ...), CLEAN_OWN, SPARE_SHORTER (the stripe
 * spares what other sources store), a smaller M: each must fail.
 */
#ifndef N
#define N 2
#endif
#ifndef OPS
#define OPS 45
#endif
#define W 2
#define EVERY 2
#ifndef M /* more than 4 * EVERY * W: going round, and a jump at the wrap */
#define M 19
#endif
#ifndef BIG
#define BIG 3
#endif

#ifdef SKIP_ONE
#define FLAG(e) (1 + ((e)-1) % M)
#else
#define FLAG(e) ((e) <= M -> (e) : 2 + ((e)-2) % (M - 1))
#endif
#ifdef ONE_GENERATION
#define GENERATION(e) 0
#else
#define GENERATION(e) (FLAG(e) & 1)
#endif
#define IS_BIG(e) (FLAG(e) == BIG || FLAG(e) == BIG + 1)
#ifndef LONG /* sources that store W words each time */
#define LONG (N - 1)
#endif
#define SIZE(e, source) (IS_BIG(e) || (source) < LONG -> W : 1)
#define HAS_STRIPE(e) ((FLAG(e) >> 1) % EVERY == 0)
#define STRIPE(e) (FLAG(e) / (2 * EVERY) % W)

/* What `source` stored at `owner`, and what is still on its way there. */
byte slot[N * N * 2 * W];
byte posted[N * N * 2 * W];
#define AT(owner, source, g, w) ((((owner)*N + (source)) * 2 + (g)) * W + (w))

#define BIT(source, w) (1 << ((source)*W + (w)))

/* One poll that finds its flag. Polls come in any order: each line has its own thread. */
#define POLL(source, w)                                                                            \
    ::d_step                                                                                       \
    {                                                                                              \
        (missing & BIT(source, w)) && slot[AT(me, source, GENERATION(e), w)] != 0 &&               \
            FLAG(slot[AT(me, source, GENERATION(e), w)]) == FLAG(e) ->                             \
        assert(slot[AT(me, source, GENERATION(e), w)] == e);                                       \
        missing = missing & ~BIT(source, w)                                                        \
    }

/* The owner's stripe in one slot, at any time while the operation runs. */
#ifdef CLEAN_OWN
#define MAY_CLEAN(e, source) true
#else
#ifdef SPARE_SHORTER
#define MAY_CLEAN(e, source) (STRIPE(e) >= SIZE(e, 0))
#else
#define MAY_CLEAN(e, source) (STRIPE(e) >= SIZE(e, source))
#endif
#endif
#define CLEAN(source)                                                                              \
    ::d_step                                                                                       \
    {                                                                                              \
        (unclean & (1 << (source))) -> unclean = unclean & ~(1 << (source));                       \
        if                                                                                         \
            ::MAY_CLEAN(e, source) -> slot[AT(me, source, GENERATION(e), STRIPE(e))] = 0                   \
            ::else                                                                                 \
        fi                                                                                         \
    }

proctype rank(byte me)
{
    byte e = 1, peer, w;
    byte missing, unclean;

    do
    ::e > OPS -> break
    ::else ->
        d_step {
            missing = 0;
            unclean = 0;
            peer = 0;
            do
            ::peer == N -> break
            ::peer != N && peer == me -> peer++
            ::else ->
                w = 0;
                do
                ::w == W -> break
                ::else ->
                    if
                    ::w < SIZE(e, me) ->
                        assert(posted[AT(peer, me, e & 1, w)] == 0);
                        posted[AT(peer, me, e & 1, w)] = e
                    ::else
                    fi;
                    if
                    ::w < SIZE(e, peer) -> missing = missing | BIT(peer, w)
                    ::else
                    fi;
                    w++
                od;
#ifndef NO_STRIPE
                if
                ::HAS_STRIPE(e) -> unclean = unclean | (1 << peer)
                ::else
                fi;
#endif
                peer++
            od;
            peer = 0;
            w = 0
        }
        do
        ::missing == 0 && unclean == 0 -> break
        POLL(0, 0)
        POLL(0, 1)
        POLL(1, 0)
        POLL(1, 1)
        CLEAN(0)
        CLEAN(1)
#if N > 2
        POLL(2, 0)
        POLL(2, 1)
        CLEAN(2)
#endif
        od;
        e++
    od
}

/* Stores of one source to one word arrive in their order; nothing else is promised. */
#define DELIVER(owner, source, p, w)                                                               \
    ::d_step                                                                                       \
    {                                                                                              \
        posted[AT(owner, source, p, w)] != 0 &&                                                    \
            (posted[AT(owner, source, 1 - (p), w)] == 0 ||                                         \
             posted[AT(owner, source, 1 - (p), w)] > posted[AT(owner, source, p, w)] ||            \
             GENERATION(posted[AT(owner, source, p, w)]) !=                                        \
                 GENERATION(posted[AT(owner, source, 1 - (p), w)])) ->                             \
        slot[AT(owner, source, GENERATION(posted[AT(owner, source, p, w)]), w)] =                  \
            posted[AT(owner, source, p, w)];                                                       \
        posted[AT(owner, source, p, w)] = 0                                                        \
    }
#define DELIVER_PAIR(owner, source)                                                                \
    DELIVER(owner, source, 0, 0)                                                                   \
    DELIVER(owner, source, 0, 1)                                                                   \
    DELIVER(owner, source, 1, 0)                                                                   \
    DELIVER(owner, source, 1, 1)

proctype network()
{
end:
    do
    DELIVER_PAIR(0, 1)
    DELIVER_PAIR(1, 0)
#if N > 2
    DELIVER_PAIR(0, 2)
    DELIVER_PAIR(2, 0)
    DELIVER_PAIR(1, 2)
    DELIVER_PAIR(2, 1)
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
