// Rung: fa2
// Idea: FlashAttention-2. A block owns BLOCK_Q queries and walks over the keys once; the unnormalised output, the
//   running row maximum and the running row sum stay in registers. One division and one write at the end.
// Change from the previous rung: fa1 has the keys outside and the queries inside, so O, m and l cross HBM at every
//   step; here the loops are swapped and they never do. Both products run on tensor cores.
// Traffic: reads Q, K, V once and writes O once: 4·N·d·e bytes a head. K and V count once a KV head, since the blocks
//   that share them run side by side and meet in L2. A log-sum-exp, for a backward to read, is 4 bytes a row more.
//   -DWRITE_P=1 keeps P for a debugger, N·N·e bytes a head: a trap, there to be measured, as is -DLAYOUT (tile.cuh).
// Tiles / threads / shared memory: BLOCK_Q rows of Q, and KV_STAGES times BLOCK_KV rows each of K and V, HEAD_DIM wide
//   and without padding; WARPS warps split the rows of Q. On H100 and H200 at d 128: 128 x 64, two stages, 96 KiB, 4
//   warps, so that two blocks fit an SM. A warp owns 32 rows, because every fragment of K or V then feeds two products:
//   with 16, reading shared memory would take longer than multiplying. From d 192 on O leaves registers for 16 only.
//   -DSTRIDED=1 takes any d up to HEAD_DIM, whose tiles it fills up with zeros, and any strides.
// Limits: sm_80 and later; d a multiple of 8 up to 256; scale > 0; lengths below 2^30. A row whose every score is -inf
//   counts as empty if a mask cuts its tile. Inside the tile on the diagonal a masked key has weight 0, and 0 times NaN
//   is NaN.
// References: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1; Milakov and Gimelshein, arXiv:1805.02867 (running
//   maximum and sum); PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".

#include "common/head_rows.cuh"

#ifndef HEAD_DIM
#error "compile with the macros that attnprof/kernels/fa2_tiles.py sets"
#endif

constexpr int THREADS = WARPS * 32;
constexpr int M_TILES = BLOCK_Q / (WARPS * 16);  // 16-row products that a warp stacks
constexpr int N_TILES = BLOCK_KV / 8;            // 8-key accumulators of S
constexpr int D_TILES = HEAD_DIM / 8;            // 8-column accumulators of O
constexpr int CHUNKS = HEAD_DIM / 8;             // 16-byte chunks in a row of a tile
constexpr int ROW_BYTES = pitch_chunks<CHUNKS> * 16;
constexpr int PANEL = CHUNKS % 8 == 0 ? 8 : 4;  // chunks within which the swizzle moves a chunk
constexpr unsigned Q_BYTES = BLOCK_Q * ROW_BYTES;
constexpr unsigned KV_BYTES = BLOCK_KV * ROW_BYTES;

static_assert(HEAD_DIM % 32 == 0, "HEAD_DIM must be a multiple of 32, the width of a swizzled panel");
static_assert(BLOCK_Q % (WARPS * 16) == 0, "BLOCK_Q must give every warp a multiple of 16 rows");
static_assert(BLOCK_KV % 16 == 0, "BLOCK_KV must be a multiple of 16, the depth of a product");
static_assert(KV_STAGES == 1 || KV_STAGES == 2, "KV_STAGES must be 1 or 2");

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
// O is rescaled only when a row maximum grew by more than this, in powers of two. Until then the old maximum serves as
// well: it only keeps P in range, and fp16 reaches 2^16. At 0 every new maximum rescales.
constexpr float RESCALE_THRESHOLD = RESCALE_LOG2;

template <typename T>
using Rows = HeadRows<T, HEAD_DIM>;

// What a warp keeps in registers from one KV block to the next.
struct State {
    float o[M_TILES][D_TILES][4];  // unnormalised output
    float shift[M_TILES][2];       // -max * scale * log2(e) of each row, to add to exponents; its four lanes agree
    float sum[M_TILES][2];         // of P, this lane's columns only: a row's four lanes meet once, at the end
};

template <bool masked>
struct Masked { static constexpr bool value = masked; };

using Scores = float[M_TILES][N_TILES][4];
using QFragments = unsigned[HEAD_DIM / 16][M_TILES][4];

