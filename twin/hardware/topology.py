"""Hardware as numbers: a device, the links it reaches others by, the host that drives it. Knows no model and no file.

Speeds are what the vendor states, dense; the share of them that real kernels reach is a field of its own.
Law: every number is finite and in range once the struct exists.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DTYPE_BYTES: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Bytes of one element, by data type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way to other devices: `domain_devices` reach each other; `bandwidth_bytes_per_s` is one way, for one of them.

    `latency_s` is the time of an empty message, `jitter_s` its standard deviation.
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    domain_devices: int
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        where = f"link {self.name!r}"
        _check(where, "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, above=0.0)
        _check(where, "latency_s", self.latency_s)
        _check(where, "domain_devices", self.domain_devices, least=2)
        _check(where, "jitter_s", self.jitter_s)

    def transfer_s(self, size_bytes: float) -> float:
        """Mean seconds to move `size_bytes` one way on an idle link."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one CPU core.

    `cores` are the units that work tiles are spread over (SMs, AI cores). `peak_flops_per_s` is keyed by data type,
    for matrix products; `vector_flops_per_s` is for the rest. `launch_s` is what one kernel costs beside its work.
    `packs_query_heads`: attention kernels put the query heads of one KV head into one tile (FlashAttention-3,
    FlashMLA) in every step, not only in decode steps (FlashAttention-2).
    """

    name: str
    kind: Literal["gpu", "npu", "cpu"]
    cores: int
    peak_flops_per_s: Mapping[str, float]
    vector_flops_per_s: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    launch_s: float
    compute_efficiency_ratio: float
    memory_efficiency_ratio: float
    packs_query_heads: bool = True

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        if self.kind not in ("gpu", "npu", "cpu"):
            raise ValueError(f"{where}: kind must be one of gpu, npu, cpu, got {self.kind!r}")
        _check(where, "cores", self.cores, least=1)
        if not isinstance(self.peak_flops_per_s, Mapping) or not self.peak_flops_per_s:
            raise ValueError(f"{where}: peak_flops_per_s must be a table of at least one of {', '.join(DTYPE_BYTES)}")
        for dtype, value in self.peak_flops_per_s.items():
            if dtype not in DTYPE_BYTES:
                raise ValueError(
                    f"{where}: peak_flops_per_s.{dtype} is unknown; expected one of {', '.join(DTYPE_BYTES)}"
                )
            _check(where, f"peak_flops_per_s.{dtype}", value, above=0.0)
        for name in ("vector_flops_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s"):
            _check(where, name, getattr(self, name), above=0.0)
        _check(where, "launch_s", self.launch_s)
        for name in ("compute_efficiency_ratio", "memory_efficiency_ratio"):
            _check(where, name, getattr(self, name), above=0.0, most=1.0)
        if not isinstance(self.packs_query_heads, bool):
            raise ValueError(f"{where}: packs_query_heads must be true or false, got {self.packs_query_heads!r}")

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s of matrix products in `dtype`. Raises ValueError if the device has none."""
        try:
            return self.peak_flops_per_s[dtype]
        except KeyError:
            known = ", ".join(sorted(self.peak_flops_per_s))
            raise ValueError(
                f"device {self.name!r} has no peak_flops_per_s for {dtype!r}, only for {known}; "
                "add it or use another dtype"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the engine's own program adds to a step: a fixed part, a part per scheduled sequence, a wait at the end."""

    step_s: float = 0.0
    sequence_s: float = 0.0
    sync_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("step_s", "sequence_s", "sync_s"):
            _check("host", name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device with its surroundings: `links` from the nearest to the farthest, `host_link` to the memory of its host.

    `sources` says for each number where it comes from, keyed like `device.memory_bytes`, or `assumed`.
    """

    name: str
    device: Device
    links: tuple[Link, ...] = ()
    host_link: Link | None = None
    host: Host = field(default_factory=Host)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        domains = [link.domain_devices for link in self.links]
        if domains != sorted(domains):
            raise ValueError(
                f"hardware {self.name!r}: links must go from the smallest domain to the largest, got {domains}"
            )

    def link_for(self, devices: int) -> Link:
        """The nearest link whose domain holds `devices`. Raises ValueError if none is large enough."""
        for link in self.links:
            if link.domain_devices >= devices:
                return link
        largest = self.links[-1].domain_devices if self.links else 1
        raise ValueError(
            f"hardware {self.name!r} has no link that joins {devices} devices, the largest domain holds {largest}; "
            "add a link or use fewer devices"
        )


def _check(
    where: str, name: str, value: float, *, above: float | None = None, least: float = 0.0, most: float = math.inf
) -> None:
    """Raise ValueError unless `value` is a finite number in the stated range."""
    wanted = f"> {above:g}" if above is not None else f">= {least:g}"
    if most < math.inf:
        wanted += f" and <= {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: {name} must be a number {wanted}, got {value!r}")
    low_enough = value > above if above is not None else value >= least
    if not (math.isfinite(value) and low_enough and value <= most):
        raise ValueError(f"{where}: {name} must be a finite number {wanted}, got {value!r}")
