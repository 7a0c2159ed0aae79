// Rung: fa2-decode
// Idea: split-KV, for few queries over long caches. With one query a head there are too few blocks of queries to fill a
//   GPU, so the keys are split over blocks instead. Each leaves an unnormalised O with its row maxima and sums, and a
//   second launch combines them: fa2's rescaling, across blocks.
// Change from the previous rung: fa2 gives a query head a block of its own, with 127 of 128 rows idle when there is one
//   query. Here the rows of a tile are queries x query heads of a KV head, which lie side by side in memory: they share
//   one read of K and V. Warps split the keys as well, so none of them waits for another on its way through the cache.
// Traffic: K and V once, 2·N·d·e bytes a KV head; Q, O and the log-sum-exp are small. Each split writes its part of O
//   and two statistics a row in fp32, and the combination reads them: 2·splits·rows·(4d + 8) bytes, most out of L2.
// Tiles / threads / shared memory: BLOCK_ROWS = 16, 32 or 64 rows of Q; KEY_WARPS teams of ROW_WARPS warps. A team
//   walks over its own keys, STEP_KEYS at a time, through its own ring of STAGES tiles of K and of V. At d 128 and 16
//   rows an H100 or H200 SM holds one block of 8 warps with three stages of 64 KiB: 128 KiB are always on their way.
// Limits: sm_80 and later; HEAD_DIM 64, 128 or 256; scale > 0; lengths below 2^30. A masked key in the tiles at the end
//   has weight 0, and 0 times NaN is NaN. Where one block has all keys of a row, there is no second launch.
// References: Dao et al., Flash-Decoding for long-context inference (2023); Dao, FlashAttention-2, arXiv:2307.08691;
//   Milakov and Gimelshein, arXiv:1805.02867 (why parts of a softmax combine); PTX ISA, "mma.m16n8k16".

#include "common/attention.cuh"
#include "common/part.cuh"

#ifndef HEAD_DIM
#error "compile with -DHEAD_DIM=64, 128 or 256, and the other macros that attnprof/kernels/fa2_decode_tiles.py sets"
#endif

constexpr int TEAM_THREADS = ROW_WARPS * 32;
constexpr int THREADS = KEY_WARPS * TEAM_THREADS;
constexpr int BLOCK_ROWS = ROW_WARPS * M_TILES * 16;
constexpr int N_TILES = STEP_KEYS / 8;  // 8-key accumulators of S
constexpr int CHUNKS = HEAD_DIM / 8;    // 16-byte chunks in a row of a tile; 8-column accumulators of O
constexpr int QUADS = HEAD_DIM / 4;     // groups of four columns of an fp32 row
constexpr int ROW_BYTES = CHUNKS * 16;
constexpr unsigned Q_BYTES = BLOCK_ROWS * ROW_BYTES;
constexpr unsigned KV_BYTES = STEP_KEYS * ROW_BYTES;         // a team's K, or V, of one step
constexpr unsigned RING_BYTES = STAGES * 2 * KV_BYTES;       // one team's
constexpr int PART_PITCH = HEAD_DIM + 8;  // floats; the padding spreads the rows of an accumulator over all banks
constexpr unsigned PARTS_BYTES = KEY_WARPS * BLOCK_ROWS * PART_PITCH * 4;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "HEAD_DIM must be 64, 128 or 256");
static_assert(STEP_KEYS % 16 == 0, "STEP_KEYS must be a multiple of 16, the depth of a product");
static_assert(STAGES >= 2, "STAGES must be at least 2: one to read and one on its way");

constexpr float LOG2_E = 1.4426950408889634f;

// A row in a tensor of rows. Row numbers over all heads fit 32 bits, elements do not.
template <typename T>
__device__ __forceinline__ T* at_row(T* tensor, unsigned row) {
    return tensor + static_cast<unsigned long long>(row) * HEAD_DIM;
}

// Wait for the warps that share a ring of tiles, and no others.
__device__ __forceinline__ void team_barrier() {
    if (ROW_WARPS == 1) {
        __syncwarp();
    } else {
        __syncthreads();  // so all teams take equally many steps
    }
}

// Divide once, and write four columns of a row of O; the first four bring the log-sum-exp along.
__device__ __forceinline__ void write_row(const Part& total, element* o, float* lse, unsigned row, int quad) {
    // A row that the mask leaves empty has sum 0 and is 0 by definition; a NaN sum stays NaN.
    const float inverse = total.sum == 0.0f ? 0.0f : 1.0f / total.sum;
    *reinterpret_cast<uint2*>(at_row(o, row) + quad * 4) =
        make_uint2(pack2(total.o.x * inverse, total.o.y * inverse), pack2(total.o.z * inverse, total.o.w * inverse));
    if (quad == 0) lse[row] = logf(total.sum) - total.shift * (1.0f / LOG2_E);
}