// Where ldmatrix finds 16 columns of a tile from some row on. `lane_part` is the lane's own row and chunk, swizzled;
// the 16-column slice goes into the swizzle by XOR, and the rest is the same for the whole warp. Padded rows have no
// swizzle to go into, and offsets in which a slice must be added.
__device__ __forceinline__ unsigned fragment_address(unsigned tile_smem, unsigned lane_part, int row, int slice) {
    constexpr int slices = PANEL / 2;
    const unsigned within = slice % slices * 32;
    const unsigned sliced = LAYOUT == LAYOUT_PAD ? lane_part + within : lane_part ^ within;
    return tile_smem + sliced + slice / slices * PANEL * 16 + row * ROW_BYTES;
}

__device__ __forceinline__ void load_q(unsigned (&q)[M_TILES][4], unsigned q_smem, unsigned lane_part, int slice) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(q[m], fragment_address(q_smem, lane_part, m * 16, slice));
}

// S += Q K^T for the warp's rows, which begin at `q_smem`.
__device__ __forceinline__ void scores(Scores& s_rmem, unsigned q_smem, const QFragments& q_rmem, unsigned k_smem,
                                       unsigned qv_lane, unsigned k_lane) {
#pragma unroll
    for (int slice = 0; slice < HEAD_DIM / 16; ++slice) {
#if Q_IN_REGISTERS
        const auto& q = q_rmem[slice];
#else
        unsigned q[M_TILES][4];
        load_q(q, q_smem, qv_lane, slice);
#endif
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            unsigned k[4];
            ldmatrix_x4(k, fragment_address(k_smem, k_lane, n * 8, slice));
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                mma_16x8x16(s_rmem[m][n], q[m], k[0], k[1]);
                mma_16x8x16(s_rmem[m][n + 1], q[m], k[2], k[3]);
            }
        }
    }
}

// Hide keys that a row must not see. `visible`: how many of the block's keys the thread block's first row sees; under a
// causal mask each row sees one more than the row above.
__device__ __forceinline__ void mask(Scores& s_rmem, int visible) {
    const int thread = computed_late(threadIdx.x);
    const int lane_row = thread / 32 * M_TILES * 16 + thread % 32 / 4;
    // Less the lane's first column, so that all else in the comparison below is known at compile time.
    const int limit = visible + (CAUSAL ? lane_row : 0) - thread % 4 * 2;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int key = n * 8 + e % 2;
                const int row = m * 16 + e / 2 * 8;
                if (key - (CAUSAL ? row : 0) >= limit) s_rmem[m][n][e] = -INF;
            }
}

// Raise the running maxima to cover this block's scores, and rescale what was summed under the old ones.
__device__ __forceinline__ void raise_max(State& state, const Scores& s_rmem, float scale_log2) {
    float shift[M_TILES][2];
    bool grew = false;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float high = fmaxf(s_rmem[m][0][2 * r], s_rmem[m][0][2 * r + 1]);
#pragma unroll
            for (int n = 1; n < N_TILES; ++n) high = fmaxf(high, fmaxf(s_rmem[m][n][2 * r], s_rmem[m][n][2 * r + 1]));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, 1));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, 2));
            shift[m][r] = high * -scale_log2;
            // Against a row that has met no key (+inf) any finite shift is growth; inf - inf is NaN and is none.
            grew |= state.shift[m][r] - shift[m][r] > RESCALE_THRESHOLD;
        }
    // A vote keeps the branch uniform. Rare after the first blocks, and it spares M_TILES * HEAD_DIM / 2 multiplies.
    if (!__any_sync(ALL_LANES, grew)) return;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float lower = fminf(shift[m][r], state.shift[m][r]);
            // Still no key: leave sum and O at zero, where inf - inf would make them NaN.
            float correction = CAUSAL && lower == INF ? 0.0f : exp2_approx(lower - state.shift[m][r]);
            state.shift[m][r] = lower;
            state.sum[m][r] *= correction;
#pragma unroll
            for (int d = 0; d < D_TILES; ++d) {
                state.o[m][d][2 * r] *= correction;
                state.o[m][d][2 * r + 1] *= correction;
            }
        }
}

