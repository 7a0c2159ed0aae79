// The products of a fused backward, each a warp's share: Sᵀ and dPᵀ, dK and dV, dQ. For kernels_cu/fa2_bwd.cu alone, which
// defines the sizes before it includes this.
#pragma once

#include "fragment_sum.cuh"
#include "tile.cuh"

// Where ldmatrix finds 16 columns, from `column` on, of a tile from some row on. `lane_part` is the lane's own row and
// chunk, swizzled; the column goes into the swizzle by XOR. A warp's first column and the columns counted from there may
// be added in two calls where they have no bit in common.
template <int chunks>
__device__ __forceinline__ unsigned at_column(unsigned lane_part, int column) {
    constexpr int in_line = chunks < 8 ? chunks : 8;
    const int chunk = column / 8;
    return (lane_part ^ (chunk % in_line * 16)) + chunk / in_line * 128;
}

template <int chunks>
__device__ __forceinline__ unsigned fragment_address(unsigned tile_smem, unsigned lane_part, int row, int column) {
    return tile_smem + at_column<chunks>(lane_part, column) + row * chunks * 16;
}

// acc(16·m_tiles x 16) += a · b over 16 elements of k, into the accumulators of columns 8·n .. 8·n + 15.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply(float (&acc)[m_tiles][n_tiles][4], const unsigned (&a)[m_tiles][4],
                                         const unsigned (&b)[4], int n) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
        mma_16x8x16(acc[m][n], a[m], b[0], b[1]);
        mma_16x8x16(acc[m][n + 1], a[m], b[2], b[3]);
    }
}

// The lane's part of ldmatrix addresses, in tiles of rows of Q, K, V and dO and, with the prefix q, in those of P and dS.
// `rows`: lanes 0-15 name 16 rows, 16-31 the same rows one chunk on: A operands, and transposed B operands. `pairs`: lanes
// 0-7 and 8-15 name 8 rows at two chunks, 16-31 the next 8 rows: B operands, and transposed A operands.
struct Lanes {
    unsigned rows, pairs, q_rows, q_pairs;
};

// Computed anew in each step: kept, they would take registers that the products need.
__device__ __forceinline__ Lanes lanes_of(int thread) {
    const int lane = computed_late(thread) % 32;
    const int row = lane % 16, chunk = lane / 16, pair_row = lane / 16 * 8 + lane % 8, pair_chunk = lane / 8 % 2;
    return {swizzled<CHUNKS>(row, chunk), swizzled<CHUNKS>(pair_row, pair_chunk), swizzled<Q_CHUNKS>(row, chunk),
            swizzled<Q_CHUNKS>(pair_row, pair_chunk)};
}

using Scores = float[M_TILES][N_TILES][4];                // a warp's share of Sᵀ, Pᵀ, dPᵀ or dSᵀ: rows are keys
using PackedScores = unsigned[WARP_Q / 16][M_TILES][4];   // the same rounded, as A operands: one for every 16 queries
using KeyGradient = float[M_TILES][D_TILES][4];           // a warp's share of dK or dV

// acc += A Bᵀ over HEAD_DIM: Sᵀ = K Qᵀ or dPᵀ = V dOᵀ. Both tiles are given from the warp's first row on. `meanwhile(i)`
// is other work, done a part after each of HEAD_DIM / 16 slices, which does not wait for these products.
template <typename Meanwhile>
__device__ __forceinline__ void multiply_rows(Scores& acc, unsigned a_smem, unsigned b_smem, Lanes lanes,
                                              Meanwhile meanwhile) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 16) {
        unsigned a[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(a[m], fragment_address<CHUNKS>(a_smem, lanes.rows, m * 16, d));
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            unsigned b[4];
            ldmatrix_x4(b, fragment_address<CHUNKS>(b_smem, lanes.pairs, n * 8, d));
            multiply(acc, a, b, n);
        }
        meanwhile(d / 16);
    }
}

// Round to the element type. Two m16n8 accumulators, 16 queries, are one m16k16 A operand.
__device__ __forceinline__ void pack(PackedScores& packed, const Scores& scores) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                packed[n / 2][m][n % 2 * 2 + r] = pack2(scores[m][n][2 * r], scores[m][n][2 * r + 1]);
}

// Write a warp's share to a tile of P or dS, from the warp's first key on.
__device__ __forceinline__ void store_packed(unsigned char* tile, const PackedScores& packed, int query) {
    const int lane = computed_late(threadIdx.x) % 32;
    const unsigned lane_part = at_column<Q_CHUNKS>(swizzled<Q_CHUNKS>(lane / 4, 0), query) + lane % 4 * 4;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                *reinterpret_cast<unsigned*>(tile + at_column<Q_CHUNKS>(lane_part, n * 8) +
                                             (m * 16 + r * 8) * Q_CHUNKS * 16) = packed[n / 2][m][n % 2 * 2 + r];
}

