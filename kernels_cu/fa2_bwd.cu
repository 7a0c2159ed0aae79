// Rung: fa2-bwd
// Idea: FlashAttention-2, backward. P is computed again from Q, K and the log-sum-exp that the forward kept, so that
//   neither P nor its gradient ever crosses HBM. A block owns BLOCK_KV keys and walks over the queries; dK and dV stay in
//   its registers, and its share of dQ is added up in fp32 in L2.
// Change from the previous rung: fa2 computes O and forgets P; five products here, where stored P would need four.
// Traffic: reads Q, K, V, dO, O, the log-sum-exp and D = rowsum(dO ∘ O), writes dK and dV; dQ goes through an fp32
//   accumulator that is zeroed, added to and converted, 12 bytes an element beside the 2 of dQ itself.
// Tiles / threads / shared memory: K and V (BLOCK_KV rows each), Q_STAGES times Q and dO (BLOCK_Q rows each), P, and
//   DS_STAGES times dS. At d 128: 64 x 128 (queries x keys), 8 warps, 177 KiB. S is computed as Sᵀ = K Qᵀ, of which each
//   warp owns WARP_KV x WARP_Q: accumulators of Pᵀ and dSᵀ are then A operands of dV += Pᵀ dO and dK += dSᵀ Q as they
//   lie in registers, and only what the other warps of the same keys hold comes from shared memory.
// Limits: sm_80 and later; HEAD_DIM 64, 128 or 256, or with -DPADDED=1 rows of any multiple of 8 below it, in the time and
//   shared memory of HEAD_DIM; lengths below 2^30. One accumulator of dQ takes the sums in the order
//   in which blocks arrive, so dQ differs in its last bits from run to run; with as many accumulators as blocks a head
//   (accumulator_tiles > 0) every sum has one order. dK and dV always have.
// References: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 2 and section 3.2; PTX ISA, "Matrix fragments for
//   mma.m16n8k16", "ldmatrix" and "red".

#include "common/fragment_sum.cuh"
#include "common/tile.cuh"

#ifndef HEAD_DIM
#error "compile with -DHEAD_DIM=64, 128 or 256, and the other macros that attnprof/kernels/fa2_bwd_tiles.py sets"
#endif

constexpr int WARPS = WARPS_KV * WARPS_Q;
constexpr int THREADS = WARPS * 32;
constexpr int CHUNKS = HEAD_DIM / 8;   // 16-byte chunks in a row of K, V, Q and dO
constexpr int Q_CHUNKS = BLOCK_Q / 8;  // and of P and dS, which lie transposed: a row a key
constexpr int ROW_BYTES = CHUNKS * 16;
constexpr int COPY_ROWS = THREADS / CHUNKS;  // rows that one pass of all threads copies

// A warp's share of Sᵀ and dPᵀ, and of dK and dV: WARPS_Q warps share the same keys, and split first queries, then columns.
constexpr int WARP_KV = BLOCK_KV / WARPS_KV;
constexpr int WARP_Q = BLOCK_Q / WARPS_Q;
constexpr int WARP_D = HEAD_DIM / WARPS_Q;
constexpr int M_TILES = WARP_KV / 16;
constexpr int N_TILES = WARP_Q / 8;
constexpr int D_TILES = WARP_D / 8;
// And of dQ: DQ_WARPS_Q warps split its queries, the others its columns.
constexpr int DQ_ROWS = BLOCK_Q / DQ_WARPS_Q;
constexpr int DQ_COLUMNS = HEAD_DIM * DQ_WARPS_Q / WARPS;
constexpr int DQ_M_TILES = DQ_ROWS / 16;
constexpr int DQ_N_TILES = DQ_COLUMNS / 8;

