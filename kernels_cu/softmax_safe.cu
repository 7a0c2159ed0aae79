// Rung: 2, softmax-safe
// Idea: y = e^(x - m) / sum e^(x - m) with m the row's maximum. Nothing overflows: every exponent is 0 or less, and the
//   largest exponential is exactly 1.
// Change from the previous rung: the maximum is subtracted, which takes a pass of its own before the sum can start.
// Traffic: 3 reads + 1 write of the matrix. The re-reads stay in L2 while the rows in flight fit there.
// Tiles / threads / shared memory: one block a row; 32 to MAX_THREADS threads, by the row's length; BATCH 16-byte loads
//   in flight a thread; 256 bytes of static shared memory for the reductions over the warps.
// Limits: a row whose entries are all -inf gives NaN (-inf - (-inf)), as the definition and torch.softmax do; so does a
//   row that holds NaN or +inf. Up to 2^30 columns; x and y at the same offset from a 16-byte boundary.
// References: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, algorithm 2.
#include "common/matrix_row.cuh"
#include "common/statistics.cuh"

#ifndef MAX_THREADS
#define MAX_THREADS 512
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 2
#endif
static_assert(MAX_THREADS % 32 == 0 && MAX_THREADS <= 1024, "MAX_THREADS must be whole warps, at most 1024 threads");

// Pass 1: the row's maximum, in every thread.
__device__ __forceinline__ float row_max(const Row& row, float* scratch_smem) {
    PackedMax highest;
    for (int first = threadIdx.x; first < row.chunks; first += BATCH * blockDim.x) {
        uint4 batch[BATCH];
        load_batch(row, first, batch);
#pragma unroll
        for (const uint4& chunk : batch) highest.include(chunk);
    }
    float max = highest.value();
    for (int i = threadIdx.x; i < row.edge; i += blockDim.x) max = fmaxf(max, to_float(row.x[row.edge_offset(i)]));
    return block_max(max, scratch_smem);
}

// Pass 2: the sum of e^(x - max), in every thread. Empty chunks add e^-inf = 0; where max itself is -inf they add NaN,
// and then the row is NaN in any case.
__device__ __forceinline__ float row_sum(const Row& row, float max, float* scratch_smem) {
    float sum = 0.0f;
    for (int first = threadIdx.x; first < row.chunks; first += BATCH * blockDim.x) {
        uint4 batch[BATCH];
        load_batch(row, first, batch);
#pragma unroll
        for (const uint4& chunk : batch) {
            float values[CHUNK];
            unpack(chunk, values);
#pragma unroll
            for (float value : values) sum += exponential(value - max);
        }
    }
    for (int i = threadIdx.x; i < row.edge; i += blockDim.x) {
        sum += exponential(to_float(row.x[row.edge_offset(i)]) - max);
    }
    return block_sum(sum, scratch_smem);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
softmax_safe(const element* __restrict__ x,  // (rows, cols)
             element* __restrict__ y,        // (rows, cols)
             int cols) {
    // One scratch each, so that a fast warp may write its sum while a slow one still reads the maxima.
    __shared__ float max_smem[SCRATCH];
    __shared__ float sum_smem[SCRATCH];
    const Row row = row_of(x, y, blockIdx.x, cols);

    const float max = row_max(row, max_smem);
    const float sum = row_sum(row, max, sum_smem);
    write_normalised(row, max, reciprocal(sum));
}
