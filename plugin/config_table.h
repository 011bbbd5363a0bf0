/*
 * Every variable that llane reads, one row each. It generates struct llane_config, the parser, the
 * start-up line and docs/config.md.
 *
 * X(field, NAME, kind, default, minimum, maximum, words, doc): the variable is LLANE_NAME.
 * Kinds: BOOL (0 or 1), INT, SIZE (bytes; K, M and G are powers of 1024), WORD (one of words; the
 * value is its place among them), TEXT (NULL where unset or empty; words says what it takes). Field
 * names end in their unit.
 */
#ifndef LLANE_CONFIG_TABLE_H
#define LLANE_CONFIG_TABLE_H

/* A peer's record with more makes no sense. */
#define LLANE_MAX_BYTES_MOST (64ull << 20)

#define LLANE_CONFIG(X)                                                                            \
    X(enable, ENABLE, BOOL, 1, 0, 1, "",                                                           \
      "0: llane is loaded and does nothing at all. On one rank: the others stay with NCCL.")       \
    X(min_bytes, MIN_BYTES, SIZE, 0, 0, 1ull << 40, "",                                            \
      "All-reduces smaller than this go to NCCL. Rank 0's value holds for its communicator.")      \
    X(max_bytes, MAX_BYTES, SIZE, 256 << 10, 0, LLANE_MAX_BYTES_MOST, "",                          \
      "All-reduces larger than this go to NCCL. Rank 0's value holds for its communicator.")       \
    X(algo, ALGO, WORD, 0, 0, 4, "auto one-shot two-shot ring islands",                            \
      "The lane's algorithm; auto: one-shot or two-shot, by size and rank count. Float results "   \
      "of "                                                                                        \
      "ring may differ from the others' in the last bits. Rank 0's value holds for its "           \
      "communicator.")                                                                             \
    X(packet, PACKET, WORD, 0, 0, 2, "auto ll sentinel",                                           \
      "The lane's packets; integers always use ll. Rank 0's value holds for its communicator.")    \
    X(memory, MEMORY, WORD, 0, 0, 2, "auto p2p host",                                              \
      "What ranks write to each other through; auto: peer memory where the probe proves it, host " \
      "memory for the other pairs; p2p, host: that alone. Rank 0's value holds for its "           \
      "communicator.")                                                                             \
    X(blocks, BLOCKS, INT, 0, 0, 64, "",                                                           \
      "Blocks of a lane kernel; 0: by size. Rank 0's value holds for its communicator.")           \
    X(threads, THREADS, INT, 0, 0, 512, "",                                                        \
      "Threads of a block of a lane kernel, a multiple of 32 from 64 on; 0: by size. Rank 0's "    \
      "value holds for its communicator.")                                                         \
    X(poll, POLL, WORD, 0, 0, 1, "spin sleep",                                                     \
      "How a kernel awaits its peers; sleep: with pauses between two looks that grow to 1 us, "    \
      "which leaves more of the GPU to other kernels. Rank 0's value holds for its communicator.") \
    X(chunk_bytes, CHUNK_BYTES, SIZE, 0, 0, LLANE_MAX_BYTES_MOST, "",                              \
      "ring: bytes of half a shard that take all steps round before the next ones do; 0: all of "  \
      "it. Rank 0's value holds for its communicator.")                                            \
    X(max_ctas, MAX_CTAS, INT, 0, 0, 64, "",                                                       \
      "At most so many blocks for a lane kernel; 0: NCCL_MAX_CTAS or the communicator's maxCTAs "  \
      "where set. The smallest of all ranks holds.")                                               \
    X(max_staging_bytes, MAX_STAGING, SIZE, 1ull << 30, 0, 1ull << 40, "",                         \
      "Device and host memory that llane may take in this process; communicators beyond it stay "  \
      "with "                                                                                      \
      "NCCL.")                                                                                     \
    X(wait, WAIT, BOOL, 0, 0, 1, "",                                                               \
      "1: the first all-reduce of a communicator waits until its lane is live or refused "         \
      "(benchmarks, tests). Set it on all ranks.")                                                 \
    X(wait_timeout_ms, WAIT_TIMEOUT_MS, INT, 30000, 1, 86400000, "",                               \
      "How long LLANE_WAIT waits, in milliseconds; then NCCL carries on.")                         \
    X(probe_timeout_ms, PROBE_TIMEOUT_MS, INT, 2000, 1, 60000, "",                                 \
      "How long the probe of peer memory may take, and that of host memory, in milliseconds.")     \
    X(calibrate, CALIBRATE, WORD, 0, 0, 2, "auto off force",                                       \
      "Which kernel carries which size. auto: as measured when the lane is set up, or before, "    \
      "from $XDG_CACHE_HOME/llane; off: by a model; force: measured anew. Rank 0's value holds "   \
      "for its communicator.")                                                                     \
    X(calibrate_ms, CALIBRATE_MS, INT, 150, 1, 600000, "",                                         \
      "About how long calibration may take, in milliseconds; sizes that are not reached by then "  \
      "go by the model. Rank 0's value holds for its communicator.")                               \
    X(graph_order, GRAPH_ORDER, BOOL, 1, 0, 1, "",                                                 \
      "0: captured all-reduces are not ordered against eager ones and other graphs of their "      \
      "communicator, which saves two nodes a graph. For programs that use one stream.")            \
    X(ab, AB, WORD, 0, 0, 2, "off alternate shadow",                                               \
      "alternate: eager calls that the lane could carry take the lane and NCCL in turns, both "    \
      "timed; the report says what the lane saved. shadow: NCCL carries them, the lane works "     \
      "beside it, and results are compared. Rank 0's value holds for its communicator.")           \
    X(report_signal, REPORT_SIGNAL, WORD, 0, 0, 4, "none HUP QUIT USR1 USR2",                      \
      "A signal on which the reports of LLANE_STATS and LLANE_AB go to stderr, where the program " \
      "has no action of its own for it.")                                                          \
    X(nvtx, NVTX, BOOL, 0, 0, 1, "",                                                               \
      "1: NVTX ranges around the lane's launches, named by their kernel, in the domain llane.")    \
    X(nccl_tuning, NCCL_TUNING, TEXT, 0, 0, 0, "FILE",                                             \
      "Algorithm, protocol and channels for calls that stay with NCCL, as docs/ab.md says; the "   \
      "same file on all ranks. Unset: NCCL chooses.")                                              \
    X(check, CHECK, BOOL, 0, 0, 1, "",                                                             \
      "1 on any rank: the ranks of a communicator compare count, type and operation of each of "   \
      "its all-reduces; where they differ all report ncclInvalidUsage. For finding errors.")       \
    X(on_death, ON_DEATH, WORD, 0, 0, 1, "wait stop",                                              \
      "What kernels do that need a rank which died: wait until the program aborts the "            \
      "communicator, as NCCL's do, or stop at once, and their stream goes on with garbage.")       \
    X(timeout_s, TIMEOUT_S, INT, 0, 0, 604800, "",                                                 \
      "An all-reduce that has waited for other ranks for so many seconds is taken for one that "   \
      "needs a dead rank; 0: a slow rank is not a dead one, however slow.")                        \
    X(stats, STATS, TEXT, 0, 0, 0, "1 or FILE",                                                    \
      "Calls and bytes per communicator by size, route and reason. 1: to stderr as communicators " \
      "end. FILE: there, when the process ends, as JSON if its name ends in .json; %p, %r and %h " \
      "become the process's id, its rank and the host's name.")

#endif
