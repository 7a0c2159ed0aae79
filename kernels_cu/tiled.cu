// Rung: tiled
// Idea: naive in one kernel. Tiles of Q, K and V meet in shared memory; S and P never leave the chip. The softmax is
//   still the textbook's: first the exact maximum and sum of every row, from a first walk over the keys that multiplies
//   Q Kᵀ and keeps nothing else of it; then a second walk that multiplies it again and makes finished probabilities.
// Change from the previous rung: naive keeps S for its second use by sending it through HBM, N² elements written and
//   read; here it is computed twice. That costs a third product and a second exponential a pair, and no HBM at all.
// Traffic: reads Q, K, V once and writes O once: 4·N·d·e bytes a head. The second walk over K is served by L2, where
//   the blocks of a head, which walk side by side, have just left it (a head's K is 8 MiB at 32768 keys and d 128).
//   Where the K of all heads at work exceeds L2 (few queries, many long heads), it comes from HBM again: N·d·e more.
// Tiles / threads / shared memory: BLOCK_Q rows of Q and two stages of BLOCK_KV rows of K and of V, HEAD_DIM wide and
//   swizzled; the first walk puts STATISTICS_KV keys into a stage. WARPS warps split the rows of Q. At d 128: 128 x 64,
//   96 KiB, 4 warps of 32 rows, so that two blocks fit an H100 or H200 SM and a fragment of K or V feeds two products.
// Limits: sm_80 and later; HEAD_DIM 64 or 128; scale > 0; lengths up to 2^30. P is normalised through its exponent,
//   which is good to half an ulp of the row's log-sum-exp: 2^-12 relative where scores reach 2^12. Inside the tile on
//   the diagonal a masked key has weight 0, and 0 times a NaN or infinite value is NaN.
// References: Dao et al., FlashAttention, arXiv:2205.14135, algorithm 0 and section 3.1; Milakov and Gimelshein,
//   arXiv:1805.02867 (running maximum and sum); PTX ISA, "Matrix fragments for mma.m16n8k16", "ldmatrix", "cp.async".

#include "common/attention.cuh"

#ifndef HEAD_DIM
#error "compile with -DHEAD_DIM=64 or 128, and the other macros that attnprof/kernels/ladder/tiled.py sets"
#endif

constexpr int THREADS = WARPS * 32;
constexpr int WARP_ROWS = BLOCK_Q / WARPS;
constexpr int M_TILES = WARP_ROWS / 16;
constexpr int CHUNKS = HEAD_DIM / 8;  // 16-byte chunks in a row of a tile
constexpr int ROW_BYTES = CHUNKS * 16;
constexpr unsigned Q_BYTES = BLOCK_Q * ROW_BYTES;
constexpr unsigned KV_BYTES = BLOCK_KV * ROW_BYTES;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(BLOCK_Q % (WARPS * 16) == 0, "BLOCK_Q must give every warp a multiple of 16 rows");
static_assert(BLOCK_KV % 16 == 0, "BLOCK_KV must be a multiple of 16, the depth of a product");
static_assert(STATISTICS_KV % 16 == 0, "STATISTICS_KV must be a multiple of 16, as fragments of K come in pairs");
static_assert(STATISTICS_KV <= 2 * BLOCK_KV, "the first walk has the room of one tile of K and one of V");

// fp16 has full precision down to 2^-14 only, and that is a probability among 16,384 equal keys: so P is kept times 2^15,
// and O divided by that at the end. Both are exact, and the first costs nothing. bf16 reaches as far as fp32.
constexpr float P_LOG2 = ELEMENT == ELEMENT_FP16 ? 15.0f : 0.0f;
constexpr float P_INVERSE = ELEMENT == ELEMENT_FP16 ? 1.0f / 32768.0f : 1.0f;

// Of this lane's columns of each row, until the four lanes of a row merge.
struct Statistics {
    float largest[M_TILES][2];  // score, unscaled
    float sum[M_TILES][2];      // of exp(scale · (score - largest))
};

template <bool masked>
struct Masked {
    static constexpr bool value = masked;
};

// Start copying a block of `rows` rows of a head's K or V.
template <int rows>
__device__ __forceinline__ void copy_block(unsigned tile_smem, const element* head_rows, int block, int seq_kv) {
    copy_rows<rows, CHUNKS, THREADS>(tile_smem, head_rows + static_cast<long long>(block) * (rows * HEAD_DIM),
                                     seq_kv - block * rows, computed_late_from<1000>(threadIdx.x));
}

