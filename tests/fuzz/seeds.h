/*
 * seeds: runs a fuzz target on every file of a folder and on changed copies of it, without libFuzzer;
 * the same copies each time. For the unit tests of fuzz targets.
 */
#ifndef LLANE_TEST_FUZZ_SEEDS_H
#define LLANE_TEST_FUZZ_SEEDS_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SEEDS_MOST_BYTES = 1 << 16, SEEDS_COPIES = 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t seeds_state = 1;

static uint64_t seeds_draw(uint64_t below)
{
    seeds_state = seeds_state * 6364136223846793005u + 1442695040888963407u;
    return (seeds_state >> 33) % below;
}

/* What fuzzers do: a byte, a digit, a piece left out or doubled, the end cut off. */
static size_t seeds_change(uint8_t *data, size_t n)
{
    for (uint64_t i = seeds_draw(8); i < 8 && n > 2; i++) {
        size_t at = 1 + seeds_draw(n - 1), piece = seeds_draw(16);
        switch (seeds_draw(5)) {
        case 0:
            data[at] = (uint8_t)seeds_draw(256);
            break;
        case 1:
            data[at] = (uint8_t)('0' + seeds_draw(10));
            break;
        case 2:
            piece = piece < n - at ? piece : n - at;
            memmove(data + at, data + at + piece, n - at - piece);
            n -= piece;
            break;
        case 3:
            piece = n + piece <= SEEDS_MOST_BYTES && at + piece <= n ? piece : 0;
            memmove(data + at + piece, data + at, n - at);
            n += piece;
            break;
        default:
            n = seeds_draw(8) ? n : at + 1;
            break;
        }
    }
    return n;
}

static int seeds_run_file(const char *path)
{
    static uint8_t seed[SEEDS_MOST_BYTES], copy[SEEDS_MOST_BYTES];
    FILE *file = fopen(path, "rb");
    if (!file) {
        return 0;
    }
    size_t n = fread(seed, 1, sizeof seed, file);
    fclose(file);
    LLVMFuzzerTestOneInput(seed, n);
    for (int i = 0; i < SEEDS_COPIES; i++) {
        memcpy(copy, seed, n);
        LLVMFuzzerTestOneInput(copy, seeds_change(copy, n));
    }
    return 1;
}

/* How many there were; 0 where the folder cannot be read. */
static int seeds_run(const char *folder)
{
    char path[1024];
    int n = 0;
    DIR *seeds = opendir(folder);
    if (!seeds) {
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(seeds));) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%.200s", folder, entry->d_name);
            n += seeds_run_file(path);
        }
    }
    closedir(seeds);
    return n;
}

#endif
