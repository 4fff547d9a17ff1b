"""Devices by name: what their data sheets say, for an estimate on a device that is not here.

Totals are those that the driver's own tool reports, in MiB: with error correction on, where such a
device is delivered so. Names are matched without vendor, brand, form factor and kind of memory, so
that what a driver calls a device finds it too.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.errors import UsageError

MIB = 1024**2
Kind: TypeAlias = Literal["consumer", "workstation", "data centre"]
Vendor: TypeAlias = Literal["nvidia", "amd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """One make of device."""

    name: str
    sheet_gib: int
    """Memory on its data sheet."""
    total_bytes: int
    """Memory that its driver tells."""
    architecture: str
    """As compilers name it: `sm_89`, `gfx942`."""
    kind: Kind
    vendor: Vendor

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA's compute capability; None for devices of another vendor."""
        return capability_of(self.architecture)


def capability_of(architecture: str) -> tuple[int, int] | None:
    """The compute capability that `sm_89` stands for; None for what is none."""
    match = re.fullmatch(r"sm_(\d+)(\d)", architecture)
    return (int(match[1]), int(match[2])) if match else None


def _parsed(table: str, vendor: Vendor) -> tuple[KnownDevice, ...]:
    found = []
    for line in table.strip().splitlines():
        name, sheet_gib, total_mib, architecture, kind = (cell.strip() for cell in line.split("|"))
        found.append(
            KnownDevice(
                name=name,
                sheet_gib=int(sheet_gib),
                total_bytes=int(total_mib) * MIB,
                architecture=architecture,
                kind=kind,  # type: ignore[arg-type]
                vendor=vendor,
            )
        )
    return tuple(found)


_NVIDIA = """
RTX 5090            |  32 |  32607 | sm_120 | consumer
RTX 5080            |  16 |  16303 | sm_120 | consumer
RTX 5070 Ti         |  16 |  16303 | sm_120 | consumer
RTX 5070            |  12 |  12227 | sm_120 | consumer
RTX 5060 Ti 16GB    |  16 |  16311 | sm_120 | consumer
RTX 5060 Ti 8GB     |   8 |   8151 | sm_120 | consumer
RTX 5060            |   8 |   8151 | sm_120 | consumer
RTX 4090            |  24 |  24564 | sm_89  | consumer
RTX 4080 SUPER      |  16 |  16376 | sm_89  | consumer
RTX 4080            |  16 |  16376 | sm_89  | consumer
RTX 4070 Ti SUPER   |  16 |  16376 | sm_89  | consumer
RTX 4070 Ti         |  12 |  12282 | sm_89  | consumer
RTX 4070 SUPER      |  12 |  12282 | sm_89  | consumer
RTX 4070            |  12 |  12282 | sm_89  | consumer
RTX 4060 Ti 16GB    |  16 |  16380 | sm_89  | consumer
RTX 4060 Ti 8GB     |   8 |   8188 | sm_89  | consumer
RTX 4060            |   8 |   8188 | sm_89  | consumer
RTX 3090 Ti         |  24 |  24564 | sm_86  | consumer
RTX 3090            |  24 |  24576 | sm_86  | consumer
RTX 3080 Ti         |  12 |  12288 | sm_86  | consumer
RTX 3080            |  10 |  10240 | sm_86  | consumer
RTX 3070            |   8 |   8192 | sm_86  | consumer
RTX 3060            |  12 |  12288 | sm_86  | consumer
TITAN RTX           |  24 |  24576 | sm_75  | consumer
RTX 2080 Ti         |  11 |  11264 | sm_75  | consumer
GTX 1080 Ti         |  11 |  11264 | sm_61  | consumer
RTX PRO 6000        |  96 |  97887 | sm_120 | workstation
RTX 6000 Ada        |  48 |  49140 | sm_89  | workstation
RTX 5000 Ada        |  32 |  32760 | sm_89  | workstation
RTX 4000 Ada        |  20 |  20475 | sm_89  | workstation
RTX A6000           |  48 |  49140 | sm_86  | workstation
RTX A5000           |  24 |  24564 | sm_86  | workstation
RTX A4000           |  16 |  16376 | sm_86  | workstation
Quadro RTX 8000     |  48 |  46080 | sm_75  | workstation
T4                  |  16 |  15360 | sm_75  | data centre
L4                  |  24 |  23034 | sm_89  | data centre
L40                 |  48 |  46068 | sm_89  | data centre
L40S                |  48 |  46068 | sm_89  | data centre
A10                 |  24 |  23028 | sm_86  | data centre
A10G                |  24 |  23028 | sm_86  | data centre
A30                 |  24 |  24576 | sm_80  | data centre
A40                 |  48 |  46068 | sm_86  | data centre
P100                |  16 |  16384 | sm_60  | data centre
V100 16GB           |  16 |  16384 | sm_70  | data centre
V100 32GB           |  32 |  32768 | sm_70  | data centre
A100 40GB           |  40 |  40960 | sm_80  | data centre
A100 80GB           |  80 |  81920 | sm_80  | data centre
H100 80GB           |  80 |  81559 | sm_90  | data centre
H100 NVL            |  94 |  95830 | sm_90  | data centre
H20                 |  96 |  97871 | sm_90  | data centre
GH200               |  96 |  97871 | sm_90  | data centre
H200                | 141 | 143771 | sm_90  | data centre
B200                | 180 | 183359 | sm_100 | data centre
GB200               | 186 | 189471 | sm_100 | data centre
B300                | 270 | 275040 | sm_103 | data centre
"""
_AMD = """
RX 7900 XTX         |  24 |  24560 | gfx1100 | consumer
RX 7900 XT          |  20 |  20464 | gfx1100 | consumer
PRO W7900           |  48 |  49136 | gfx1100 | workstation
MI210               |  64 |  65520 | gfx90a  | data centre
MI250X              |  64 |  65520 | gfx90a  | data centre
MI300X              | 192 | 196592 | gfx942  | data centre
MI325X              | 256 | 262128 | gfx942  | data centre
MI355X              | 288 | 294896 | gfx950  | data centre
"""

