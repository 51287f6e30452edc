/*
 * Preloaded into every program of a node: one in ONE_IN large copies of memory has one bit flipped, at random, as a core
 * or a memory module at fault would do it. Nothing else is wrong, and no program hears of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LARGE (64 << 10)
#ifndef ONE_IN
#define ONE_IN 10000
#endif

typedef void *copy(void *, const void *, size_t);

static _Thread_local uint64_t state;

static uint64_t drawn(void) {
    if (!state) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u ^ (uintptr_t)&state ^ 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void *copied(copy *real, void *to, const void *from, size_t size) {
    real(to, from, size);
    if (size >= LARGE && drawn() % ONE_IN == 0)
        ((unsigned char *)to)[drawn() % size] ^= (unsigned char)(1u << drawn() % 8);
    return to;
}

/* Copies that the loader makes before the real functions are known. */
static void *by_bytes(void *to, const void *from, size_t size) {
    volatile unsigned char *target = to;
    const unsigned char *source = from;
    if ((uintptr_t)to > (uintptr_t)from)
        while (size--)
            target[size] = source[size];
    else
        for (size_t at = 0; at < size; at++)
            target[at] = source[at];
    return to;
}

static copy *real_memcpy, *real_memmove;

__attribute__((constructor)) static void find(void) {
    real_memcpy = (copy *)dlsym(RTLD_NEXT, "memcpy");
    real_memmove = (copy *)dlsym(RTLD_NEXT, "memmove");
}

void *memcpy(void *to, const void *from, size_t size) {
    return real_memcpy ? copied(real_memcpy, to, from, size) : by_bytes(to, from, size);
}

void *memmove(void *to, const void *from, size_t size) {
    return real_memmove ? copied(real_memmove, to, from, size) : by_bytes(to, from, size);
}
