// Rung: fa1
// Idea: FlashAttention as it first came, with the loop over the keys outside: a block of keys is loaded once, and all
//   queries pass by it. Each row takes its output so far, O, and its maximum m and sum l out of HBM, brings in these
//   keys by the online softmax, and puts O, normalised, m and l back. One launch is one turn of the outer loop.
// Change from the previous rung: tiled needs a row's exact statistics before it can use a probability, and multiplies
//   Q Kᵀ twice for them. The online softmax corrects what is already summed instead, so that once is enough.
// Traffic: K and V are read once over all steps. A step moves Q (e bytes an element), O in and out (4 + 4) and m and l
//   in and out (16 bytes a row) for every row that sees a key of the block; under a causal mask rows go in strips of
//   16. A row's first step reads no O, m and l; its last writes none of them, but O in the element type. With T steps a
//   head takes e·(T + 3)·N·d + 8·(T - 1)·N·(d + 2) bytes.
// Tiles / threads / shared memory: a thread block keeps BLOCK_KV rows of K and of V, as many as an SM has room for, and
//   serves rounds of 16 rows of Q a warp. A strip walks the block SUB_KV keys at a time, with Q, S and O in registers;
//   past the first barrier no warp waits for another. At d 128 on an H100 or H200: 448 keys, 224 KiB, 8 warps.
// Limits: sm_80 and later; HEAD_DIM 64 or 128; scale > 0; lengths up to 2^30. O waits in fp32: rounded to the element
//   type at each of T steps it would err about sqrt(T / 2) times as much. Inside the tile on the diagonal a masked key
//   has weight 0, and 0 times a NaN or infinite value is NaN.
// References: Dao et al., FlashAttention, arXiv:2205.14135, algorithm 1; Milakov and Gimelshein, arXiv:1805.02867; PTX
//   ISA, "Matrix fragments for mma.m16n8k16", "ldmatrix" and "cp.async".

#include "common/attention.cuh"

#ifndef HEAD_DIM
#error "compile with -DHEAD_DIM=64 or 128, and the other macros that attnprof/kernels/ladder/fa1.py sets"
#endif

constexpr int THREADS = WARPS * 32;
constexpr int STRIP = 16;             // rows of Q that a warp works on at a time
constexpr int ROUND = WARPS * STRIP;  // rows that the block works on at a time
constexpr int CHUNKS = HEAD_DIM / 8;  // 16-byte chunks in a row of a tile
constexpr int ROW_BYTES = CHUNKS * 16;
constexpr unsigned KV_BYTES = BLOCK_KV * ROW_BYTES;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM must be 64 or 128");
static_assert(SUB_KV % 16 == 0, "SUB_KV must be a multiple of 16, the depth of a product");
static_assert(BLOCK_KV % SUB_KV == 0, "a block of keys is walked in whole sub-blocks");

// One strip on its way through a step. A lane holds two columns a chunk of two rows, lane / 4 and lane / 4 + 8.
struct Strip {
    float o[1][CHUNKS][4];
    float largest[2];  // scaled score, as a power of two
    float sum[2];      // this lane's share of l
    float waiting[2];  // what O must still be multiplied by, beside the correction: l where it came normalised, then 1
};

// A step's tensors in HBM, all heads.
struct Outputs {
    element* o;
    float* o_fp32;
    float* m;
    float* l;
};

// Which of the strip's 16 rows is this lane's upper (r = 0) or lower one, and where its first two columns are in a
// tensor of the shape of O. Computed late: kept from load to store, the addresses would cost registers that S needs.
__device__ __forceinline__ int row_of_lane(int r) { return r * 8 + computed_late(threadIdx.x) % 32 / 4; }
__device__ __forceinline__ long long first_column(long long row) {
    return row * HEAD_DIM + computed_late(threadIdx.x) % 4 * 2;
}

// O waits with each 16 columns of a row in the order 0 1 8 9, 2 3 10 11, ..., so that a lane's share of two chunks is
// 16 bytes in one place. Nobody else reads it.
__device__ __forceinline__ float4* waiting_o(float* o_fp32, long long row) {
    return reinterpret_cast<float4*>(o_fp32 + row * HEAD_DIM) + computed_late(threadIdx.x) % 4;
}