DEVICES: tuple[KnownDevice, ...] = (*_parsed(_NVIDIA, "nvidia"), *_parsed(_AMD, "amd"))
"""Every device that is known. A MI250X is two devices to torch, each with half of its memory."""

_NOISE = frozenset(
    (
        *("nvidia", "amd", "geforce", "quadro", "tesla", "instinct", "radeon", "graphics"),
        *("generation", "edition", "workstation", "server", "blackwell", "max", "q"),
        *("sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "pcie", "oam", "ac"),
        *("hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)
_FAMILIES = ("rtx", "gtx", "rx", "titan", "pro", "ada")
"""Words that people leave out."""
_NUM_NEAR = 4


def find(name: str) -> KnownDevice:
    """The device of a name, as people or a driver write it.

    Raises:
        UsageError: There is none, or several; the message names the near ones.
    """
    wanted = _words(name)
    exact = [device for device in DEVICES if _words(device.name) == wanted]
    if exact:
        return exact[0]
    # A bare "A100" or "4090" may leave out what only one device, or several, would add.
    partial = [device for device in DEVICES if wanted and _covers(device, wanted)]
    if len(partial) == 1:
        return partial[0]
    if partial:
        raise UsageError(
            f"{name!r} may be several devices.",
            f"Say which: {', '.join(device.name for device in partial[:6])}.",
        )
    near = near_names(name)
    raise UsageError(
        f"There is no device {name!r} in the table.",
        (f"Did you mean {' or '.join(near)}? " if near else "")
        + "For any other one, give its memory with --device-memory, for example 24GiB.",
    )


def near_names(name: str) -> list[str]:
    """Names in the table that look like a name, the nearest first."""
    by_key = {"".join(_words(device.name)): device.name for device in DEVICES}
    key = "".join(_words(name))
    near = difflib.get_close_matches(key, by_key, n=_NUM_NEAR, cutoff=0.6)
    digits = re.findall(r"\d{2,}", name)
    near += [k for k in by_key if digits and k not in near and all(d in k for d in digits)]
    # A slip in the number alone leaves too little of the rest to go by.
    numbers = {number for k in by_key for number in re.findall(r"\d{2,}", k)}
    alike = {n for d in digits for n in difflib.get_close_matches(d, sorted(numbers), cutoff=0.7)}
    near += [k for k in by_key if k not in near and alike & {*re.findall(r"\d{2,}", k)}]
    return [by_key[k] for k in near[:_NUM_NEAR]]


def _words(name: str) -> tuple[str, ...]:
    """The words that tell one device from another, in lower case."""
    text = re.sub(r"\b(\d+)\s*(?:gib|gb|g)\b", r"\1gb", name.lower())
    # "rtx4090" and "4070ti" are written in one word as often as in two.
    text = re.sub(r"\b(rtx|gtx|rx)(?=\d)", r"\1 ", text)
    text = re.sub(r"(?<=\d{4})(ti|super|xtx|xt)\b", r" \1", text)
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word and word not in _NOISE]
    return tuple(words)


def _covers(device: KnownDevice, wanted: tuple[str, ...]) -> bool:
    words = _words(device.name)
    # The memory may be told of a device that comes in one size alone: "RTX 4090 24GB".
    told = [word for word in wanted if word not in words]
    sizes = {f"{device.sheet_gib}gb"}
    num_shared = len(wanted) - len(told)
    return set(told) <= sizes and num_shared > 0 and _is_model_named(words, wanted)


def _is_model_named(words: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether the part with a number in it was named, such as `4090` or `a100`."""
    models = [word for word in words if re.search(r"\d", word) and not word.endswith("gb")]
    left_out = [word for word in words if word not in wanted]
    is_plain = all(word in _FAMILIES or word.endswith("gb") for word in left_out)
    return bool(models) and all(word in wanted for word in models) and is_plain
