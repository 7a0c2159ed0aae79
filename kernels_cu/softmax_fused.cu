// Rung: 4, softmax-fused
// Idea: the row is read once and stays on the chip until it is normalised. Where it stays depends on its length:
//   PLACE_WARP    LANES lanes of a warp hold a row in registers; no shared memory, no barrier;
//   PLACE_BLOCK   a block holds a row in registers;
//   PLACE_SHARED  a block, or a cluster of CLUSTER blocks on neighbouring SMs, holds a row in registers and shared
//                 memory together; the blocks exchange nothing but one (m, l) a warp, through distributed shared
//                 memory. The part that does not fit even there is read twice.
// Change from the previous rung: the second read is gone; the online pair (m, l) now merges lanes, warps and SMs.
// Traffic: 1 read + 1 write of the matrix (PLACE_SHARED: the columns beyond the shared memory are read once more).
// Tiles / threads / shared memory: CHUNKS 16-byte chunks a lane in registers, all loaded before the first is used: that
//   keeps the memory busy (bytes in flight = bandwidth x latency).
//   PLACE_WARP    MAX_THREADS threads a block, no shared memory; blocks are small, because short rows in many small
//                 blocks end evenly and touch memory in order;
//   PLACE_BLOCK   32 to MAX_THREADS threads, by the row's length; 256 bytes static;
//   PLACE_SHARED  MAX_THREADS threads; 256 bytes static for each block of the cluster, and 16 bytes dynamic for each
//                 chunk beyond those in registers.
// Limits: a row whose entries are all -inf gives NaN (-inf - (-inf)), as the definition and torch.softmax do; so does a
//   row that holds NaN or +inf. CLUSTER > 1 needs compute capability 9.0. Up to 2^30 columns; x and y at the same
//   offset from a 16-byte boundary.
// References: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, section 3.1;
//   CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".

// What is loaded is to be the last that L2 evicts, although what stays on the chip is not read again. On an H200 that makes
// a softmax of 1 GiB 1.7 % faster at 1024 columns, and 3.7 % at 65,536 (decision 10).
#ifndef ACCESS
#define ACCESS ACCESS_EVICT_LAST
#endif
#include "common/cluster.cuh"
#include "common/matrix_row.cuh"
#include "common/statistics.cuh"

#define PLACE_WARP 0
#define PLACE_BLOCK 1
#define PLACE_SHARED 2
#ifndef PLACE
#error "compile with -DPLACE=PLACE_WARP, PLACE_BLOCK or PLACE_SHARED"
#endif

#ifndef CHUNKS
#define CHUNKS 8
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#ifndef MAX_THREADS
#define MAX_THREADS 512
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
// -DNO_MAX=1: e^x as it stands, to show that here, unlike between the first two rungs, the maximum costs no time. Of the
// rows that registers hold.
#ifndef NO_MAX
#define NO_MAX 0
#endif
static_assert(!NO_MAX || PLACE != PLACE_SHARED, "NO_MAX is for rows that registers hold");
static_assert(CHUNKS >= 1 && CHUNKS <= 16, "CHUNKS x 16 bytes must fit a lane's registers");
static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0, "LANES must be a power of two, at most 32");
static_assert(CLUSTER >= 1 && CLUSTER <= 8, "a cluster of more than 8 blocks is not portable");
static_assert(MAX_THREADS % 32 == 0 && MAX_THREADS <= 1024, "MAX_THREADS must be whole warps, at most 1024 threads");
static_assert(CLUSTER == 1 || PLACE == PLACE_SHARED, "a cluster's rows are those of PLACE_SHARED");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
static_assert(CLUSTER == 1, "clusters need compute capability 9.0");
#endif

// The part of a row that one lane holds in registers: up to CHUNKS chunks and `edges` elements of head and tail.
// `members` lanes hold the row together; this one is number `member`, and its chunks are member, member + members, ...
template <int edges>
struct Share {
    Row row;
    int member;
    int members;
    uint4 chunks_rmem[CHUNKS];
    float edge_rmem[edges];

