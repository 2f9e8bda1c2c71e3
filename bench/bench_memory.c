/* What pages of memory cost a model that is read through them.
 *
 *   bench_memory [DIRECTORY [MB]]
 *
 * Writes files of MB megabytes (512) to DIRECTORY (here), drops them from the page cache and maps them in several ways; then compares
 * memory of small and of huge pages, and reading with and without prefetch instructions. Ways are measured in turns and in processor
 * time of one thread, so that other programs disturb little; waiting for a disk is in elapsed time. */
#define _GNU_SOURCE /* posix_fadvise, madvise, MAP_POPULATE */
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"
#include "base/text.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

enum { HUGE_BYTES = 2 << 20, TASK_BYTES = 32 << 10, EXPERT_BYTES = 512 << 10, KEY_BYTES = 656, ROUNDS = 5 };

static volatile uint64_t sink;

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static long faults_now(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_minflt + r.ru_majflt;
}

/* kB that the mapping around an address has in huge pages, of files or of its own. */
static long huge_kb(const void *address)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    long kb = 0, some;
    bool inside = false;
    while (f && fgets(line, sizeof line, f)) {
        uintptr_t first, end;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &end) == 2)
            inside = first <= (uintptr_t)address && (uintptr_t)address < end;
        else if (inside && (sscanf(line, "FilePmdMapped: %ld", &some) == 1 || sscanf(line, "AnonHugePages: %ld", &some) == 1))
            kb += some;
    }
    if (f)
        fclose(f);
    return kb;
}

/* ---- reading ---- */

static void read_range(const uint8_t *bytes, size_t count)
{
    uint64_t sum[8] = {0}, words[8];
    for (size_t i = 0; i + sizeof words <= count; i += sizeof words) {
        memcpy(words, bytes + i, sizeof words);
        for (int j = 0; j < 8; j++)
            sum[j] += words[j];
    }
    for (int j = 0; j < 8; j++)
        sink += sum[j];
}

/* Pieces in random order, as experts or selected keys are: `part` of all pieces. */
static void read_pieces(const uint8_t *bytes, size_t count, size_t piece, double part)
{
    size_t pieces = count / piece;
    for (size_t i = 0; i < (size_t)((double)pieces * part); i++)
        read_range(bytes + random_word(7, i, piece) % pieces * piece, piece);
}

static double gb_s(const uint8_t *bytes, size_t count, size_t piece)
{
    double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    piece == count ? read_range(bytes, count) : read_pieces(bytes, count, piece, 1);
    return (double)count * 1e-9 / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - start);
}

typedef struct way {
    const char *name;
    int advice; /* of madvise; -1: none */
    int flags;  /* of mmap */
    bool copy;  /* into memory of its own */
    bool drop;  /* from the page cache first; else as it was written */
    const uint8_t *bytes;
    double best[3]; /* GB/s: in order, by task, by key */
} way;

static void measure_ways(way *ways, int ways_count, size_t count)
{
    const size_t pieces[3] = {count, TASK_BYTES, KEY_BYTES};
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < ways_count; i++)
            for (int k = 0; k < 3; k++) {
                double speed = gb_s(ways[i].bytes, count, pieces[k]);
                ways[i].best[k] = speed > ways[i].best[k] ? speed : ways[i].best[k];
            }
}

/* ---- ways to map a file ---- */

