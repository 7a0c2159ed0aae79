// A block's values put together through shared memory, pair by pair, with a barrier after each level of the tree: how it was
// done before lanes could shuffle. Kernels that use it are variants, to be measured beside those that do not.
#pragma once

#define REDUCTION_TREE 1
#define REDUCTION_INTERLEAVED 2

// Every thread gets the result. `scratch_smem` has a value a thread; each call needs its own, or a barrier in between.
// REDUCTION_TREE folds the upper half onto the lower, so that lanes stay neighbours in memory. REDUCTION_INTERLEAVED takes
// neighbours first, then pairs twice as far apart at each level: so are the lanes, and they share ever fewer banks.
template <typename T, typename Merge>
__device__ __forceinline__ T tree_reduce(const T& value, T* scratch_smem, Merge merge) {
    const int thread = threadIdx.x;
    const int threads = blockDim.x;
    scratch_smem[thread] = value;
    __syncthreads();
#if REDUCTION == REDUCTION_INTERLEAVED
    for (int distance = 1; distance < threads; distance *= 2) {
        const int at = 2 * distance * thread;
        if (at + distance < threads) scratch_smem[at] = merge(scratch_smem[at], scratch_smem[at + distance]);
        __syncthreads();
    }
#else
    for (int left = threads; left > 1;) {
        const int kept = (left + 1) / 2;  // whole warps need not be a power of two
        if (thread + kept < left) scratch_smem[thread] = merge(scratch_smem[thread], scratch_smem[thread + kept]);
        __syncthreads();
        left = kept;
    }
#endif
    return scratch_smem[0];
}
