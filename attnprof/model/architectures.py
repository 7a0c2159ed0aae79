"""What a streaming multiprocessor is, by compute capability: the facts that every GPU of a generation shares.

Sources:
    * CUDA Programming Guide, "Compute Capabilities", tables of technical specifications (resident threads, warps and
      blocks, registers, shared memory per SM and per block): https://docs.nvidia.com/cuda/cuda-programming-guide/
    * CUDA C++ Programming Guide, "Arithmetic Instructions", throughput of native arithmetic instructions in results
      per clock and SM: the FP32 row (add, multiply, multiply-add) and the row that holds the base-2 exponential.
    * Tensor-core FLOPs per clock and SM: the architecture whitepapers of V100, Turing, A100, GA102, Ada, H100 and
      RTX Blackwell (dense, FP32 accumulation), each bearing out SMs × rate × boost clock = the published peak.
    * Twice the exponentials on 10.3: NVIDIA, "Inside NVIDIA Blackwell Ultra" (5 against 10.7 trillion a second).
"""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.model.dtypes import Dtype

KIB = 1024


@dataclass(frozen=True, slots=True)
class Architecture:
    """One compute capability. Rates are per clock and per SM; a multiply-add is two FLOPs.

    Attributes:
        compute_capability: (major, minor).
        smem_per_sm_bytes: shared memory that resident blocks divide.
        smem_per_block_bytes: the most that one block can have, after opting in.
        fp32_lanes: FP32 results per clock.
        exponentials_per_clock: results per clock of the special-function units.
        tensor_flops_per_clock: dense fp16 with FP32 accumulation; ``None`` where no source gives it.
        half_tensor_flops_per_clock: the same on boards that halve it, as GeForce does from Turing on.
        has_bf16: whether the tensor cores take bf16 (at the rate of fp16).
        max_threads_per_sm: resident threads.
        max_blocks_per_sm: resident blocks.
        smem_reserved_bytes: shared memory that the system takes of each block's share.
        smem_granularity_bytes: unit in which shared memory is given out.
    """

    compute_capability: tuple[int, int]
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    fp32_lanes: int
    exponentials_per_clock: int
    tensor_flops_per_clock: int | None
    half_tensor_flops_per_clock: int | None
    has_bf16: bool
    max_threads_per_sm: int
    max_blocks_per_sm: int
    smem_reserved_bytes: int
    smem_granularity_bytes: int

    # The same for every compute capability from 7.0 on.
    registers_per_sm = 65536
    registers_per_block = 65536
    max_registers_per_thread = 255
    max_threads_per_block = 1024
    warp_size = 32

    @property
    def max_warps_per_sm(self) -> int:
        """Resident warps."""
        return self.max_threads_per_sm // self.warp_size

    @property
    def has_half_rate_boards(self) -> bool:
        """Whether some boards of this compute capability run their tensor cores at half rate with FP32 accumulation."""
        return self.half_tensor_flops_per_clock != self.tensor_flops_per_clock

    def tensor_rate(self, dtype: Dtype, *, half: bool | None) -> int | None:
        """Dense tensor-core FLOPs per clock and SM with FP32 accumulation; ``None`` where there is no such rate.

        Args:
            dtype: the element type.
            half: whether the board runs at half rate; ``None`` where that is not known, and then nor is the rate,
                unless there is but one.
        """
        if dtype is Dtype.FP32 or (dtype is Dtype.BF16 and not self.has_bf16):
            return None
        if half is None and self.has_half_rate_boards:
            return None
        return self.half_tensor_flops_per_clock if half else self.tensor_flops_per_clock


def _architecture(
    major: int,
    minor: int,
    *,
    smem: tuple[int, int],
    lanes: int,
    tensor: tuple[int, int] | None,
    threads: int,
    blocks: int,
    exponentials: int = 16,
) -> Architecture:
    since_ampere = major >= 8
    return Architecture(
        compute_capability=(major, minor),
        smem_per_sm_bytes=smem[0] * KIB,
        smem_per_block_bytes=smem[1] * KIB,
        fp32_lanes=lanes,
        exponentials_per_clock=exponentials,
        tensor_flops_per_clock=None if tensor is None else tensor[0],
        half_tensor_flops_per_clock=None if tensor is None else tensor[1],
        has_bf16=since_ampere,
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        smem_reserved_bytes=KIB if since_ampere else 0,
        smem_granularity_bytes=128 if since_ampere else 256,
    )


_ARCHITECTURES = {
    architecture.compute_capability: architecture
    for architecture in (
        _architecture(7, 0, smem=(96, 96), lanes=64, tensor=(1024, 1024), threads=2048, blocks=32),
        _architecture(7, 5, smem=(64, 64), lanes=64, tensor=(1024, 512), threads=1024, blocks=16),
        _architecture(8, 0, smem=(164, 163), lanes=64, tensor=(2048, 2048), threads=2048, blocks=32),
        _architecture(8, 6, smem=(100, 99), lanes=128, tensor=(1024, 512), threads=1536, blocks=16),
        _architecture(8, 7, smem=(164, 163), lanes=128, tensor=None, threads=1536, blocks=16),
        _architecture(8, 9, smem=(100, 99), lanes=128, tensor=(1024, 512), threads=1536, blocks=24),
        _architecture(9, 0, smem=(228, 227), lanes=128, tensor=(4096, 4096), threads=2048, blocks=32),
        _architecture(10, 0, smem=(228, 227), lanes=128, tensor=(8192, 8192), threads=2048, blocks=32),
        _architecture(10, 3, smem=(228, 227), lanes=128, tensor=(8192, 8192), threads=2048, blocks=32, exponentials=32),
        _architecture(11, 0, smem=(228, 227), lanes=128, tensor=None, threads=1536, blocks=24),
        _architecture(12, 0, smem=(100, 99), lanes=128, tensor=(1024, 512), threads=1536, blocks=24),
        _architecture(12, 1, smem=(100, 99), lanes=128, tensor=None, threads=1536, blocks=24),
    )
}


def architecture(compute_capability: tuple[int, int]) -> Architecture | None:
    """The facts of a compute capability, or ``None`` for one that the table does not hold."""
    return _ARCHITECTURES.get(compute_capability)


def known_architectures() -> tuple[Architecture, ...]:
    """Every compute capability in the table, oldest first."""
    return tuple(_ARCHITECTURES.values())
