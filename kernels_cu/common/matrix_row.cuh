// One row of a row-major matrix with any number of columns, split so that most of it moves 16 bytes at a time.
#pragma once

#include "chunk.cuh"

// With an odd column count every row starts at another offset from a 16-byte boundary. A row is therefore
//   head (0 to CHUNK-1 elements up to the boundary) | chunks (16 bytes each, aligned) | tail (0 to CHUNK-1 elements)
// Head and tail together are the edge: at most MAX_EDGE elements, which single threads take one by one. Nothing
// outside the row is ever touched. x and y must lie at the same offset from a 16-byte boundary.
constexpr int MAX_EDGE = 2 * (CHUNK - 1);

// -DALL_EDGE=1: the whole row counts as edge, to measure what going element by element costs. Lane by lane, so that a
// request is of 32 neighbouring elements. Only for kernels whose loops take any number of edge elements.
#ifndef ALL_EDGE
#define ALL_EDGE 0
#endif

struct Row {
    const element* x;  // (chunks, CHUNK), with the head before it and the tail after it
    element* y;        // the same
    int head;
    int chunks;
    int edge;  // head and tail

    // Where chunk `i` starts, counted from x or y.
    __device__ __forceinline__ int chunk_offset(int i) const { return i * CHUNK; }

    // Where edge element `i` lies, counted from x or y: those of the head come first.
    __device__ __forceinline__ int edge_offset(int i) const { return i - head + (i < head ? 0 : chunks * CHUNK); }
};

// Row number `index` of the matrices x and y (rows, cols).
__device__ __forceinline__ Row row_of(const element* x, element* y, long long index, int cols) {
    const long long start = index * cols;
    const auto address = reinterpret_cast<unsigned long long>(x + start);
    const int past_boundary = static_cast<int>(address / sizeof(element) % CHUNK);
    Row row;
    row.head = ALL_EDGE ? cols : min((CHUNK - past_boundary) % CHUNK, cols);
    row.chunks = (cols - row.head) / CHUNK;
    row.edge = cols - row.chunks * CHUNK;
    row.x = x + start + row.head;
    row.y = y + start + row.head;
    return row;
}

// How many chunks a thread loads before it looks at the first: the bytes it keeps in flight are 16 times that.
#ifndef BATCH
#define BATCH 8
#endif
static_assert(BATCH >= 1 && BATCH <= 16, "BATCH chunks must fit the registers of a thread: 1 to 16");

// The block walks over the row's chunks: thread t takes chunks first, first + blockDim.x, ... of each batch, so that a
// warp reads 512 consecutive bytes at a time. Chunks beyond the row come back empty. The address is a pointer that
// steps, not a product for each chunk: the registers are for the data.
__device__ __forceinline__ void load_batch(const Row& row, int first, uint4 (&batch)[BATCH]) {
    const element* address = row.x + row.chunk_offset(first);
    const int left = row.chunks - first;
    // Kept, its multiples cost the register that softmax-safe lacks under NVRTC 12.
    const unsigned stride = computed_late_from<1200>(blockDim.x);
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
        batch[i] = empty_chunk();
        if (i * static_cast<int>(stride) < left) batch[i] = load_chunk(address);
        address += stride * CHUNK;
    }
}

// The last pass of every multi-pass rung: y = e^(x - shift) * factor. The only one that writes.
__device__ __forceinline__ void write_normalised(const Row& row, float shift, float factor) {
    for (int i = threadIdx.x; i < row.edge; i += blockDim.x) {
        const int at = row.edge_offset(i);
        row.y[at] = to_element(exponential(to_float(row.x[at]) - shift) * factor);
    }
    for (int first = threadIdx.x; first < row.chunks; first += BATCH * blockDim.x) {
        uint4 batch[BATCH];
        load_batch(row, first, batch);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int chunk = first + i * blockDim.x;
            if (chunk < row.chunks) {
                float values[CHUNK];
                unpack(batch[i], values);
#pragma unroll
                for (float& value : values) value = exponential(value - shift) * factor;
                store_chunk(row.y + row.chunk_offset(chunk), pack(values));
            }
        }
    }
}