// Take the scores of one step into the lane's running maxima and sums. With `may_be_empty` a lane may have met no key
// yet: its exponents must be -inf, not -inf + inf.
template <bool may_be_empty, int n_tiles>
__device__ __forceinline__ void gather(Statistics& statistics, const float (&s_rmem)[M_TILES][n_tiles][4],
                                       float scale_log2) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = statistics.largest[m][r];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
                largest = fmaxf(largest, fmaxf(s_rmem[m][n][2 * r], s_rmem[m][n][2 * r + 1]));
            const float shift = may_be_empty && largest == -INF ? 0.0f : largest * -scale_log2;
            float sum = statistics.sum[m][r] * exp2_approx(fmaf(statistics.largest[m][r], scale_log2, shift));
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
                sum += exp2_approx(fmaf(s_rmem[m][n][2 * r], scale_log2, shift)) +
                       exp2_approx(fmaf(s_rmem[m][n][2 * r + 1], scale_log2, shift));
            statistics.largest[m][r] = largest;
            statistics.sum[m][r] = sum;
        }
}

// What to add to a row's exponents so that they yield 2^P_LOG2 · P: less the log-sum-exp, base 2.
__device__ __forceinline__ float normaliser(float largest, float sum, float scale_log2) {
    const float row_largest = row_max(largest);
    // A row without keys: any finite number keeps the exponents of its masked scores at -inf, and P at 0.
    const float shift = row_largest == -INF ? 0.0f : row_largest * -scale_log2;
    const float row_total = row_sum(sum * exp2_approx(fmaf(largest, scale_log2, shift)));
    return P_LOG2 + (row_total == 0.0f ? 0.0f : shift - __log2f(row_total));
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    tiled_forward(const element* __restrict__ q,  // (batch, heads, seq_q, HEAD_DIM)
                  const element* __restrict__ k,  // (batch, kv_heads, seq_kv, HEAD_DIM)
                  const element* __restrict__ v,  // (batch, kv_heads, seq_kv, HEAD_DIM)
                  element* __restrict__ o,        // (batch, heads, seq_q, HEAD_DIM)
                  int seq_q, int seq_kv, int all_heads, int heads_per_kv_head,
                  float scale_log2) {  // scale · log2(e)
    extern __shared__ __align__(128) unsigned char smem[];
    const int lane = threadIdx.x % 32;
    const int warp = uniform(threadIdx.x / 32);

    // Blocks of one head are neighbours in the grid and share its K and V through L2. Under a causal mask the longest
    // rows start first, so that the short ones fill the gaps at the end.
    const int head = blockIdx.z * gridDim.y + blockIdx.y;  // batch · heads + query head
    if (head >= all_heads) return;  // y is limited to 65,535, so z takes over, and its last layer may be part empty
    const int q_start = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BLOCK_Q;
    const int q_rows = min(BLOCK_Q, seq_q - q_start);
    const long long first_row = static_cast<long long>(head) * seq_q + q_start;
    const long long kv_first_row = static_cast<long long>(head / heads_per_kv_head) * seq_kv;
    const element* k_head = k + kv_first_row * HEAD_DIM;
    const element* v_head = v + kv_first_row * HEAD_DIM;

    // Row i sees keys up to i + seq_kv - seq_q (bottom-right). Keys that not even the last row sees are never loaded;
    // blocks of keys that even the first row sees whole need no mask.
    const int diagonal = q_start + seq_kv - seq_q + 1;  // keys that the first row sees, if causal; may be negative
    const int kv_end = CAUSAL ? max(0, min(seq_kv, diagonal + q_rows - 1)) : seq_kv;
    const int kv_whole = CAUSAL ? max(0, min(seq_kv, diagonal)) : seq_kv;
    const int statistics_steps = (kv_end + STATISTICS_KV - 1) / STATISTICS_KV;
    const int kv_blocks = (kv_end + BLOCK_KV - 1) / BLOCK_KV;

    const unsigned q_smem = smem_address(smem);
    const unsigned kv_smem = q_smem + Q_BYTES;  // stage 0, K then V; stage 1 behind it
    const unsigned q_lane = lane_of_q_or_v<CHUNKS>();
    const unsigned v_lane = q_lane;
    const unsigned k_lane = lane_of_k<CHUNKS>();
    const unsigned warp_q_smem = q_smem + warp * WARP_ROWS * ROW_BYTES;
    auto limit_of = [=](int lane) {  // see mask_keys
        return (CAUSAL ? diagonal + warp * WARP_ROWS + lane / 4 : seq_kv) - lane % 4 * 2;
    };
#if __CUDA_ARCH__ >= 1000  // as with computed_late_from below: kept, these cost the registers that spill at d 128
    auto limit = [=] { return limit_of(computed_late(threadIdx.x) % 32); };
#else
    auto limit = [limit = limit_of(lane)] { return limit; };
#endif

    auto load_q = [=](unsigned(&q_rmem)[M_TILES][4], int slice) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
            ldmatrix_x4(q_rmem[m], fragment_address<CHUNKS>(warp_q_smem, q_lane, m * 16, slice));
    };

    // Both walks are one sequence of steps through two stages: the first from left to right, the second back again, so
    // that it begins with the keys that L2 has met last. Each step's copies have the whole step before it to land.
    auto copy_step = [&](int step) {
        const unsigned stage_smem = kv_smem + step % 2 * 2 * KV_BYTES;
        const int block = statistics_steps + kv_blocks - 1 - step;
        if (step < statistics_steps) {
            copy_block<STATISTICS_KV>(stage_smem, k_head, step, seq_kv);
        } else if (block >= 0) {
            copy_block<BLOCK_KV>(stage_smem, k_head, block, seq_kv);
            copy_block<BLOCK_KV>(stage_smem + KV_BYTES, v_head, block, seq_kv);
        }
        cp_async_commit();
    };
    auto enter_step = [&](int step) {
        cp_async_wait<0>();
        __syncthreads();  // everyone's copies have landed, and everyone has left the stage that is filled next
        copy_step(step + 1);
        return kv_smem + step % 2 * 2 * KV_BYTES;
    };
    copy_rows<BLOCK_Q, CHUNKS, THREADS>(q_smem, q + first_row * HEAD_DIM, q_rows, threadIdx.x);
    copy_step(0);

    // The first walk: statistics.
    Statistics statistics = {};
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) statistics.largest[m][0] = statistics.largest[m][1] = -INF;
    auto gather_step = [&](auto tag, int step) {
        constexpr bool masked = decltype(tag)::value;
        float s_rmem[M_TILES][STATISTICS_KV / 8][4] = {};
        multiply_q_k<CHUNKS>(s_rmem, load_q, enter_step(step), computed_late_from<1000>(k_lane));
        if (masked) mask_keys<CAUSAL>(s_rmem, limit() - step * STATISTICS_KV);
        gather<masked>(statistics, s_rmem, scale_log2);
    };
    int step = 0;
    for (; step < kv_whole / STATISTICS_KV; ++step) gather_step(Masked<false>{}, step);
    for (; step < statistics_steps; ++step) gather_step(Masked<true>{}, step);

    float normaliser_rmem[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            normaliser_rmem[m][r] = normaliser(statistics.largest[m][r], statistics.sum[m][r], scale_log2);

    // The second walk: the same scores again, and O.
    float o_rmem[M_TILES][CHUNKS][4] = {};
    auto weight = [&](float score, int m, int r) {
        return exp2_approx(fmaf(score, scale_log2, normaliser_rmem[m][r]));
    };
    auto output_step = [&](auto tag, int block) {
        constexpr bool masked = decltype(tag)::value;
        float s_rmem[M_TILES][BLOCK_KV / 8][4] = {};
        const unsigned stage_smem = enter_step(statistics_steps + kv_blocks - 1 - block);
        multiply_q_k<CHUNKS>(s_rmem, load_q, stage_smem, computed_late_from<1000>(k_lane));
        if (masked) mask_keys<CAUSAL>(s_rmem, limit() - block * BLOCK_KV);
        multiply_p_v<CHUNKS>(o_rmem, s_rmem, weight, stage_smem + KV_BYTES, v_lane);
    };
    int block = kv_blocks - 1;
    for (; block >= kv_whole / BLOCK_KV; --block) output_step(Masked<true>{}, block);
    for (; block >= 0; --block) output_step(Masked<false>{}, block);

    // A block with no keys at all gets here while Q, which O is about to overwrite, may still be on its way.
    cp_async_wait<0>();
    __syncthreads();
    const long long first_o_row = static_cast<long long>(computed_late_from<1000>(head)) * seq_q + q_start;
    store_rows<CHUNKS>(o_rmem, [](int, int) { return P_INVERSE; }, smem + warp * WARP_ROWS * ROW_BYTES,
                       o + (first_o_row + warp * WARP_ROWS) * HEAD_DIM, q_rows - warp * WARP_ROWS);
}
