"""The ledgers of the two ways to compute attention: three kernels with S and P in HBM, and one fused kernel.

Kernels build their Demand on these. Conventions, for any element type, mask, grouping and pass:

* Q, O and their gradients count once; K, V and theirs once a KV head, however many query heads share them.
* S, P, dP and dS count the allowed (query, key) pairs only, so a causal ledger is the exact half-and-a-bit.
* The log-sum-exp (LSE) and D = rowsum(dO ∘ O) are fp32, 4 bytes a row. A forward for inference does not write the
  LSE; one that a backward follows does (``lse=True``).
* Matrix FLOPs are 2·d an allowed pair and product, on the tensor cores for fp16 and bf16 and on the FP32 lanes for
  fp32, which tensor cores do not take whole.
* Softmax work is counted apart, the least that the mathematics asks for. An element costs one exponential and, on the
  FP32 lanes, a compare (running maximum), a subtract (which the scale folds into as a multiply-add), an add (running
  sum) and, where P is normalised, a multiply by 1 / l. The rescaling of a fused kernel depends on its tiles and is not
  part of it.

Sources: Dao et al., FlashAttention (arXiv:2205.14135), section 2.2 and algorithm 0; Dao, FlashAttention-2
(arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnprof.model.demand import Demand, Direction, LedgerLine, Schedule, Stage
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Pass, Workload

STATISTIC_BYTES = 4  # LSE and D are fp32

_NO_SCHEDULES: Mapping[str, Schedule] = {}


def three_kernel_stages(workload: Workload, schedules: Mapping[str, Schedule] = _NO_SCHEDULES) -> tuple[Stage, ...]:
    """Attention through HBM: one kernel a matrix product, S and P written and read back.

    Forward stages: ``scores`` (S = scale · QKᵀ), ``softmax`` (P), ``output`` (O = PV). Backward stages, on the P that
    the forward kept: ``dv``, ``dp``, ``softmax_backward`` (dS), ``dq``, ``dk``: four products, so twice the forward's
    matrix FLOPs where the nominal figure is 2.5 times.

    Args:
        workload: any workload.
        schedules: how a stage's blocks meet the SMs, by stage name.
    """
    size = _Sizes(workload)
    if workload.direction is Pass.FWD:
        return (
            _stage("scores", schedules, size, [("Q", "read"), ("K", "read"), ("S", "write")], products=1),
            _stage("softmax", schedules, size, [("S", "read"), ("P", "write")], exponentials=1, fp32_a_pair=4),
            _stage("output", schedules, size, [("P", "read"), ("V", "read"), ("O", "write")], products=1),
        )
    return (
        _stage("dv", schedules, size, [("P", "read"), ("dO", "read"), ("dV", "write")], products=1),
        _stage("dp", schedules, size, [("dO", "read"), ("V", "read"), ("dP", "write")], products=1),
        # dS = P ∘ (dP − rowsum(P ∘ dP)): multiply, add, subtract, multiply.
        _stage("softmax_backward", schedules, size, [("P", "read"), ("dP", "read"), ("dS", "write")], fp32_a_pair=4),
        _stage("dq", schedules, size, [("dS", "read"), ("K", "read"), ("dQ", "write")], products=1),
        _stage("dk", schedules, size, [("dS", "read"), ("Q", "read"), ("dK", "write")], products=1),
    )


def fused_stages(
    workload: Workload, schedules: Mapping[str, Schedule] = _NO_SCHEDULES, *, lse: bool = False
) -> tuple[Stage, ...]:
    """FlashAttention-2: S and P stay on chip.

    Forward: one stage, ``attention``. Backward: ``rowsum`` (D) and ``gradients``, which computes S again from Q and K
    rather than read a stored P: five products, 2.5 times the forward's matrix FLOPs.
    `recomputation_saves_bytes` says what that buys.

    Args:
        workload: any workload.
        schedules: how a stage's blocks meet the SMs, by stage name.
        lse: whether a forward writes the log-sum-exp of each row; a backward reads it whatever this says.
    """
    size = _Sizes(workload)
    if workload.direction is Pass.FWD:
        tensors: list[tuple[str, Direction]] = [("Q", "read"), ("K", "read"), ("V", "read"), ("O", "write")]
        if lse:
            tensors.append(("LSE", "write"))
        # O is normalised once at the end: one multiply an element of O instead of one a pair.
        normalise = workload.q_elements
        return (
            _stage(
                "attention",
                schedules,
                size,
                tensors,
                products=2,
                exponentials=1,
                fp32_a_pair=3,
                fp32_besides=normalise,
            ),
        )
    rowsum = _stage(
        "rowsum",
        schedules,
        size,
        [("dO", "read"), ("O", "read"), ("D", "write")],
        fp32_besides=2 * workload.q_elements,
    )
    reads: list[tuple[str, Direction]] = [(name, "read") for name in ("Q", "K", "V", "dO", "LSE", "D")]
    writes: list[tuple[str, Direction]] = [(name, "write") for name in ("dQ", "dK", "dV")]
    # P = exp(S − LSE), dS = P ∘ (dP − D): subtract; subtract, multiply.
    gradients = _stage("gradients", schedules, size, reads + writes, products=5, exponentials=1, fp32_a_pair=3)
    return (rowsum, gradients)


def three_kernel_demand(workload: Workload, schedules: Mapping[str, Schedule] = _NO_SCHEDULES) -> Demand:
    """Demand of attention through HBM. P overwrites S, and dS overwrites dP, whole rectangles even under a mask."""
    size = _Sizes(workload)
    rectangle = workload.rows * workload.seq_kv * workload.dtype.itemsize
    intermediates = rectangle if workload.direction is Pass.FWD else 2 * rectangle
    names = ("Q", "K", "V", "O") if workload.direction is Pass.FWD else ("Q", "K", "V", "dO", "dQ", "dK", "dV")
    return Demand(
        stages=three_kernel_stages(workload, schedules),
        footprint_bytes=sum(size.bytes(name) for name in names) + intermediates,
        intermediate_bytes=intermediates,
    )


def fused_demand(workload: Workload, schedules: Mapping[str, Schedule] = _NO_SCHEDULES, *, lse: bool = False) -> Demand:
    """Demand of fused attention: every tensor it touches is allocated once; D is its only intermediate."""
    size = _Sizes(workload)
    stages = fused_stages(workload, schedules, lse=lse)
    names = {line.tensor for stage in stages for line in stage.ledger}
    return Demand(
        stages=stages,
        footprint_bytes=sum(size.bytes(name) for name in names),
        intermediate_bytes=size.bytes("D") if "D" in names else 0,
    )


def recomputation_saves_bytes(workload: Workload) -> int:
    """HBM bytes that a backward saves by computing S again instead of reading P and passing dP and dS through HBM."""
    backward = Workload.of(
        workload.seq_q,
        seq_kv=workload.seq_kv,
        batch=workload.batch,
        heads=workload.heads,
        kv_heads=workload.kv_heads,
        head_dim=workload.head_dim,
        dtype=workload.dtype,
        causal=workload.causal,
        direction=Pass.BWD,
    )
    stored = sum(stage.hbm_bytes for stage in three_kernel_stages(backward))
    return stored - sum(stage.hbm_bytes for stage in fused_stages(backward))


def kv_blocks_visited(workload: Workload, block_q: int, block_kv: int) -> tuple[int, ...]:
    """KV blocks that each query block of one head visits, first query block first.

    A block is visited when the mask allows any pair in it; without a mask that is every block. The work of a fused
    kernel's thread blocks, for `Schedule.work`, in whatever order it launches them.
    """
    everything = -(-workload.seq_kv // block_kv)
    starts = range(0, workload.seq_q, block_q)
    if not workload.causal:
        return (everything,) * len(starts)
    offset = workload.seq_kv - workload.seq_q
    lasts = (min(start + block_q, workload.seq_q) - 1 for start in starts)
    return tuple(max(0, -(-(last + offset + 1) // block_kv)) for last in lasts)


class _Sizes:
    """Bytes of each tensor of a workload."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        itemsize = workload.dtype.itemsize
        query = workload.q_elements * itemsize
        key = workload.kv_elements * itemsize
        pairs = workload.pairs * itemsize
        statistic = workload.rows * STATISTIC_BYTES
        self._bytes = {
            **dict.fromkeys(("Q", "O", "dQ", "dO"), query),
            **dict.fromkeys(("K", "V", "dK", "dV"), key),
            **dict.fromkeys(("S", "P", "dP", "dS"), pairs),
            **dict.fromkeys(("LSE", "D"), statistic),
        }

    def bytes(self, tensor: str) -> int:
        return self._bytes[tensor]


def _stage(
    name: str,
    schedules: Mapping[str, Schedule],
    size: _Sizes,
    tensors: list[tuple[str, Direction]],
    *,
    products: int = 0,
    exponentials: int = 0,
    fp32_a_pair: int = 0,
    fp32_besides: int = 0,
) -> Stage:
    workload = size.workload
    matrix_flops = products * 2 * workload.head_dim * workload.pairs
    on_tensor_cores = workload.dtype is not Dtype.FP32
    return Stage(
        name=name,
        ledger=tuple(LedgerLine(name, tensor, direction, size.bytes(tensor)) for tensor, direction in tensors),
        tensor_flops=matrix_flops if on_tensor_cores else 0,
        fp32_flops=fp32_a_pair * workload.pairs + fp32_besides + (0 if on_tensor_cores else matrix_flops),
        exponentials=exponentials * workload.pairs,
        schedule=schedules.get(name),
    )
