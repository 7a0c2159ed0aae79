"""What to time beside a kernel, by the same clock: the device's copy and matrix product, and PyTorch's kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from attnprof.gpu.memory import Block, free_bytes
from attnprof.gpu.timing import Stopwatch
from attnprof.kernels.executor import Sample
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import EnvironmentProblem, KernelFault, OutOfMemory, UnsupportedWorkload, UsageError
from attnprof.model.softmax_traffic import matrix_bytes, softmax_flops
from attnprof.model.workload import Pass, Workload

if TYPE_CHECKING:
    from attnprof.gpu.executor import GpuExecutor
    from attnprof.kernels.spec import Layout

# PyTorch's attention backends (torch.nn.attention.SDPBackend) by our names for them.
_SDPA_BACKENDS = {
    "torch-flash": "FLASH_ATTENTION",
    "torch-cudnn": "CUDNN_ATTENTION",
    "torch-efficient": "EFFICIENT_ATTENTION",
    "torch-math": "MATH",
}
# Those that compute the workload, which its FLOPs can be divided by; the others measure a ceiling.
ATTENTION_PEERS: tuple[str, ...] = tuple(_SDPA_BACKENDS)
# What a softmax kernel is set beside: PyTorch's, and a copy that reads and writes as many bytes.
SOFTMAX_PEERS: tuple[str, ...] = ("torch-softmax", "matrix-copy")
PEERS: tuple[str, ...] = ("copy", "matmul", *ATTENTION_PEERS, *SOFTMAX_PEERS)

_COPY_BYTES = 2**30
_MATMUL_SIZE = 8192


def peer(name: str, workload: Workload, executor: GpuExecutor, layout: Layout = "bhsd") -> Peer:
    """One of `PEERS`, to be entered (which allocates it and runs it once) and then timed.

    Entering raises:
        EnvironmentProblem: PyTorch is missing or has no CUDA.
        UnsupportedWorkload: the backend cannot compute this workload, or the workload does not fit in memory.
        OutOfMemory: the buffers of ``copy`` do not fit.

    Args:
        name: which.
        workload: what the attention backends compute; ``matmul`` takes its element type alone, ``copy`` nothing;
            ``matrix-copy`` and ``torch-softmax`` take its score matrix.
        executor: the device, with the stream and the clock that its own runs use.
        layout: how the tensors of the attention backends lie in memory.

    Raises:
        UsageError: no peer of that name.
    """
    if name == "copy":
        return Peer(
            name, executor, lambda stack: _Copy(executor, stack, _COPY_BYTES), flops=None, nbytes=2 * _COPY_BYTES
        )
    if name == "matmul":
        # n³ multiply-adds; each operand read once and the product written once at best.
        return Peer(
            name,
            executor,
            lambda stack: _matmul(executor, workload.dtype, stack),
            flops=2 * _MATMUL_SIZE**3,
            nbytes=3 * _MATMUL_SIZE**2 * workload.dtype.itemsize,
        )
    if name == "matrix-copy":
        size = matrix_bytes(workload)
        return Peer(name, executor, lambda stack: _Copy(executor, stack, size), flops=None, nbytes=2 * size)
    if name == "torch-softmax":
        return Peer(
            name,
            executor,
            lambda stack: _softmax(executor, workload, stack),
            flops=softmax_flops(workload),
            nbytes=2 * matrix_bytes(workload),
        )
    if name in _SDPA_BACKENDS:
        return Peer(
            name,
            executor,
            lambda stack: _attention(executor, name, workload, stack, layout),
            flops=workload.flops,
            nbytes=_compulsory_bytes(workload),
        )
    raise UsageError(f"unknown peer {name!r}", f"choose from {', '.join(PEERS)}")


class _Work(Protocol):
    def enqueue(self) -> None: ...

    def capture(self, launches: int) -> Callable[[], None] | None: ...


class Peer:
    """Something timed beside a kernel: a context manager that is `Timed` inside.

    Attributes:
        name: as in `PEERS`.
        flops: matrix FLOPs of one launch; None for the copy.
        bytes: bytes that one launch must move, reads and writes counted both.
    """

    def __init__(
        self,
        name: str,
        executor: GpuExecutor,
        build: Callable[[ExitStack], _Work],
        *,
        flops: int | None,
        nbytes: int,
    ) -> None:
        self.name = name
        self.flops = flops
        self.bytes = nbytes
        self._executor = executor
        self._build = build
        self._work: _Work | None = None
        self._stopwatch = Stopwatch(self, executor.queue, executor.sensors)
        self._stack = ExitStack()

    def time(self, launches: int, *, cold_l2: bool) -> Sample:
        """As `Timed.time`."""
        with self._executor.guard(self.name):
            return self._stopwatch.sample(launches, cold_l2=cold_l2)

    def enqueue(self) -> None:
        """As `timing.Work.enqueue`."""
        self._entered.enqueue()

    def capture(self, launches: int) -> Callable[[], None] | None:
        """As `timing.Work.capture`."""
        return self._entered.capture(launches)

    @property
    def _entered(self) -> _Work:
        if self._work is None:
            raise ValueError(f"peer {self.name} is timed outside its with block")
        return self._work

    def __enter__(self) -> Self:
        with ExitStack() as stack, self._executor.guard(self.name):
            self._work = self._build(stack)
            # Run once: loads the library's kernels, and finds out whether it can do this at all.
            self._work.enqueue()
            self._executor.stream.synchronize()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor.keep_if_lost(self):
            return
        with self._executor.guard(self.name):
            self._executor.stream.synchronize()
        self._stopwatch.forget()
        self._work = None
        self._stack.close()


class _Copy:
    """A device-to-device copy."""

    def __init__(self, executor: GpuExecutor, stack: ExitStack, size_bytes: int) -> None:
        free = free_bytes()
        if free < 2 * size_bytes:
            raise OutOfMemory(2 * size_bytes, free)
        self._stream = executor.stream
        self._source, self._target = Block(size_bytes), Block(size_bytes)
        stack.callback(self._source.free)
        stack.callback(self._target.free)
        _randomise(self._source)

    def enqueue(self) -> None:
        from cupy.cuda import runtime

        runtime.memcpyAsync(
            self._target.address,
            self._source.address,
            self._source.nbytes,
            runtime.memcpyDeviceToDevice,
            self._stream.ptr,
        )

    def capture(self, launches: int) -> Callable[[], None] | None:  # noqa: ARG002 - the protocol's
        # As a node of a graph a copy runs on a copy engine, at 2.7 TB/s on an H200 where the same call outside a graph
        # reaches 4.2; and a copy of this size needs no graph to hide its launch.
        return None


class _Torch:
    """A PyTorch call on the executor's stream."""

    def __init__(self, name: str, torch: Any, stream: Any, call: Callable[[], object]) -> None:
        self._name = name
        self._torch = torch
        self._stream = stream
        self._call = call

    def enqueue(self) -> None:
        try:
            with self._torch.cuda.stream(self._stream):
                self._call()
        except RuntimeError as error:
            raise KernelFault(f"{self._name}: {_first_line(str(error))}") from error

    def capture(self, launches: int) -> Callable[[], None] | None:
        # PyTorch's own capture, which keeps what the call allocates in a pool of the graph.
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                for _ in range(launches):
                    self._call()
        except RuntimeError:
            # Something in the call cannot be captured: launch it one by one.
            torch.cuda.synchronize()
            return None

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay


def _matmul(executor: GpuExecutor, dtype: Dtype, stack: ExitStack) -> _Work:
    torch = _torch()
    shape = (_MATMUL_SIZE, _MATMUL_SIZE)
    with _on(torch, executor, stack) as stream, _no_memory_is_a_reason("matmul"):
        a = torch.randn(shape, device="cuda", dtype=_torch_dtype(torch, dtype))
        b = torch.randn(shape, device="cuda", dtype=a.dtype)
        product = torch.empty(shape, device="cuda", dtype=a.dtype)
    return _Torch("matmul", torch, stream, lambda: torch.matmul(a, b, out=product))


def _softmax(executor: GpuExecutor, workload: Workload, stack: ExitStack) -> _Work:
    torch = _torch()
    with _on(torch, executor, stack) as stream, _no_memory_is_a_reason("torch-softmax"):
        x = torch.randn((workload.rows, workload.seq_kv), device="cuda", dtype=_torch_dtype(torch, workload.dtype))
    return _Torch("torch-softmax", torch, stream, lambda: torch.softmax(x, dim=-1))


def _attention(executor: GpuExecutor, name: str, workload: Workload, stack: ExitStack, layout: Layout) -> _Work:
    if workload.causal and workload.seq_q != workload.seq_kv:
        raise UnsupportedWorkload(f"{name}: PyTorch's causal mask is top-left aligned where seq_q is not seq_kv")
    torch = _torch()
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, _SDPA_BACKENDS[name])
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(
            f"{name}: PyTorch {torch.__version__} is too old for it", "pip install -U torch"
        ) from error
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = {"enable_gqa": True} if workload.kv_heads != workload.heads else {}
    backward = workload.direction is Pass.BWD

    def forward() -> Any:
        with sdpa_kernel(backend):
            return attention(q, k, v, is_causal=workload.causal, scale=workload.scale, **grouped)

    with _on(torch, executor, stack) as stream, _no_memory_is_a_reason(name):

        def tensor(heads: int, length: int) -> Any:
            outer, inner = (heads, length) if layout == "bhsd" else (length, heads)
            shape = (workload.batch, outer, inner, workload.head_dim)
            values = torch.randn(shape, device="cuda", dtype=_torch_dtype(torch, workload.dtype))
            # A view: PyTorch takes (batch, heads, length, head dim) with any strides.
            return (values if layout == "bhsd" else values.transpose(1, 2)).requires_grad_(backward)

        q = tensor(workload.heads, workload.seq_q)
        k, v = (tensor(workload.kv_heads, workload.seq_kv) for _ in range(2))
        output = _tried(name, workload, forward)
        if not backward:
            return _Torch(name, torch, stream, forward)
        gradient = torch.randn_like(output)
        return _Torch(name, torch, stream, lambda: torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True))


