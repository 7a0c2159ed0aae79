// The element type of the tensors, chosen by -DELEMENT=ELEMENT_FP16, ELEMENT_BF16 or, where a kernel uses no tensor
// cores, ELEMENT_FP32, and its conversions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define ELEMENT_FP16 0
#define ELEMENT_BF16 1
#define ELEMENT_FP32 2

#ifndef ELEMENT
#error "compile with -DELEMENT=ELEMENT_FP16, ELEMENT_BF16 or ELEMENT_FP32"
#endif

#if ELEMENT == ELEMENT_FP16
using element = __half;
using element2 = __half2;
#elif ELEMENT == ELEMENT_BF16
using element = __nv_bfloat16;
using element2 = __nv_bfloat162;
#elif ELEMENT == ELEMENT_FP32
using element = float;
#else
#error "ELEMENT must be ELEMENT_FP16, ELEMENT_BF16 or ELEMENT_FP32"
#endif

#if ELEMENT != ELEMENT_FP32

// Two floats rounded to nearest even and packed into one register: the form in which mma and vector stores take them.
__device__ __forceinline__ unsigned pack2(float low, float high) {
#if ELEMENT == ELEMENT_FP16
    __half2 pair = __floats2half2_rn(low, high);
#else
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
#endif
    return reinterpret_cast<unsigned&>(pair);
}

// The two floats of a packed pair.
__device__ __forceinline__ float2 unpack2(unsigned pair) {
#if ELEMENT == ELEMENT_FP16
    return __half22float2(reinterpret_cast<__half2&>(pair));
#else
    // A bf16 is the upper half of an fp32. In integers: through the header's 16-bit halves ptxas splits every register.
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
#endif
}
#endif  // ELEMENT != ELEMENT_FP32
