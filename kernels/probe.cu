/*
 * The probe: does what a rank's kernel stores into a peer's memory arrive where the peer's kernel
 * reads it? Every word of an area depends on the nonce, the source, the destination and its own
 * place, so that a lost, mirrored, misdirected, damaged or left-over word shows.
 */
#include "device.cuh"

enum { PIECE_BYTES = 16, PIECES = LLANE_PROBE_BYTES / PIECE_BYTES };

/* The word at `word` * 4 bytes of an area; never 0, which is what a clean area says. */
LLANE_DEVICE uint32_t probe_word(uint64_t nonce, uint32_t source, uint32_t destination,
                                 uint32_t word)
{
    uint64_t x = nonce ^ ((uint64_t)source << 48 | (uint64_t)destination << 32 | word);

    /* Two rounds of multiply and fold: one flipped bit of the input changes half of the output. */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (uint32_t)x != 0 ? (uint32_t)x : 1;
}

LLANE_DEVICE uint64_t probe_half(uint64_t nonce, uint32_t source, uint32_t destination,
                                 uint32_t word)
{
    return probe_word(nonce, source, destination, word) |
           (uint64_t)probe_word(nonce, source, destination, word + 1) << 32;
}

/* Pieces take turns with the sizes and places of stores that a lane may ever use. */
LLANE_DEVICE void probe_store(uint8_t *piece, uint32_t index, uint64_t low, uint64_t high)
{
    /* All of these pair with llane_load16 in the destination's check. */
    switch (index % 4) {
    case 0:
        llane_store16(piece, low, high);
        break;
    case 1: /* halves, the second one first: 8 bytes at an odd multiple of 8 */
        llane_store8(piece + 8, high);
        llane_store8(piece, low);
        break;
    case 2: /* words */
        llane_store_system32((uint32_t *)(piece + 12), (uint32_t)(high >> 32));
        llane_store_system32((uint32_t *)(piece + 4), (uint32_t)(low >> 32));
        llane_store_system32((uint32_t *)(piece + 8), (uint32_t)high);
        llane_store_system32((uint32_t *)piece, (uint32_t)low);
        break;
    default: /* a whole line over a part of it that came before */
        llane_store_system32((uint32_t *)(piece + 4), (uint32_t)(low >> 32));
        llane_store16(piece, low, high);
        break;
    }
}

LLANE_KERNEL(llane_probe_send, struct llane_probe_args)
{
    for (uint32_t i = llane_thread_id(); i < args.n_ranks * PIECES; i += llane_n_threads()) {
        const uint32_t step = i / PIECES, piece = i % PIECES;
        const uint32_t peer = (args.rank + step) % args.n_ranks;

        if ((args.peers >> peer & 1) != 0)
            probe_store(args.send[peer] + piece * PIECE_BYTES, piece,
                        probe_half(args.nonce, args.rank, peer, piece * 4),
                        probe_half(args.nonce, args.rank, peer, piece * 4 + 2));
    }
}

/* GOOD: all there. WRONG: a word is neither clean nor right. MISSING: some words are clean. */
LLANE_DEVICE uint32_t probe_look(const struct llane_probe_args &args, uint32_t source)
{
    uint32_t seen = LLANE_PROBE_GOOD;

    for (uint32_t word = 0; word < LLANE_PROBE_BYTES / 4; word += 4) {
        uint64_t half[2];

        /* Pairs with probe_store at the source. */
        llane_load16(args.recv[source] + word * 4, &half[0], &half[1]);
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t got = (uint32_t)(half[k / 2] >> (k % 2 * 32));

            if (got == probe_word(args.nonce, source, args.rank, word + k))
                continue;
            if (got != 0)
                return LLANE_PROBE_WRONG;
            seen = LLANE_PROBE_MISSING;
        }
    }
    return seen;
}

/*
 * One thread a source. Bad words may still be on their way (or left over and about to be
 * overwritten), so only the end of the time is a verdict against a pair. An abort leaves the
 * sources that are not good yet PENDING.
 */
LLANE_KERNEL(llane_probe_check, struct llane_probe_args)
{
    const uint64_t start = llane_timer_ns();

    for (uint32_t source = llane_thread_id(); source < args.n_ranks; source += llane_n_threads()) {
        const bool takes_part = (args.peers >> source & 1) != 0;
        uint32_t seen = takes_part ? probe_look(args, source) : (uint32_t)LLANE_PROBE_GOOD;

        while (seen != LLANE_PROBE_GOOD && llane_timer_ns() - start < args.timeout_ns) {
            llane_poll_pause(0);
            /* Pairs with the host's store when the communicator is aborted. */
            if (llane_load_system32(&args.words->abort) != 0) {
                seen = LLANE_PROBE_PENDING;
                break;
            }
            seen = probe_look(args, source);
        }
        /* Pairs with the host's reading of the result, after the stream was awaited. */
        llane_store_system32(&args.result[source], seen);
    }
}