// What a warp keeps in registers from one step to the next.
struct State {
    float o[M_TILES][CHUNKS][4];  // unnormalised output
    float shift[M_TILES][2];       // of each row, as in Part; its four lanes agree
    float sum[M_TILES][2];         // this lane's columns only: a row's four lanes meet once, at the end
};

using Scores = float[M_TILES][N_TILES][4];

// Raise the running maxima to cover these scores, and rescale what was summed under the old ones.
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
            shift[m][r] = row_max(high) * -scale_log2;
            grew |= shift[m][r] < state.shift[m][r];
        }
    if (!__any_sync(all_lanes, grew)) return;  // a vote keeps the branch uniform; seldom passed after the first steps
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float lower = fminf(shift[m][r], state.shift[m][r]);
            // Still no key: leave sum and O at zero, where inf - inf would make them NaN.
            const float correction = lower == INF ? 0.0f : exp2_approx(lower - state.shift[m][r]);
            state.shift[m][r] = lower;
            state.sum[m][r] *= correction;
#pragma unroll
            for (int d = 0; d < CHUNKS; ++d) {
                state.o[m][d][2 * r] *= correction;
                state.o[m][d][2 * r + 1] *= correction;
            }
        }
}

// Leave a warp's state where its whole block finds it: O in `parts_smem`, shifts and sums in `statistics_smem`.
__device__ __forceinline__ void leave(const State& state, float* parts_smem, float2* statistics_smem, int team,
                                      int warp_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float sum = row_sum(state.sum[m][r]);
            const int row = team * BLOCK_ROWS + warp_row + m * 16 + r * 8 + lane / 4;
#pragma unroll
            for (int d = 0; d < CHUNKS; ++d)
                *reinterpret_cast<float2*>(parts_smem + row * PART_PITCH + d * 8 + lane % 4 * 2) =
                    make_float2(state.o[m][d][2 * r], state.o[m][d][2 * r + 1]);
            if (lane % 4 == 0) statistics_smem[row] = make_float2(state.shift[m][r], sum);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fa2_decode_attention(const element* __restrict__ q,  // (batch, heads, seq_q, HEAD_DIM)
                         const element* __restrict__ k,  // (batch, kv_heads, seq_kv, HEAD_DIM)
                         const element* __restrict__ v,  // (batch, kv_heads, seq_kv, HEAD_DIM)
                         void* __restrict__ o,           // of one split: (batch, heads, seq_q, HEAD_DIM) of element;
                                                         // of more: (splits, batch, heads, seq_q, HEAD_DIM) of float
                         void* __restrict__ statistics,  // of one split: lse (batch, heads, seq_q) of float;
                                                         // of more: (splits, batch, heads, seq_q) of {shift, sum}
                         int seq_q, int seq_kv, int head_rows, int all_rows, int row_blocks, int splits, int causal,
                         float scale_log2) {  // scale * log2(e)
    extern __shared__ __align__(128) unsigned char smem[];
    const int lane = threadIdx.x % 32;
    const int warp = uniform(threadIdx.x / 32);
    const int team = warp / ROW_WARPS;
    const int warp_row = warp % ROW_WARPS * M_TILES * 16;

    // The rows of a KV head are its query heads' queries, head_rows in all, one after another in Q and in O. Blocks
    // that share keys are neighbours in the grid.
    const int kv_head = blockIdx.x / row_blocks / splits;  // batch * kv_heads + KV head
    const int split = blockIdx.x / row_blocks % splits;
    const int row0 = blockIdx.x % row_blocks * BLOCK_ROWS;
    const int rows = min(BLOCK_ROWS, head_rows - row0);
    const unsigned first_row = kv_head * head_rows + row0;  // over all heads

    // A split has every key of some consecutive steps, as many as the next or one more. Its teams take turns.
    const int all_steps = (seq_kv + STEP_KEYS - 1) / STEP_KEYS;
    const int longer_splits = all_steps % splits;
    const int begin = split * (all_steps / splits) + min(split, longer_splits);
    const int end = begin + all_steps / splits + (split < longer_splits);
    const int turns = uniform((end - begin + KEY_WARPS - 1) / KEY_WARPS);

    const unsigned q_smem = smem_address(smem);
    const unsigned ring_smem = q_smem + Q_BYTES + team * RING_BYTES;
    const element* const k_head = at_row(k, kv_head * seq_kv);
    const element* const v_head = at_row(v, kv_head * seq_kv);
    const int team_thread = threadIdx.x % TEAM_THREADS;

    // Start the team's copies of one turn; a group even if there is nothing to copy, so that waiting can count groups.
    auto copy = [&](int turn, unsigned stage) {
        // Addresses anew in each turn: kept, they cost the registers that spill at d 256.
        const int thread = computed_late_from<1000>(team_thread);
        const int key = (begin + turn * KEY_WARPS + team) * STEP_KEYS;
        const int end_key = min(end * STEP_KEYS, seq_kv);
        const element* k_tile = at_row(k_head, key);
        const element* v_tile = at_row(v_head, key);
        const unsigned k_smem = ring_smem + stage * 2 * KV_BYTES;
        const unsigned v_smem = k_smem + KV_BYTES;
        if (key + STEP_KEYS <= end_key) {
            copy_tile<STEP_KEYS, CHUNKS, TEAM_THREADS>(k_smem, k_tile, HEAD_DIM, 0, thread);
            copy_tile<STEP_KEYS, CHUNKS, TEAM_THREADS>(v_smem, v_tile, HEAD_DIM, 0, thread);
        } else if (key < end_key) {
            // The end of the cache. Rows past it become zeros, since 0 * P must be 0 whatever lies there.
            auto limit = [=](int row) { return key + row < seq_kv ? HEAD_DIM : 0; };
            copy_edge_tile<STEP_KEYS, CHUNKS, TEAM_THREADS>(k_smem, k_tile, HEAD_DIM, 0, thread, limit);
            copy_edge_tile<STEP_KEYS, CHUNKS, TEAM_THREADS>(v_smem, v_tile, HEAD_DIM, 0, thread, limit);
        }
        cp_async_commit();
    };

    copy_edge_tile<BLOCK_ROWS, CHUNKS, THREADS>(q_smem, at_row(q, first_row), HEAD_DIM, 0, threadIdx.x,
                                                [=](int row) { return row < rows ? HEAD_DIM : 0; });
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage, stage);

    // Keys that each of the lane's rows sees, less the lane's first column. Row i sees one more than the query before.
    int limit[M_TILES][2];
    State state;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int query = (row0 + warp_row + m * 16 + r * 8 + lane / 4) % seq_q;
            limit[m][r] = (causal ? query + 1 + seq_kv - seq_q : seq_kv) - lane % 4 * 2;
            state.shift[m][r] = INF;
            state.sum[m][r] = 0.0f;
#pragma unroll
            for (int d = 0; d < CHUNKS; ++d) state.o[m][d][2 * r] = state.o[m][d][2 * r + 1] = 0.0f;
        }
    const int seen_by_all = causal ? seq_kv - seq_q + 1 : seq_kv;

    const unsigned qv_lane = lane_of_q_or_v<CHUNKS>();
    const unsigned k_lane = lane_of_k<CHUNKS>();
    auto load_q = [=](unsigned (&fragments)[M_TILES][4], int slice) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
            ldmatrix_x4(fragments[m],
                        fragment_address<CHUNKS>(q_smem + warp_row * ROW_BYTES, qv_lane, m * 16, slice));
    };

    cp_async_wait<STAGES - 1>();
    __syncthreads();  // all of Q is there, while K and V are on their way
