// PTX wrappers for thread block clusters (compute capability 9.0 and later).
#pragma once

// This block's rank among the CLUSTER blocks of its cluster.
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return static_cast<int>(rank);
}

// The two halves of the cluster's barrier. What a thread wrote before it arrived, other blocks' shared memory
// included, is seen by every thread of the cluster that has waited. Between the halves a thread may do other work.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// Write a pair of floats into the shared memory of the block of that rank, where `smem` points in this block's own.
__device__ __forceinline__ void store_to_rank(float2* smem, int rank, float2 value) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "st.shared::cluster.v2.f32 [remote], {%2, %3};\n"
                 "}\n" ::"r"(address), "r"(rank), "f"(value.x), "f"(value.y)
                 : "memory");
}
