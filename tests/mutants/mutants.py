"""Kernels broken on purpose: exact patches to the shipped sources, each a fault that attention kernels really have had.

A patch names text that must occur exactly once in its file, so none of them can rot unnoticed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from attnprof.kernels.catalogue import select
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import DeviceSpec
from attnprof.model.workload import Workload


@dataclass(frozen=True)
class Mutant:
    """One broken kernel: in its source, or in a header of it in ``common``, ``old`` becomes ``new``."""

    kernel: str
    fault: str
    old: str
    new: str
    variant: str | None = None
    header: str | None = None

    @property
    def id(self) -> str:
        name = self.kernel if self.variant is None else f"{self.kernel}-{self.variant}"
        return f"{name}-{self.fault.replace(' ', '-')}"


MUTANTS = (
    Mutant(
        "naive",
        "scale dropped",
        "s_rmem, scale, smem + q_tile_bytes",
        "s_rmem, 1.0f, smem + q_tile_bytes",
    ),
    Mutant(
        "naive",
        "last tile dropped",
        "ceil_div(allowed_keys(row0 + rows - 1, seq_q, seq_kv, causal), OUTPUT_K);",
        "allowed_keys(row0 + rows - 1, seq_q, seq_kv, causal) / OUTPUT_K;",
    ),
    Mutant(
        "naive",
        "mask top-left",
        "min(row + 1 + (seq_kv - seq_q), seq_kv)",
        "min(row + 1, seq_kv)",
    ),
    Mutant(
        "naive",
        "wrong KV head",
        "v + head / group * seq_kv * HEAD_DIM",
        "v + head % (gridDim.x / row_blocks / group) * seq_kv * HEAD_DIM",
    ),
    Mutant(
        "naive",
        "half of d unwritten",
        "rows == OUTPUT_M, [&](int row) { return warp_row + row < rows ? 64 : 0; });",
        "false, [&](int row) { return warp_row + row < rows ? 32 : 0; });",
    ),
    Mutant(
        "naive",
        "no max subtraction",
        "const float shift = block_reduce(max_of(largest), minus_infinity(), warp_max_smem, Max()) * log2_e;",
        "const float shift = 0.0f;",
    ),
    Mutant(
        "tiled",
        "scale dropped",
        "float scale_log2) {  // scale · log2(e)",
        "float) {\n    const float scale_log2 = 1.4426950f;",
    ),
    Mutant(
        "tiled",
        "last tile dropped",
        "const int kv_blocks = (kv_end + BLOCK_KV - 1) / BLOCK_KV;",
        "const int kv_blocks = kv_end / BLOCK_KV;",
    ),
    Mutant(
        "tiled",
        "mask top-left",
        "const int diagonal = q_start + seq_kv - seq_q + 1;",
        "const int diagonal = q_start + 1;",
    ),
    Mutant(
        "tiled",
        "wrong KV head",
        "head / heads_per_kv_head",
        "head % (all_heads / heads_per_kv_head)",
    ),
    Mutant(
        "tiled",
        "half of d unwritten",
        "store_rows<CHUNKS>(o_rmem,",
        "store_rows<CHUNKS / 2>(reinterpret_cast<const float(&)[M_TILES][CHUNKS / 2][4]>(o_rmem),",
    ),
    Mutant(
        "tiled",
        "no max subtraction",
        "const float shift = may_be_empty && largest == -INF ? 0.0f : largest * -scale_log2;",
        "largest = 0.0f;\n            const float shift = 0.0f;",
    ),
    Mutant(
        "fa1",
        "scale dropped",
        "float scale_log2) {  // scale · log2(e)",
        "float) {\n    const float scale_log2 = 1.4426950f;",
    ),
    Mutant(
        "fa1",
        "last tile dropped",
        "const int keys = seq_kv - first_key;",
        "const int keys = (seq_kv - first_key) / 64 * 64;",
    ),
    Mutant(
        "fa1",
        "mask top-left",
        "const int first_sees = CAUSAL ? keys + row + 1 - seq_q : keys;",
        "const int first_sees = CAUSAL ? row + 1 - first_key : keys;",
    ),
    Mutant(
        "fa1",
        "wrong KV head",
        "head / heads_per_kv_head",
        "head % (gridDim.x / blocks_a_head / heads_per_kv_head)",
    ),
    Mutant(
        "fa1",
        "half of d unwritten",
        "for (int chunk = 0; chunk < CHUNKS; ++chunk)\n                pairs[chunk * 4] = pack2(",
        "for (int chunk = 0; chunk < CHUNKS / 2; ++chunk)\n                pairs[chunk * 4] = pack2(",
    ),
    Mutant(
        "fa1",
        "no max subtraction",
        "shift[r] = largest == -INF ? 0.0f : -largest;",
        "shift[r] = largest = 0.0f;",
    ),
    Mutant(
        "fa1",
        "earlier steps not weighted",
        "const float factor = correction * strip.waiting[r];",
        "const float factor = correction;",
    ),
    Mutant(
        "fa1",
        "first values for all keys",
        "v_smem + key * ROW_BYTES",
        "v_smem",
    ),
    Mutant(
        "fa2",
        "scale dropped",
        "float scale_log2) {  // scale * log2(e)",
        "float) {\n    const float scale_log2 = LOG2_E;",
    ),
    Mutant(
        "fa2",
        "last tile dropped",
        "(kv_end + BLOCK_KV - 1) / BLOCK_KV",
        "kv_end / BLOCK_KV",
    ),
    Mutant(
        "fa2",
        "mask top-left",
        "q_start + seq_kv - seq_q + 1",
        "q_start + 1",
    ),
    Mutant(
        "fa2",
        "wrong KV head",
        "head / heads_per_kv_head",
        "head % (all_heads / heads_per_kv_head)",
    ),
    Mutant(
        "fa2",
        "half of d unwritten",
        "if (row < rows && chunk < o.chunks) {",
        "if (row < rows && chunk < CHUNKS / 2) {",
    ),
    Mutant(
        "fa2",
        "written past d",
        "if (row < rows && chunk < o.chunks) {",
        "if (row < rows && chunk < CHUNKS) {",
    ),
    Mutant(
        "fa2",
        "no max subtraction",
        "shift[m][r] = high * -scale_log2;",
        "shift[m][r] = 0.0f;",
    ),
    Mutant(
        "fa2-decode",
        "scale dropped",
        "float scale_log2) {  // scale * log2(e)",
        "float) {\n    const float scale_log2 = LOG2_E;",
    ),
    Mutant(
        "fa2-decode",
        "last tile dropped",
        "(seq_kv + STEP_KEYS - 1) / STEP_KEYS",
        "seq_kv / STEP_KEYS",
    ),
    Mutant(
        "fa2-decode",
        "mask top-left",
        "query + 1 + seq_kv - seq_q",
        "query + 1",
    ),
    Mutant(
        "fa2-decode",
        "wrong KV head",
        "at_row(v, kv_head * seq_kv)",
        "at_row(v, (gridDim.x / row_blocks / splits - 1 - kv_head) * seq_kv)",
    ),
    Mutant(
        "fa2-decode",
        "half of d unwritten",
        "const int quad = i % QUADS;",
        "const int quad = i % QUADS;\n        if (quad >= QUADS / 2) continue;",
    ),
    Mutant(
        "fa2-decode",
        "no max subtraction",
        "shift[m][r] = row_max(high) * -scale_log2;",
        "shift[m][r] = 0.0f;",
    ),
    Mutant(
        "fa2-decode",
        "split dropped",
        "if (split < splits) {",
        "if (split < splits - 1) {",
    ),
    Mutant(
        "fa2-decode",
        "parts not rescaled",
        "parts[1 + i] = {pair.x, pair.y,",
        "parts[1 + i] = {0.0f, pair.y,",
    ),
    Mutant(
        "fa2-bwd",
        "scale dropped",
        "float scale, float scale_log2) {  // scale * log2(e)",
        "float scale, float) {\n    const float scale_log2 = LOG2_E;",
    ),
    Mutant(
        "fa2-bwd",
        "last tile dropped",
        "(seq_kv + BLOCK_KV - 1) / BLOCK_KV",
        "seq_kv / BLOCK_KV",
    ),
    Mutant(
        "fa2-bwd",
        "mask top-left",
        "CAUSAL ? q_start + seq_kv - seq_q - kv_start :",
        "CAUSAL ? q_start - kv_start :",
    ),
    Mutant(
        "fa2-bwd",
        "wrong KV head",
        "int head = kv_head * heads_per_kv_head;",
        "int head = kv_head;",
    ),
    Mutant(
        "fa2-bwd",
        "half of d unwritten",
        "if (row < rows && chunk * 8 < row_elements(head_dim)) {",
        "if (row < rows && chunk < CHUNKS / 2) {",
    ),
    Mutant(
        "fa2-bwd",
        "D dropped",
        "if (exists && chunk % CHUNKS == 0) d[row] = sum;",
        "if (exists && chunk % CHUNKS == 0) d[row] = 0.0f;",
    ),
    Mutant(
        "fa2-bwd",
        "one head of a group",
        "(q_blocks - first_q_block) * heads_per_kv_head)",
        "q_blocks - first_q_block)",
    ),
    Mutant(
        "fa2-bwd",
        "log-sum-exp ignored",
        "-LOG2_E * (e % 2 ? lse.y : lse.x)",
        "0.0f",
    ),
    Mutant(
        "softmax-naive",
        "edge dropped",
        "for (int i = threadIdx.x; i < row.edge; i += blockDim.x) sum +=",
        "for (int i = row.edge; i < row.edge; i += blockDim.x) sum +=",
    ),
    Mutant(
        "softmax-naive",
        "warps not combined",
        "return block_sum(sum, scratch_smem);",
        "return lanes_sum(sum);",
    ),
    Mutant(
        "softmax-safe",
        "edge dropped",
        "sum += exponential(to_float(row.x[row.edge_offset(i)]) - max);",
        "sum += 0.0f;",
    ),
    Mutant(
        "softmax-safe",
        "warps not combined",
        "return block_sum(sum, scratch_smem);",
        "return lanes_sum(sum);",
    ),
    Mutant(
        "softmax-safe",
        "no max subtraction",
        "const float max = row_max(row, max_smem);",
        "const float max = 0.0f;",
    ),
    Mutant(
        "softmax-online",
        "edge dropped",
        "include(running, to_float(row.x[row.edge_offset(i)]));",
        "include(running, NEGATIVE_INFINITY);",
    ),
    Mutant(
        "softmax-online",
        "warps not combined",
        "return block_merge(running, scratch_smem);",
        "return lanes_merge(running);",
    ),
    Mutant(
        "softmax-online",
        "no max subtraction",
        "write_normalised(row, all.max, reciprocal(all.sum));",
        "write_normalised(row, 0.0f, reciprocal(all.sum * exponential(all.max)));",
    ),
    Mutant(
        "softmax-fused",
        "edge dropped",
        "for (float edge : edge_rmem) total += exponential(edge - shift);",
        "",
    ),
    Mutant(
        "softmax-fused",
        "warps not combined",
        "return lanes_merge(some);",
        "return warp;",
    ),
    Mutant(
        "softmax-fused",
        "no max subtraction",
        "share.store(all.max, reciprocal(all.sum));",
        "share.store(0.0f, reciprocal(all.sum * exponential(all.max)));",
    ),
)

# What no comparison with a reference need show: with luck the copies land in time.
MISSING_BARRIER = Mutant(
    "fa2",
    "missing barrier",
    "__syncthreads();  // everyone's copies have landed, and everyone has left the previous block's V",
    "",
)
MISSING_EXCHANGE_BARRIER = Mutant(
    "fa2-bwd",
    "missing barrier",
    "barrier_sync(1 + warp_kv, WARPS_Q * 32);",
    "",
)


# Of variants, each of which must be as right as its kernel but for what it is there to show.
VARIANT_MUTANTS = (
    Mutant(
        "softmax-safe",
        "odd thread dropped",
        "const int kept = (left + 1) / 2;",
        "const int kept = left / 2;",
        variant="tree",
        header="tree.cuh",
    ),
    Mutant(
        "softmax-safe",
        "levels skipped",
        "distance *= 2",
        "distance *= 4",
        variant="interleaved",
        header="tree.cuh",
    ),
    Mutant(
        "softmax-safe",
        "elements out of order",
        "address[i] = elements.each[i];",
        "address[i] = elements.each[i ^ 1];",
        variant="scalar",
        header="chunk.cuh",
    ),
    Mutant(
        "softmax-safe",
        "every other share dropped",
        "i += blockDim.x) {\n        sum +=",
        "i += 2 * blockDim.x) {\n        sum +=",
        variant="narrow",
    ),
    Mutant(
        "softmax-online",
        "sum not carried over",
        "running.sum * exponential(running.max - shift)",
        "running.sum",
        variant="per-element",
        header="statistics.cuh",
    ),
    Mutant(
        "softmax-fused",
        "no reduction over lanes",
        "const float sum = lanes_sum<LANES>(share.sum(anchor(max)));",
        "const float sum = share.sum(anchor(max));",
        variant="no-max",
    ),
)
MISSING_TREE_BARRIER = Mutant(
    "softmax-safe",
    "missing barrier",
    "        __syncthreads();\n        left = kept;",
    "        left = kept;",
    variant="tree",
    header="tree.cuh",
)
# What a compiler did to 16-byte stores in C++: as right, and what the trap of lanes apart is there to catch.
SPLIT_STORES = Mutant(
    "softmax-fused",
    "stores taken apart",
    """    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};\\n" ::"l"(address), """
    """"r"(chunk.x), "r"(chunk.y), "r"(chunk.z),
                 "r"(chunk.w)
                 : "memory");""",
    """    unsigned* words = reinterpret_cast<unsigned*>(address);
    words[0] = chunk.x;
    words[1] = chunk.y;
    words[2] = chunk.z;
    words[3] = chunk.w;""",
    header="chunk.cuh",
)