constexpr unsigned KV_BYTES = BLOCK_KV * ROW_BYTES;
constexpr unsigned Q_BYTES = BLOCK_Q * ROW_BYTES;
constexpr unsigned P_BYTES = WARPS_Q > 1 ? BLOCK_KV * BLOCK_Q * 2 : 0;
constexpr unsigned DS_BYTES = BLOCK_KV * BLOCK_Q * 2;
constexpr unsigned STATISTIC_BYTES = BLOCK_Q * 4;
// Shared memory: K, V, then stages of Q and dO, P, stages of dS, and stages of the log-sum-exp and D.
constexpr unsigned Q_STAGE_BYTES = 2 * Q_BYTES;
constexpr unsigned P_OFFSET = 2 * KV_BYTES + Q_STAGES * Q_STAGE_BYTES;
constexpr unsigned DS_OFFSET = P_OFFSET + P_BYTES;
constexpr unsigned STATISTICS_OFFSET = DS_OFFSET + DS_STAGES * DS_BYTES;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM must be 64, 128 or 256");
static_assert(WARP_KV % 16 == 0 && WARP_Q % 16 == 0 && WARP_D % 16 == 0, "a warp's share must be whole products");
static_assert(DQ_ROWS % 16 == 0 && DQ_COLUMNS % 16 == 0, "a warp's share of dQ must be whole products");
static_assert(BLOCK_Q % COPY_ROWS == 0 && BLOCK_KV % COPY_ROWS == 0, "tiles must be whole copy passes");
static_assert(Q_STAGES == 1 || Q_STAGES == 2, "Q_STAGES must be 1 or 2");
static_assert(DS_STAGES == 1 || DS_STAGES == 2, "DS_STAGES must be 1 or 2");

constexpr float LOG2_E = 1.4426950408889634f;

// The elements of a row in global memory, known at compile time unless the head dim is padded.
__device__ __forceinline__ int row_elements(int head_dim) { return PADDED ? head_dim : HEAD_DIM; }

// The address of a row in a tensor. Row numbers over all heads fit 32 bits, elements do not.
template <typename T>
__device__ __forceinline__ T* at_row(T* tensor, unsigned row, int head_dim) {
    return tensor + static_cast<unsigned long long>(row) * row_elements(head_dim);
}

// Copy a tile of which `rows_left` rows exist; the rest becomes zeros, which add nothing to any product, and so do the
// columns that a padded row lacks.
template <int rows>
__device__ __forceinline__ void copy_rows(unsigned tile_smem, const element* tile, int rows_left, int head_dim) {
    const int pitch = row_elements(head_dim);
    if (rows_left < rows || COPY_ROWS % 8 != 0) {
        copy_edge_tile<rows, CHUNKS, THREADS>(tile_smem, tile, pitch, 0, computed_late(threadIdx.x),
                                              [=](int row) { return row < rows_left ? pitch : 0; });
        return;
    }
    // A thread's chunks lie a multiple of 8 rows apart, where the swizzle is the same.
    const unsigned thread = computed_late(threadIdx.x);
    const int column = thread % CHUNKS * 8;
    const bool exists = !PADDED || column < pitch;
    const element* from = tile + static_cast<int>(thread / CHUNKS) * pitch + (exists ? column : 0);
    const unsigned to_smem = tile_smem + swizzled<CHUNKS>(thread / CHUNKS, thread % CHUNKS);
#pragma unroll
    for (int row = 0; row < rows; row += COPY_ROWS) {
        if (PADDED) {
            cp_async_16_zfill(to_smem + row * ROW_BYTES, from + row * pitch, exists ? 16 : 0);
        } else {
            cp_async_16(to_smem + row * ROW_BYTES, from + row * pitch);
        }
    }
}

// Copy the log-sum-exp and D of a tile's rows; rows past the end get zeros.
__device__ __forceinline__ void copy_statistics(unsigned to_smem, const float* lse, const float* d, int rows_left) {
    const int thread = computed_late(threadIdx.x);
#pragma unroll
    for (int i = thread; i < 2 * BLOCK_Q; i += THREADS) {
        const int row = i % BLOCK_Q;
        const float* from = i < BLOCK_Q ? lse : d;
        cp_async_4_zfill(to_smem + i * 4, row < rows_left ? from + row : from, row < rows_left ? 4 : 0);
    }
}

#include "common/gradient_products.cuh"

