// The softmax statistics of a row, m = max x and l = sum e^(x - m), and their reductions over lanes, warps, blocks.
#pragma once

#include "chunk.cuh"
#include "tree.cuh"

struct Statistics {
    float max = NEGATIVE_INFINITY;
    float sum = 0.0f;  // of e^(x - max)
};

// What to subtract before exponentiating values whose maximum is `max`: where all of them are -inf, 0 stands in,
// because -inf - (-inf) is NaN and a lane without a finite value must count for nothing.
__device__ __forceinline__ float anchor(float max) { return max == NEGATIVE_INFINITY ? 0.0f : max; }

// The factor that carries a sum taken relative to `from` over to `to` >= `from`. Equal maxima are told apart because
// two infinite ones would give NaN.
__device__ __forceinline__ float rescaling(float from, float to) { return from == to ? 1.0f : exponential(from - to); }

// The statistics of two sets of values together.
__device__ __forceinline__ Statistics merge(const Statistics& a, const Statistics& b) {
    Statistics both;
    both.max = fmaxf(a.max, b.max);
    both.sum = a.sum * rescaling(a.max, both.max) + b.sum * rescaling(b.max, both.max);
    return both;
}

// Take chunks into a running pair: their maximum first, then one rescaling for all of them, then their exponentials.
template <int count>
__device__ __forceinline__ void include(Statistics& running, const uint4 (&chunks)[count]) {
    PackedMax highest;
#pragma unroll
    for (const uint4& chunk : chunks) highest.include(chunk);
    const float max = fmaxf(running.max, highest.value());
    float sum = running.sum * rescaling(running.max, max);
    const float shift = anchor(max);
#pragma unroll
    for (const uint4& chunk : chunks) {
        float values[CHUNK];
        unpack(chunk, values);
#pragma unroll
        for (float value : values) sum += exponential(value - shift);
    }
    running = {max, sum};
}

// Take one value into a running pair, as the recurrence is written. NaN, passed over by the maximum, and +inf make the sum
// NaN; -inf counts for nothing.
__device__ __forceinline__ void include(Statistics& running, float value) {
    const float max = fmaxf(running.max, value);
    const float shift = anchor(max);
    running = {max, running.sum * exponential(running.max - shift) + exponential(value - shift)};
}

// Over `lanes` neighbouring lanes (a power of two); every lane gets the result.
template <int lanes = 32>
__device__ __forceinline__ float lanes_max(float value) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

template <int lanes = 32>
__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

// Statistics relative to different maxima: find the common maximum first, then one exponential a lane carries its sum
// over. Merging pair by pair would cost two exponentials at each of the five steps.
template <int lanes = 32>
__device__ __forceinline__ Statistics lanes_merge(const Statistics& own) {
    Statistics all;
    all.max = lanes_max<lanes>(own.max);
    all.sum = lanes_sum<lanes>(own.sum * rescaling(own.max, all.max));
    return all;
}

// How the threads of a block put their values together. The kernels are written for shuffles; the trees are there to be
// measured beside them.
#define REDUCTION_SHUFFLE 0
#ifndef REDUCTION
#define REDUCTION REDUCTION_SHUFFLE
#endif

constexpr int MAX_WARPS = 32;
// Values of scratch that a reduction takes: one a warp, or in a tree one a thread.
constexpr int SCRATCH = REDUCTION == REDUCTION_SHUFFLE ? MAX_WARPS : 32 * MAX_WARPS;

#if REDUCTION == REDUCTION_SHUFFLE

// Over the block: one value a warp goes through shared memory, and every warp reduces them again, so that one barrier
// does. Each call needs its own scratch, or a barrier between two calls on the same one.
template <typename Reduce>
__device__ __forceinline__ float block_reduce(float value, float identity, float* scratch_smem, Reduce reduce) {
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    value = reduce(value);
    if (lane == 0) scratch_smem[threadIdx.x / 32] = value;
    __syncthreads();
    return reduce(lane < warps ? scratch_smem[lane] : identity);
}

__device__ __forceinline__ float block_max(float value, float* scratch_smem) {
    return block_reduce(value, NEGATIVE_INFINITY, scratch_smem, [](float v) { return lanes_max(v); });
}

__device__ __forceinline__ float block_sum(float value, float* scratch_smem) {
    return block_reduce(value, 0.0f, scratch_smem, [](float v) { return lanes_sum(v); });
}

// As above for statistics; scratch_smem holds one pair (m, l) a warp.
__device__ __forceinline__ Statistics block_merge(const Statistics& own, float2* scratch_smem) {
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    const Statistics warp = lanes_merge(own);
    if (lane == 0) scratch_smem[threadIdx.x / 32] = make_float2(warp.max, warp.sum);
    __syncthreads();
    Statistics other;
    if (lane < warps) other = {scratch_smem[lane].x, scratch_smem[lane].y};
    return lanes_merge(other);
}

#else

__device__ __forceinline__ float block_max(float value, float* scratch_smem) {
    return tree_reduce(value, scratch_smem, [](float a, float b) { return fmaxf(a, b); });
}

__device__ __forceinline__ float block_sum(float value, float* scratch_smem) {
    return tree_reduce(value, scratch_smem, [](float a, float b) { return a + b; });
}

// Scratch as float2, which moves in one access.
__device__ __forceinline__ Statistics block_merge(const Statistics& own, float2* scratch_smem) {
    const float2 all = tree_reduce(make_float2(own.max, own.sum), scratch_smem, [](const float2& a, const float2& b) {
        const Statistics both = merge({a.x, a.y}, {b.x, b.y});
        return make_float2(both.max, both.sum);
    });
    return {all.x, all.y};
}

#endif
