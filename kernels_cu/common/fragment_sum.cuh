// Sums of mma accumulators in global memory: 16 x 8 fp32 elements after another, each as the 32 lanes of a warp hold them.
#pragma once

#include "ptx.cuh"

// Add a lane's four elements of a 16 x 8 fragment to `sum`, 128 floats, without waiting for the result. From sm_90 on one
// instruction adds 16 bytes a lane, so an element's four lie together; before, each adds 4 bytes a lane, and so the lanes'
// first elements lie together, then their second, and so on.
__device__ __forceinline__ void add_fragment(float* sum, const float (&acc)[4]) {
    const int lane = computed_late(threadIdx.x) % 32;
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(sum + lane * 4), "f"(acc[0]),
                 "f"(acc[1]), "f"(acc[2]), "f"(acc[3])
                 : "memory");
#else
    // With the offsets in the instructions one address serves all four.
    asm volatile(
        "red.relaxed.gpu.global.add.f32 [%0], %1;\n"
        "red.relaxed.gpu.global.add.f32 [%0+128], %2;\n"
        "red.relaxed.gpu.global.add.f32 [%0+256], %3;\n"
        "red.relaxed.gpu.global.add.f32 [%0+384], %4;\n" ::"l"(sum + lane),
        "f"(acc[0]), "f"(acc[1]), "f"(acc[2]), "f"(acc[3])
        : "memory");
#endif
}

// rows[0] += row `g` of a fragment, rows[1] += row g + 8: both lie with the lanes 4g .. 4g + 3, two columns a lane.
__device__ __forceinline__ void add_rows_of_fragment(float (&rows)[2][8], const float* sum, int g) {
    float values[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if __CUDA_ARCH__ >= 900
        const float4 part = *reinterpret_cast<const float4*>(sum + (4 * g + i) * 4);  // of lane 4g + i
#else
        const float4 part = *reinterpret_cast<const float4*>(sum + i * 32 + 4 * g);  // element i of the four lanes
#endif
        values[i][0] = part.x, values[i][1] = part.y, values[i][2] = part.z, values[i][3] = part.w;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int column = 0; column < 8; ++column) {
            const int lane = column / 2, e = 2 * r + column % 2;
#if __CUDA_ARCH__ >= 900
            rows[r][column] += values[lane][e];
#else
            rows[r][column] += values[e][lane];
#endif
        }
}

// sum + a · b of two packed pairs, in fp32.
__device__ __forceinline__ float dot2(unsigned a, unsigned b, float sum) {
    const float2 x = unpack2(a);
    const float2 y = unpack2(b);
    return fmaf(x.y, y.y, fmaf(x.x, y.x, sum));
}
