/* Which code ran, for fuzz.py: linked into rmemcached.verbs.soft by the build for the fuzzer (RMEMCACHED_SANITIZE=fuzz).
 *
 * The compiler calls __sanitizer_cov_trace_pc in every basic block. A pair of blocks that ran one after the other counts
 * in a byte of `ran`, which the pair's hash chooses; `seen` has the orders of magnitude that the byte has ever had.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define UNTRACED __attribute__((no_sanitize_coverage, no_sanitize_address, visibility("default")))
#define SIZE (1 << 16)

static uint8_t ran[SIZE] __attribute__((aligned(64)));
static uint8_t seen[SIZE];
static __thread uintptr_t before;
static int recording;

UNTRACED void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&recording;
    uintptr_t place = (here ^ before) * 0x9e3779b97f4a7c15u >> 48;
    if (recording && ran[place] != 255)
        ran[place]++;
    before = here >> 1;
}

/* Begins a record. */
UNTRACED void rmc_coverage_start(void)
{
    memset(ran, 0, SIZE);
    before = 0;
    recording = 1;
}

/* Ends it. How many pairs of blocks ran that had not before, or not so often. */
UNTRACED unsigned rmc_coverage_stop(void)
{
    unsigned fresh = 0;
    recording = 0;
    for (size_t i = 0; i < SIZE; i += 8) {
        uint64_t word;
        memcpy(&word, ran + i, 8);
        for (size_t j = i; word != 0 && j < i + 8; j++) {
            unsigned n = ran[j];
            uint8_t bucket = n == 0 ? 0 : n == 1 ? 1 : n == 2 ? 2 : n == 3 ? 4 : n < 8 ? 8 : n < 16 ? 16
                : n < 32 ? 32 : n < 128 ? 64 : 128;
            if (bucket & ~seen[j]) {
                seen[j] |= bucket;
                fresh++;
            }
        }
    }
    return fresh;
}

/* Pairs of blocks that ever ran. */
UNTRACED unsigned rmc_coverage_total(void)
{
    unsigned total = 0;
    for (size_t i = 0; i < SIZE; i++)
        total += seen[i] != 0;
    return total;
}