// acc += Pᵀ dO or dSᵀ Q over the WARP_Q queries of one warp. `row_smem` is the tile of dO or Q from the first of these
// queries and the warp's own first column on.
template <typename LoadA>
__device__ __forceinline__ void multiply_columns(KeyGradient& acc, unsigned row_smem, unsigned lane_part, LoadA load_a) {
#pragma unroll
    for (int q = 0; q < WARP_Q; q += 16) {
        unsigned a[M_TILES][4];
        load_a(a, q / 16);
#pragma unroll
        for (int n = 0; n < D_TILES; n += 2) {
            unsigned b[4];
            ldmatrix_x4_trans(b, fragment_address<CHUNKS>(row_smem, lane_part, q, n * 8));
            multiply(acc, a, b, n);
        }
    }
}

// The queries whose P or dS this warp holds.
__device__ __forceinline__ void accumulate_own(KeyGradient& acc, const PackedScores& own, unsigned rows_smem, Lanes lanes,
                                               int warp_q) {
    const unsigned lane_part = at_column<CHUNKS>(lanes.rows, warp_q * WARP_D);
    multiply_columns(acc, rows_smem + warp_q * WARP_Q * ROW_BYTES, lane_part, [&](unsigned(&a)[M_TILES][4], int slice) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[m][i] = own[slice][m][i];
    });
}

// The queries of the other warps of the same keys, from a tile of P or dS. `a_smem` is the tile from the first of these
// keys on.
__device__ __forceinline__ void accumulate_others(KeyGradient& acc, unsigned a_smem, unsigned rows_smem, Lanes lanes,
                                               int warp_q) {
    const unsigned lane_part = at_column<CHUNKS>(lanes.rows, warp_q * WARP_D);
#pragma unroll
    for (int i = 1; i < WARPS_Q; ++i) {
        const int other = (warp_q + i) % WARPS_Q;
        const unsigned a_part = at_column<Q_CHUNKS>(lanes.q_rows, other * WARP_Q);
        multiply_columns(acc, rows_smem + other * WARP_Q * ROW_BYTES, lane_part,
                         [&](unsigned(&a)[M_TILES][4], int slice) {
#pragma unroll
                             for (int m = 0; m < M_TILES; ++m)
                                 ldmatrix_x4(a[m], fragment_address<Q_CHUNKS>(a_smem, a_part, m * 16, slice * 16));
                         });
    }
}

// dQ = dS K for the warp's share, added to the accumulator of the tile. The accumulator lies as the lanes hold it, 16 x 8
// elements after another, so that one instruction adds up 128 consecutive floats.
__device__ __forceinline__ void add_dq(float* accumulator, unsigned ds_smem, unsigned k_smem, int warp) {
    const Lanes lanes = lanes_of(threadIdx.x);
    const int row = warp % DQ_WARPS_Q * DQ_ROWS;
    const int column = warp / DQ_WARPS_Q * DQ_COLUMNS;
    const unsigned a_part = at_column<Q_CHUNKS>(lanes.q_pairs, row);
    const unsigned b_part = at_column<CHUNKS>(lanes.rows, column);
    float dq[DQ_M_TILES][DQ_N_TILES][4] = {};
#pragma unroll
    for (int key = 0; key < BLOCK_KV; key += 16) {
        unsigned a[DQ_M_TILES][4];
#pragma unroll
        for (int m = 0; m < DQ_M_TILES; ++m)
            ldmatrix_x4_trans(a[m], fragment_address<Q_CHUNKS>(ds_smem, a_part, key, m * 16));
#pragma unroll
        for (int n = 0; n < DQ_N_TILES; n += 2) {
            unsigned b[4];
            ldmatrix_x4_trans(b, fragment_address<CHUNKS>(k_smem, b_part, key, n * 8));
            multiply(dq, a, b, n);
        }
    }
    int first_fragment = row / 16 * CHUNKS + column / 8;
#if __CUDA_ARCH__ < 900
    first_fragment = computed_late(first_fragment);  // four addresses a fragment: none of them before the products
#endif
    float* to = accumulator + first_fragment * 128;
#pragma unroll
    for (int m = 0; m < DQ_M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < DQ_N_TILES; ++n) add_fragment(to + (m * CHUNKS + n) * 128, dq[m][n]);
}
