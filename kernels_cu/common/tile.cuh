// Shared-memory tiles of 16-byte chunks, and one warp's 64-column share of a matrix product over them.
#pragma once

#include "ptx.cuh"

// How a tile's chunks lie in shared memory. The kernels are written for the swizzle; the others are there to be measured
// beside it. LAYOUT_PLAIN has rows one behind the other, LAYOUT_PAD has a chunk (8 halves) that nobody uses behind each.
#define LAYOUT_SWIZZLE 0
#define LAYOUT_PLAIN 1
#define LAYOUT_PAD 2
#ifndef LAYOUT
#define LAYOUT LAYOUT_SWIZZLE
#endif

// Chunks from one row of a tile to the next.
template <int chunks>
constexpr int pitch_chunks = chunks + (LAYOUT == LAYOUT_PAD ? 1 : 0);

// Byte offset of a chunk in a tile whose rows are `chunks` chunks long. Eight rows at one logical chunk, which is what
// ldmatrix reads, must fall into eight different 16-byte columns of the 128-byte bank line: so the chunk index is XORed
// with the number of the bank line that the row lies in. Rows of an odd multiple of 4 chunks start in the middle of a
// line every other time: two rows share a number, and it goes into the low two bits only.
template <int chunks>
__device__ __forceinline__ unsigned swizzled(int row, int chunk) {
    static_assert(chunks % 4 == 0, "a tile row is a multiple of 64 bytes");
    constexpr int rows_per_line = chunks % 8 == 0 ? 1 : 2;
    constexpr int columns = chunks % 8 == 0 ? 8 : 4;
    const int column = LAYOUT == LAYOUT_SWIZZLE ? chunk ^ (row / rows_per_line % columns) : chunk;
    return (row * pitch_chunks<chunks> + column) * 16;
}

// Start copying `rows` rows from row0 on of a tile at `tile` (row pitch in elements) to shared memory, split over `lanes`
// threads.
template <int rows, int chunks, int lanes>
__device__ __forceinline__ void copy_tile(unsigned tile_smem, const element* tile, long long pitch, int row0, int lane) {
    static_assert(rows * chunks % lanes == 0 && lanes % chunks == 0, "every thread copies the same chunk of its rows");
    const element* source = tile + (row0 + lane / chunks) * pitch + lane % chunks * 8;
#pragma unroll
    for (int i = 0; i < rows * chunks / lanes; ++i) {
        cp_async_16(tile_smem + swizzled<chunks>(row0 + i * (lanes / chunks) + lane / chunks, lane % chunks), source);
        source += lanes / chunks * pitch;
    }
}

// The same at the edge of the tensor or of the mask: limit(row) is how many leading elements of that row exist, and
// chunks that start past it become zeros. A rolled loop: it runs seldom, and unrolled it would hold every row's limit
// and address in registers that the products need.
template <int rows, int chunks, int lanes, typename Limit>
__device__ __forceinline__ void copy_edge_tile(unsigned tile_smem, const element* tile, long long pitch, int row0,
                                               int lane, Limit limit) {
#pragma unroll 1
    for (int row = row0 + lane / chunks; row < row0 + rows; row += lanes / chunks) {
        const bool exists = lane % chunks * 8 < limit(row);
        cp_async_16_zfill(tile_smem + swizzled<chunks>(row, lane % chunks),
                          exists ? tile + row * pitch + lane % chunks * 8 : tile, exists ? 16 : 0);
    }
}

// A operand: rows row0 .. row0 + 16·m_tiles, 16 elements of k from chunk k_chunk on, of a row-major (m, k) tile.
template <int chunks, int m_tiles>
__device__ __forceinline__ void load_a(unsigned (&a_rmem)[m_tiles][4], unsigned tile_smem, int row0, int k_chunk) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
        ldmatrix_x4(a_rmem[i], tile_smem + swizzled<chunks>(row0 + 16 * i + lane % 16, k_chunk + lane / 16));
    }
}

