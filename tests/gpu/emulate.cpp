#include "emulate.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {
int emulated_order = getenv("EMULATED_ORDER") ? atoi(getenv("EMULATED_ORDER")) : 0;
long emulated_launches, emulated_graphs;
}
emulated_place *emulated_now;

[[noreturn]] static void stop(const char *why);

/* ---- coroutines ---- */

namespace {

/* Stacks lie 17 cache lines more than a power of two apart: else all of them would meet in the same few sets of the cache. */
enum { STACK_BYTES = 1 << 16, STACK_STRIDE = STACK_BYTES + 17 * 64, MOST_THREADS = 1024, LANES = 32 };

/* Why a thread is not running. */
enum wait_state { READY, AT_BLOCK, AT_LANES, DONE };

struct fiber {
    emulated_place place;
    wait_state state;
    char *stack;
    void *asan;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
};

struct scheduler {
    fiber threads[MOST_THREADS];
    int count, current;
    const std::function<void()> *kernel;
    const char *name;
    char *shared;
    uint32_t exchange[MOST_THREADS];
    uint32_t result[MOST_THREADS];
    void *asan;
    const void *asan_stack;
    size_t asan_bytes;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
} all;

#if defined(__x86_64__)
/* Saves the registers that a call keeps, and continues where `to` stopped. */
asm(".text\n"
    ".type emulated_switch, @function\n"
    "emulated_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emulated_switch, . - emulated_switch\n");
extern "C" void emulated_switch(void **from, void *to);
#endif

void to_scheduler(fiber *f, bool last)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &f->asan, all.asan_stack, all.asan_bytes);
#else
    (void)last;
#endif
#if defined(__x86_64__)
    emulated_switch(&f->sp, all.sp);
#else
    swapcontext(&f->context, &all.context);
#endif
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(f->asan, &all.asan_stack, &all.asan_bytes);
#endif
}

void fiber_main()
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &all.asan_stack, &all.asan_bytes);
#endif
    fiber *f = &all.threads[all.current];
    (*all.kernel)();
    f->state = DONE;
    to_scheduler(f, true);
    abort();
}

void fiber_prepare(fiber *f)
{
    static char *stacks = (char *)aligned_alloc(64, (size_t)MOST_THREADS * STACK_STRIDE);
    f->stack = stacks + (f - all.threads) * STACK_STRIDE;
    f->state = READY;
#if defined(__x86_64__)
    void **top = (void **)(f->stack + STACK_BYTES);
    *--top = nullptr; /* as behind a call: a function begins 8 bytes off a multiple of 16 */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

void fiber_run(int index)
{
    fiber *f = &all.threads[index];
    all.current = index;
    emulated_now = &f->place;
    f->state = READY;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&all.asan, f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
    emulated_switch(&all.sp, f->sp);
#else
    swapcontext(&all.context, &f->context);
#endif
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(all.asan, nullptr, nullptr);
#endif
}

/* Runs the lanes of a warp until all are at a block's barrier, or done. */
wait_state warp_run(int first)
{
    for (;;) {
        int lanes = std::min<int>(LANES, all.count - first), counts[4] = {0};
        for (int i = 0; i < lanes; i++) {
            int lane = first + (emulated_order ? lanes - 1 - i : i);
            fiber_run(lane);
            counts[all.threads[lane].state]++;
        }
        if (counts[AT_BLOCK] == lanes || counts[DONE] == lanes)
            return counts[DONE] ? DONE : AT_BLOCK;
        if (counts[AT_LANES] != lanes)
            stop("the lanes of a warp went different ways: some are at a shuffle, others at a barrier or done");
        memcpy(all.result + first, all.exchange + first, sizeof(uint32_t) * (size_t)lanes);
    }
}

void block_run()
{
    int warps = (all.count + LANES - 1) / LANES;
    for (;;) {
        int waiting = 0;
        for (int i = 0; i < warps; i++)
            waiting += warp_run(LANES * (emulated_order ? warps - 1 - i : i)) == AT_BLOCK;
        if (waiting == 0)
            return;
        if (waiting != warps)
            stop("some warps of the block are at a barrier, others have ended");
    }
}

fiber *wait_as(wait_state why)
{
    fiber *f = &all.threads[all.current];
    f->state = why;
    to_scheduler(f, false);
    return f;
}

} // namespace

static void stop(const char *why)
{
    const emulated_place &p = *emulated_now;
    fprintf(stderr, "emulated kernel %s, block (%u, %u, %u): %s\n", all.name, p.block.x, p.block.y, p.block.z, why);
    abort();
}

