// One row of a softmax on chip: 16-byte vectors of packed pairs, their maximum, their exponentials, and reductions over
// a block. Masked elements are -inf, which gets weight 0.
#pragma once

#include "ptx.cuh"

constexpr float log2_e = 1.4426950408889634f;
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// The same total in every thread, always added in the same order. `warp_totals` may not be in use by another reduction.
template <typename Combine>
__device__ __forceinline__ float block_reduce(float value, float identity, float (&warp_totals)[32], Combine combine) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    const int warps = blockDim.x / 32;
    if (warps == 1) {
        return value;
    }
    if (threadIdx.x % 32 == 0) {
        warp_totals[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = threadIdx.x % 32 < warps ? warp_totals[threadIdx.x % 32] : identity;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value = combine(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    return value;
}

// Eight elements as four packed pairs.
union Vector {
    uint4 bits;
    unsigned pairs[4];
};

// Vector `index` of a row of `vectors`; past the end, eight times -inf, which gets weight 0.
__device__ __forceinline__ Vector load_row_vector(const element* row, int index, int vectors) {
    const unsigned masked = pack2(minus_infinity(), minus_infinity());
    Vector x;
    x.bits = make_uint4(masked, masked, masked, masked);
    if (index < vectors) {
        x.bits = load_16_streaming(row + index * 8);
    }
    return x;
}

// Of a row's last vector, -inf past the first `left` elements.
__device__ __forceinline__ void mask_row_tail(Vector& x, int left) {
    const unsigned masked = pack2(minus_infinity(), minus_infinity());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned keep = left >= 2 * i + 2 ? 0xffffffff : left > 2 * i ? 0x0000ffff : 0;
        x.pairs[i] = (x.pairs[i] & keep) | (masked & ~keep);
    }
}

// The largest element: on packed pairs, at half the instructions of converting first.
__device__ __forceinline__ unsigned max2(unsigned a, unsigned b) {
    element2 larger = __hmax2(reinterpret_cast<element2&>(a), reinterpret_cast<element2&>(b));
    return reinterpret_cast<unsigned&>(larger);
}
__device__ __forceinline__ unsigned max_pair(const Vector& x) {
    return max2(max2(x.pairs[0], x.pairs[1]), max2(x.pairs[2], x.pairs[3]));
}
__device__ __forceinline__ float max_of(unsigned pair) {
    const float2 values = unpack2(pair);
    return fmaxf(values.x, values.y);
}

// exp(x - max) of a packed pair, with shift = max · log2(e).
__device__ __forceinline__ float2 exp_pair(unsigned pair, float shift) {
    const float2 x = unpack2(pair);
    return make_float2(exp2_approx(fmaf(x.x, log2_e, -shift)), exp2_approx(fmaf(x.y, log2_e, -shift)));
}
__device__ __forceinline__ float sum_of_exp(const Vector& x, float shift) {
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 e = exp_pair(x.pairs[i], shift);
        sum.x += e.x;
        sum.y += e.y;
    }
    return sum.x + sum.y;
}
__device__ __forceinline__ uint4 normalised(const Vector& x, float shift, float inverse_sum) {
    Vector p;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 e = exp_pair(x.pairs[i], shift);
        p.pairs[i] = pack2(e.x * inverse_sum, e.y * inverse_sum);
    }
    return p.bits;
}