// P = exp(scale · S - lse) in one m16n8 accumulator; `statistics` is the lane's first of the warp's queries.
__device__ __forceinline__ void exponentials(float (&p)[4], const float* statistics, int n, float scale_log2) {
    const float2 lse = *reinterpret_cast<const float2*>(statistics + n * 8);
#pragma unroll
    for (int e = 0; e < 4; ++e) p[e] = exp2_approx(fmaf(p[e], scale_log2, -LOG2_E * (e % 2 ? lse.y : lse.x)));
}

// -D, to which the products of dP are added.
__device__ __forceinline__ void set_to_minus_d(Scores& ds, const float* statistics) {
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        const float2 d = *reinterpret_cast<const float2*>(statistics + BLOCK_Q + n * 8);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) ds[m][n][e] = e % 2 ? -d.y : -d.x;
    }
}

// P is 0 where a pair is not allowed, whatever its exponent came to: the log-sum-exp of an empty row is -inf, and a key
// past the end has score 0. `limit`: the last key that the block's first query sees, counted from the block's first.
__device__ __forceinline__ void mask(Scores& p, int limit, int warp_kv, int warp_q) {
    const int lane = computed_late(threadIdx.x) % 32;
    // Less the lane's first key, plus its first query, so that all else in the comparison is known at compile time.
    limit += (CAUSAL ? warp_q * WARP_Q + lane % 4 * 2 : 0) - warp_kv * WARP_KV - lane / 4;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int key = m * 16 + e / 2 * 8;
                const int query = n * 8 + e % 2;
                if (key - (CAUSAL ? query : 0) > limit) p[m][n][e] = 0.0f;
            }
}

