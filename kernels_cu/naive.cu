// Rung: naive
// Idea: textbook attention in three kernels, S and P through HBM:
//   naive_scores   S = scale · Q Kᵀ         tensor cores, fp32 sums, rounded once to the element type
//   naive_softmax  P = softmax(S) by rows   in place, the row stays on chip: one read and one write
//   naive_output   O = P V                  tensor cores
// Change from the previous rung: the softmax rungs normalise rows that already exist; here the products that make and
//   use those rows come in, and with them N² elements that cross HBM four times.
// Traffic: e bytes an element, a head: Q, K, V, O once (4·N·d·e) and S written, S read, P written, P read (4·N²·e).
//   Under a causal mask only allowed pairs move, rounded up to the 16-byte vectors in which they move. Rows longer
//   than 1024 · 8 · ROW_VECTORS elements read S once more.
// Tiles / threads / shared memory: scores: one block keeps SCORES_M rows of Q and walks along `key_tiles` tiles of
//   SCORES_N keys, double buffered. output: one block owns OUTPUT_M rows of O and streams tiles of OUTPUT_K keys through
//   OUTPUT_STAGES stages. Each warp computes a (WARP_M x 64) share with mma.sync m16n8k16. At d 128 both take 96 KiB
//   and 128 threads, so two blocks fit an H100 or H200 SM. softmax: a block a row, 8 · ROW_VECTORS elements a thread.
// Limits: head dims 64 and 128; heads share K and V in equal groups; S and P rows are padded to `ld`, the next multiple
//   of 8 elements. A score past the element type's range rounds to infinity (fp16: beyond 65504): -inf gets weight 0,
//   +inf makes its row NaN, as in the textbook. Inside the tile on the diagonal a masked key has weight 0, and 0 times a
//   NaN or infinite value is NaN.
// References: Dao et al., FlashAttention, arXiv:2205.14135, algorithm 0; PTX ISA, "Matrix fragments for mma.m16n8k16",
//   "ldmatrix" and "cp.async".

#include "common/row.cuh"
#include "common/tile.cuh"

#ifndef HEAD_DIM
#error "compile with -DHEAD_DIM=64 or 128"
#endif
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(SCORES_M % SCORES_WARP_M == 0 && SCORES_N % 64 == 0, "whole warp tiles must cover the tile of scores");
static_assert(OUTPUT_M % OUTPUT_WARP_M == 0, "whole warp tiles must cover the rows of O");
static_assert(SCORES_WARP_M % 16 == 0 && OUTPUT_WARP_M % 16 == 0, "a warp tile is whole 16-row mma tiles");
static_assert(OUTPUT_K == 32 || OUTPUT_K % 64 == 0, "OUTPUT_K must be 32 or a multiple of 64, as the swizzle asks");
static_assert(OUTPUT_STAGES >= 2, "one stage is computed on while the others load");

constexpr int row_chunks = HEAD_DIM / 8;  // 16-byte chunks in a row of Q, K, V or O

// Keys that a query row may see, from key 0 on: bottom-right alignment, so the last row sees all of them.
__device__ __forceinline__ int allowed_keys(int row, int seq_q, int seq_kv, int causal) {
    return causal ? max(0, min(row + 1 + (seq_kv - seq_q), seq_kv)) : seq_kv;
}

__device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

// ---------------------------------------------------------------------------------------------------------------------

constexpr int scores_warps = SCORES_M / SCORES_WARP_M * (SCORES_N / 64);
constexpr int q_tile_bytes = SCORES_M * HEAD_DIM * 2;
constexpr int k_tile_bytes = SCORES_N * HEAD_DIM * 2;
constexpr int warp_keys = SCORES_N / scores_warps;              // rows of a K tile that one warp loads
constexpr int warp_share_bytes = k_tile_bytes / scores_warps;   // and the bytes that they take
constexpr int scores_stage_rows = warp_share_bytes / 128 < SCORES_WARP_M ? warp_share_bytes / 128 : SCORES_WARP_M;
static_assert(warp_keys * scores_warps == SCORES_N, "the warps must share a K tile evenly");
static_assert(scores_stage_rows >= 16, "a warp's share of a K tile must hold 16 rows of its scores");

