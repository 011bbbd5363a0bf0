/*
 * Room on a GPU that N ranks share, where a rank's next kernel is launched while the one in front of it
 * runs (LLANE_FLAG_EARLY). The GPU has room for N * FIT blocks; each kernel is 1 to FIT wide, another
 * width on every rank, and its blocks become resident one by one, as there is room.
 *
 * A kernel waits for the end of the rank's kernel in front, then polls until all of the other ranks'
 * kernel of that number runs, and ends. It lets the next one be launched when it has polled; or early,
 * in graphs that say so, when all of its blocks have waited, if both together are FIT wide at most.
 *
 * Checked: all kernels end (invalid end state), and no more than two of a rank are resident (assert).
 *
 * Switches: RELEASE_FIRST (it lets the next one go before it has waited), ANY_WIDTH (however wide both
 * are): each must fail.
 */
#ifndef N
#define N 2
#endif
#ifndef FIT
#define FIT 2
#endif
#ifndef KERNELS
#define KERNELS 4
#endif

#define AT(r, k) ((r)*KERNELS + (k))
byte room = N * FIT;
byte width[N * KERNELS];
byte resident[N * KERNELS]; /* blocks */
bool is_early[N * KERNELS], runs[N * KERNELS], has_polled[N * KERNELS], has_ended[N * KERNELS];
byte n_running[KERNELS]; /* ranks whose kernel of this number runs */
byte n_resident[N];      /* kernels that have not ended */

#ifdef RELEASE_FIRST
#define HAS_WAITED(r, k) (resident[AT(r, k)] == width[AT(r, k)])
#else
#define HAS_WAITED(r, k) runs[AT(r, k)]
#endif
#define LETS_GO(r, k) (has_polled[AT(r, k)] || (is_early[AT(r, k)] && HAS_WAITED(r, k)))

proctype kernel(byte r; byte k)
{
    (k == 0 || LETS_GO(r, k - 1));
    do
    ::atomic { resident[AT(r, k)] < width[AT(r, k)] && room > 0 ->
        if
        ::resident[AT(r, k)] == 0 ->
            n_resident[r]++;
            assert(n_resident[r] <= 2)
        ::else
        fi;
        room--;
        resident[AT(r, k)]++ }
    ::resident[AT(r, k)] == width[AT(r, k)] -> break
    od;
    atomic { (k == 0 || has_ended[AT(r, k - 1)]) ->
        runs[AT(r, k)] = true;
        n_running[k]++ }
    atomic { n_running[k] == N -> has_polled[AT(r, k)] = true }
    atomic {
        has_ended[AT(r, k)] = true;
        n_resident[r]--;
        room = room + width[AT(r, k)] }
}

init
{
    byte r, k, w;

    atomic {
        for (r : 0 .. N - 1) {
            for (k : 0 .. KERNELS - 1) {
                select (w : 1 .. FIT);
                width[AT(r, k)] = w
            }
            for (k : 0 .. KERNELS - 2) {
#ifdef ANY_WIDTH
                is_early[AT(r, k)] = true
#else
                if
                ::width[AT(r, k)] + width[AT(r, k + 1)] <= FIT -> is_early[AT(r, k)] = true
                ::true
                fi
#endif
            }
        }
        for (r : 0 .. N - 1) {
            for (k : 0 .. KERNELS - 1) {
                run kernel(r, k)
            }
        }
    }
}