void *emulated_shared(void)
{
    return all.shared;
}

void __syncthreads(void)
{
    wait_as(AT_BLOCK);
}

void __syncwarp(void)
{
    wait_as(AT_LANES);
}

uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int lanes)
{
    all.exchange[all.current] = value;
    wait_as(AT_LANES);
    return all.result[all.current ^ lanes];
}

const uint32_t *emulated_exchange(uint32_t value)
{
    all.exchange[all.current] = value;
    wait_as(AT_LANES);
    return all.result + all.current / LANES * LANES;
}

uint32_t __ballot_sync(uint32_t, bool condition)
{
    all.exchange[all.current] = condition;
    wait_as(AT_LANES);
    uint32_t bits = 0;
    int first = all.current / LANES * LANES;
    for (int i = 0; i < LANES; i++)
        bits |= (all.result[first + i] & 1u) << i;
    return bits;
}

/* ---- launches and graphs ---- */

struct emulated_graph {
    std::vector<std::function<void()>> calls;
};

static emulated_graph *recording;

static void call_or_record(std::function<void()> call)
{
    if (recording)
        recording->calls.push_back(call);
    else
        call();
}

static void run_grid(const char *name, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &kernel)
{
    unsigned blocks = grid.x * grid.y * grid.z;
    all.count = (int)(block.x * block.y * block.z);
    all.kernel = &kernel;
    all.name = name;
    all.shared = (char *)aligned_alloc(16, (shared_bytes + 31) / 16 * 16);
    emulated_launches++;
    for (unsigned i = 0; i < blocks; i++) {
        unsigned b = emulated_order ? blocks - 1 - i : i;
        memset(all.shared, 0xFF, shared_bytes); /* NaN: nothing may be read before it is written */
        for (int t = 0; t < all.count; t++) {
            fiber *f = &all.threads[t];
            f->place = {dim3((unsigned)t), dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y), grid, block};
            fiber_prepare(f);
        }
        block_run();
    }
    free(all.shared);
}

void emulated_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, emulatedStream_t, std::function<void()> kernel)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || block.x == 0 || block.x > MOST_THREADS ||
        block.y != 1 || block.z != 1 || block.x % LANES != 0 || shared_bytes > 48 * 1024) {
        fprintf(stderr, "emulated kernel %s: a GPU would refuse grid (%u, %u, %u), %u threads, %zu bytes of shared memory\n", name, grid.x,
                grid.y, grid.z, block.x, shared_bytes);
        abort();
    }
    call_or_record([=] { run_grid(name, grid, block, shared_bytes, kernel); });
}

/* ---- the runtime ---- */

extern "C" {

emulatedError_t emulatedMalloc(void **out, size_t bytes)
{
    *out = malloc(bytes);
    if (!*out)
        return emulatedErrorMemoryAllocation;
    memset(*out, 0xFF, std::min<size_t>(bytes, 1 << 26));
    return emulatedSuccess;
}

emulatedError_t emulatedFree(void *memory)
{
    free(memory);
    return emulatedSuccess;
}

emulatedError_t emulatedMallocHost(void **out, size_t bytes)
{
    return emulatedMalloc(out, bytes);
}

emulatedError_t emulatedFreeHost(void *memory)
{
    return emulatedFree(memory);
}

emulatedError_t emulatedMemcpyAsync(void *to, const void *from, size_t bytes, int, emulatedStream_t)
{
    call_or_record([=] { memcpy(to, from, bytes); });
    return emulatedSuccess;
}

emulatedError_t emulatedMemsetAsync(void *memory, int value, size_t bytes, emulatedStream_t)
{
    call_or_record([=] { memset(memory, value, bytes); });
    return emulatedSuccess;
}

emulatedError_t emulated_capture_begin(emulatedStream_t)
{
    if (recording)
        return emulatedErrorInvalidValue;
    recording = new emulated_graph;
    return emulatedSuccess;
}

emulatedError_t emulated_capture_end(emulatedStream_t, emulatedGraphExec_t *out)
{
    if (!recording)
        return emulatedErrorInvalidValue;
    *out = recording;
    recording = nullptr;
    return emulatedSuccess;
}

emulatedError_t emulated_graph_launch(emulatedGraphExec_t g, emulatedStream_t)
{
    emulated_graphs++;
    for (const auto &call : g->calls)
        call();
    return emulatedSuccess;
}

void emulated_graph_destroy(emulatedGraphExec_t g)
{
    delete g;
}
}
