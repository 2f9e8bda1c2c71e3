/* Instructions of Hopper (sm_90a) that attention and indexer use: barriers, clusters, f16 conversions, and the warpgroup product
 * m64nNk16 of f16 operands in shared memory with f32 sums. Seen by nvcc alone. */
#ifndef DEVICE_GPU_SM90_ATTENTION_H
#define DEVICE_GPU_SM90_ATTENTION_H

#include <stdint.h>
#include <stdio.h>

#include "device/gpu/hopper/gpu_attention_layout.h"

/* A barrier that does not complete within this many clocks stops the kernel with a message instead of hanging the device. */
#ifndef SM90_ATTENTION_WAIT_CLOCKS
#define SM90_ATTENTION_WAIT_CLOCKS 4000000000ll
#endif

/* How long the hardware may keep a waiting warp asleep before it looks again. 0 was faster: 487 TFLOP/s of attention_rows, 474 with
 * 20000. */
#ifndef SM90_ATTENTION_SLEEP_NS
#define SM90_ATTENTION_SLEEP_NS 0
#endif

static __device__ __forceinline__ uint32_t sm90a_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */

static __device__ __forceinline__ void sm90a_barrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void sm90a_barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void sm90a_barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* One arrival for the whole warp, after all its lanes came here. */
static __device__ __forceinline__ void sm90a_barrier_arrive_warp(uint32_t barrier)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        sm90a_barrier_arrive(barrier);
}

static __device__ __forceinline__ bool sm90a_barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3; selp.b32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity), "n"(SM90_ATTENTION_SLEEP_NS)
                 : "memory");
    return done != 0;
}

/* Ends a kernel that hangs. With SM90_ATTENTION_SAY it names the barrier first; not otherwise, because a kernel that calls a function loses
 * the larger part of its registers. */
static __device__ __forceinline__ void sm90a_stuck(int what)
{
#ifdef SM90_ATTENTION_SAY
    printf("block %d,%d thread %d: barrier %d never completed its phase\n", (int)blockIdx.x, (int)blockIdx.y, (int)threadIdx.x, what);
#endif
    (void)what;
    __trap();
}

/* Waits for the phase of this parity. `what` names the barrier in the message of a hang. */
static __device__ __forceinline__ void sm90a_barrier_wait(uint32_t barrier, uint32_t parity, int what)
{
    if (sm90a_barrier_try(barrier, parity))
        return;
    long long begin = clock64();
    while (!sm90a_barrier_try(barrier, parity))
        if (clock64() - begin > SM90_ATTENTION_WAIT_CLOCKS)
            sm90a_stuck(what);
}

/* A barrier of some warps of the block. */
static __device__ __forceinline__ void sm90a_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* What this thread wrote to shared memory can be read by the matrix units. */
static __device__ __forceinline__ void sm90a_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- bulk copies ---- */

static __device__ __forceinline__ void sm90a_barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* bytes (a multiple of 16) from 16-byte aligned global memory; completes on the barrier. */
static __device__ __forceinline__ void sm90a_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

/* 16 bytes from global memory without a register; of them `bytes` are read, the rest are zeros. */
static __device__ __forceinline__ void sm90a_copy16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* One arrival of this thread when its copies so far are complete. The barrier's count includes it. */
static __device__ __forceinline__ void sm90a_barrier_arrive_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* ---- clusters ---- */

static __device__ __forceinline__ uint32_t sm90a_cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Everything written before is seen by every block of the cluster after. */
static __device__ __forceinline__ void sm90a_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address of the same shared memory in another block of the cluster. */
static __device__ __forceinline__ uint32_t sm90a_cluster_address(uint32_t address, uint32_t rank)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

/* What this thread and those it met wrote is seen by the cluster before what it writes next. */
static __device__ __forceinline__ void sm90a_cluster_fence(void)
{
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

/* Arrives at a barrier of any block of the cluster. */
static __device__ __forceinline__ void sm90a_cluster_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Waits for the phase of this parity of a barrier at which other blocks of the cluster arrive. */
static __device__ __forceinline__ void sm90a_cluster_wait(uint32_t barrier, uint32_t parity, int what)
{
    long long begin = clock64();
    for (uint32_t done = 0; !done;) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (!done && clock64() - begin > SM90_ATTENTION_WAIT_CLOCKS)
            sm90a_stuck(what);
    }
}

