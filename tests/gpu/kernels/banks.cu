// One warp, one access to shared memory, REPEAT times: what the bank-conflict counters are compared with, a kernel a
// pattern of attnprof/model/patterns.py, a layout and a row length. Addresses are worked out here as the kernels of the
// ladder do it, not taken from the model. What is read is never written first: only the addresses matter. A barrier
// behind each access keeps ptxas from folding the equal ones into one.

#include "common/tile.cuh"

constexpr int REPEAT = 16;

extern __shared__ __align__(128) unsigned char smem[];

// Rows one after another, `pad` elements apart.
template <int row_elements, int pad>
struct Padded {
    static constexpr int chunks = row_elements / 8;
    static __device__ __forceinline__ unsigned at(int row, int byte) {
        return smem_address(smem) + row * (row_elements + pad) * 2 + byte;
    }
};

template <int row_elements>
struct Swizzled {
    static constexpr int chunks = row_elements / 8;
    static __device__ __forceinline__ unsigned at(int row, int byte) {
        return smem_address(smem) + swizzled<chunks>(row, byte / 16) + byte % 16;
    }
};

__device__ __forceinline__ void load_16(unsigned address, unsigned* sink) {
    unsigned r[4], sum = 0;
#pragma unroll
    for (int i = 0; i < REPEAT; ++i) {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
        sum += r[0] ^ r[1] ^ r[2] ^ r[3];
        __syncthreads();
    }
    sink[threadIdx.x] = sum;
}

__device__ __forceinline__ void load_2(unsigned address, unsigned* sink) {
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < REPEAT; ++i) {
        unsigned short value;
        asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(value) : "r"(address) : "memory");
        sum += value;
        __syncthreads();
    }
    sink[threadIdx.x] = sum;
}

__device__ __forceinline__ void store_4(unsigned address, unsigned* sink) {
#pragma unroll
    for (int i = 0; i < REPEAT; ++i) {
        asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(address), "r"(i) : "memory");
        __syncthreads();
    }
    sink[threadIdx.x] = 0;
}

__device__ __forceinline__ void store_16(unsigned address, unsigned* sink) {
#pragma unroll
    for (int i = 0; i < REPEAT; ++i) {
        asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};\n" ::"r"(address), "r"(i) : "memory");
        __syncthreads();
    }
    sink[threadIdx.x] = 0;
}

template <bool transposed>
__device__ __forceinline__ void load_matrix(unsigned address, unsigned* sink) {
    unsigned r[4], sum = 0;
#pragma unroll
    for (int i = 0; i < REPEAT; ++i) {
        if (transposed) {
            ldmatrix_x4_trans(r, address);
        } else {
            ldmatrix_x4(r, address);
        }
        sum += r[0] ^ r[1] ^ r[2] ^ r[3];
        __syncthreads();
    }
    sink[threadIdx.x] = sum;
}

template <typename Tile>
__device__ __forceinline__ unsigned chunk_in_order(int lane) {
    return Tile::at(lane / Tile::chunks, lane % Tile::chunks * 16);
}

template <typename Tile>
__device__ __forceinline__ void copy_16(int lane, unsigned* sink) {
    const unsigned address = chunk_in_order<Tile>(lane);
#pragma unroll
    for (int i = 0; i < REPEAT; ++i) cp_async_16(address, sink + lane * 4);
    cp_async_commit();
    cp_async_wait<0>();
}

#define KERNEL(name, body)                                           \
    extern "C" __global__ void __launch_bounds__(32) name(unsigned* sink) { \
        const int lane = threadIdx.x;                                \
        body;                                                        \
    }

// Accesses of 16 bytes need rows that start at multiples of 16 bytes.
#define WIDE(suffix, ...)                                                                                          \
    KERNEL(tile_store_##suffix, (copy_16<__VA_ARGS__>(lane, sink)))                                                \
    /* The same addresses through a store: the counters of the copy's own path differ between generations. */     \
    KERNEL(chunk_store_##suffix, store_16(chunk_in_order<__VA_ARGS__>(lane), sink))                                \
    KERNEL(q_load_##suffix, load_matrix<false>(__VA_ARGS__::at(lane % 16, lane / 16 * 16), sink))                  \
    KERNEL(k_load_##suffix,                                                                                        \
           load_matrix<false>(__VA_ARGS__::at(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 16), sink))                 \
    KERNEL(v_load_##suffix, load_matrix<true>(__VA_ARGS__::at(lane % 16, lane / 16 * 16), sink))                   \
    KERNEL(column_chunks_##suffix, load_16(__VA_ARGS__::at(lane, 0), sink))                                        \
    KERNEL(o_load_##suffix, load_16(chunk_in_order<__VA_ARGS__>(lane), sink))

#define NARROW(suffix, ...)                                                                                        \
    KERNEL(column_read_##suffix, load_2(__VA_ARGS__::at(lane, 0), sink))                                           \
    KERNEL(v_fragment_##suffix, load_2(__VA_ARGS__::at(lane % 4 * 2, lane / 4 * 2), sink))                         \
    KERNEL(o_store_##suffix, store_4(__VA_ARGS__::at(lane / 4, lane % 4 * 4), sink))

#define ROWS(elements)                                  \
    WIDE(plain_##elements, Padded<elements, 0>)         \
    NARROW(plain_##elements, Padded<elements, 0>)       \
    WIDE(pad8_##elements, Padded<elements, 8>)          \
    NARROW(pad8_##elements, Padded<elements, 8>)        \
    NARROW(pad2_##elements, Padded<elements, 2>)        \
    WIDE(swizzle_##elements, Swizzled<elements>)        \
    NARROW(swizzle_##elements, Swizzled<elements>)

ROWS(32)
ROWS(64)
ROWS(128)
