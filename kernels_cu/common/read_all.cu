// Not a rung: what empties the L2 cache between two timed launches, by reading a buffer larger than it.
// Lines that were read are clean. A flush that writes leaves tens of megabytes that must go back to HBM before the next
//   kernel's data can take their place, and that kernel's clock would pay for it.
// Traffic: x once, past L1. Nothing is written: x holds zeros.

extern "C" __global__ void __launch_bounds__(512)
    read_all(uint4* x,  // zeros
             long long chunks) {
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    unsigned any = 0;
#pragma unroll 8
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < chunks; i += stride) {
        const uint4 chunk = __ldcg(x + i);
        any |= chunk.x | chunk.y | chunk.z | chunk.w;
    }
    if (any != 0) x[0].x = any;  // never, but the compiler cannot know that nobody needs the sum
}