#if Q_IN_REGISTERS
    unsigned q_rmem[HEAD_DIM / 16][M_TILES][4];
#pragma unroll
    for (int slice = 0; slice < HEAD_DIM / 16; ++slice) load_q(q_rmem[slice], slice);
#endif

    unsigned stage = 0;
    for (int turn = 0; turn < turns; ++turn) {
        cp_async_wait<STAGES - 2>();
        team_barrier();  // the whole team's copies have landed, and all of it has left the stage that is filled next
        copy(turn + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        const unsigned k_smem = ring_smem + stage * 2 * KV_BYTES;
        stage = stage == STAGES - 1 ? 0 : stage + 1;

        const int step = begin + turn * KEY_WARPS + team;
        if (step >= end) continue;  // in the last turn some teams have nothing left
        Scores s_rmem = {};
        // Kept, its slices cost registers: with 32 rows at d 128 some spill.
        const unsigned k_part = computed_late_from<1200>(k_lane);
#if Q_IN_REGISTERS
        multiply_q_k<CHUNKS>(s_rmem, [&](unsigned (&fragments)[M_TILES][4], int slice) {
#pragma unroll
            for (int i = 0; i < M_TILES * 4; ++i) fragments[i / 4][i % 4] = q_rmem[slice][i / 4][i % 4];
        }, k_smem, k_part);
#else
        multiply_q_k<CHUNKS>(s_rmem, load_q, k_smem, k_part);
#endif
        if ((step + 1) * STEP_KEYS > seen_by_all) {
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        if (step * STEP_KEYS + n * 8 + e % 2 >= limit[m][e / 2]) s_rmem[m][n][e] = -INF;
        }
        raise_max(state, s_rmem, scale_log2);
        auto weight = [&](float score, int m, int r) {
            // A row that has met no key yet: its exponents must be -inf, not -inf + inf.
            const float shift = state.shift[m][r] == INF ? 0.0f : state.shift[m][r];
            const float p = exp2_approx(fmaf(score, scale_log2, shift));
            state.sum[m][r] += p;
            return p;
        };
        multiply_p_v<CHUNKS>(state.o, s_rmem, weight, k_smem + KV_BYTES, qv_lane);
    }

    // The teams' results meet where Q, K and V were.
    float* parts_smem = reinterpret_cast<float*>(smem);
    float2* statistics_smem = reinterpret_cast<float2*>(smem + PARTS_BYTES);
    cp_async_wait<0>();
    __syncthreads();  // everyone has left K and V
    leave(state, parts_smem, statistics_smem, team, warp_row);
    __syncthreads();
    for (int i = threadIdx.x; i < rows * QUADS; i += THREADS) {
        const int row = i / QUADS;
        const int quad = i % QUADS;
        Part parts[KEY_WARPS];
#pragma unroll
        for (int t = 0; t < KEY_WARPS; ++t) {
            const float2 pair = statistics_smem[t * BLOCK_ROWS + row];
            const float* from = parts_smem + (t * BLOCK_ROWS + row) * PART_PITCH + quad * 4;
            parts[t] = {pair.x, pair.y, *reinterpret_cast<const float4*>(from)};
        }
        const Part total = combined(parts);
        if (splits == 1) {
            write_row(total, static_cast<element*>(o), static_cast<float*>(statistics), first_row + row, quad);
        } else {
            const unsigned part = split * all_rows + first_row + row;
            *reinterpret_cast<float4*>(at_row(static_cast<float*>(o), part) + quad * 4) = total.o;
            if (quad == 0) static_cast<float2*>(statistics)[part] = make_float2(total.shift, total.sum);
        }
    }
}

