// One warp's share of attention with S and P in registers: products of swizzled tiles, the mask, and the way out for O.
// Layouts are those of mma.m16n8k16 (see mma_16x8x16): S is [16-row tile][8-key tile][4], O is [16-row tile][chunk][4],
// and a lane's four values are two columns of row lane / 4 and two of row lane / 4 + 8.
#pragma once

#include "tile.cuh"

constexpr unsigned all_lanes = 0xffffffffu;

// Over the four lanes that share a row.
__device__ __forceinline__ float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, 1));
    return fmaxf(value, __shfl_xor_sync(all_lanes, value, 2));
}
__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(all_lanes, value, 1);
    return value + __shfl_xor_sync(all_lanes, value, 2);
}

// Start copying a tile whose rows follow one another, `rows_left` of which exist; the others become zeros, since
// 0 · V must be 0 whatever lies there.
template <int rows, int chunks, int lanes>
__device__ __forceinline__ void copy_rows(unsigned tile_smem, const element* tile, int rows_left, int lane) {
    if (rows_left >= rows) {
        copy_tile<rows, chunks, lanes>(tile_smem, tile, chunks * 8, 0, lane);
    } else {
        copy_edge_tile<rows, chunks, lanes>(tile_smem, tile, chunks * 8, 0, lane,
                                            [=](int row) { return row < rows_left ? chunks * 8 : 0; });
    }
}

// Byte offsets at which a lane's ldmatrix begins in a tile. Q and V: lanes 0-15 name 16 rows, 16-31 the same rows one
// chunk on. K: lanes 0-7 and 8-15 name 8 keys at two chunks, 16-31 the next 8 keys.
template <int chunks>
__device__ __forceinline__ unsigned lane_of_q_or_v() {
    const int lane = threadIdx.x % 32;
    return swizzled<chunks>(lane % 16, lane / 16);
}
template <int chunks>
__device__ __forceinline__ unsigned lane_of_k() {
    const int lane = threadIdx.x % 32;
    return swizzled<chunks>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// Where ldmatrix finds 16-column slice `slice` of the rows from `row` on, a multiple of 8: the slice goes into the
// swizzle by XOR, the rest is the same for the whole warp and known at compile time.
template <int chunks>
__device__ __forceinline__ unsigned fragment_address(unsigned tile_smem, unsigned lane_offset, int row, int slice) {
    return tile_smem + (lane_offset ^ (slice % 4 * 32)) + slice / 4 * 128 + row * chunks * 16;
}

// S += Q Kᵀ. `load_q` fills the A operands of a 16-column slice, out of shared memory or out of registers.
template <int chunks, int m_tiles, int n_tiles, typename LoadQ>
__device__ __forceinline__ void multiply_q_k(float (&s_rmem)[m_tiles][n_tiles][4], LoadQ load_q, unsigned k_smem,
                                             unsigned k_lane) {
#pragma unroll
    for (int slice = 0; slice < chunks / 2; ++slice) {
        unsigned q_rmem[m_tiles][4];
        load_q(q_rmem, slice);
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            unsigned k_rmem[4];
            ldmatrix_x4(k_rmem, fragment_address<chunks>(k_smem, k_lane, n * 8, slice));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma_16x8x16(s_rmem[m][n], q_rmem[m], k_rmem[0], k_rmem[1]);
                mma_16x8x16(s_rmem[m][n + 1], q_rmem[m], k_rmem[2], k_rmem[3]);
            }
        }
    }
}

// Hide the keys that a row must not see. `limit`: how many of the tile's keys this lane's first row sees, less the
// lane's first column. Under a causal mask every row sees one key more than the row above.
template <bool causal, int m_tiles, int n_tiles>
__device__ __forceinline__ void mask_keys(float (&s_rmem)[m_tiles][n_tiles][4], int limit) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int key = n * 8 + e % 2;
                const int row = m * 16 + e / 2 * 8;
                if (key - (causal ? row : 0) >= limit) s_rmem[m][n][e] = -INF;
            }
}

// O += P V with P = weight(score, 16-row tile, upper or lower row), 16 keys at a time, so that the exponentials of the
// next 16 overlap these products. P stays in its registers: two m16n8 accumulators are one m16k16 A operand.
template <int chunks, int m_tiles, int n_tiles, typename Weight>
__device__ __forceinline__ void multiply_p_v(float (&o_rmem)[m_tiles][chunks][4],
                                             const float (&s_rmem)[m_tiles][n_tiles][4], Weight weight, unsigned v_smem,
                                             unsigned v_lane) {
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2) {
        unsigned p_rmem[m_tiles][4];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = s_rmem[m][n + i / 2];
                const float low = weight(pair[i % 2 * 2], m, i % 2);
                p_rmem[m][i] = pack2(low, weight(pair[i % 2 * 2 + 1], m, i % 2));
            }
#pragma unroll
        for (int chunk = 0; chunk < chunks; chunk += 2) {
            unsigned v_rmem[4];
            ldmatrix_x4_trans(v_rmem, fragment_address<chunks>(v_smem, v_lane, n * 8, chunk / 2));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma_16x8x16(o_rmem[m][chunk], p_rmem[m], v_rmem[0], v_rmem[1]);
                mma_16x8x16(o_rmem[m][chunk + 1], p_rmem[m], v_rmem[2], v_rmem[3]);
            }
        }
    }
}

// Round factor(16-row tile, upper or lower row) · O and write the first `rows` rows to `o`. The accumulator layout has
// two columns of a row in a lane, so rows go through `stage`, this warp's own rows of a tile that it needs no longer:
// then whole 16-byte chunks leave for HBM.
template <int chunks, int m_tiles, typename Factor>
__device__ __forceinline__ void store_rows(const float (&o_rmem)[m_tiles][chunks][4], Factor factor,
                                           unsigned char* stage_smem, element* o, int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int chunk = 0; chunk < chunks; ++chunk) {
                const float(&pair)[4] = o_rmem[m][chunk];
                *reinterpret_cast<unsigned*>(stage_smem + swizzled<chunks>(m * 16 + r * 8 + lane / 4, chunk) +
                                             lane % 4 * 4) =
                    pack2(pair[2 * r] * factor(m, r), pair[2 * r + 1] * factor(m, r));
            }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < m_tiles * 16 * chunks / 32; ++i) {
        const int row = i * (32 / chunks) + lane / chunks;
        if (row < rows) {
            store_16_streaming(o + (row * chunks + lane % chunks) * 8,
                               *reinterpret_cast<const uint4*>(stage_smem + swizzled<chunks>(row, lane % chunks)));
        }
    }
}