static __device__ __forceinline__ void sm90a_cluster_store(uint32_t address, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

static __device__ __forceinline__ void sm90a_cluster_store4(uint32_t address, float a, float b, float c, float d)
{
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

/* ---- numbers ---- */

/* Two f16 in a word: `low` in the lower half. */
static __device__ __forceinline__ uint32_t sm90a_f16x2(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* The f16 in the lower half of a word. */
static __device__ __forceinline__ float sm90a_f16_value(uint32_t v)
{
    float d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(d) : "r"(v));
    return d;
}

/* The e4m3 codes in the lower or upper half of a word, exactly. */
static __device__ __forceinline__ uint32_t sm90a_e4m3_low(uint32_t codes)
{
    uint32_t d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(d) : "r"(codes));
    return d;
}

static __device__ __forceinline__ uint32_t sm90a_e4m3_high(uint32_t codes)
{
    uint32_t d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(d) : "r"(codes));
    return d;
}

/* Two bf16 in a word to two f16. */
static __device__ __forceinline__ uint32_t sm90a_bf16_to_f16(uint32_t v)
{
    return sm90a_f16x2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

static __device__ __forceinline__ uint32_t sm90a_f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

static __device__ __forceinline__ uint32_t sm90a_f16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* 2^x, by the approximation of the hardware. */
static __device__ __forceinline__ float sm90a_exp2(float x)
{
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

static __device__ __forceinline__ void sm90a_store16(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

static __device__ __forceinline__ void sm90a_store4(uint32_t address, uint32_t a)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(a) : "memory");
}

static __device__ __forceinline__ void sm90a_store2(uint32_t address, uint32_t a)
{
    asm volatile("{.reg .b16 l, h; mov.b32 {l, h}, %1; st.shared.b16 [%0], l;}" ::"r"(address), "r"(a) : "memory");
}

/* Four 8 x 8 matrices of f16 in the layout of the products' results: lane 8m + r gives the address of line r of matrix m. */
static __device__ __forceinline__ void sm90a_store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

static __device__ __forceinline__ uint4 sm90a_shared_load16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

static __device__ __forceinline__ float sm90a_shared_load(uint32_t address)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}

/* Brings the line of an address into the second cache. */
static __device__ __forceinline__ void sm90a_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* 16 bytes that nobody writes during the kernel; read once, so that they need not stay in the first cache. */
static __device__ __forceinline__ uint4 sm90a_load16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

static __device__ __forceinline__ uint32_t sm90a_load4(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

/* ---- registers of a warpgroup ---- */

template <int COUNT> static __device__ __forceinline__ void sm90a_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void sm90a_registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- products of a warpgroup ---- */

static __device__ __forceinline__ void sm90a_product_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void sm90a_product_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* At most PENDING groups of products are still running afterwards. */
template <int PENDING> static __device__ __forceinline__ void sm90a_product_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Tells the compiler that registers of a running product may have changed. */
template <int COUNT> static __device__ __forceinline__ void sm90a_touch(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* d[64][N] = (add ? d : 0) + a[64][16] b[16][N], f16 times f16 into f32; a and b as sm90_tile says. A_ACROSS: the summed index counts a's
 * lines; B_ACROSS likewise. Thread t of the group has of d, for n < N / 8 and e < 2, in d[4n + e] line 16 (t / 32) + t % 32 / 4 and in
 * d[4n + 2 + e] the line 8 further down, column 8n + 2 (t % 4) + e. */
template <int N, int A_ACROSS, int B_ACROSS> struct sm90a_product;

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<8, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[4], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                     "%0, %1, %2, %3"
                     "}, %4, %5, p, 1, 1, %7, %8;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<16, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[8], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7"
                     "}, %8, %9, p, 1, 1, %11, %12;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<24, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[12], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
                     "}, %12, %13, p, 1, 1, %15, %16;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<32, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[16], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                     "}, %16, %17, p, 1, 1, %19, %20;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<64, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[32], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                     "}, %32, %33, p, 1, 1, %35, %36;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<128, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[64], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                     "}, %64, %65, p, 1, 1, %67, %68;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                       "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                       "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                       "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

template <int A_ACROSS, int B_ACROSS> struct sm90a_product<256, A_ACROSS, B_ACROSS> {
    static __device__ __forceinline__ void run(float (&d)[128], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                     "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                     "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                     "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                     "}, %128, %129, p, 1, 1, %131, %132;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                       "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                       "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                       "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                       "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                       "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                       "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                       "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                       "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                       "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                       "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
                       "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)
                     : "memory");
    }
};

#endif