extern "C" __global__ void __launch_bounds__(scores_warps * 32, SCORES_BLOCKS)
naive_scores(const element* __restrict__ q,  // (batch·heads, seq_q, HEAD_DIM)
             const element* __restrict__ k,  // (batch·heads / group, seq_kv, HEAD_DIM)
             element* __restrict__ s,        // (batch·heads, seq_q, ld)
             int seq_q, int seq_kv, int ld, int group, int causal, int key_tiles, float scale) {
    extern __shared__ __align__(128) unsigned char smem[];
    constexpr int m_tiles = SCORES_WARP_M / 16;
    constexpr int k_steps = HEAD_DIM / 16;

    // Row blocks of one head run side by side: they share its K tiles in L2. Under a causal mask the last row block has
    // the most to do and goes first.
    const int row_blocks = ceil_div(seq_q, SCORES_M);
    const int segments = ceil_div(ceil_div(seq_kv, SCORES_N), key_tiles);
    const int order = blockIdx.x % row_blocks;
    const int segment = blockIdx.x / row_blocks % segments;
    const long long head = blockIdx.x / row_blocks / segments;
    const int row0 = (causal ? row_blocks - 1 - order : order) * SCORES_M;
    const int rows = min(SCORES_M, seq_q - row0);
    const int tile_begin = segment * key_tiles;
    const int tile_end =
        min(tile_begin + key_tiles, ceil_div(allowed_keys(row0 + rows - 1, seq_q, seq_kv, causal), SCORES_N));
    if (tile_begin >= tile_end) {
        return;  // wholly above the diagonal: nothing is computed and nothing written
    }
    // Keys that every row of the block may see: up to there no store needs a check.
    const int inner_keys = rows == SCORES_M ? allowed_keys(row0, seq_q, seq_kv, causal) : 0;

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int warp_row = warp / (SCORES_N / 64) * SCORES_WARP_M;
    const int warp_column = warp % (SCORES_N / 64) * 64;
    const element* q_tile = q + (head * seq_q + row0) * HEAD_DIM;
    const element* k_head = k + head / group * seq_kv * HEAD_DIM;
    element* s_tile = s + (head * seq_q + row0 + warp_row) * ld + warp_column;
    const unsigned q_smem = smem_address(smem);
    const unsigned k_smem = q_smem + q_tile_bytes;

    // Each warp loads the same share of every K tile, and uses that share to stage its scores once the tile is done:
    // then only the warp itself has to be finished with it before the next copy goes there.
    auto load_k = [&](int tile) {
        if (tile < tile_end) {
            const unsigned to_smem = k_smem + (tile - tile_begin) % 2 * k_tile_bytes;
            const element* k_tile = k_head + (long long)tile * (SCORES_N * HEAD_DIM);
            const int keys = seq_kv - tile * SCORES_N;
            if (keys >= SCORES_N) {
                copy_tile<warp_keys, row_chunks, 32>(to_smem, k_tile, HEAD_DIM, warp * warp_keys, lane);
            } else {
                copy_edge_tile<warp_keys, row_chunks, 32>(to_smem, k_tile, HEAD_DIM, warp * warp_keys, lane,
                                                          [&](int row) { return row < keys ? HEAD_DIM : 0; });
            }
        }
        cp_async_commit();  // empty past the end, so that the count of groups in flight stays the same
    };
    copy_edge_tile<SCORES_M, row_chunks, scores_warps * 32>(q_smem, q_tile, HEAD_DIM, 0, threadIdx.x,
                                                            [&](int row) { return row < rows ? HEAD_DIM : 0; });
    load_k(tile_begin);  // one group with Q
    load_k(tile_begin + 1);

    for (int tile = tile_begin; tile < tile_end; ++tile) {
        const int buffer = (tile - tile_begin) % 2 * k_tile_bytes;
        cp_async_wait<1>();
        __syncthreads();  // every warp's share of this tile has landed

        float s_rmem[m_tiles][8][4] = {};
        unsigned q_rmem[2][m_tiles][4], k_rmem[2][4][4];
        load_a<row_chunks>(q_rmem[0], q_smem, warp_row, 0);
        load_b_rows<row_chunks>(k_rmem[0], k_smem + buffer, warp_column, 0);
#pragma unroll
        for (int step = 0; step < k_steps; ++step) {
            if (step + 1 < k_steps) {  // fetch the next fragments behind this step's products
                load_a<row_chunks>(q_rmem[(step + 1) % 2], q_smem, warp_row, 2 * (step + 1));
                load_b_rows<row_chunks>(k_rmem[(step + 1) % 2], k_smem + buffer, warp_column, 2 * (step + 1));
            }
            warp_mma(s_rmem, q_rmem[step % 2], k_rmem[step % 2]);
        }
        __syncthreads();  // no warp reads this K tile any more: it becomes the stage for the scores

        const int key0 = tile * SCORES_N + warp_column;
        store_tile<scores_stage_rows>(
            s_rmem, scale, smem + q_tile_bytes + buffer + warp * warp_share_bytes, s_tile + tile * SCORES_N, ld,
            key0 + 64 <= inner_keys, [&](int row) {
                const int query = row0 + warp_row + row;
                return query < seq_q ? allowed_keys(query, seq_q, seq_kv, causal) - key0 : 0;
            });
        load_k(tile + 2);
    }
}

