"""Numbers as people read them: SI prefixes for rates, times and decimal bytes, binary prefixes for GiB.

GB is 1e9 bytes and GiB is 2^30 bytes; every figure carries its own label. Unknown (``None``, or a float that is not
finite) is ``—``: never 0.
"""

from __future__ import annotations

import math

UNKNOWN = "—"

_DECIMAL = ("p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E", "Z", "Y")
_ONE = _DECIMAL.index("")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


def known(value: object) -> bool:
    """Whether there is a number (or any other value) to show."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def fixed(value: float, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits, never in exponent form below 10^digits: 63.75, 16384, 0.2000."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}" if decimals else f"{value:.0f}"


def si(value: float | None, unit: str, digits: int = 4) -> str:
    """``value`` with the SI prefix that leaves one to three digits before the point: 0.1353 s → ``135.3 ms``."""
    if value is None or not known(value):
        return UNKNOWN
    if value == 0:
        return f"0 {unit}"
    # Round before choosing the prefix, so that 999.96 ms is 1.000 s and not 1000 ms.
    rounded = float(f"{value:.{digits - 1}e}")
    step = math.floor(math.log10(abs(rounded)) / 3 + 1e-12)
    if not -_ONE <= step < len(_DECIMAL) - _ONE:
        return f"{value:.{digits - 1}e} {unit}"
    return f"{fixed(rounded / 1000.0**step, digits)} {_DECIMAL[step + _ONE]}{unit}"


def short(value: float | None, unit: str) -> str:
    """As `si`, without trailing zeros: ``312 TFLOP/s``. For headings; in a column all rows keep their digits."""
    return _trim(si(value, unit))


def time(value_s: float | None) -> str:
    """Seconds: ``135.3 ms``."""
    return si(value_s, "s")


def decimal_bytes(value: int | None) -> str:
    """Bytes with decimal prefixes (GB is 1e9): ``276.0 GB``."""
    return si(value, "B")


def binary_bytes(value: float | None, digits: int = 4) -> str:
    """Bytes with binary prefixes (GiB is 2^30): ``257.0 GiB``."""
    if value is None or not known(value):
        return UNKNOWN
    step = min(max(int(value).bit_length() - 1, 0) // 10, len(_BINARY) - 1)
    return f"{value:.0f} B" if step == 0 else f"{fixed(value / 1024**step, digits)} {_BINARY[step]}"


def short_binary_bytes(value: float | None) -> str:
    """As `binary_bytes`, without trailing zeros: ``80 GiB``."""
    return _trim(binary_bytes(value))


def exact(value: int | None) -> str:
    """A whole number with every digit, in groups of three: ``275,951,648,768``."""
    return UNKNOWN if value is None else f"{value:,}"


def flops(value: int | None) -> str:
    """Floating-point operations, for a column that names the unit: ``17.59 T``."""
    return si(value, "").rstrip()


def flops_per_s(value: float | None) -> str:
    """A rate of floating-point operations: ``312.0 TFLOP/s``."""
    return si(value, "FLOP/s")


def bytes_per_s(value: float | None) -> str:
    """A rate of bytes, decimal: ``2.039 TB/s``."""
    return si(value, "B/s")


def hertz(value: int | None) -> str:
    """A clock: ``1.410 GHz``."""
    return si(value, "Hz")


def intensity(value: float | None) -> str:
    """FLOPs a byte, without its unit: ``63.75``."""
    return fixed(value, 4) if value is not None and known(value) else UNKNOWN


def ratio(value: float | None) -> str:
    """A factor: ``2.40×``."""
    return f"{fixed(value, 3)}×" if value is not None and known(value) else UNKNOWN


def percent(value: float | None) -> str:
    """A percentage that is already in percent: ``83.1 %``. Above 100 it is shown as it is."""
    return f"{value:.1f} %" if value is not None and known(value) else UNKNOWN


def error(value: float | None) -> str:
    """A relative error: ``3.1e-04``."""
    return f"{value:.1e}" if value is not None and known(value) else UNKNOWN


def counted(number: int, noun: str, plural: str | None = None, *, form: str = "") -> str:
    """``1 head``, ``32 heads``; ``plural`` where it takes more than an s, ``form`` of the number as in a format."""
    return f"{number:{form}} {noun if number == 1 else plural or noun + 's'}"


def text(value: object) -> str:
    """Any other value as it is; unknown is ``—``."""
    return str(value) if known(value) else UNKNOWN


def yes_no(value: bool | None) -> str:
    """A flag: ``yes`` or ``no``."""
    return UNKNOWN if value is None else ("yes" if value else "no")


def _trim(figure: str) -> str:
    number, space, unit = figure.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}{space}{unit}"