// Threads of fa2_decode_combine: groups of QUADS threads, each of which has all columns of a row.
constexpr int COMBINE_THREADS = 128;
constexpr int GROUPS = COMBINE_THREADS / QUADS;
constexpr int AT_ONCE = 8;  // parts that a thread loads before it needs the first of them

// A block a row. Its groups share the splits, each in a fixed order, and meet in shared memory.
extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    fa2_decode_combine(const float* __restrict__ o_parts,      // (splits, batch, heads, seq_q, HEAD_DIM)
                       const float2* __restrict__ statistics,  // (splits, batch, heads, seq_q) of {shift, sum}
                       element* __restrict__ o,                // (batch, heads, seq_q, HEAD_DIM)
                       float* __restrict__ lse,                // (batch, heads, seq_q), natural logarithm
                       int all_rows, int splits) {
    __shared__ float4 o_smem[GROUPS][QUADS];
    __shared__ float2 statistics_smem[GROUPS];
    const int group = threadIdx.x / QUADS;
    const int quad = threadIdx.x % QUADS;
    const unsigned row = blockIdx.x;
    Part parts[1 + AT_ONCE];
    parts[0] = no_keys();
    for (int first = group; first < splits; first += GROUPS * AT_ONCE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int split = first + i * GROUPS;
            parts[1 + i] = no_keys();
            if (split < splits) {
                const unsigned part = split * all_rows + row;
                const float2 pair = statistics[part];
                parts[1 + i] = {pair.x, pair.y, *reinterpret_cast<const float4*>(at_row(o_parts, part) + quad * 4)};
            }
        }
        parts[0] = combined(parts);
    }
    o_smem[group][quad] = parts[0].o;
    if (quad == 0) statistics_smem[group] = make_float2(parts[0].shift, parts[0].sum);
    __syncthreads();
    if (group > 0) return;
    Part of_groups[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) of_groups[i] = {statistics_smem[i].x, statistics_smem[i].y, o_smem[i][quad]};
    write_row(combined(of_groups), o, lse, row, quad);
}