# What only tensors of more than 2^31 elements of 2 bytes find out. Nothing outside a tensor is touched.
OFFSET_MUTANTS = (
    Mutant(
        "fa2",
        "byte offsets of 32 bits",
        "static_cast<unsigned long long>(first + row) * head_dim",
        "(first + row) * head_dim % 0x80000000u",
        header="head_rows.cuh",
    ),
    Mutant(
        "fa2-decode",
        "byte offsets of 32 bits",
        "static_cast<unsigned long long>(row) * HEAD_DIM",
        "row * HEAD_DIM % 0x80000000u",
    ),
    Mutant(
        "fa2-bwd",
        "byte offsets of 32 bits",
        "static_cast<unsigned long long>(row) * row_elements(head_dim)",
        "row * row_elements(head_dim) % 0x80000000u",
    ),
    Mutant(
        "softmax-fused",
        "byte offsets of 32 bits",
        "const long long start = index * cols;",
        "const long long start = index * cols % 0x80000000ll;",
        header="matrix_row.cuh",
    ),
)


def materialise(mutant: Mutant, folder: Path) -> KernelSpec:
    """Write the broken sources to a folder; the kernel as it is, but built from them.

    Raises:
        ValueError: the text to replace does not occur exactly once.
    """
    (spec,) = select([mutant.kernel])
    file = folder / f"{mutant.id}.cu"
    shutil.copyfile(spec.file, file)
    broken = file
    if mutant.header is not None:
        shutil.copytree(spec.file.parent / "common", folder / "common")
        broken = folder / "common" / mutant.header
    source = broken.read_text(encoding="utf-8")
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.id}: {mutant.old!r} occurs {found} times in {broken.name}: renew the patch")
    broken.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    if mutant.variant is not None:
        spec = spec.variant(mutant.variant)

    def moved(build: Build) -> Build:
        return replace(build, file=file)

    def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        intact = spec.plan(workload, device)
        return replace(intact, launches=tuple(replace(launch, build=moved(launch.build)) for launch in intact.launches))

    def builds(device: DeviceSpec) -> tuple[Build, ...]:
        return tuple(moved(build) for build in spec.builds(device))

    return replace(spec, name=mutant.id, file=file, plan=plan, builds=builds)