    // All loads are issued before any is waited for. What lies beyond the row is -inf and counts for nothing.
    __device__ __forceinline__ void load(const Row& whole, int number, int of) {
        row = whole;
        member = number;
        members = of;
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            const int chunk = member + i * members;
            chunks_rmem[i] = empty_chunk();
            if (chunk < row.chunks) chunks_rmem[i] = load_chunk(row.x + row.chunk_offset(chunk));
        }
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            const int edge = member + i * members;
            edge_rmem[i] = edge < row.edge ? to_float(row.x[row.edge_offset(edge)]) : NEGATIVE_INFINITY;
        }
    }

    __device__ __forceinline__ float max() const {
        PackedMax highest;
#pragma unroll
        for (const uint4& chunk : chunks_rmem) highest.include(chunk);
        float value = highest.value();
#pragma unroll
        for (float edge : edge_rmem) value = fmaxf(value, edge);
        return value;
    }

    // Sum of e^(x - shift). A warp without a chunk at a place skips it: the special-function units are the
    // busiest after the memory.
    __device__ __forceinline__ float sum(float shift) const {
        float total = 0.0f;
#pragma unroll
        for (float edge : edge_rmem) total += exponential(edge - shift);
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            if (member + i * members < row.chunks) {
                float values[CHUNK];
                unpack(chunks_rmem[i], values);
#pragma unroll
                for (float value : values) total += exponential(value - shift);
            }
        }
        return total;
    }

    // y = e^(x - shift) * factor. The exponentials are computed again: kept as floats they would double the registers
    // that a row takes, and with them halve the bytes in flight.
    __device__ __forceinline__ void store(float shift, float factor) const {
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            const int chunk = member + i * members;
            if (chunk < row.chunks) {
                float values[CHUNK];
                unpack(chunks_rmem[i], values);
#pragma unroll
                for (float& value : values) value = exponential(value - shift) * factor;
                store_chunk(row.y + row.chunk_offset(chunk), pack(values));
            }
        }
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            const int edge = member + i * members;
            if (edge < row.edge) row.y[row.edge_offset(edge)] = to_element(exponential(edge_rmem[i] - shift) * factor);
        }
    }
};

// The largest value that `lanes` lanes hold together, in each of them: what to subtract from the exponents.
template <int lanes, int edges>
__device__ __forceinline__ float row_max(const Share<edges>& share) {
    return NO_MAX ? 0.0f : lanes_max<lanes>(share.max());
}

// (m, l) over all warps of the CLUSTER blocks, in every thread: each warp writes its pair into every block's shared
// memory, and after one barrier every warp merges all of them. CLUSTER x MAX_WARPS pairs of scratch.
__device__ __forceinline__ Statistics merge_warps(const Statistics& warp, float2 (&scratch_smem)[CLUSTER * MAX_WARPS]) {
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
#if CLUSTER == 1
    if (lane == 0) scratch_smem[threadIdx.x / 32] = make_float2(warp.max, warp.sum);
    __syncthreads();
#else
    const int slot = cluster_rank() * warps + threadIdx.x / 32;
    cluster_wait();  // every block of the cluster has started: its shared memory can be written
    if (lane < CLUSTER) store_to_rank(&scratch_smem[slot], lane, make_float2(warp.max, warp.sum));
    cluster_arrive();
    cluster_wait();  // no block writes to another's shared memory after this: each may exit when it likes
#endif
    Statistics some;
    for (int i = lane; i < CLUSTER * warps; i += 32) some = merge(some, {scratch_smem[i].x, scratch_smem[i].y});
    return lanes_merge(some);
}

// Say "this block has started", which merge_warps waits for when the loads are under way. Returns the block's rank.
__device__ __forceinline__ int enter_cluster() {
#if CLUSTER == 1
    return 0;
#else
    cluster_arrive();
    return cluster_rank();
#endif
}

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

#if PLACE == PLACE_WARP

constexpr int EDGES = (MAX_EDGE + LANES - 1) / LANES;

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
softmax_fused_warp(const element* __restrict__ x,  // (rows, cols)
                   element* __restrict__ y,        // (rows, cols)
                   long long rows, int cols) {
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long index = thread / LANES;

    // A row past the end is loaded as the last one and not stored, so that all lanes take part in the shuffles.
    Share<EDGES> share;
    share.load(row_of(x, y, min(index, rows - 1), cols), threadIdx.x % LANES, LANES);

    const float max = row_max<LANES>(share);
    const float sum = lanes_sum<LANES>(share.sum(anchor(max)));
    if (index < rows) share.store(max, reciprocal(sum));
}

#elif PLACE == PLACE_BLOCK

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
softmax_fused_block(const element* __restrict__ x,  // (rows, cols)
                    element* __restrict__ y,        // (rows, cols)
                    int cols) {
    __shared__ float2 scratch_smem[MAX_WARPS];
    Share<1> share;  // 32 threads or more: the edge, 14 elements at most, is one for each
    share.load(row_of(x, y, blockIdx.x, cols), threadIdx.x, blockDim.x);

    Statistics warp;
    warp.max = row_max<32>(share);
    warp.sum = lanes_sum(share.sum(anchor(warp.max)));
    const Statistics all = merge_warps(warp, scratch_smem);

    share.store(all.max, reciprocal(all.sum));
}

#else  // PLACE_SHARED

// Copies are committed in groups, so that the statistics of the first part are taken while the rest is on its way.
constexpr int GROUPS = 2;
constexpr int BATCH_SMEM = 2;  // chunks that a thread looks at together

