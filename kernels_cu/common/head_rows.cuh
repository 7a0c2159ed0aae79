// The rows of one head of a tensor (batch, heads, length, d), and copies of tiles of them to shared memory.
#pragma once

#include "tile.cuh"

// Rows of a contiguous tensor whose d is known. Row numbers over all heads fit 32 bits, elements do not.
template <typename T, int head_dim>
struct ContiguousRows {
    static constexpr int pitch = head_dim;
    static constexpr int chunks = head_dim / 8;
    T* tensor;
    unsigned first;  // row of the tensor

    __device__ __forceinline__ T* at(int row) const {
        return tensor + static_cast<unsigned long long>(first + row) * head_dim;
    }
};

// Rows of any d that is a multiple of 8, any multiple of 8 elements apart.
template <typename T>
struct StridedRows {
    T* first;
    long long pitch;  // elements
    int chunks;       // 16-byte chunks that a row has

    __device__ __forceinline__ T* at(int row) const { return first + row * pitch; }
};

// -DSTRIDED=1 compiles a kernel for any tensor.
#if STRIDED
template <typename T, int head_dim>
using HeadRows = StridedRows<T>;
#else
template <typename T, int head_dim>
using HeadRows = ContiguousRows<T, head_dim>;
#endif

template <typename T>
__device__ __forceinline__ StridedRows<T> strided_rows(T* tensor, int batch, long long batch_stride, int head,
                                                       long long head_stride, long long row_stride, int head_dim) {
    return {tensor + computed_late(batch) * batch_stride + computed_late(head) * head_stride, row_stride, head_dim / 8};
}

// How `threads` threads share a tile of `rows` rows: `across` of them side by side, and so a multiple of 8 rows a pass:
// then a thread's swizzle never changes, and it copies the same chunks of each of its rows.
constexpr int threads_across(int rows, int chunks, int threads, bool whole_rows) {
    if (whole_rows && threads % (chunks * 8) == 0) return chunks;
    int across = chunks % 8 == 0 ? 8 : 4;
    while (rows % (threads / across) != 0 && chunks % (2 * across) == 0) across *= 2;
    return across;
}

template <int tile_rows, int tile_chunks, int threads, bool whole_rows>
struct CopyShape {
    static constexpr int across = threads_across(tile_rows, tile_chunks, threads, whole_rows);
    static constexpr int rows = threads / across;
    static_assert(threads % across == 0 && rows % 8 == 0, "a pass must copy a multiple of 8 rows");
    static_assert(tile_rows % rows == 0, "a tile must be whole passes");
};

// Copy `rows` rows from row0 on, all of which exist, into a tile of rows of `tile_chunks` chunks. Chunks that the tensor
// lacks are left as they are.
template <int rows, int tile_chunks, int threads, typename T, int head_dim>
__device__ __forceinline__ void copy_rows(unsigned tile_smem, const ContiguousRows<T, head_dim>& head, int row0) {
    using Shape = CopyShape<rows, tile_chunks, threads, true>;
    static_assert(tile_chunks * 8 == head_dim, "the tile is as wide as the rows");
    const unsigned thread = computed_late(threadIdx.x);
    const unsigned row = thread / Shape::across, chunk = thread % Shape::across;
    // The chunks of whole rows follow one another: chunk number `thread` is what the other expression comes to.
    const unsigned offset = Shape::across == tile_chunks ? thread * 8 : row * head_dim + chunk * 8;
    const T* from = head.at(row0) + offset;
    const unsigned to_smem = tile_smem + swizzled<tile_chunks>(row, chunk);
#pragma unroll
    for (int i = 0; i < rows; i += Shape::rows)
#pragma unroll
        for (int c = 0; c < tile_chunks; c += Shape::across)
            cp_async_16(to_smem + (i * pitch_chunks<tile_chunks> + c) * 16, from + i * head_dim + c * 8);
}

template <int rows, int tile_chunks, int threads, typename T>
__device__ __forceinline__ void copy_rows(unsigned tile_smem, const StridedRows<T>& head, int row0) {
    using Shape = CopyShape<rows, tile_chunks, threads, false>;
    const unsigned thread = computed_late(threadIdx.x);
    const unsigned row = thread / Shape::across, chunk = thread % Shape::across;
    const T* from = head.at(row0 + row) + chunk * 8;
    const unsigned to_smem = tile_smem + swizzled<tile_chunks>(row, chunk);
    const int chunks_left = head.chunks - static_cast<int>(chunk);
#pragma unroll
    for (int i = 0; i < rows; i += Shape::rows) {
#pragma unroll
        for (int c = 0; c < tile_chunks; c += Shape::across)
            if (c < chunks_left) cp_async_16(to_smem + (i * pitch_chunks<tile_chunks> + c) * 16, from + c * 8);
        from += Shape::rows * head.pitch;
    }
}

// Copy a tile at the end of a head of `length` rows: what the tensor lacks, rows and chunks, becomes zeros, since 0 times
// whatever lies there must be 0. A rolled loop: it runs seldom, and its addresses would take registers.
template <int rows, int tile_chunks, int threads, typename Rows>
__device__ __forceinline__ void copy_ragged(unsigned tile_smem, const Rows& head, int row0, int length) {
    using Shape = CopyShape<rows, tile_chunks, threads, false>;
    const element* tile = head.at(row0);
#pragma unroll 1
    for (int row = threadIdx.x / Shape::across; row < rows; row += Shape::rows)
#pragma unroll 1
        for (int chunk = threadIdx.x % Shape::across; chunk < tile_chunks; chunk += Shape::across) {
            const bool exists = row < length - row0 && chunk < head.chunks;
            cp_async_16_zfill(tile_smem + swizzled<tile_chunks>(row, chunk),
                              exists ? tile + row * head.pitch + chunk * 8 : tile, exists ? 16 : 0);
        }
}