// ---------------------------------------------------------------------------------------------------------------------

constexpr int row_vectors = ROW_VECTORS;  // 16-byte vectors of its row that a thread holds, packed in 4 registers each
static_assert(row_vectors >= 1 && row_vectors <= 8, "ROW_VECTORS must be 1 to 8: 1024 threads leave 64 registers each");

// The row and its length; the longest rows first.
__device__ __forceinline__ element* row_of_block(element* s, int seq_q, int seq_kv, int ld, int causal, int& allowed) {
    const int order = blockIdx.x % seq_q;
    const long long head = blockIdx.x / seq_q;
    const int row = causal ? seq_q - 1 - order : order;
    allowed = allowed_keys(row, seq_q, seq_kv, causal);
    return s + (head * seq_q + row) * ld;
}

// Rows of up to blockDim.x · row_vectors · 8 elements, held on chip. The row is kept as it came, packed, and each
// exponential is computed twice: as fp32 a 32768-element row would fill half of an SM's registers and leave no second
// row to load meanwhile. The exponentials still take less time than the bytes.
extern "C" __global__ void __launch_bounds__(1024, row_vectors <= 4 ? 2 : 1)
naive_softmax(element* s,  // (batch·heads, seq_q, ld): S comes in, P goes out
              int seq_q, int seq_kv, int ld, int causal) {
    __shared__ float warp_max_smem[32], warp_sum_smem[32];
    int allowed;
    element* row = row_of_block(s, seq_q, seq_kv, ld, causal, allowed);
    const int vectors = ceil_div(allowed, 8);

    Vector x_rmem[row_vectors];
#pragma unroll
    for (int i = 0; i < row_vectors; ++i) {
        x_rmem[i] = load_row_vector(row, i * blockDim.x + threadIdx.x, vectors);
    }
    if (allowed % 8 != 0) {  // only now: a mask beside each load would wait for it before the next load goes out
#pragma unroll
        for (int i = 0; i < row_vectors; ++i) {
            if (i * blockDim.x + threadIdx.x == vectors - 1) {
                mask_row_tail(x_rmem[i], allowed % 8);
            }
        }
    }
    unsigned largest = max_pair(x_rmem[0]);
#pragma unroll
    for (int i = 1; i < row_vectors; ++i) {
        largest = max2(largest, max_pair(x_rmem[i]));
    }
    const float shift = block_reduce(max_of(largest), minus_infinity(), warp_max_smem, Max()) * log2_e;

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < row_vectors; ++i) {
        if (i * blockDim.x < vectors) {  // the same in the whole block
            sum += sum_of_exp(x_rmem[i], shift);
        }
    }
    const float inverse_sum = 1.0f / block_reduce(sum, 0.0f, warp_sum_smem, Add());