// What a thread of PLACE_SHARED owns beyond its CHUNKS chunks in registers: chunk i of it is chunk
// `member + (CHUNKS + i) * members` of the row, and lies in shared memory when i < kept. A thread reads only what it
// copied itself, so no barrier stands between.
struct Column {
    Row row;
    int member;
    int members;
    int own;
    int kept;
    uint4* smem;  // this thread's column of row_smem (resident, blockDim.x)

    __device__ __forceinline__ int chunk_offset(int i) const {
        return row.chunk_offset(member + (CHUNKS + i) * members);
    }
    __device__ __forceinline__ uint4& resident(int i) const { return smem[i * blockDim.x]; }
    __device__ __forceinline__ int group_end(int group) const { return kept * group / GROUPS; }
};

__device__ __forceinline__ void copy_chunk(uint4* smem, const element* address) {
    if constexpr (ACCESS == ACCESS_EVICT_LAST) {
        cp_async_16_evict_last(smem_address(smem), address);
    } else {
        cp_async_16(smem_address(smem), address);
    }
}

__device__ __forceinline__ void issue_copies(const Column& column) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        for (int i = column.group_end(group); i < column.group_end(group + 1); ++i) {
            copy_chunk(&column.resident(i), column.row.x + column.chunk_offset(i));
        }
        cp_async_commit();
    }
}

// The statistics of the resident chunks, group by group as they arrive.
template <int group = 0>
__device__ __forceinline__ void include_resident(Statistics& running, const Column& column) {
    cp_async_wait<GROUPS - 1 - group>();
    const int end = column.group_end(group + 1);
#pragma unroll 1
    for (int first = column.group_end(group); first < end; first += BATCH_SMEM) {
        uint4 batch[BATCH_SMEM];
#pragma unroll
        for (int i = 0; i < BATCH_SMEM; ++i) {
            batch[i] = first + i < end ? column.resident(first + i) : empty_chunk();
        }
        include(running, batch);
    }
    if constexpr (group + 1 < GROUPS) include_resident<group + 1>(running, column);
}

// Chunks [first, first + BATCH) of the thread, from global memory: those that did not fit.
__device__ __forceinline__ void load_overflow(const Column& column, int first, uint4 (&batch)[BATCH]) {
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
        batch[i] = empty_chunk();
        if (first + i < column.own) batch[i] = load_chunk(column.row.x + column.chunk_offset(first + i));
    }
}

__device__ __forceinline__ void store_normalised(const Column& column, int i, const uint4& chunk, float shift,
                                                 float factor) {
    float values[CHUNK];
    unpack(chunk, values);
#pragma unroll
    for (float& value : values) value = exponential(value - shift) * factor;
    store_chunk(column.row.y + column.chunk_offset(i), pack(values));
}

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(MAX_THREADS, BLOCKS_PER_SM)
softmax_fused_shared(const element* __restrict__ x,  // (rows, cols)
                     element* __restrict__ y,        // (rows, cols)
                     int cols,
                     int resident) {  // chunks of each thread that shared memory has room for
    __shared__ float2 scratch_smem[CLUSTER * MAX_WARPS];
    extern __shared__ uint4 row_smem[];  // (resident, blockDim.x)
    const int rank = enter_cluster();
    Column column;
    column.row = row_of(x, y, blockIdx.x / CLUSTER, cols);
    column.member = rank * blockDim.x + threadIdx.x;
    column.members = CLUSTER * blockDim.x;
    column.own = max(0, (column.row.chunks - column.member + column.members - 1) / column.members - CHUNKS);
    column.kept = min(column.own, resident);
    column.smem = row_smem + threadIdx.x;
    issue_copies(column);

    Statistics running;
    for (int first = column.kept; first < column.own; first += BATCH) {
        uint4 batch[BATCH];
        load_overflow(column, first, batch);
        include(running, batch);
    }
    Share<1> share;  // the chunks in registers, and the edge; after the overflow, which needs the registers itself
    share.load(column.row, column.member, column.members);
    const float max = share.max();
    running = merge(running, {max, share.sum(anchor(max))});
    include_resident(running, column);
    const Statistics all = merge_warps(lanes_merge(running), scratch_smem);

    const float factor = reciprocal(all.sum);
    // Where the row lies is worked out again: kept since the beginning it would cost the registers that spill.
    column.row = share.row = row_of(x, y, blockIdx.x / CLUSTER, computed_late(cols));
    share.store(all.max, factor);
    for (int first = column.kept; first < column.own; first += BATCH) {
        uint4 batch[BATCH];
        load_overflow(column, first, batch);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (first + i < column.own) store_normalised(column, first + i, batch[i], all.max, factor);
        }
    }
    for (int i = 0; i < column.kept; ++i) store_normalised(column, i, column.resident(i), all.max, factor);
}

#endif