// B operand out of a row-major (n, k) tile, such as K in Q·Kᵀ: 64 rows of n from n0 on, 16 elements of k.
// b_rmem[j] serves columns 16j .. 16j+15: {b0, b1} of the first eight, then of the other eight.
template <int chunks>
__device__ __forceinline__ void load_b_rows(unsigned (&b_rmem)[4][4], unsigned tile_smem, int n0, int k_chunk) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = n0 + 16 * j + lane / 16 * 8 + lane % 8;
        ldmatrix_x4(b_rmem[j], tile_smem + swizzled<chunks>(row, k_chunk + lane / 8 % 2));
    }
}

// B operand out of a row-major (k, n) tile, such as V in P·V: 16 rows of k from k0 on, 64 columns from chunk n_chunk on.
template <int chunks>
__device__ __forceinline__ void load_b_columns(unsigned (&b_rmem)[4][4], unsigned tile_smem, int k0, int n_chunk) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        ldmatrix_x4_trans(b_rmem[j], tile_smem + swizzled<chunks>(k0 + lane % 16, n_chunk + 2 * j + lane / 16));
    }
}

// acc(16·m_tiles x 64) += a · b over 16 elements of k.
template <int m_tiles>
__device__ __forceinline__ void warp_mma(float (&acc_rmem)[m_tiles][8][4], const unsigned (&a_rmem)[m_tiles][4],
                                         const unsigned (&b_rmem)[4][4]) {
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            mma_16x8x16(acc_rmem[i][j], a_rmem[i], b_rmem[j / 2][j % 2 * 2], b_rmem[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// Round scale · acc and write it to `tile` (row pitch in elements) in 16-byte chunks, 128 contiguous bytes a row. The
// accumulator layout gives a thread two elements at a time, so rows go through `stage_rows` rows of shared memory that
// belong to this warp alone. Unless all of the tile is `inner`, chunks that start past limit(row) are not written.
template <int stage_rows, int m_tiles, typename Limit>
__device__ __forceinline__ void store_tile(const float (&acc_rmem)[m_tiles][8][4], float scale,
                                           unsigned char* stage_smem, element* tile, long long pitch, bool inner,
                                           Limit limit) {
    static_assert(stage_rows % 16 == 0 && 16 * m_tiles % stage_rows == 0, "the stage holds whole 16-row slices");
    const int lane = threadIdx.x % 32;
    element* target = tile + lane / 8 * pitch + lane % 8 * 8;
#pragma unroll
    for (int row0 = 0; row0 < 16 * m_tiles; row0 += stage_rows) {
#pragma unroll
        for (int i = 0; i < stage_rows / 16; ++i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float(&acc)[4] = acc_rmem[row0 / 16 + i][j];
                unsigned char* pair = stage_smem + swizzled<8>(16 * i + lane / 4, j) + lane % 4 * 4;
                *reinterpret_cast<unsigned*>(pair) = pack2(acc[0] * scale, acc[1] * scale);
                // Eight rows on the swizzle is the same, so the second pair lies 8 · 128 bytes further.
                *reinterpret_cast<unsigned*>(pair + 8 * 128) = pack2(acc[2] * scale, acc[3] * scale);
            }
        }
        __syncwarp();
        if (inner) {
#pragma unroll
            for (int i = 0; i < stage_rows / 4; ++i, target += 4 * pitch) {
                store_16_streaming(target, *reinterpret_cast<const uint4*>(
                                               stage_smem + swizzled<8>(4 * i + lane / 8, lane % 8)));
            }
        } else {
#pragma unroll 1  // seldom run: no registers for every row's limit
            for (int i = 0; i < stage_rows / 4; ++i, target += 4 * pitch) {
                if (lane % 8 * 8 < limit(row0 + 4 * i + lane / 8)) {
                    store_16_streaming(target, *reinterpret_cast<const uint4*>(
                                                   stage_smem + swizzled<8>(4 * i + lane / 8, lane % 8)));
                }
            }
        }
        // The next slice, or the caller's next copy, overwrites what other lanes have just read.
        __syncwarp();
    }
}