#pragma unroll
    for (int i = 0; i < row_vectors; ++i) {
        const int index = i * blockDim.x + threadIdx.x;
        if (index < vectors) {
            store_16_streaming(row + index * 8, normalised(x_rmem[i], shift, inverse_sum));
        }
    }
}

// Longer rows, of any length: a running maximum and sum in one pass, then a second read to normalise.
extern "C" __global__ void __launch_bounds__(1024)
naive_softmax_long(element* s,  // (batch·heads, seq_q, ld): S comes in, P goes out
                   int seq_q, int seq_kv, int ld, int causal) {
    __shared__ float warp_max_smem[32], warp_sum_smem[32];
    int allowed;
    element* row = row_of_block(s, seq_q, seq_kv, ld, causal, allowed);
    const int vectors = ceil_div(allowed, 8);

    float largest = minus_infinity(), sum = 0.0f;
#pragma unroll 4
    for (int index = threadIdx.x; index < vectors; index += blockDim.x) {
        Vector x = load_row_vector(row, index, vectors);
        if (allowed - index * 8 < 8) {
            mask_row_tail(x, allowed - index * 8);
        }
        const float candidate = max_of(max_pair(x));
        if (candidate > largest) {
            sum *= exp2_approx((largest - candidate) * log2_e);
            largest = candidate;
        }
        // Scores that overflowed to -inf add 0 even before any finite one has been seen.
        sum += sum_of_exp(x, largest == minus_infinity() ? 0.0f : largest * log2_e);
    }
    const float row_max = block_reduce(largest, minus_infinity(), warp_max_smem, Max());
    sum *= exp2_approx((largest - row_max) * log2_e);
    const float inverse_sum = 1.0f / block_reduce(sum, 0.0f, warp_sum_smem, Add());
#pragma unroll 4
    for (int index = threadIdx.x; index < vectors; index += blockDim.x) {
        Vector x = load_row_vector(row, index, vectors);
        if (allowed - index * 8 < 8) {
            mask_row_tail(x, allowed - index * 8);
        }
        store_16_streaming(row + index * 8, normalised(x, row_max * log2_e, inverse_sum));
    }
}

// ---------------------------------------------------------------------------------------------------------------------

constexpr int output_warps = OUTPUT_M / OUTPUT_WARP_M * (HEAD_DIM / 64);
constexpr int p_chunks = OUTPUT_K / 8;
constexpr int p_tile_bytes = OUTPUT_M * OUTPUT_K * 2;
constexpr int output_stage_bytes = p_tile_bytes + OUTPUT_K * HEAD_DIM * 2;
static_assert(OUTPUT_STAGES * output_stage_bytes >= OUTPUT_M * HEAD_DIM * 2, "the stages must hold the output tile");

