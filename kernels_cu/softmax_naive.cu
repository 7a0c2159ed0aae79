// Rung: 1, softmax-naive
// Idea: the definition as it stands, y = e^x / sum e^x, in two passes: add up the exponentials, then divide by the sum.
// Change from the previous rung: none, this is the first.
// Traffic: 2 reads + 1 write of the matrix. The second read stays in L2 while the rows in flight fit there.
// Tiles / threads / shared memory: one block a row; 32 to MAX_THREADS threads, by the row's length; BATCH 16-byte loads
//   in flight a thread; 128 bytes of static shared memory for the sum over the warps.
// Limits: WRONG for ordinary logits, which is what it is here to show. e^x leaves fp32 above x = 88.72, and then
//   inf / inf = NaN; where every x is below -87.34 all exponentials flush to zero, and 0 / 0 = NaN. Only moderate
//   logits come out right. Up to 2^30 columns; x and y at the same offset from a 16-byte boundary.
// References: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, algorithm 1.
#include "common/matrix_row.cuh"
#include "common/statistics.cuh"

#ifndef MAX_THREADS
#define MAX_THREADS 512
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 2
#endif
static_assert(MAX_THREADS % 32 == 0 && MAX_THREADS <= 1024, "MAX_THREADS must be whole warps, at most 1024 threads");

// Sum of e^x over the row, in every thread. The additions run in the order chunk by chunk a thread, then lanes, then
// warps: the same each time, so that results repeat bit for bit.
__device__ __forceinline__ float sum_of_exponentials(const Row& row, float* scratch_smem) {
    float sum = 0.0f;
    for (int first = threadIdx.x; first < row.chunks; first += BATCH * blockDim.x) {
        uint4 batch[BATCH];
        load_batch(row, first, batch);
#pragma unroll
        for (const uint4& chunk : batch) {
            float values[CHUNK];
            unpack(chunk, values);
#pragma unroll
            for (float value : values) sum += exponential(value);
        }
    }
    for (int i = threadIdx.x; i < row.edge; i += blockDim.x) sum += exponential(to_float(row.x[row.edge_offset(i)]));
    return block_sum(sum, scratch_smem);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
softmax_naive(const element* __restrict__ x,  // (rows, cols)
              element* __restrict__ y,        // (rows, cols)
              int cols) {
    __shared__ float scratch_smem[SCRATCH];
    const Row row = row_of(x, y, blockIdx.x, cols);

    const float sum = sum_of_exponentials(row, scratch_smem);

    // 1 / inf = 0, so that a row that overflows reads inf * 0 = NaN where e^x does, and 0 elsewhere.
    write_normalised(row, 0.0f, reciprocal(sum));
}
