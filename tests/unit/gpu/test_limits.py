from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.gpu.limits import DeviceLimits, block_registers, check_launch
from attnprof.kernels.executor import EntryResources
from attnprof.kernels.plan import Build, Launch
from attnprof.model.errors import LaunchLimitError

H200 = DeviceLimits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 232_448, 65_536)
LAUNCH = Launch("s", Build(Path("/k.cu")), "k", (1, 1, 1), (128, 1, 1), 0, ())
RESOURCES = EntryResources("k", 32, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("launch", "resources"),
    [
        ({"smem_bytes": 49_152}, {"static_smem_bytes": 1}),
        ({"smem_bytes": 98_304}, {}),
        ({"smem_bytes": 232_448}, {}),
        ({"grid": (2**31 - 1, 65535, 65535)}, {}),
        ({"block": (1024, 1, 1)}, {"registers": 64}),
        ({"block": (384, 1, 1)}, {"registers": 168}),
        ({"block": (256, 1, 1)}, {"registers": 255}),
    ],
)
def test_allowed(launch, resources) -> None:
    check_launch(replace(LAUNCH, **launch), replace(RESOURCES, **resources), H200)


@pytest.mark.parametrize(
    ("launch", "resources", "message"),
    [
        (
            {"smem_bytes": 232_448},
            {"static_smem_bytes": 1},
            r"k: needs 232,449 B of shared memory a block \(232,448 dynamic \+ 1 static\), 232,448 B available",
        ),
        ({"smem_bytes": -1}, {}, "shared memory"),
        # 162 × 32 = 5184 a warp, rounded up to 5376; 16 warps.
        ({"block": (512, 1, 1)}, {"registers": 162}, r"needs 86,016 registers a block .* 65,536 available"),
        ({"block": (1025, 1, 1)}, {}, r"block\.x is 1,025; this GPU allows 1 to 1,024"),
        ({"block": (1024, 2, 1)}, {}, r"needs 2,048 threads a block, 1,024 available"),
        ({"block": (1, 1, 65)}, {}, r"block\.z is 65"),
        ({"grid": (2**31, 1, 1)}, {}, r"grid\.x is 2,147,483,648; this GPU allows 1 to 2,147,483,647"),
        ({"grid": (1, 65536, 1)}, {}, r"grid\.y is 65,536; this GPU allows 1 to 65,535"),
        ({"grid": (1, 1, 65536)}, {}, r"grid\.z"),
        ({"grid": (0, 1, 1)}, {}, r"grid\.x is 0"),
        ({"block": (32, 0, 1)}, {}, r"block\.y is 0"),
    ],
)
def test_refused_with_needed_and_available(launch, resources, message: str) -> None:
    with pytest.raises(LaunchLimitError, match=message):
        check_launch(replace(LAUNCH, **launch), replace(RESOURCES, **resources), H200)


def test_registers_are_handed_out_in_units() -> None:
    assert block_registers(32, 32) == 4 * 1024
    assert block_registers(33, 128) == 4 * 1280
    assert block_registers(168, 384) == 12 * 5376
    assert block_registers(255, 129) == 8 * 8192
