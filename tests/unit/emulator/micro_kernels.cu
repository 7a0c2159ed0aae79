// One entry point a memory pattern, each one warp a block, launched with any grid: what the emulator counts for them can
// be set beside a profiler's counters. No loads or stores but those that the name says; results keep them alive.

#define SMEM_BYTES 16384

// Global memory -------------------------------------------------------------------------------------------------------
#define GLOBAL_LOAD(name, type, index)                                                 \
    extern "C" __global__ void name(const type* in, type* out) {                       \
        const int t = threadIdx.x;                                                     \
        type v = in[index];                                                            \
        if (*reinterpret_cast<const unsigned*>(&v) == 0x12345678u) out[t] = v;         \
    }

GLOBAL_LOAD(global_coalesced, unsigned, t)
GLOBAL_LOAD(global_misaligned, unsigned, t + 1)
GLOBAL_LOAD(global_reversed, unsigned, 31 - t)
GLOBAL_LOAD(global_stride_2, unsigned, 2 * t)
GLOBAL_LOAD(global_stride_8, unsigned, 8 * t)
GLOBAL_LOAD(global_broadcast, unsigned, 0)
GLOBAL_LOAD(global_v2, uint2, t)
GLOBAL_LOAD(global_v4, uint4, t)
GLOBAL_LOAD(global_v4_stride_2, uint4, 2 * t)
GLOBAL_LOAD(global_v4_broadcast, uint4, 0)

extern "C" __global__ void global_store_coalesced(const unsigned* in, unsigned* out) { out[threadIdx.x] = 1; }
extern "C" __global__ void global_store_stride_2(const unsigned* in, unsigned* out) { out[2 * threadIdx.x] = 1; }
extern "C" __global__ void global_store_v4(const uint4* in, uint4* out) { out[threadIdx.x] = make_uint4(1, 2, 3, 4); }

// Shared memory: loads of whatever lies there -------------------------------------------------------------------------
__device__ __forceinline__ unsigned smem_base(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

#define SHARED_LOAD_1(name, byte)                                                                           \
    extern "C" __global__ void name(const unsigned* in, unsigned* out) {                                    \
        __shared__ __align__(128) unsigned char smem[SMEM_BYTES];                                           \
        const unsigned t = threadIdx.x;                                                                     \
        unsigned a;                                                                                         \
        asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(a) : "r"(smem_base(smem) + (byte)) : "memory"); \
        if (a == 0x12345678u) out[t] = a;                                                                   \
    }
#define SHARED_LOAD_2(name, byte)                                                                           \
    extern "C" __global__ void name(const unsigned* in, unsigned* out) {                                    \
        __shared__ __align__(128) unsigned char smem[SMEM_BYTES];                                           \
        const unsigned t = threadIdx.x;                                                                     \
        unsigned a, b;                                                                                      \
        asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(a), "=r"(b) : "r"(smem_base(smem) + (byte)) : "memory"); \
        if (a + b == 0x12345678u) out[t] = a;                                                               \
    }
#define SHARED_LOAD_4(name, byte)                                                                           \
    extern "C" __global__ void name(const unsigned* in, unsigned* out) {                                    \
        __shared__ __align__(128) unsigned char smem[SMEM_BYTES];                                           \
        const unsigned t = threadIdx.x;                                                                     \
        unsigned a, b, c, d;                                                                                \
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"                                                \
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(smem_base(smem) + (byte)) : "memory");      \
        if (a + b + c + d == 0x12345678u) out[t] = a;                                                       \
    }
#define SHARED_LDMATRIX(name, byte)                                                                         \
    extern "C" __global__ void name(const unsigned* in, unsigned* out) {                                    \
        __shared__ __align__(128) unsigned char smem[SMEM_BYTES];                                           \
        const unsigned t = threadIdx.x;                                                                     \
        unsigned a, b, c, d;                                                                                \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"                        \
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(smem_base(smem) + (byte)) : "memory");      \
        if (a + b + c + d == 0x12345678u) out[t] = a;                                                       \
    }
#define SHARED_STORE_1(name, byte)                                                                          \
    extern "C" __global__ void name(const unsigned* in, unsigned* out) {                                    \
        __shared__ __align__(128) unsigned char smem[SMEM_BYTES];                                           \
        const unsigned t = threadIdx.x;                                                                     \
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem_base(smem) + (byte)), "r"(t) : "memory");         \
    }
#define SHARED_STORE_4(name, byte)                                                                          \
    extern "C" __global__ void name(const unsigned* in, unsigned* out) {                                    \
        __shared__ __align__(128) unsigned char smem[SMEM_BYTES];                                           \
        const unsigned t = threadIdx.x;                                                                     \
        asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(smem_base(smem) + (byte)), "r"(t) : "memory"); \
    }

SHARED_LOAD_1(shared_plain, 4 * t)
SHARED_LOAD_1(shared_broadcast, 0)
SHARED_LOAD_1(shared_two_words_of_a_bank, t % 2 * 128)
SHARED_LOAD_1(shared_stride_2, 8 * t)
SHARED_LOAD_1(shared_column, 128 * t)
SHARED_LOAD_1(shared_column_padded, 132 * t)
SHARED_LOAD_2(shared_v2, 8 * t)
SHARED_LOAD_2(shared_v2_stride_2, 16 * t)
SHARED_LOAD_2(shared_v2_broadcast, 0)
SHARED_LOAD_2(shared_v2_halves_alike, t % 16 * 8)
SHARED_LOAD_4(shared_v4, 16 * t)
SHARED_LOAD_4(shared_v4_broadcast, 0)
SHARED_LOAD_4(shared_v4_quarters_alike, t % 8 * 16)
SHARED_LOAD_4(shared_v4_column, 128 * t)
SHARED_LOAD_4(shared_v4_column_padded, 144 * t)
SHARED_LOAD_4(shared_v4_column_swizzled, 128 * t + t % 8 * 16)
SHARED_LOAD_4(shared_v4_even_lanes_apart, t / 2 * 16 + t % 2 * 512)
SHARED_LDMATRIX(ldmatrix_column, 128 * t)
SHARED_LDMATRIX(ldmatrix_padded, 144 * t)
SHARED_LDMATRIX(ldmatrix_swizzled, 128 * t + t % 8 * 16)
SHARED_LDMATRIX(ldmatrix_two_way, 64 * t)
SHARED_LDMATRIX(ldmatrix_broadcast, 0)
SHARED_STORE_1(shared_store_plain, 4 * t)
SHARED_STORE_1(shared_store_column, 128 * t)
SHARED_STORE_1(shared_store_one_word, 0)
SHARED_STORE_4(shared_store_v4, 16 * t)
SHARED_STORE_4(shared_store_v4_column, 128 * t)
SHARED_STORE_4(shared_store_v4_swizzled, 128 * t + t % 8 * 16)
