// Parts of a softmax-weighted sum that different warps or blocks computed over different keys, and how they combine.
#pragma once

#include "ptx.cuh"

// What some of the keys give a row: four columns of the unnormalised O, and what they are relative to.
struct Part {
    float shift;  // -max * scale * log2(e), to add to exponents; +inf if there was no key
    float sum;    // of the exponentials
    float4 o;
};

__device__ __forceinline__ Part no_keys() { return {INF, 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)}; }

// The parts of one row as one, added in the order of their index: always the same bits.
template <int count>
__device__ __forceinline__ Part combined(const Part (&parts)[count]) {
    Part total = no_keys();
#pragma unroll
    for (int i = 0; i < count; ++i) total.shift = fminf(total.shift, parts[i].shift);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        // 2^(own maximum - common maximum). Without any key the sums are 0, where inf - inf would make them NaN.
        const float weight = total.shift == INF ? 0.0f : exp2_approx(total.shift - parts[i].shift);
        total.sum = fmaf(weight, parts[i].sum, total.sum);
        total.o.x = fmaf(weight, parts[i].o.x, total.o.x);
        total.o.y = fmaf(weight, parts[i].o.y, total.o.y);
        total.o.z = fmaf(weight, parts[i].o.z, total.o.z);
        total.o.w = fmaf(weight, parts[i].o.w, total.o.w);
    }
    return total;
}