// Scale, round, and hand a warp's share of dK or dV through its own part of a tile that is no longer read, so that whole
// 16-byte chunks leave for HBM.
__device__ __forceinline__ void write_gradient(const KeyGradient& acc, float scale, unsigned char* tile, element* to,
                                               int rows, int head_dim, int warp_kv, int warp_q) {
    const int lane = computed_late(threadIdx.x) % 32;  // here, and not before the steps
    const int column = warp_q * WARP_D;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp_kv * WARP_KV + m * 16 + r * 8 + lane / 4;
#pragma unroll
            for (int n = 0; n < D_TILES; ++n)
                *reinterpret_cast<unsigned*>(tile + swizzled<CHUNKS>(row, column / 8 + n) + lane % 4 * 4) =
                    pack2(acc[m][n][2 * r] * scale, acc[m][n][2 * r + 1] * scale);
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < WARP_KV * D_TILES / 32; ++i) {
        const int row = warp_kv * WARP_KV + i * (32 / D_TILES) + lane / D_TILES;
        const int chunk = column / 8 + lane % D_TILES;
        if (row < rows && chunk * 8 < row_elements(head_dim)) {
            const uint4 value = *reinterpret_cast<const uint4*>(tile + swizzled<CHUNKS>(row, chunk));
            store_16_streaming(to + row * row_elements(head_dim) + chunk * 8, value);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fa2_backward_gradients(const element* __restrict__ q,     // (batch, heads, seq_q, head_dim)
                           const element* __restrict__ k,     // (batch, kv_heads, seq_kv, head_dim)
                           const element* __restrict__ v,     // (batch, kv_heads, seq_kv, head_dim)
                           const element* __restrict__ dout,  // (batch, heads, seq_q, head_dim)
                           const float* __restrict__ lse,     // (batch, heads, seq_q), natural logarithm
                           const float* __restrict__ d,       // (batch, heads, seq_q), rowsum(dO ∘ O)
                           float* __restrict__ dq_accumulator,  // (accumulators, batch, heads, tiles of dQ)
                           element* __restrict__ dk,            // (batch, kv_heads, seq_kv, head_dim)
                           element* __restrict__ dv,            // (batch, kv_heads, seq_kv, head_dim)
                           int head_dim, int seq_q, int seq_kv, int all_kv_heads, int heads_per_kv_head,
                           int accumulator_tiles,  // from one block's accumulator of dQ to the next; 0: they share one
                           float scale, float scale_log2) {  // scale * log2(e)
    extern __shared__ __align__(128) unsigned char smem[];
    const int warp = uniform(threadIdx.x / 32);
    // Warps of the same keys are neighbours, and so on different schedulers: when they wait for one another, the others
    // of each scheduler go on.
    const int warp_kv = warp / WARPS_Q;
    const int warp_q = warp % WARPS_Q;

    const int kv_head = blockIdx.z * gridDim.y + blockIdx.y;  // batch * kv_heads + KV head
    if (kv_head >= all_kv_heads) return;  // y is limited to 65,535, so z takes over, and its last layer may be part empty
    const int q_blocks = (seq_q + BLOCK_Q - 1) / BLOCK_Q;
    const int kv_blocks = (seq_kv + BLOCK_KV - 1) / BLOCK_KV;

    const unsigned k_smem = smem_address(smem);
    const unsigned v_smem = k_smem + KV_BYTES;
    const unsigned q_smem = v_smem + KV_BYTES;  // stage 0, Q then dO; stage 1 behind it
    const unsigned statistics_smem = k_smem + STATISTICS_OFFSET;

    // With one accumulator for all, each block has one tile of keys. Under a causal mask those with the most queries, the
    // first, start first.
    for (int kv_block = blockIdx.x; kv_block < kv_blocks; kv_block += gridDim.x) {
        const int kv_start = kv_block * BLOCK_KV;
        const unsigned kv_row = kv_head * seq_kv + kv_start;  // of K and V, over all heads
        // Query i sees keys up to i + seq_kv - seq_q (bottom-right). Tiles of queries before the first that sees any key of
        // the block are never loaded. The last query sees every key, so there is always one.
        const int first_q_block = CAUSAL ? max(0, kv_start + seq_q - seq_kv) / BLOCK_Q : 0;
        const int steps = uniform((q_blocks - first_q_block) * heads_per_kv_head);

        int head = kv_head * heads_per_kv_head;  // of the tile that is copied next; batch * heads + query head
        int q_block = first_q_block;
        auto copy_queries = [&](unsigned stage) {
            const unsigned row = head * seq_q + q_block * BLOCK_Q;
            const int rows_left = seq_q - q_block * BLOCK_Q;
            copy_rows<BLOCK_Q>(q_smem + stage * Q_STAGE_BYTES, at_row(q, row, head_dim), rows_left, head_dim);
            copy_rows<BLOCK_Q>(q_smem + stage * Q_STAGE_BYTES + Q_BYTES, at_row(dout, row, head_dim), rows_left,
                               head_dim);
            copy_statistics(statistics_smem + stage * 2 * STATISTIC_BYTES, lse + row, d + row, rows_left);
        };

        copy_rows<BLOCK_KV>(k_smem, at_row(k, kv_row, head_dim), seq_kv - kv_start, head_dim);
        copy_rows<BLOCK_KV>(v_smem, at_row(v, kv_row, head_dim), seq_kv - kv_start, head_dim);
        copy_queries(0);
        cp_async_commit();

        KeyGradient dk_rmem = {};
        KeyGradient dv_rmem = {};
        unsigned tile = 0;  // of dQ, over all heads and accumulators
        auto add_dq_of = [&](unsigned ds_stage) {
            add_dq(dq_accumulator + static_cast<unsigned long long>(computed_late(tile)) * (BLOCK_Q * HEAD_DIM),
                   k_smem + DS_OFFSET + ds_stage * DS_BYTES, k_smem, warp);
        };
        // With two stages, the dQ of a step is left to the next one. Half of the warps begin that with it and the others end
        // with it, so that the two halves of each scheduler's warps multiply and compute exponentials at different times.
        const bool dq_first = warp < WARPS / 2;

        for (int step = 0;; ++step) {
            cp_async_wait<0>();
            __syncthreads();  // everyone's copies and dS are there, and everyone has left the other stage
            if (DS_STAGES == 2 && step > 0 && (dq_first || step == steps)) add_dq_of((step - 1) % 2);
            if (step == steps) break;

            const int q_start = q_block * BLOCK_Q;
            const unsigned this_tile = blockIdx.x * accumulator_tiles + head * q_blocks + q_block;
            if (++q_block == q_blocks) q_block = first_q_block, ++head;
            if (Q_STAGES == 2 && step + 1 < steps) copy_queries((step + 1) % 2);
            cp_async_commit();

            const int stage = step % Q_STAGES;
            const Lanes lanes = lanes_of(threadIdx.x);
            const unsigned q_stage_smem = q_smem + stage * Q_STAGE_BYTES;
            const unsigned do_stage_smem = q_stage_smem + Q_BYTES;
            const unsigned kv_offset = warp_kv * WARP_KV * ROW_BYTES;
            const unsigned q_offset = warp_q * WARP_Q * ROW_BYTES;
            const float* statistics = reinterpret_cast<const float*>(smem + STATISTICS_OFFSET) + stage * 2 * BLOCK_Q +
                                      warp_q * WARP_Q + threadIdx.x % 4 * 2;

            // Sᵀ, then dPᵀ - D; while the tensor cores work on that, S becomes P.
            Scores p = {};
            multiply_rows(p, k_smem + kv_offset, q_stage_smem + q_offset, lanes, [](int) {});
            Scores ds;
            set_to_minus_d(ds, statistics);
            multiply_rows(ds, v_smem + kv_offset, do_stage_smem + q_offset, lanes, [&](int slice) {
                constexpr int tiles = M_TILES * N_TILES, slices = HEAD_DIM / 16;
#pragma unroll
                for (int i = tiles * slice / slices; i < tiles * (slice + 1) / slices; ++i)
                    exponentials(p[i % M_TILES][i / M_TILES], statistics, i / M_TILES, scale_log2);
            });
            const int limit = CAUSAL ? q_start + seq_kv - seq_q - kv_start : seq_kv - kv_start - 1;
            if (limit < BLOCK_KV - 1) mask(p, limit, warp_kv, warp_q);

            // dSᵀ = Pᵀ ∘ (dPᵀ - D).
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) ds[m][n][e] *= p[m][n][e];

            // dV += Pᵀ dO and dK += dSᵀ Q, unscaled: first what this warp holds, then, once it is in shared memory, what the
            // others of the same keys hold.
            const unsigned p_offset = P_OFFSET + warp_kv * WARP_KV * Q_CHUNKS * 16;
            const unsigned ds_offset = DS_OFFSET + step % DS_STAGES * DS_BYTES + warp_kv * WARP_KV * Q_CHUNKS * 16;
            PackedScores packed_p, packed_ds;
            pack(packed_p, p);
            pack(packed_ds, ds);
            if (WARPS_Q > 1) store_packed(smem + p_offset, packed_p, warp_q * WARP_Q);
            store_packed(smem + ds_offset, packed_ds, warp_q * WARP_Q);
            accumulate_own(dv_rmem, packed_p, do_stage_smem, lanes, warp_q);
            accumulate_own(dk_rmem, packed_ds, q_stage_smem, lanes, warp_q);
            if (WARPS_Q > 1) {
                barrier_sync(1 + warp_kv, WARPS_Q * 32);
                accumulate_others(dv_rmem, k_smem + p_offset, do_stage_smem, lanes, warp_q);
                accumulate_others(dk_rmem, k_smem + ds_offset, q_stage_smem, lanes, warp_q);
            }

            if (DS_STAGES == 2 && step > 0 && !dq_first) add_dq_of((step - 1) % 2);
            tile = this_tile;
            if (DS_STAGES == 1 || Q_STAGES == 1) {
                __syncthreads();  // dS is there, and Q and dO are no longer read
                if (Q_STAGES == 1 && step + 1 < steps) copy_queries(0);
                cp_async_commit();
            }
            if (DS_STAGES == 1) add_dq_of(0);
        }

        const int keys_left = seq_kv - kv_start;
        __syncthreads();  // K and V are no longer read
        write_gradient(dv_rmem, 1.0f, smem + KV_BYTES, at_row(dv, kv_row, head_dim), keys_left, head_dim, warp_kv, warp_q);
        write_gradient(dk_rmem, scale, smem, at_row(dk, kv_row, head_dim), keys_left, head_dim, warp_kv, warp_q);
        __syncthreads();  // the next block's tiles may overwrite them
    }
}

// D = rowsum(dO ∘ O), and zeros in every accumulator of dQ. A thread takes 8 elements; rows of a tile past the end of the
// sequence exist in the accumulators only.
extern "C" __global__ void __launch_bounds__(256)
    fa2_backward_rowsum(const element* __restrict__ o,       // (batch, heads, seq_q, head_dim)
                        const element* __restrict__ dout,    // (batch, heads, seq_q, head_dim)
                        float* __restrict__ d,               // (batch, heads, seq_q)
                        float* __restrict__ dq_accumulator,  // (accumulators, all_heads * padded_q * HEAD_DIM)
                        int head_dim, int seq_q, int padded_q, int all_heads, int accumulators) {
    const long long chunk = blockIdx.x * 256ll + threadIdx.x;
    const unsigned padded_row = static_cast<unsigned>(chunk / CHUNKS);
    const unsigned head = padded_row / padded_q;
    const int row_of_head = padded_row % padded_q;
    if (head >= all_heads) return;  // whole rows, and so whole groups of lanes that add up a row
    const long long stride = static_cast<long long>(all_heads) * padded_q * HEAD_DIM;
    for (int i = 0; i < accumulators; ++i) {
        float4* to = reinterpret_cast<float4*>(dq_accumulator + i * stride + chunk * 8);
        to[0] = to[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float sum = 0.0f;
    const unsigned row = head * seq_q + row_of_head;
    const bool exists = row_of_head < seq_q;
    if (exists && chunk % CHUNKS * 8 < row_elements(head_dim)) {
        const uint4 o_chunk = load_16_streaming(at_row(o, row, head_dim) + chunk % CHUNKS * 8);
        const uint4 do_chunk = load_16_streaming(at_row(dout, row, head_dim) + chunk % CHUNKS * 8);
        sum = dot2(o_chunk.x, do_chunk.x, sum);
        sum = dot2(o_chunk.y, do_chunk.y, sum);
        sum = dot2(o_chunk.z, do_chunk.z, sum);
        sum = dot2(o_chunk.w, do_chunk.w, sum);
    }
#pragma unroll
    for (int offset = CHUNKS / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (exists && chunk % CHUNKS == 0) d[row] = sum;
}

// dQ = scale · the sum of its accumulators, always in the same order, rounded. A thread takes 8 elements of each of two
// rows: row g and g + 8 of a 16 x 8 fragment, 64 consecutive bytes as four lanes of the products held them.
extern "C" __global__ void __launch_bounds__(256)
    fa2_backward_convert(const float* __restrict__ dq_accumulator,  // (accumulators, all_heads * padded_q * HEAD_DIM)
                         element* __restrict__ dq,                  // (batch, heads, seq_q, head_dim)
                         int head_dim, int seq_q, int padded_q, int all_heads, int accumulators, float scale) {
    const long long thread = blockIdx.x * 256ll + threadIdx.x;
    const int chunk = thread % CHUNKS;
    const unsigned pair = static_cast<unsigned>(thread / CHUNKS);  // of rows, over all heads
    const unsigned fragment_row = pair / 8;
    const unsigned head = fragment_row / (padded_q / 16);
    if (head >= all_heads || chunk * 8 >= row_elements(head_dim)) return;
    const int row = fragment_row % (padded_q / 16) * 16 + pair % 8;
    const long long stride = static_cast<long long>(all_heads) * padded_q * HEAD_DIM;
    const float* from = dq_accumulator + (static_cast<long long>(fragment_row) * CHUNKS + chunk) * 128;
    float rows[2][8] = {};
    for (int i = 0; i < accumulators; ++i) add_rows_of_fragment(rows, from + i * stride, pair % 8);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (row + r * 8 >= seq_q) continue;
        uint4 value;
        value.x = pack2(rows[r][0] * scale, rows[r][1] * scale);
        value.y = pack2(rows[r][2] * scale, rows[r][3] * scale);
        value.z = pack2(rows[r][4] * scale, rows[r][5] * scale);
        value.w = pack2(rows[r][6] * scale, rows[r][7] * scale);
        store_16_streaming(at_row(dq, head * seq_q + row + r * 8, head_dim) + chunk * 8, value);
    }
}
