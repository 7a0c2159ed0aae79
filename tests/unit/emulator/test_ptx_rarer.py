"""Instructions that compilers emit less often: jump tables, guarded calls and barriers, packed halves of everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnprof.emulator import EmulatedFault, Mode, PtxError, UnsupportedPtx
from attnprof.emulator.decoder import Watch
from attnprof.emulator.link import link
from attnprof.emulator.parser import parse
from tests.unit.emulator.emulator_harness import Bench, apply_op, op_kernel

T = np.arange(64).astype("u4")
RNG = np.random.default_rng(21)
JUMP = """
ts: .branchtargets L0, L1, L2;
brx.idx %a, ts;
L0: mov.u32 %d, 10; bra DONE;
L1: mov.u32 %d, 11; bra DONE;
L2: mov.u32 %d, 12;
DONE:"""


def test_a_jump_table(bench: Bench) -> None:
    index = (T % 3).astype("u4")
    assert np.array_equal(apply_op(bench, JUMP, index, output="u4"), 10 + index)
    assert np.array_equal(apply_op(bench, JUMP, np.full(32, 2, "u4"), output="u4"), np.full(32, 12, "u4"))


def test_a_jump_past_the_table_is_a_fault(bench: Bench) -> None:
    with pytest.raises(EmulatedFault, match="brx index 5 of 3 targets"):
        apply_op(bench, JUMP, np.full(32, 5, "u4"), output="u4")


def test_guarded_exit_and_return(bench: Bench) -> None:
    for leave in ("exit", "ret"):
        body = f"setp.lt.u32 %p, %a, 9; mov.u32 %d, 1; @!%p {leave};"
        outcome = bench.run(
            op_kernel(body, [np.dtype("u4")], np.dtype("u4")),
            "k",
            {"a": T[:32], "out": np.zeros(32, "u4")},
            outputs=("out",),
            ptx=True,
        )
        assert outcome.outputs["out"].tolist() == [1] * 9 + [0xFFFFFFFF] * 23  # what was left is still poisoned


def test_guarded_barriers_and_barrier_numbers_in_registers(bench: Bench) -> None:
    body = """.reg .u32 %w; shr.u32 %w, %a, 5; setp.eq.u32 %p, %w, 1; add.u32 %w, %w, 3;
    @%p bar.sync 2, 32; bar.sync %w, 32; mov.u32 %d, %w;
    setp.lt.u32 %q, %a, 40; bar.red.popc.u32 %w, 7, 64, %q; add.u32 %d, %d, %w;"""
    outcome = bench.run(
        op_kernel(body, [np.dtype("u4")], np.dtype("u4")),
        "k",
        {"a": T, "out": np.zeros(64, "u4")},
        outputs=("out",),
        block=(64, 1, 1),
        ptx=True,
        mode=Mode.ALL,
    )
    assert np.array_equal(outcome.outputs["out"], T // 32 + 3 + 40)


def test_a_barrier_number_that_does_not_exist(bench: Bench) -> None:
    with pytest.raises(EmulatedFault, match="barrier 16 does not exist"):
        apply_op(bench, "bar.sync %b; mov.u32 %d, %a;", T[:32], np.full(32, 16, "u4"), output="u4")


def test_one_lane_is_elected(bench: Bench) -> None:
    body = "elect.sync %d|%p, 0xff00; @%p add.u32 %d, %d, 100;"
    assert apply_op(bench, body, T[:32], output="u4").tolist() == [8] * 8 + [108] + [8] * 23


def test_address_spaces_are_told_apart(bench: Bench) -> None:
    body = """.shared .align 4 .b8 s[16]; .local .align 4 .b8 l[16]; .reg .u64 %g, %h;
    mov.u64 %g, s; cvta.shared.u64 %g, %g; isspacep.shared %p, %g; selp.u32 %d, 1, 0, %p;
    isspacep.global %p, %g; @%p add.u32 %d, %d, 100;
    mov.u64 %h, l; cvta.local.u64 %h, %h; isspacep.local %p, %h; @%p add.u32 %d, %d, 2;
    isspacep.global %p, %addr; @%p add.u32 %d, %d, 4;
    st.u32 [%h+4], %a; ld.u32 %a, [%h+4]; cvta.to.local.u64 %h, %h; ld.local.u32 %a, [%h+4];
    mad.lo.u32 %d, %a, 1000, %d;"""
    assert np.array_equal(apply_op(bench, body, T, output="u4"), T * 1000 + 7)


@pytest.mark.parametrize(
    ("body", "source", "output", "expected"),
    [
        ("copysign.f32 %d, %a, %b;", "f4", "f4", lambda a, b: np.copysign(b, a)),
        ("testp.finite.f32 %p, %a; selp.f32 %d, %a, %b, %p;", "f4", "f4", lambda a, b: np.where(np.isfinite(a), a, b)),
        ("testp.infinite.f32 %p, %a; selp.f32 %d, %a, %b, %p;", "f4", "f4", lambda a, b: np.where(np.isinf(a), a, b)),
        ("testp.normal.f32 %p, %a; selp.f32 %d, %b, %a, %p;", "f4", "f4",
         lambda a, b: np.where(np.isfinite(a) & (a != 0), b, a)),
        ("max.xorsign.abs.f32 %d, %a, %b;", "f4", "f4",
         lambda a, b: np.copysign(np.maximum(np.abs(a), np.abs(b)), np.sign(a) * np.sign(b))),
        ("neg.f32 %d, %a;", "f4", "f4", lambda a, b: -a),
        ("abs.f32 %d, %a;", "f4", "f4", lambda a, b: np.abs(a)),
        ("neg.f16 %d, %a;", "f2", "f2", lambda a, b: -a),
        ("abs.f16 %d, %a;", "f2", "f2", lambda a, b: np.abs(a)),
        ("add.sat.f16 %d, %a, %b;", "f2", "f2", lambda a, b: np.clip(a + b, 0, 1)),
        ("slct.f32.f32 %d, %a, %b, %a;", "f4", "f4", lambda a, b: np.where(a >= 0, a, b)),
        ("ex2.approx.f16 %d, %a;", "f2", "f2", lambda a, b: np.exp2(a.astype("f4"))),
        ("tanh.approx.f16 %d, %a;", "f2", "f2", lambda a, b: np.tanh(a.astype("f4"))),
        ("min.s32 %d, %a, %b;", "i4", "i4", np.minimum),
        ("neg.s32 %d, %a;", "i4", "i4", lambda a, b: -a),
        ("abs.s32 %d, %a;", "i4", "i4", lambda a, b: np.abs(a)),
        ("max.s32.relu %d, %a, %b;", "i4", "i4", lambda a, b: np.maximum(np.maximum(a, b), 0)),
        ("mad.lo.s32 %d, %a, %b, %a;", "i4", "i4", lambda a, b: a * b + a),
        ("mad.hi.s32 %d, %a, %b, 1;", "i4", "i4", lambda a, b: ((a.astype("i8") * b) >> 32) + 1),
        ("not.pred %p, %p; selp.b32 %d, %a, %b, %p;", "i4", "i4", lambda a, b: a),
        ("cvt.pack.sat.s16.s32 %d, %a, %b;", "i4", "u4",
         lambda a, b: (np.clip(a, -32768, 32767) & 0xFFFF) << 16 | (np.clip(b, -32768, 32767) & 0xFFFF)),
        ("cvt.pack.sat.u8.s32.b32 %d, %a, %b, 0x3456;", "i4", "u4",
         lambda a, b: np.clip(a, 0, 255) << 8 | np.clip(b, 0, 255) | 0x34560000),
    ],
)  # fmt: skip
def test_rarer_operations(bench: Bench, body: str, source: str, output: str, expected: Any) -> None:
    kind = np.dtype(source)
    a, b = (RNG.standard_normal(64) * 3 for _ in range(2))
    if kind.kind == "i":
        a, b = a * 20000, b * 20000
    a, b = a.astype(kind), b.astype(kind)
    if kind.kind == "f":
        a[:3] = [0, -np.inf, np.inf]
    with np.errstate(all="ignore"):
        wanted = np.asarray(expected(a, b)).astype(output)
    got = apply_op(bench, body, a, b, output=output)
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize(("kind", "half"), [("s16x2", "i2"), ("u16x2", "u2")])
def test_packed_integers(bench: Bench, kind: str, half: str) -> None:
    a, b = (RNG.integers(0, 2**16, 128).astype("u2").view(half) for _ in range(2))
    got = apply_op(bench, f"max.{kind} %d, %a, %b;", a.view("u4"), b.view("u4"), output="u4")
    assert np.array_equal(got.view(half), np.maximum(a, b))


def test_bf16_conversions(bench: Bench) -> None:
    values = RNG.standard_normal(64).astype("f4")
    truncated = apply_op(bench, "cvt.rz.bf16x2.f32 %d, %a, %a;", values, output="u4")
    assert np.array_equal(truncated & 0xFFFF, values.view("u4") >> 16)
    bits = (values.view("u4") >> 16).astype("u2")
    wide = (bits.astype("u4") << 16).view("f4")
    assert np.array_equal(apply_op(bench, "cvt.f32.bf16 %d, %a;", bits, output="f4"), wide)
    whole = apply_op(bench, "cvt.rni.s32.bf16 %d, %a;", bits, output="i4")
    assert np.array_equal(whole, np.rint(wide).astype("i4"))
    back = apply_op(bench, "cvt.rn.relu.bf16.f32 %d, %a;", wide, output="u2")
    assert np.array_equal(back, np.where(wide < 0, 0, bits))
    assert np.array_equal(apply_op(bench, "cvt.rn.bf16.s32 %d, 3;", T, output="u2"), np.full(64, 0x4040, "u2"))


def test_saturating_half_conversion(bench: Bench) -> None:
    values = np.array([1e6, -1e6, 3.0, 65519.0] * 8, "f4")
    got = apply_op(bench, "cvt.rn.satfinite.f16x2.f32 %d, %a, %a;", values, output="u4").view("f2")[::2]
    assert got.tolist() == [65504.0, -65504.0, 3.0, 65504.0] * 8
    zero = apply_op(bench, "cvt.rz.f16x2.f32 %d, %a, %a;", np.full(32, 1.9999, "f4"), output="u4").view("f2")
    assert np.all(zero == np.float16(1.999))


def test_packed_comparison_into_a_register(bench: Bench) -> None:
    a, b = (RNG.standard_normal(64).astype("f2") for _ in range(2))
    got = apply_op(bench, "set.lt.f16x2.f16x2 %d, %a, %b;", a.view("u4"), b.view("u4"), output="u4")
    assert np.array_equal(got.view("f2"), (a < b).astype("f2"))
    mask = apply_op(bench, "set.lt.u32.f16x2 %d, %a, %b;", a.view("u4"), b.view("u4"), output="u4")
    assert np.array_equal(mask.view("u2"), np.where(a < b, 0xFFFF, 0).astype("u2"))


def test_fp64_tensor_product(bench: Bench) -> None:
    body = """.reg .f64 %x, %y;
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%x, %y}, {%a}, {%b}, {%c, %c}; add.f64 %d, %x, %y;"""
    a, b, c = (RNG.integers(-5, 5, 32).astype("f8") for _ in range(3))
    product = a.reshape(8, 4) @ b.reshape(8, 4).T
    expected = product[:, 0::2] + product[:, 1::2] + 2 * c.reshape(8, 4)
    assert np.array_equal(apply_op(bench, body, a, b, c, output="f8").reshape(8, 4), expected)


def test_special_registers(bench: Bench) -> None:
    body = """.reg .u32 %x; mov.u32 %d, %laneid; mov.u32 %x, %warpid; mad.lo.u32 %d, %x, 100, %d;
    mov.u32 %x, %lanemask_le; popc.b32 %x, %x; mad.lo.u32 %d, %x, 1000, %d;
    mov.u32 %x, %lanemask_gt; popc.b32 %x, %x; add.u32 %d, %d, %x;
    mov.u32 %x, %nwarpid; mad.lo.u32 %d, %x, 100000, %d; mov.u32 %x, %dynamic_smem_size; add.u32 %d, %d, %x;
    mov.u32 %x, %clusterid.x; add.u32 %d, %d, %x;"""
    outcome = bench.run(
        op_kernel(body, [np.dtype("u4")], np.dtype("u4")),
        "k",
        {"a": T, "out": np.zeros(64, "u4")},
        outputs=("out",),
        block=(64, 1, 1),
        smem_bytes=1 << 14,
        ptx=True,
    )
    lane = T % 32
    expected = lane + T // 32 * 100 + (lane + 1) * 1000 + (31 - lane) + 2 * 100000 + (1 << 14)
    assert np.array_equal(outcome.outputs["out"], expected)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("add.u32 %d, %a;", "2 operands"),
        ("add.u32 5, %a, %a;", "no register"),
        ("add.u64 %d, %a, %a;", "cannot hold a .u64"),
        ("mov.u32 %d, %p;", "is a .pred"),
        ("mov.u32 %d, 1.5;", "no whole number"),
        ("mov.u32 %d, %mystery;", "special register %mystery"),
        ("shl.f32 %d, %a, 1;", "no .f32 form"),
        ("mul.u32 %d, %a, %a;", "no .lo, .hi or .wide"),
        ("setp.u32 %p, %a, 1;", "no comparison"),
        ("setp.lt.and.u32 %p, %a, 1;", "go together"),
        ("cvt.u32.f32 %d, %a;", "needs .rni"),
        ("ld.global.v2.u32 %d, [%addr];", "1 destinations for 2"),
        ("ld.global.u32 %d, %a;", "address in brackets"),
        ("ld.param.u32 %d, [nowhere];", "no parameter"),
        ("ld.param.u32 %d, [p0+4000];", "outside the kernel's parameters"),
        ("st.param.u32 [p0], %a;", "no parameter that can be written"),
        ("bar.arrive 1;", "thread count"),
        ("bar.red.popc.u32 %d, 1;", "operands"),
        ("shfl.bfly.b32 %d, %a, 1, 31, -1;", "no member mask"),
        ("cp.async.cg.shared.global [%addr], [%addr], 8;", "16 bytes"),
        ("cp.async.ca.shared.global [%addr], [%addr], 5;", "4, 8 or 16"),
        ("cp.async.wait_group %a;", "must be a constant"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%d}, [%addr];", "1 destinations for 2"),
        ("call (%d), nothing, (%a);", ".param variables"),
        ("call nothing;", "not defined"),
        ("atom.global.u32 %d, [%addr], 1;", "no operation"),
        ("lop3.b32 %d, %a, %a, %a, %a;", "must be a constant"),
        ("bra.uni %a;", "needs a label"),
        ("@%a mov.u32 %d, 1;", "predicate register"),
        (".reg .b32 %x<3>; mov.u32 %d, [%addr];", "a value is expected"),
        ("mov.u32 %d, {%a, %a};", "2 registers of 32 bits are not 32 bits"),
    ],
)
def test_rules_of_the_language(body: str, words: str) -> None:
    with pytest.raises(PtxError, match=words):
        link(parse(op_kernel(body, [np.dtype("u4")], np.dtype("u4"))), "k", Watch())


@pytest.mark.parametrize(
    "body",
    [
        "vadd4.u32.u32.u32 %d, %a, %a, %a;",
        "tex.1d.v4.u32.s32 {%a, %a, %a, %a}, [%addr];",
        "cp.async.bulk.commit_group;",
        "setmaxnreg.inc.sync.aligned.u32 240;",
        "redux.sync.add.f32 %d, %a, -1;",
        "atom.global.min.f32 %d, [%addr], %a;",
        "barrier.cluster.arrive;",
        "ld.global.b128 %d, [%addr];",
    ],
)
def test_what_is_missing_is_said(body: str) -> None:
    with pytest.raises(UnsupportedPtx, match=r"PTX line \d+.*does not execute"):
        link(parse(op_kernel(body, [np.dtype("u4")], np.dtype("u4"))), "k", Watch())