def _tried(name: str, workload: Workload, forward: Callable[[], Any]) -> Any:
    """The output of a first run, or the reason why the backend refuses."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            return forward()
        except (RuntimeError, TypeError) as error:
            if _is_out_of_memory(error):
                raise
            # PyTorch warns once for each backend why not, then raises "No available kernel. Aborting execution."
            reasons = [
                line for line in (_first_line(str(w.message)) for w in said) if "because" in line or "only" in line
            ]
            why = reasons[-1] if reasons else _first_line(str(error))
            raise UnsupportedWorkload(f"{name} cannot run {workload.label}: {why}") from error


@contextmanager
def _on(torch: Any, executor: GpuExecutor, stack: ExitStack) -> Iterator[Any]:
    """PyTorch on the executor's stream, on the device that is current; gives that stream."""
    # Emptied last, when what the peer allocated has been dropped.
    stack.callback(torch.cuda.empty_cache)
    stream = torch.cuda.ExternalStream(executor.stream.ptr)
    with torch.cuda.stream(stream):
        yield stream


@contextmanager
def _no_memory_is_a_reason(name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if _is_out_of_memory(error):
            raise UnsupportedWorkload(f"{name}: out of memory ({_first_line(str(error))})") from error
        raise KernelFault(f"{name}: {_first_line(str(error))}") from error


def _is_out_of_memory(error: Exception) -> bool:
    # torch.OutOfMemoryError in new versions, torch.cuda.OutOfMemoryError in old ones.
    return type(error).__name__ == "OutOfMemoryError"


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    # PyTorch appends "(Triggered internally at …)".
    return line.partition(" (Triggered")[0]


def _torch() -> Any:
    """The module torch, for use with this GPU."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentProblem("PyTorch is missing, which this peer is a part of", "pip install torch") from error
    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            f"PyTorch {torch.__version__} has no CUDA here", "install a CUDA build: https://pytorch.org/get-started"
        )
    return torch


def _torch_dtype(torch: Any, dtype: Dtype) -> Any:
    return {Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16, Dtype.FP32: torch.float32}[dtype]


def _compulsory_bytes(workload: Workload) -> int:
    """Each input read once and each output written once: Q, K, V and O forward, those and their gradients backward."""
    tensors = 2 * workload.q_elements + 2 * workload.kv_elements
    return (tensors if workload.direction is Pass.FWD else 2 * tensors) * workload.dtype.itemsize


def _randomise(block: Block) -> None:
    """Random bytes, 64 MiB of them repeated: zeros would draw less power and run faster."""
    import numpy as np
    from cupy.cuda import runtime

    data = np.random.default_rng(0).integers(0, 256, min(64 * 2**20, block.nbytes), np.uint8)
    runtime.memcpy(block.address, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice)
    filled = data.nbytes
    while filled < block.nbytes:
        size = min(filled, block.nbytes - filled)
        runtime.memcpy(block.address + filled, block.address, size, runtime.memcpyDeviceToDevice)
        filled += size
    runtime.deviceSynchronize()