static int make_file(const char *directory, int number, size_t count, text *path)
{
    enum { BLOCK_WORDS = 1 << 17 };
    static uint64_t block[BLOCK_WORDS];
    text_clear(path);
    text_add_format(path, "%s/bench_memory.%ld.%d", directory, (long)getpid(), number);
    int fd = open(path->data, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        fail(path->data);
    unlink(path->data);
    for (size_t at = 0; at < count; at += sizeof block) {
        for (size_t i = 0; i < BLOCK_WORDS; i++)
            block[i] = random_word(1, at + i, 0);
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            fail("write");
    }
    if (fdatasync(fd) != 0)
        fail("fdatasync");
    return fd;
}

static uint8_t *private_memory(size_t count, int advice)
{
    uint8_t *p = mmap(NULL, count + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail("mmap");
    p += (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (madvise(p, count, advice) != 0)
        perror("madvise");
    return p;
}

static const uint8_t *map_file(const way *w, int fd, size_t count)
{
    if (w->copy) {
        uint8_t *p = private_memory(count, w->advice);
        for (size_t at = 0; at < count;) {
            ssize_t n = pread(fd, p + at, count - at, (off_t)at);
            if (n <= 0)
                fail("pread");
            at += (size_t)n;
        }
        return p;
    }
    uint8_t *p = mmap(NULL, count, PROT_READ, MAP_SHARED | w->flags, fd, 0);
    if (p == MAP_FAILED)
        fail("mmap");
    if (w->advice >= 0 && madvise(p, count, w->advice) != 0)
        perror(w->name);
    return p;
}

static void bench_files(const char *directory, size_t count)
{
    way ways[] = {
        {.name = "as written, plain", .advice = -1},
        {.name = "as written, huge", .advice = MADV_HUGEPAGE},
        {.name = "plain", .advice = -1, .drop = true},
        {.name = "huge", .advice = MADV_HUGEPAGE, .drop = true},
        {.name = "will need", .advice = MADV_WILLNEED, .drop = true},
        {.name = "populate read", .advice = MADV_POPULATE_READ, .drop = true},
        {.name = "map populate", .advice = -1, .flags = MAP_POPULATE, .drop = true},
        {.name = "copy, small pages", .advice = MADV_NOHUGEPAGE, .copy = true, .drop = true},
        {.name = "copy, huge pages", .advice = MADV_HUGEPAGE, .copy = true, .drop = true},
    };
    enum { WAYS = sizeof ways / sizeof ways[0] };
    text path = {0};
    printf("A mapped file of %zu MB: preparation, a quarter of it in pieces of %d kB at random places, the rest; then again, GB/s per "
           "thread\n%-18s %9s %9s %9s %9s %6s %9s %9s %9s\n", count >> 20, EXPERT_BYTES >> 10, "", "prepare s", "quarter s", "rest s",
           "faults", "huge", "in order", "32 kB", "656 B");
    for (int i = 0; i < WAYS; i++) {
        int fd = make_file(directory, i, count, &path);
        if (ways[i].drop && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
            fail("posix_fadvise");
        double at[4] = {seconds_of(CLOCK_MONOTONIC)};
        long faults = faults_now();
        ways[i].bytes = map_file(&ways[i], fd, count);
        at[1] = seconds_of(CLOCK_MONOTONIC);
        read_pieces(ways[i].bytes, count, EXPERT_BYTES, 0.25);
        at[2] = seconds_of(CLOCK_MONOTONIC);
        read_pieces(ways[i].bytes, count, EXPERT_BYTES, 3);
        read_range(ways[i].bytes, count);
        at[3] = seconds_of(CLOCK_MONOTONIC);
        faults = faults_now() - faults;
        close(fd);
        ways[i].best[0] = ways[i].best[1] = ways[i].best[2] = 0;
        measure_ways(&ways[i], 1, count); /* alone first, so that a table comes even when the memory for all is not there */
        double huge = 100.0 * 1024 * (double)huge_kb(ways[i].bytes + count / 2) / (double)count;
        printf("%-18s %9.3f %9.3f %9.3f %9ld %5.0f%% %9.2f %9.2f %9.2f\n", ways[i].name, at[1] - at[0], at[2] - at[1], at[3] - at[2],
               faults, huge, ways[i].best[0], ways[i].best[1], ways[i].best[2]);
        fflush(stdout);
    }
    printf("\nAll of them in turns, GB/s per thread\n");
    measure_ways(ways, WAYS, count);
    for (int i = 0; i < WAYS; i++)
        printf("%-18s %9.2f %9.2f %9.2f\n", ways[i].name, ways[i].best[0], ways[i].best[1], ways[i].best[2]);
    for (int i = 0; i < WAYS; i++)
        munmap((void *)(uintptr_t)ways[i].bytes, count);
    text_free(&path);
}

/* ---- prefetch ---- */

enum { NO_PREFETCH = 0, FIRST_LINES = 1, AHEAD = 2 };

/* Tasks of 32 kB at random places, as a worker gets them one after the other. With FIRST_LINES, the beginning of the next one is asked
 * for in the last part of this one; with AHEAD, every line is, `distance` bytes before it is read. */
static double prefetch_gb_s(const uint8_t *bytes, size_t count, size_t task, int how, size_t distance)
{
    size_t tasks = count / task, next = random_word(9, 0, 0) % tasks;
    double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < tasks; i++) {
        const uint8_t *now = bytes + next * task;
        next = random_word(9, i + 1, 0) % tasks;
        const uint8_t *then = bytes + next * task;
        uint64_t sum[8] = {0}, words[8];
        for (size_t at = 0; at < task; at += sizeof words) {
            if (how == FIRST_LINES && at + distance >= task)
                __builtin_prefetch(then + (at + distance - task));
            if (how == AHEAD)
                __builtin_prefetch(at + distance < task ? now + at + distance : then + (at + distance - task));
            memcpy(words, now + at, sizeof words);
            for (int j = 0; j < 8; j++)
                sum[j] += words[j];
        }
        for (int j = 0; j < 8; j++)
            sink += sum[j];
    }
    return (double)(tasks * task) * 1e-9 / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - start);
}

static void bench_prefetch(size_t count)
{
    static const struct {
        int how;
        size_t distance;
        const char *name;
    } ways[] = {{NO_PREFETCH, 0, "none"}, {FIRST_LINES, 512, "next task, first 512 B"}, {FIRST_LINES, 2048, "next task, first 2 kB"},
                {AHEAD, 512, "512 B ahead"}, {AHEAD, 2048, "2 kB ahead"}, {AHEAD, 4096, "4 kB ahead"}};
    static const size_t tasks[] = {4 << 10, 32 << 10, 256 << 10};
    enum { WAYS = sizeof ways / sizeof ways[0], TASKS = sizeof tasks / sizeof tasks[0] };
    double best[WAYS][TASKS] = {0};
    uint8_t *memory = private_memory(count, MADV_HUGEPAGE);
    memset(memory, 1, count);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WAYS; i++)
            for (int t = 0; t < TASKS; t++) {
                double speed = prefetch_gb_s(memory, count, tasks[t], ways[i].how, ways[i].distance);
                best[i][t] = speed > best[i][t] ? speed : best[i][t];
            }
    printf("\nPrefetch, tasks at random places in huge pages, GB/s per thread\n%-24s %9s %9s %9s\n", "", "4 kB", "32 kB", "256 kB");
    for (int i = 0; i < WAYS; i++)
        printf("%-24s %9.2f %9.2f %9.2f\n", ways[i].name, best[i][0], best[i][1], best[i][2]);
    munmap(memory, count);
}

int main(int argc, char **argv)
{
    int megabytes = argc > 2 ? atoi(argv[2]) : 512;
    if (argc > 3 || megabytes < 8 || megabytes > 1 << 20) {
        fprintf(stderr, "usage: bench_memory [DIRECTORY [MB]]\n");
        return 2;
    }
    size_t count = (size_t)megabytes << 20;
    bench_files(argc > 1 ? argv[1] : ".", count);
    bench_prefetch(count);
    return 0;
}
