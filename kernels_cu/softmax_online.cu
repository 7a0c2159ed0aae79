// Rung: 3, softmax-online
// Idea: the maximum and the sum come out of one pass. A running pair (m, l) holds the largest value so far and the sum
//   of e^(x - m) so far; when a larger value m' comes, l is carried over to it by one factor: l <- l * e^(m - m').
// Change from the previous rung: the passes for the maximum and for the sum become one. Every thread keeps its own
//   pair, and the pairs are merged over the lanes and the warps by the same rule, which is associative.
// Traffic: 2 reads + 1 write of the matrix. The second read stays in L2 while the rows in flight fit there.
// Tiles / threads / shared memory: one block a row; 32 to MAX_THREADS threads, by the row's length; BATCH 16-byte loads
//   in flight a thread, and one rescaling a batch rather than an element; 256 bytes of static shared memory.
// Limits: a row whose entries are all -inf gives NaN (-inf - (-inf)), as the definition and torch.softmax do; so does a
//   row that holds NaN or +inf. Up to 2^30 columns; x and y at the same offset from a 16-byte boundary.
// References: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, algorithm 3 and
//   section 3.1 (the merge as an associative operation).
#include "common/matrix_row.cuh"
#include "common/statistics.cuh"

#ifndef MAX_THREADS
#define MAX_THREADS 512
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 2
#endif
static_assert(MAX_THREADS % 32 == 0 && MAX_THREADS <= 1024, "MAX_THREADS must be whole warps, at most 1024 threads");

// -DRESCALE=RESCALE_ELEMENT: as the recurrence is written down, a rescaling an element, to measure what that costs.
#define RESCALE_BATCH 0
#define RESCALE_ELEMENT 1
#ifndef RESCALE
#define RESCALE RESCALE_BATCH
#endif

// Pass 1: (m, l) of the row, in every thread.
__device__ __forceinline__ Statistics row_statistics(const Row& row, float2* scratch_smem) {
    Statistics running;
    for (int first = threadIdx.x; first < row.chunks; first += BATCH * blockDim.x) {
        uint4 batch[BATCH];
        load_batch(row, first, batch);
#if RESCALE == RESCALE_BATCH
        include(running, batch);
#else
#pragma unroll
        for (const uint4& chunk : batch) {
            float values[CHUNK];
            unpack(chunk, values);
#pragma unroll
            for (float value : values) include(running, value);
        }
#endif
    }
    for (int i = threadIdx.x; i < row.edge; i += blockDim.x) include(running, to_float(row.x[row.edge_offset(i)]));
    return block_merge(running, scratch_smem);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
softmax_online(const element* __restrict__ x,  // (rows, cols)
               element* __restrict__ y,        // (rows, cols)
               int cols) {
    __shared__ float2 scratch_smem[SCRATCH];  // (m, l)
    const Row row = row_of(x, y, blockIdx.x, cols);

    const Statistics all = row_statistics(row, scratch_smem);

    // Pass 2. The maximum is used as it is, not anchored: a row of -inf alone must come out NaN.
    write_normalised(row, all.max, reciprocal(all.sum));
}