// The first `count` rows from `first_row` on, over all heads.
__device__ __forceinline__ void load_strip(Strip& strip, const Outputs& outputs, long long first_row, int count) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (row_of_lane(r) < count) {
            const long long row = first_row + row_of_lane(r);
            strip.largest[r] = outputs.m[row];
            strip.waiting[r] = outputs.l[row];
            strip.sum[r] = computed_late(threadIdx.x) % 4 == 0 ? strip.waiting[r] : 0.0f;
            const float4* quads = waiting_o(outputs.o_fp32, row);
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
                const float4 quad = quads[chunk * 2];
                strip.o[0][chunk][2 * r] = quad.x;
                strip.o[0][chunk][2 * r + 1] = quad.y;
                strip.o[0][chunk + 1][2 * r] = quad.z;
                strip.o[0][chunk + 1][2 * r + 1] = quad.w;
            }
        }
    }
}

// Bring the O of the first `count` rows from `first_row` on as near as L2, for the strip after this one.
__device__ __forceinline__ void prefetch_o(const float* o_fp32, long long first_row, int count) {
    constexpr int line = 32;  // elements: 128 bytes
    const int elements = min(count, STRIP) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < STRIP * HEAD_DIM / line / 32; ++i) {
        const int first = (i * 32 + computed_late(threadIdx.x) % 32) * line;
        if (first < elements) prefetch_l2(o_fp32 + first_row * HEAD_DIM + first);
    }
}

// Normalise O and put the rows back. `last`: no later block has a key for them, so O leaves for good.
__device__ __forceinline__ void store_strip(Strip& strip, const Outputs& outputs, long long first_row, int count,
                                            bool last) {
    __syncwarp();  // all four lanes of a row have read the m and l that one of them is about to overwrite
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = row_sum(strip.sum[r]);
        if (row_of_lane(r) >= count) continue;
        // A row without a key has sum 0 and is 0; a NaN sum stays NaN.
        const float inverse = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            strip.o[0][chunk][2 * r] *= inverse;
            strip.o[0][chunk][2 * r + 1] *= inverse;
        }
        const long long row = first_row + row_of_lane(r);
        if (last) {
            unsigned* pairs = reinterpret_cast<unsigned*>(outputs.o + first_column(row));
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk)
                pairs[chunk * 4] = pack2(strip.o[0][chunk][2 * r], strip.o[0][chunk][2 * r + 1]);
        } else {
            float4* quads = waiting_o(outputs.o_fp32, row);
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2)
                quads[chunk * 2] = make_float4(strip.o[0][chunk][2 * r], strip.o[0][chunk][2 * r + 1],
                                               strip.o[0][chunk + 1][2 * r], strip.o[0][chunk + 1][2 * r + 1]);
            if (threadIdx.x % 4 == 0) {
                outputs.m[row] = strip.largest[r];
                outputs.l[row] = sum;
            }
        }
    }
}

// Algorithm 1, lines 10 to 12, for a part of the block: bring its scores into m, l and O. O is normalised at the end.
__device__ __forceinline__ void update(Strip& strip, const float (&s_rmem)[1][SUB_KV / 8][4], unsigned v_smem,
                                       unsigned v_lane, float scale_log2) {
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float largest = fmaxf(s_rmem[0][0][2 * r], s_rmem[0][0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < SUB_KV / 8; ++n)
            largest = fmaxf(largest, fmaxf(s_rmem[0][n][2 * r], s_rmem[0][n][2 * r + 1]));
        largest = fmaxf(strip.largest[r], row_max(largest) * scale_log2);
        // A row that has met no key yet: exponents must be -inf, not -inf + inf.
        shift[r] = largest == -INF ? 0.0f : -largest;
        const float correction = exp2_approx(strip.largest[r] + shift[r]);
        strip.largest[r] = largest;
        strip.sum[r] *= correction;
        const float factor = correction * strip.waiting[r];
        strip.waiting[r] = 1.0f;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            strip.o[0][chunk][2 * r] *= factor;
            strip.o[0][chunk][2 * r + 1] *= factor;
        }
    }
    auto weight = [&](float score, int, int r) {
        const float p = exp2_approx(fmaf(score, scale_log2, shift[r]));
        strip.sum[r] += p;
        return p;
    };
    multiply_p_v<CHUNKS>(strip.o, s_rmem, weight, v_smem, v_lane);
}

