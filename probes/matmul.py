"""Arithmetic rate by dtype, from square matrix products.

A dtype that the hardware lacks is computed by detours, often dozens of times slower than float32:
then the device only pretends to have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from probes.copies import synchronizer
from probes.machine import PRETENCE_RATIO, Device, Finding, Reading
from probes.timing import time_call
from probes.wording import first_line

DTYPES = ("float32", "bfloat16", "float16")
"""torch's names of what training computes in."""

_SMALLEST = 256
_LARGEST_ON_CPU = 2048
_LARGEST_ON_DEVICE = 8192
_PART_OF_FREE = 16
_PRODUCT_S = 0.1
"""One product may take this long: larger ones show no other rate."""


def rate(
    torch: ModuleType, device: Device, dtype: str, *, tf32: bool = False, time_limit_s: float = 0.3
) -> Reading:
    """Floating point operations a second of a matrix product, 2 n³ each.

    Args:
        torch: The module.
        device: Where to compute.
        dtype: torch's name of the dtype.
        tf32: Let float32 products round their inputs to 10 bits, as tensor cores do.
        time_limit_s: Time for the samples.

    Raises:
        RuntimeError: The device does not compute in this dtype.
    """
    largest = _LARGEST_ON_CPU if device.kind == "cpu" else _LARGEST_ON_DEVICE
    synchronize = synchronizer(torch, device)
    with _float32_precision(torch, "high" if tf32 else "highest"):
        n = _SMALLEST
        product = _product(torch, device, dtype, n)
        while 2 * n <= largest and _needed_bytes(2 * n) <= device.free_bytes // _PART_OF_FREE:
            once = time_call(product, synchronize=synchronize, num_samples=3)
            if 8 * min(once.samples_s) > _PRODUCT_S:
                break
            n *= 2
            product = _product(torch, device, dtype, n)
        timing = time_call(product, synchronize=synchronize, time_limit_s=time_limit_s)
    name = "matmul tf32" if tf32 else f"matmul {dtype}"
    return timing.rate(name, "flop_per_s", 2.0 * n**3, f"{n} × {n} matrices")


def has_tf32(torch: ModuleType, device: Device) -> bool:
    """Whether float32 products can be rounded to gain speed.

    Args:
        torch: The module.
        device: The device.
    """
    if device.kind != "cuda" or getattr(torch.version, "hip", None):
        return False
    return bool(torch.cuda.get_device_capability(device.index) >= (8, 0))


def pretended(dtype: str, reading: Reading, float32: Reading) -> Finding | None:
    """What is to be said of a dtype that is far slower than float32; None if it is not.

    Args:
        dtype: torch's name of the dtype.
        reading: Its rate.
        float32: The rate of float32 on the same device.
    """
    if reading.value >= PRETENCE_RATIO * float32.value:
        return None
    slower = float32.value / reading.value
    return Finding(
        cause=(
            f"The device only pretends to have {dtype}: matrix products in it are {slower:.0f} "
            "times slower than in float32."
        ),
        remedy="Train in float32 on it.",
        is_problem=False,
        lasts=True,
    )


def missing(dtype: str, error: Exception) -> Finding:
    """What is to be said of a dtype that the device does not compute in.

    Args:
        dtype: torch's name of the dtype.
        error: What torch said.
    """
    return Finding(
        cause=f"The device does not compute in {dtype}: {first_line(error)}.",
        remedy="Train in another precision on it.",
        lasts=True,
    )


def _needed_bytes(n: int) -> int:
    return 3 * 4 * n * n


def _product(torch: ModuleType, device: Device, dtype: str, n: int) -> Callable[[], object]:
    place = f"{device.kind}:{device.index}"
    # A generator of its own: the caller's random numbers stay as they are.
    generator = torch.Generator(device=place).manual_seed(0)
    left, right = (
        torch.rand(n, n, device=place, generator=generator).to(getattr(torch, dtype))
        for _ in range(2)
    )
    result = torch.empty_like(left)
    return lambda: torch.matmul(left, right, out=result)


@contextmanager
def _float32_precision(torch: ModuleType, precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
