/* Instructions of Hopper (sm_90a) that C++ has no name for, one small function each: transaction barriers, bulk copies, warpgroup matrix
 * products, register budgets, dependent launches. Seen by nvcc alone. */
#ifndef DEVICE_GPU_SM90_H
#define DEVICE_GPU_SM90_H

#include <stdint.h>

#include "device/gpu/hopper/sm90_wgmma.h"

/* A barrier that does not complete within this many clocks stops the kernel with a trap instead of hanging the device. A call
 * (printf) would make the compiler serialise matrix products. */
#ifndef SM90_WAIT_CLOCKS
#define SM90_WAIT_CLOCKS 4000000000ll
#endif

static __device__ __forceinline__ uint32_t sm90_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- transaction barriers: 8 bytes of shared memory, a phase completes with `count` arrivals and all announced bytes ---- */

static __device__ __forceinline__ void sm90_barrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* Makes initialised barriers visible to the copy engine. */
static __device__ __forceinline__ void sm90_barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void sm90_barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* One arrival that also announces bytes which bulk copies will bring. */
static __device__ __forceinline__ void sm90_barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* One arrival of this thread when its cp.async copies so far are complete. The barrier's count includes it. */
static __device__ __forceinline__ void sm90_barrier_arrive_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ bool sm90_barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Waits for the phase of this parity. */
static __device__ __forceinline__ void sm90_barrier_wait(uint32_t barrier, uint32_t parity)
{
    if (sm90_barrier_try(barrier, parity))
        return;
    long long begin = clock64();
    while (!sm90_barrier_try(barrier, parity))
        if (clock64() - begin > SM90_WAIT_CLOCKS)
            __trap();
}

/* ---- copies ---- */

/* bytes (a multiple of 16) from 16-byte aligned global memory; completes on the barrier. */
static __device__ __forceinline__ void sm90_copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void sm90_copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Orders this thread's view of shared memory before reads by the tensor cores and the copy engine. */
static __device__ __forceinline__ void sm90_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ uint4 sm90_load_16(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

static __device__ __forceinline__ uint2 sm90_load_8(uint32_t from)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

static __device__ __forceinline__ uint32_t sm90_load_4(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

static __device__ __forceinline__ void sm90_store_4(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

static __device__ __forceinline__ void sm90_store_8(uint32_t to, uint32_t low, uint32_t high)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(low), "r"(high) : "memory");
}

/* Stores to global memory where `here`, without a branch. */
static __device__ __forceinline__ void sm90_write_8(void *to, uint32_t low, uint32_t high, bool here)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.b32 [%0], {%1, %2};}" ::"l"(to), "r"(low), "r"(high), "r"((int)here)
                 : "memory");
}

static __device__ __forceinline__ void sm90_write_4(void *to, uint32_t v, bool here)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.b32 [%0], %1;}" ::"l"(to), "r"(v), "r"((int)here) : "memory");
}

static __device__ __forceinline__ void sm90_write_2(void *to, uint32_t v, bool here)
{
    asm volatile("{.reg .pred p; .reg .b16 t; cvt.u16.u32 t, %1; setp.ne.b32 p, %2, 0; @p st.global.b16 [%0], t;}" ::"l"(to), "r"(v),
                 "r"((int)here)
                 : "memory");
}

/* ---- warpgroup matrix products ---- */

/* Orders register writes of the warpgroup before the products that follow. */
static __device__ __forceinline__ void sm90_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void sm90_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void sm90_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving accesses of the sums across this point. */
template <int COUNT> static __device__ __forceinline__ void sm90_wgmma_pin(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Low half of the descriptor of a tile of rows of 128 bytes, swizzled: 16-byte piece c of row r lies at r * 128 + (c ^ r % 8) * 16.
 * Begins at a multiple of 1024. The high half, 0x40000040, says this layout and 1024 bytes from eight rows to the next eight. */
static __device__ __forceinline__ uint32_t sm90_tile_128(uint32_t shared)
{
    return (shared & 0x3FFFF) >> 4 | 1u << 16;
}

/* ---- execution ---- */

template <int REGISTERS> static __device__ __forceinline__ void sm90_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void sm90_registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* A barrier of some warps of the block: ids 1..15. */
static __device__ __forceinline__ void sm90_warps_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Waits until the launches before this one are complete and their writes visible. */
static __device__ __forceinline__ void sm90_launch_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Lets the next launch of the stream begin; it waits for this one by itself. */
static __device__ __forceinline__ void sm90_launch_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* ---- numbers ---- */

/* Two e4m3 codes, `low` in the low byte; saturates at 448. */
static __device__ __forceinline__ uint16_t sm90_e4m3_pair(float low, float high)
{
    uint16_t v;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
    return v;
}

static __device__ __forceinline__ uint32_t sm90_bf16_pair(float low, float high)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

#endif