// A strip of Q as A operands, four bytes a lane and load: two chunks of a row, 32 bytes, are a sector. It passes by
// shared memory, where there is then room for more keys. Rows past the end are zeros.
using QFragments = unsigned[CHUNKS / 2][4];
__device__ __forceinline__ void load_q(QFragments& q_rmem, const element* q, long long first_row, int count) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const unsigned* pairs = reinterpret_cast<const unsigned*>(q + first_column(first_row + row_of_lane(r)));
        const bool exists = row_of_lane(r) < count;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            q_rmem[chunk / 2][chunk % 2 * 2 + r] = exists ? __ldg(pairs + chunk * 4) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    fa1_step(const element* __restrict__ q,  // (batch, heads, seq_q, HEAD_DIM)
             const element* __restrict__ k,  // (batch, kv_heads, seq_kv, HEAD_DIM)
             const element* __restrict__ v,  // (batch, kv_heads, seq_kv, HEAD_DIM)
             element* __restrict__ o,        // (batch, heads, seq_q, HEAD_DIM)
             float* __restrict__ o_fp32,     // (batch, heads, seq_q, HEAD_DIM), normalised, in the order of waiting_o
             float* __restrict__ m,          // (batch, heads, seq_q), row maxima of S · scale · log2(e)
             float* __restrict__ l,          // (batch, heads, seq_q), row sums of 2^(S · scale · log2(e) - m)
             int seq_q, int seq_kv, int heads_per_kv_head,
             int first_key,       // of this step's block of keys
             int first_row,       // of each head that takes part: all rows in the first step, then those that see a key
             int blocks_a_head,   // thread blocks that share a head's rows
             int rounds_a_block,  // of ROUND rows each
             float scale_log2) {  // scale · log2(e)
    extern __shared__ __align__(128) unsigned char smem[];
    const int warp = uniform(threadIdx.x / 32);
    const int lane = threadIdx.x % 32;

    const long long head = blockIdx.x / blocks_a_head;  // batch · heads + query head
    const int block_row = first_row + blockIdx.x % blocks_a_head * rounds_a_block * ROUND;
    const int end = min(seq_q, block_row + rounds_a_block * ROUND);
    const long long kv_row = head / heads_per_kv_head * seq_kv + first_key;
    const int keys = seq_kv - first_key;  // from this block's first on

    const Outputs outputs = {o, o_fp32, m, l};

    const unsigned k_smem = smem_address(smem);
    const unsigned v_smem = k_smem + KV_BYTES;
    const unsigned k_lane = lane_of_k<CHUNKS>();
    const unsigned v_lane = lane_of_q_or_v<CHUNKS>();
    copy_rows<BLOCK_KV, CHUNKS, THREADS>(k_smem, k + kv_row * HEAD_DIM, keys, threadIdx.x);
    copy_rows<BLOCK_KV, CHUNKS, THREADS>(v_smem, v + kv_row * HEAD_DIM, keys, threadIdx.x);
    cp_async_commit();

    int row = block_row + warp * STRIP;
    QFragments q_rmem;
    load_q(q_rmem, q, head * seq_q + row, end - row);
    cp_async_wait<0>();
    __syncthreads();  // the last barrier: from here on K and V are only read

#pragma unroll 1
    for (; row < end; row += ROUND) {
        const long long strip_row = head * seq_q + row;
        const int count = min(STRIP, end - row);
        Strip strip = {};
        strip.largest[0] = strip.largest[1] = -INF;
        if (first_key > 0) {
            load_strip(strip, outputs, strip_row, count);  // on its way during the first Q Kᵀ
            prefetch_o(o_fp32, strip_row + ROUND, end - row - ROUND);
        }

        // How many keys the strip's first and last row see, from this block's first on (bottom-right).
        const int first_sees = CAUSAL ? keys + row + 1 - seq_q : keys;
        const int last_sees = CAUSAL ? first_sees + count - 1 : keys;
        const int seen = min(last_sees, BLOCK_KV);
        auto q_of_slice = [&](unsigned(&fragment)[1][4], int slice) {
#pragma unroll
            for (int i = 0; i < 4; ++i) fragment[0][i] = q_rmem[slice][i];
        };
        int key = 0;  // of this block
#pragma unroll 1
        do {
            float s_rmem[1][SUB_KV / 8][4] = {};
            multiply_q_k<CHUNKS>(s_rmem, q_of_slice, k_smem + key * ROW_BYTES, k_lane);
            if (key + SUB_KV >= seen) load_q(q_rmem, q, strip_row + ROUND, end - row - ROUND);  // on its way during P V
            if (first_sees < key + SUB_KV)
                mask_keys<CAUSAL>(s_rmem, first_sees - key + (CAUSAL ? lane / 4 : 0) - lane % 4 * 2);
            update(strip, s_rmem, v_smem + key * ROW_BYTES, v_lane, scale_log2);
            key += SUB_KV;
        } while (key < seen);
        store_strip(strip, outputs, strip_row, count, last_sees <= BLOCK_KV);
    }
}
