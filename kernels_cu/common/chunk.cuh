// Sixteen bytes of a row: how they are loaded, stored, compared and turned into floats.
#pragma once

#include "element.cuh"
#include "ptx.cuh"

// Elements in one 16-byte access: 8 of fp16 and bf16, 4 of fp32.
constexpr int CHUNK = 16 / sizeof(element);

constexpr float LOG2E = 1.4426950408889634f;
// A macro, because NVRTC has no constant expression for infinity without a heavy header.
#define NEGATIVE_INFINITY __uint_as_float(0xff800000u)

// e^x as 2^(x log2 e): one multiply and one special-function instruction. e^-inf = 0; subnormal results flush to 0.
__device__ __forceinline__ float exponential(float x) { return exp2_approx(x * LOG2E); }

// 1 / x to one unit in the last place; 1 / 0 = inf, 1 / inf = 0, subnormals count as 0. The exact division is a call
// in the middle of a kernel, which costs registers.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// How a chunk is moved. Each kernel has its own way, and the others are there to be measured beside it: 16 bytes and no hint;
// a lane's 16 bytes element by element; with a mark for use once (evict-first), which is the truth; loads that L2 is to evict
// last.
#define ACCESS_CHUNK 0
#define ACCESS_ELEMENT 1
#define ACCESS_STREAMING 2
#define ACCESS_EVICT_LAST 3
#ifndef ACCESS
#define ACCESS ACCESS_CHUNK
#endif

#if ACCESS == ACCESS_CHUNK || ACCESS == ACCESS_EVICT_LAST

// Volatile, so that loads are issued in the order they stand in, all before the first is used. Stores too: of one in four at
// 1024 columns the compiler would make four of 4 bytes, each of which touches the sectors of all 16.
__device__ __forceinline__ uint4 load_chunk(const element* address) {
    if constexpr (ACCESS == ACCESS_EVICT_LAST) return load_16_evict_last(address);
    uint4 chunk;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                 : "l"(address));
    return chunk;
}

__device__ __forceinline__ void store_chunk(element* address, uint4 chunk) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"l"(address), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z),
                 "r"(chunk.w)
                 : "memory");
}

#elif ACCESS == ACCESS_ELEMENT

// Neighbouring lanes are 16 bytes apart, so that each of the CHUNK requests touches all sectors that one would.
struct alignas(16) Elements {
    element each[CHUNK];
};

__device__ __forceinline__ uint4 load_chunk(const element* address) {
    Elements elements;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) elements.each[i] = address[i];
    return reinterpret_cast<const uint4&>(elements);
}

__device__ __forceinline__ void store_chunk(element* address, uint4 chunk) {
    const Elements& elements = reinterpret_cast<const Elements&>(chunk);
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) address[i] = elements.each[i];
}

#else  // ACCESS_STREAMING

__device__ __forceinline__ uint4 load_chunk(const element* address) { return load_16_streaming(address); }

__device__ __forceinline__ void store_chunk(element* address, uint4 chunk) { store_16_streaming(address, chunk); }

#endif

// The chunk's elements as floats: exact.
__device__ __forceinline__ void unpack(const uint4& chunk, float (&values)[CHUNK]) {
    const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if ELEMENT == ELEMENT_FP32
        values[i] = __uint_as_float(words[i]);
#else
        const float2 pair = unpack2(words[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
#endif
    }
}

// Floats rounded to nearest even and packed.
__device__ __forceinline__ uint4 pack(const float (&values)[CHUNK]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if ELEMENT == ELEMENT_FP32
        words[i] = __float_as_uint(values[i]);
#else
        words[i] = pack2(values[2 * i], values[2 * i + 1]);
#endif
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// A chunk of -inf, which no maximum and no sum of exponentials notices: what stands beyond the end of a row.
__device__ __forceinline__ uint4 empty_chunk() {
#if ELEMENT == ELEMENT_FP16
    constexpr unsigned word = 0xfc00fc00u;
#elif ELEMENT == ELEMENT_BF16
    constexpr unsigned word = 0xff80ff80u;
#else
    constexpr unsigned word = 0xff800000u;
#endif
    return make_uint4(word, word, word, word);
}

__device__ __forceinline__ float to_float(element value) {
#if ELEMENT == ELEMENT_FP16
    return __half2float(value);
#elif ELEMENT == ELEMENT_BF16
    return __bfloat162float(value);
#else
    return value;
#endif
}

__device__ __forceinline__ element to_element(float value) {
#if ELEMENT == ELEMENT_FP16
    return __float2half_rn(value);
#elif ELEMENT == ELEMENT_BF16
    return __float2bfloat16_rn(value);
#else
    return value;
#endif
}

// The maximum of many chunks, kept in packed form: two 16-bit comparisons an instruction and no conversions.
// A NaN is passed over here; it turns the sum into NaN instead, and with it the row, as in torch.softmax.
class PackedMax {
  public:
    __device__ __forceinline__ void include(const uint4& chunk) {
        highest_.x = larger(highest_.x, chunk.x);
        highest_.y = larger(highest_.y, chunk.y);
        highest_.z = larger(highest_.z, chunk.z);
        highest_.w = larger(highest_.w, chunk.w);
    }

    __device__ __forceinline__ float value() const {
        float values[CHUNK];
        unpack(make_uint4(larger(highest_.x, highest_.y), larger(highest_.z, highest_.w), 0, 0), values);
#if ELEMENT == ELEMENT_FP32
        return fmaxf(values[0], values[1]);
#else
        return fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3]));
#endif
    }

  private:
    static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
#if ELEMENT == ELEMENT_FP32
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
#else
        const element2 pair = __hmax2(reinterpret_cast<const element2&>(a), reinterpret_cast<const element2&>(b));
        return reinterpret_cast<const unsigned&>(pair);
#endif
    }

    uint4 highest_ = empty_chunk();
};
