/* The order in which ingot.data.Batches takes examples: numpy.random.default_rng(seed).permutation(count), once
   for each epoch.

   That is O'Neill's PCG XSL RR 128/64 generator ("PCG: A Family of Simple Fast Space-Efficient Statistically Good
   Algorithms for Random Number Generation", 2014), seeded by the hash that NumPy documents as SeedSequence (after
   O'Neill's seed_seq), a shuffle from the last place to the second (Durstenfeld, 1964), and bounded integers by
   rejection from 32-bit halves of the 64-bit numbers, low half first. */

#include "ingot_program.h"

#define POOL 4

static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t multiplier) {
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mixed(uint32_t x, uint32_t y) {
    uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ result >> 16;
}

static void spread_seed(uint64_t seed, uint64_t words[4]) {
    uint32_t entropy[POOL] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, pool[POOL];
    uint32_t constant = 0x43b0d7e5u;
    for (int n = 0; n < POOL; n++) pool[n] = hashed(entropy[n], &constant, 0x931e8875u);
    for (int source = 0; source < POOL; source++)
        for (int target = 0; target < POOL; target++)
            if (source != target) pool[target] = mixed(pool[target], hashed(pool[source], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int n = 0; n < 4; n++) {
        uint64_t low = hashed(pool[2 * n % POOL], &constant, 0x58f38dedu);
        uint64_t high = hashed(pool[(2 * n + 1) % POOL], &constant, 0x58f38dedu);
        words[n] = low | high << 32;
    }
}

__extension__ typedef unsigned __int128 wide;

static wide joined(uint64_t high, uint64_t low) { return (wide)high << 64 | low; }

static void step(number_generator *generator) {
    wide state = joined(generator->state_high, generator->state_low);
    state = state * joined(0x2360ed051fc65da4u, 0x4385df649fccf645u) +
            joined(generator->increment_high, generator->increment_low);
    generator->state_high = (uint64_t)(state >> 64);
    generator->state_low = (uint64_t)state;
}

number_generator seeded_generator(uint64_t seed) {
    uint64_t words[4];
    number_generator generator = {0};
    spread_seed(seed, words);
    wide increment = joined(words[2], words[3]) << 1 | 1;
    generator.increment_high = (uint64_t)(increment >> 64);
    generator.increment_low = (uint64_t)increment;
    step(&generator);
    wide state = joined(generator.state_high, generator.state_low) + joined(words[0], words[1]);
    generator.state_high = (uint64_t)(state >> 64);
    generator.state_low = (uint64_t)state;
    step(&generator);
    return generator;
}

static uint32_t next_number(number_generator *generator) {
    if (generator->has_kept) {
        generator->has_kept = 0;
        return generator->kept;
    }
    step(generator);
    uint64_t folded = generator->state_high ^ generator->state_low;
    unsigned rotation = (unsigned)(generator->state_high >> 58);
    uint64_t number = folded >> rotation | folded << (-rotation & 63);
    generator->kept = (uint32_t)(number >> 32);
    generator->has_kept = 1;
    return (uint32_t)number;
}

/* Uniform in [0, last]: numbers of as many bits as `last` has, until one is not larger. */
static uint32_t bounded(number_generator *generator, uint32_t last) {
    uint32_t mask = last, number;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    do number = next_number(generator) & mask;
    while (number > last);
    return number;
}

void next_permutation(number_generator *generator, uint32_t *order, uint32_t count) {
    for (uint32_t n = 0; n < count; n++) order[n] = n;
    for (uint32_t n = count; n-- > 1;) {
        uint32_t other = bounded(generator, n), kept = order[n];
        order[n] = order[other];
        order[other] = kept;
    }
}
