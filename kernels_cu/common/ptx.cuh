// PTX wrappers that the sm_80 rungs share. Inline assembly lives in kernels_cu/common/ and nowhere else.
#pragma once

#include "element.cuh"

// The 32-bit shared-window address that ldmatrix and cp.async take.
__device__ __forceinline__ unsigned smem_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copy 16 bytes global -> shared past the registers. .cg skips L1: a tile is read once by this block.
__device__ __forceinline__ void cp_async_16(unsigned smem, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(smem), "l"(global) : "memory");
}

// As above, but only `bytes` (0 or 16) are read and the rest is filled with zeros: the ragged edge of a tile.
// The address must still be valid when bytes is 0, so callers clamp it.
__device__ __forceinline__ void cp_async_16_zfill(unsigned smem, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(global), "r"(bytes) : "memory");
}

// The same for one 4-byte element, through L1.
__device__ __forceinline__ void cp_async_4_zfill(unsigned smem, const void* global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(smem), "l"(global), "r"(bytes) : "memory");
}

// Close the group of copies issued so far.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Wait until at most `pending` of the youngest groups are still in flight. Other threads' copies need a barrier too.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

// A barrier among `threads` threads, whole warps, of the block. Barrier 0 is that of __syncthreads.
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i supplies the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&fragment)[4], unsigned smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(smem)
                 : "memory");
}

// The same, each matrix transposed on the way: turns row-major V into the column-major B operand.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&fragment)[4], unsigned smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(smem)
                 : "memory");
}

// acc(16x8, fp32) += a(16x16) * b(16x8). Lane l holds, with g = l / 4 and t = l % 4:
//   a[0] = A[g][2t..]  a[1] = A[g+8][2t..]  a[2] = A[g][2t+8..]  a[3] = A[g+8][2t+8..]
//   b0   = B[2t..][g]  b1   = B[2t+8..][g]
//   acc  = {C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]}
__device__ __forceinline__ void mma_16x8x16(float (&acc)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if ELEMENT == ELEMENT_FP16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
#endif
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x on the special-function unit; 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

#define INF __int_as_float(0x7f800000)  // NVRTC has no INFINITY

// A value that is the same in all lanes of a warp, so that the compiler knows it too and gives it a uniform register.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// `value`, but the compiler may not see that it is: what derives from the result is computed where it is used, where it
// would otherwise be moved out of a loop, or kept across one, in registers that the products need.
template <typename T>
__device__ __forceinline__ T computed_late(T value) {
    asm volatile("" : "+r"(value));
    return value;
}

// The same from an architecture on (1000: sm_100), where ptxas keeps more across a loop, and `value` itself before: the
// machine code of older ones, sm_90's above all, stays what was measured.
template <int arch, typename T>
__device__ __forceinline__ T computed_late_from(T value) {
#if __CUDA_ARCH__
    if constexpr (__CUDA_ARCH__ >= arch) return computed_late(value);
#endif
    return value;
}

// Ask for the 128-byte line at an address to be brought from HBM into L2. It takes no register and nobody waits for it.
__device__ __forceinline__ void prefetch_l2(const void* pointer) {
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(pointer));
}

// The cache policy of what L2 should evict last.
__device__ __forceinline__ unsigned long long evict_last() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}

// Loads of 16 bytes with it, into registers and, as cp_async_16, into shared memory.
__device__ __forceinline__ uint4 load_16_evict_last(const void* pointer) {
    uint4 value;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(pointer), "l"(evict_last()));
    return value;
}

__device__ __forceinline__ void cp_async_16_evict_last(unsigned smem, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(global), "l"(evict_last())
                 : "memory");
}

// Loads and stores of 16 bytes that are used once: keep them from displacing what will be read again.
__device__ __forceinline__ uint4 load_16_streaming(const void* pointer) {
    uint4 value;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(pointer)
                 : "memory");
    return value;
}

__device__ __forceinline__ void store_16_streaming(void* pointer, uint4 value) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"l"(pointer), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}