extern "C" __global__ void __launch_bounds__(output_warps * 32, OUTPUT_BLOCKS)
naive_output(const element* __restrict__ p,  // (batch·heads, seq_q, ld)
             const element* __restrict__ v,  // (batch·heads / group, seq_kv, HEAD_DIM)
             element* __restrict__ o,        // (batch·heads, seq_q, HEAD_DIM)
             int seq_q, int seq_kv, int ld, int group, int causal) {
    extern __shared__ __align__(128) unsigned char smem[];
    constexpr int m_tiles = OUTPUT_WARP_M / 16;
    constexpr int k_steps = OUTPUT_K / 16;

    const int row_blocks = ceil_div(seq_q, OUTPUT_M);
    const int order = blockIdx.x % row_blocks;
    const long long head = blockIdx.x / row_blocks;
    const int row0 = (causal ? row_blocks - 1 - order : order) * OUTPUT_M;
    const int rows = min(OUTPUT_M, seq_q - row0);
    const int tiles = ceil_div(allowed_keys(row0 + rows - 1, seq_q, seq_kv, causal), OUTPUT_K);
    // Keys that every row of the block may see: up to there no copy needs a check.
    const int inner_keys = rows == OUTPUT_M ? allowed_keys(row0, seq_q, seq_kv, causal) : 0;

    const int warp = threadIdx.x / 32;
    const int warp_row = warp / (HEAD_DIM / 64) * OUTPUT_WARP_M;
    const int warp_column = warp % (HEAD_DIM / 64) * 64;
    const element* p_rows = p + (head * seq_q + row0) * ld;
    const element* v_head = v + head / group * seq_kv * HEAD_DIM;
    const unsigned stages_smem = smem_address(smem);

    auto load_stage = [&](int tile) {
        if (tile < tiles) {
            const unsigned p_smem = stages_smem + tile % OUTPUT_STAGES * output_stage_bytes;
            const unsigned v_smem = p_smem + p_tile_bytes;
            const int key0 = tile * OUTPUT_K;
            const element* v_tile = v_head + (long long)key0 * HEAD_DIM;
            if (key0 + OUTPUT_K <= inner_keys) {
                copy_tile<OUTPUT_M, p_chunks, output_warps * 32>(p_smem, p_rows + key0, ld, 0, threadIdx.x);
                copy_tile<OUTPUT_K, row_chunks, output_warps * 32>(v_smem, v_tile, HEAD_DIM, 0, threadIdx.x);
            } else {
                // P exists up to the last vector that softmax wrote in the row; it is zero beyond.
                copy_edge_tile<OUTPUT_M, p_chunks, output_warps * 32>(
                    p_smem, p_rows + key0, ld, 0, threadIdx.x, [&](int row) {
                        return row < rows ? allowed_keys(row0 + row, seq_q, seq_kv, causal) - key0 : 0;
                    });
                copy_edge_tile<OUTPUT_K, row_chunks, output_warps * 32>(
                    v_smem, v_tile, HEAD_DIM, 0, threadIdx.x,
                    [&](int row) { return key0 + row < seq_kv ? HEAD_DIM : 0; });
            }
        }
        cp_async_commit();  // empty past the end, so that the count of groups in flight stays the same
    };
#pragma unroll
    for (int tile = 0; tile < OUTPUT_STAGES - 1; ++tile) {
        load_stage(tile);
    }

    float o_rmem[m_tiles][8][4] = {};
    unsigned p_rmem[2][m_tiles][4], v_rmem[2][4][4];
    auto load_fragments = [&](int to, int tile, int step) {
        const unsigned stage_smem = stages_smem + tile % OUTPUT_STAGES * output_stage_bytes;
        load_a<p_chunks>(p_rmem[to], stage_smem, warp_row, 2 * step);
        load_b_columns<row_chunks>(v_rmem[to], stage_smem + p_tile_bytes, 16 * step, warp_column / 8);
    };
    cp_async_wait<OUTPUT_STAGES - 2>();
    __syncthreads();
    if (tiles > 0) {
        load_fragments(0, 0, 0);
    }
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
        for (int step = 0; step < k_steps; ++step) {
            if (step + 1 < k_steps) {
                load_fragments((step + 1) % 2, tile, step + 1);
            } else {
                // The next tile has landed, and every warp holds its last fragments of this one: at the top of the
                // next round its stage may be overwritten.
                cp_async_wait<OUTPUT_STAGES - 2>();
                __syncthreads();
                if (tile + 1 < tiles) {
                    load_fragments((step + 1) % 2, tile + 1, 0);
                }
            }
            if (step == 0) {
                load_stage(tile + OUTPUT_STAGES - 1);
            }
            warp_mma(o_rmem, p_rmem[step % 2], v_rmem[step % 2]);
        }
    }

    cp_async_wait<0>();
    __syncthreads();
    store_tile<OUTPUT_WARP_M>(o_rmem, 1.0f, smem + warp * OUTPUT_WARP_M * 128,
                              o + (head * seq_q + row0 + warp_row) * HEAD_DIM + warp_column, HEAD_DIM,
                              rows == OUTPUT_M, [&](int row) { return warp_row + row < rows ? 64 : 0; });
}
