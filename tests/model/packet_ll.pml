/*
 * LL packets, one-shot all-reduce: N ranks, OPS operations, slots of two generations of W words, and
 * a network that holds posted stores back and delivers them in any order. A word stands for one
 * 8-byte half {payload, flag} and is whole; its content here is the number of the operation that
 * wrote it, 0 when clean, so that a reader can be asked whether it took the right one.
 *
 * Flags come from a small space 1..M that wraps as the kernels' does (M, 2, 3, ...). Operations whose
 * flag is BIG use W words, the others one: when a BIG flag comes round again, what it left behind
 * the first word must be gone.
 *
 * Checked: a reader that sees its flag reads its operation's word (assert); nobody waits for ever
 * (invalid end state); the network never holds words of two operations of one parity (assert).
 *
 * Switches: ONE_GENERATION, NO_STRIPE, SKIP_ONE (M, 1, 2, ...), CLEAN_OWN: each must fail.
 */
#ifndef N
#define N 2
#endif
#ifndef OPS
#define OPS 12
#endif
#define W 2
#define M 9
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
#define SIZE(e) (FLAG(e) == BIG || FLAG(e) == BIG + 1 -> W : 1)
#define STRIPE(e) ((FLAG(e) >> 1) % W)

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
#define MAY_CLEAN(e) true
#else
#define MAY_CLEAN(e) (STRIPE(e) >= SIZE(e))
#endif
#define CLEAN(source)                                                                              \
    ::d_step                                                                                       \
    {                                                                                              \
        (unclean & (1 << (source))) -> unclean = unclean & ~(1 << (source));                       \
        if                                                                                         \
            ::MAY_CLEAN(e) -> slot[AT(me, source, GENERATION(e), STRIPE(e))] = 0                   \
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
                ::w == SIZE(e) -> break
                ::else ->
                    assert(posted[AT(peer, me, e & 1, w)] == 0);
                    posted[AT(peer, me, e & 1, w)] = e;
                    missing = missing | BIT(peer, w);
                    w++
                od;
#ifndef NO_STRIPE
                unclean = unclean | (1 << peer);
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