// P = exp(S - max) and O += P V, 16 keys at a time, so that the exponentials of the next 16 overlap these products.
// P goes from accumulator to A operand without leaving its registers: two m16n8 results are one m16k16 fragment.
// `may_be_empty`: some row may have met no key yet (causal), and its exponent must be -inf, not -inf + inf.
// `keep(m, n, r, pair)` is shown each pair of P that this lane holds: rows m * 16 + r * 8 + lane / 4, keys n * 8 + ...
template <bool may_be_empty, typename Keep>
__device__ __forceinline__ void accumulate(State& state, const Scores& s_rmem, unsigned v_smem, unsigned qv_lane,
                                           float scale_log2, Keep keep) {
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
        qv_lane = computed_late_from<1000>(qv_lane);  // kept, its slices cost registers that are short there at d 128
        unsigned p_rmem[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = i % 2;
                const float shift = may_be_empty && state.shift[m][r] == INF ? 0.0f : state.shift[m][r];
                float low = exp2_approx(fmaf(s_rmem[m][n + i / 2][2 * r], scale_log2, shift));
                float high = exp2_approx(fmaf(s_rmem[m][n + i / 2][2 * r + 1], scale_log2, shift));
                state.sum[m][r] += low + high;
                p_rmem[m][i] = pack2(low, high);
                keep(m, n + i / 2, r, p_rmem[m][i]);
            }
#pragma unroll
        for (int d = 0; d < D_TILES; d += 2) {
            unsigned v[4];
            ldmatrix_x4_trans(v, fragment_address(v_smem, qv_lane, n * 8, d / 2));
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
                mma_16x8x16(state.o[m][d], p_rmem[m], v[0], v[1]);
                mma_16x8x16(state.o[m][d + 1], p_rmem[m], v[2], v[3]);
            }
        }
    }
}

// ln sum exp of each row, from the base-2 exponents.
__device__ __forceinline__ void write_lse(const State& state, float* lse, int rows) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = (warp * M_TILES + m) * 16 + r * 8 + lane / 4;
            if (lane % 4 == 0 && row < rows) lse[row] = logf(state.sum[m][r]) - state.shift[m][r] * (1.0f / LOG2_E);
        }
}

// Divide once, and hand O through the warp's own rows of the Q tile, so that whole 16-byte chunks leave for HBM.
__device__ __forceinline__ void write_output(const State& state, unsigned char* smem, const Rows<element>& o, int row0,
                                             int rows) {
    const int lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 * M_TILES * 16;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp_row + m * 16 + r * 8 + lane / 4;
            // A row that the mask leaves empty has sum 0 and is 0 by definition; a NaN sum stays NaN.
            const float inverse = state.sum[m][r] == 0.0f ? 0.0f : __fdividef(1.0f, state.sum[m][r]);
#pragma unroll
            for (int d = 0; d < D_TILES; ++d)
                *reinterpret_cast<unsigned*>(smem + swizzled<CHUNKS>(row, d) + lane % 4 * 4) =
                    pack2(state.o[m][d][2 * r] * inverse, state.o[m][d][2 * r + 1] * inverse);
        }
    __syncwarp();
    element* to = o.at(row0);
