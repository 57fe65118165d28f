/* What the code of functions, and their choice, need of the machine. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "library.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Frees the memory of an array; those of kernels have none of their own. */
HIDDEN void NRT_MemInfo_call_dtor(void *owner) {
    (void)owner;
    abort();
}

/* Numba's forms of frexp and ldexp, by which its code calls them. */

HIDDEN double numba_frexp(double x, int *exponent) {
    if (isfinite(x) && x != 0)
        return frexp(x, exponent);
    *exponent = 0;
    return x;
}

HIDDEN float numba_frexpf(float x, int *exponent) {
    if (isfinite(x) && x != 0)
        return frexpf(x, exponent);
    *exponent = 0;
    return x;
}

HIDDEN double numba_ldexp(double x, int exponent) { return isfinite(x) && x != 0 ? ldexp(x, exponent) : x; }

HIDDEN float numba_ldexpf(float x, int exponent) { return isfinite(x) && x != 0 ? ldexpf(x, exponent) : x; }

#if defined(__x86_64__)
static int has(unsigned word, unsigned bits) { return (word & bits) == bits; }

/* The level of the psABI that processor and operating system support. */
static int level_of_processor(void) {
    unsigned a, b, c, d, b7 = 0, c1, low = 0, high;
    if (!__get_cpuid(1, &a, &b, &c1, &d))
        return 1;
    if (!has(c1, bit_SSE3 | bit_SSSE3 | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT))
        return 1;
    if (!has(c1, bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C))
        return 2;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!has(low, 6) || !__get_cpuid_count(7, 0, &a, &b7, &c, &d) || !has(b7, bit_AVX2 | bit_BMI | bit_BMI2))
        return 2;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !has(c, 1 << 5)) /* LZCNT */
        return 2;
    return has(low, 0xE6) && has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL) ? 4 : 3;
}

int oo_runs(const char *level) { return !*level || level_of_processor() >= atoi(level + 1); }
#else
int oo_runs(const char *level) { return !*level; }
#endif

static int64_t largest_cache(void) {
    static const char folder[] = "/sys/devices/system/cpu/cpu0/cache";
    long long largest = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (strncmp(entry->d_name, "index", 5))
            continue;
        char path[sizeof folder + sizeof entry->d_name + 8], unit = 0;
        snprintf(path, sizeof path, "%s/%s/size", folder, entry->d_name);
        FILE *file = fopen(path, "r");
        long long size = 0;
        if (file && fscanf(file, "%lld%c", &size, &unit) == 2 && unit == 'K' && size > largest)
            largest = size;
        if (file)
            fclose(file);
    }
    if (entries)
        closedir(entries);
    return largest ? largest << 10 : 32 << 20;
}

int64_t oo_cache_bytes(void) {
    static _Atomic int64_t known;
    if (!known)
        known = largest_cache();
    return known;
}

int64_t oo_available_cores(void) {
#ifdef __linux__
    int most = 1024;
    for (cpu_set_t *set; (set = CPU_ALLOC(most)); most *= 2) {
        size_t size = CPU_ALLOC_SIZE(most);
        int failed = sched_getaffinity(0, size, set), count = failed ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (!failed)
            return count;
        if (most >= 1 << 20)
            break;
    }
#endif
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? count : 1;
}