#pragma unroll
    for (int i = 0; i < M_TILES * 16 * CHUNKS / 32; ++i) {
        const int row = warp_row + i / (CHUNKS / PANEL) * (32 / PANEL) + lane / PANEL;
        const int chunk = i % (CHUNKS / PANEL) * PANEL + lane % PANEL;
        if (row < rows && chunk < o.chunks) {
            uint4 value = *reinterpret_cast<const uint4*>(smem + swizzled<CHUNKS>(row, chunk));
            store_16_streaming(to + row * o.pitch + chunk * 8, value);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fa2_forward(const element* __restrict__ q,  // (batch, heads, seq_q, d)
                const element* __restrict__ k,  // (batch, kv_heads, seq_kv, d)
                const element* __restrict__ v,  // (batch, kv_heads, seq_kv, d)
                element* __restrict__ o,        // (batch, heads, seq_q, d)
                float* __restrict__ lse,        // (batch, heads, seq_q), natural logarithm, or null
#if WRITE_P
                element* __restrict__ p,        // (batch, heads, seq_q, p_pitch), under each step's running maximum
                int p_pitch,                    // seq_kv, rounded up to a multiple of BLOCK_KV
#endif
                int seq_q, int seq_kv, int all_heads, int heads_per_kv_head,
#if STRIDED
                int heads, int head_dim,
                // Elements from one batch, head and row to the next: multiples of 8, since copies take 16 bytes.
                long long q_batch, long long q_head, long long q_row, long long k_batch, long long k_head,
                long long k_row, long long v_batch, long long v_head, long long v_row, long long o_batch,
                long long o_head, long long o_row,
#endif
                float scale_log2) {  // scale * log2(e)
    extern __shared__ __align__(128) unsigned char smem[];
    const int lane = threadIdx.x % 32;
    const int warp = uniform(threadIdx.x / 32);

    // Blocks of one head are neighbours in the grid and share its K and V through L2. Under a causal mask the longest
    // rows start first, so that the short ones fill the gaps at the end.
    const int head = blockIdx.z * gridDim.y + blockIdx.y;  // batch * heads + query head
    if (head >= all_heads) return;  // y is limited to 65,535, so z takes over, and its last layer may be part empty
    const int q_start = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BLOCK_Q;
    const int q_rows = min(BLOCK_Q, seq_q - q_start);

    // Row i sees keys up to i + seq_kv - seq_q (bottom-right). Blocks of keys that not even the last row sees are never
    // loaded; blocks that even the first row sees whole need no mask.
    const int diagonal = q_start + seq_kv - seq_q + 1;  // keys that the first row sees, if causal; may be negative
    const int kv_end = CAUSAL ? max(0, min(seq_kv, diagonal + q_rows - 1)) : seq_kv;
    const int kv_blocks = uniform((kv_end + BLOCK_KV - 1) / BLOCK_KV);
    const int unmasked_blocks = uniform((CAUSAL ? max(0, min(seq_kv, diagonal)) : seq_kv) / BLOCK_KV);

    const unsigned q_smem = smem_address(smem);
    const unsigned kv_smem = q_smem + Q_BYTES;  // stage 0, K then V; stage 1 behind it

    // ldmatrix rows and chunks. Q and V: lanes 0-15 name 16 rows, 16-31 the same rows one chunk on. K: lanes 0-7 and
    // 8-15 name 8 keys at two chunks, 16-31 the next 8 keys.
    const unsigned qv_lane = swizzled<CHUNKS>(lane % 16, lane / 16);
    const unsigned k_lane = swizzled<CHUNKS>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const unsigned warp_q_smem = q_smem + warp * M_TILES * 16 * ROW_BYTES;

    const int kv_head = uniform(head / heads_per_kv_head);
    // The rows of a head are worked out where they are used: kept, they would take registers that the products need.
#if STRIDED
    const int batch = uniform(head / heads);
    const int head_in_batch = head - batch * heads;
    const int kv_in_batch = kv_head - batch * (heads / heads_per_kv_head);
    auto q_of_head = [&] { return strided_rows(q, batch, q_batch, head_in_batch, q_head, q_row, head_dim); };
    auto k_of_head = [&] { return strided_rows(k, batch, k_batch, kv_in_batch, k_head, k_row, head_dim); };
    auto v_of_head = [&] { return strided_rows(v, batch, v_batch, kv_in_batch, v_head, v_row, head_dim); };
    auto o_of_head = [&] { return strided_rows(o, batch, o_batch, head_in_batch, o_head, o_row, head_dim); };
    // Chunks past d are never copied, so the tiles that whole blocks go to first must be zero there.
    copy_ragged<KV_STAGES * BLOCK_KV, CHUNKS, THREADS>(kv_smem + KV_STAGES * KV_BYTES, k_of_head(), 0, 0);
#else
    const unsigned first_row = head * seq_q, first_key = kv_head * seq_kv;  // over all heads
    auto q_of_head = [&] { return Rows<const element>{q, first_row}; };
    auto k_of_head = [&] { return Rows<const element>{k, first_key}; };
    auto v_of_head = [&] { return Rows<const element>{v, first_key}; };
    auto o_of_head = [&] { return Rows<element>{o, static_cast<unsigned>(computed_late(head) * seq_q)}; };
#endif
    copy_ragged<BLOCK_Q, CHUNKS, THREADS>(q_smem, q_of_head(), q_start, seq_q);

    State state;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
        state.shift[m][0] = state.shift[m][1] = INF;
        state.sum[m][0] = state.sum[m][1] = 0.0f;
#pragma unroll
        for (int i = 0; i < D_TILES * 4; ++i) state.o[m][i / 4][i % 4] = 0.0f;
    }

    // The rightmost block goes first, and it alone may be ragged.
    if (kv_blocks > 0) {
        const int row = (kv_blocks - 1) * BLOCK_KV;
        copy_ragged<BLOCK_KV, CHUNKS, THREADS>(kv_smem, k_of_head(), row, seq_kv);
        if (KV_STAGES == 2) copy_ragged<BLOCK_KV, CHUNKS, THREADS>(kv_smem + KV_BYTES, v_of_head(), row, seq_kv);
    }
    cp_async_commit();

    QFragments q_rmem;
#if Q_IN_REGISTERS
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int slice = 0; slice < HEAD_DIM / 16; ++slice) load_q(q_rmem[slice], warp_q_smem, qv_lane, slice);
#endif

    unsigned stage = 0;  // byte offset of the stage that holds this step's K and V

    auto step = [&](auto tag, int kv_block) {
        constexpr bool masked = decltype(tag)::value;
        const int block = computed_late(kv_block);  // what derives from it would otherwise become further counters
        const int row = block * BLOCK_KV;
        Scores s_rmem = {};
        cp_async_wait<0>();
        __syncthreads();  // everyone's copies have landed, and everyone has left the previous block's V
        if (KV_STAGES == 2) {
            // The next block's copies have this whole step to land; one barrier a step lets warps drift apart, so
            // that one's exponentials meet another's products.
            if (block > 0) {
                const unsigned next_smem = kv_smem + (stage ^ 2 * KV_BYTES);
                copy_rows<BLOCK_KV, CHUNKS, THREADS>(next_smem, k_of_head(), row - BLOCK_KV);
                copy_rows<BLOCK_KV, CHUNKS, THREADS>(next_smem + KV_BYTES, v_of_head(), row - BLOCK_KV);
            }
            cp_async_commit();
            scores(s_rmem, warp_q_smem, q_rmem, kv_smem + stage, qv_lane, k_lane);
        } else {
            // One buffer each: V lands behind Q K^T, the next K behind the softmax and P V.
            if constexpr (masked) {
                copy_ragged<BLOCK_KV, CHUNKS, THREADS>(kv_smem + KV_BYTES, v_of_head(), row, seq_kv);
            } else {
                copy_rows<BLOCK_KV, CHUNKS, THREADS>(kv_smem + KV_BYTES, v_of_head(), row);
            }
            cp_async_commit();
            scores(s_rmem, warp_q_smem, q_rmem, kv_smem, qv_lane, k_lane);
            cp_async_wait<0>();
            __syncthreads();  // V is there for all, and K is no longer read
            if (block > 0) copy_rows<BLOCK_KV, CHUNKS, THREADS>(kv_smem, k_of_head(), row - BLOCK_KV);
            cp_async_commit();
        }
        if (masked) mask(s_rmem, (CAUSAL ? diagonal : seq_kv) - block * BLOCK_KV);
        raise_max(state, s_rmem, scale_log2);
        accumulate<masked && CAUSAL>(state, s_rmem, kv_smem + KV_BYTES + stage, qv_lane, scale_log2,
                                     [&](int m, int n, int r, unsigned pair) {
#if WRITE_P
            const int row = (warp * M_TILES + m) * 16 + r * 8 + lane / 4;
            element* to = p + (static_cast<long long>(head) * seq_q + q_start + row) * p_pitch + block * BLOCK_KV;
            if (row < q_rows) *reinterpret_cast<unsigned*>(to + n * 8 + lane % 4 * 2) = pair;
#endif
        });
        if (KV_STAGES == 2) stage ^= 2 * KV_BYTES;
    };
    int block = kv_blocks - 1;
    if constexpr (CAUSAL) {
        for (; block >= unmasked_blocks; --block) step(Masked<true>{}, block);
    } else if (block >= unmasked_blocks) {
        step(Masked<true>{}, block--);
    }
    for (; block >= 0; --block) step(Masked<false>{}, block);

    // The four lanes of a row add up their parts.
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            state.sum[m][r] += __shfl_xor_sync(ALL_LANES, state.sum[m][r], 1);
            state.sum[m][r] += __shfl_xor_sync(ALL_LANES, state.sum[m][r], 2);
        }
    // A block with no keys at all gets here while Q, which O is about to overwrite, may still be on its way.
    cp_async_wait<0>();
    __syncthreads();
    write_output(state, smem, o_of_head(), q_start, q_rows);
    if (lse != nullptr) write_lse(state, lse + head * static_cast<long long>(seq_q) + q_start, q_rows);
}
