"""Hardware known by name. Every number stands beside its source; what no vendor states is marked assumed.

Peaks are dense (datasheets print the double with sparsity), bandwidths are one direction. Memory is in binary units:
an 80 GB device reports 80 GiB.
Does not describe a server or a cluster: add links to a preset for that.
Law: every number of a preset has a source.
"""

from collections.abc import Mapping
from typing import Any, Literal

from twin.hardware.topology import Device, Hardware, Host, Link

T, G, GIB = 1e12, 1e9, 2.0**30
US = 1e-6

ASSUMED = "assumed"
A100 = "NVIDIA A100 Tensor Core GPU datasheet (80GB SXM)"
AMPERE = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
H100 = "NVIDIA H100 Tensor Core GPU datasheet (SXM)"
HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
H200 = "NVIDIA H200 Tensor Core GPU datasheet (SXM)"
B200 = "NVIDIA DGX B200 and HGX B200 datasheets, one of eight GPUs"
GB300 = "NVIDIA GB300 NVL72 datasheet, one of 72 GPUs"
ADA = "NVIDIA Ada GPU Architecture whitepaper (GeForce RTX 4090)"
CANN = "Huawei CANN ops-cv, migration guide: Atlas A2 (910B2, 24 AI cores at 1.8 GHz)"
KERNELS = (
    "assumed: kernels reach about this share (A100 matrix products measured by Vidur: 0.71 of peak, 0.76 of bandwidth)"
)
GRAPHS = "assumed: gap and ramp of one kernel inside a CUDA graph"
FLASH3 = "FlashAttention-3 packs query heads; it runs on Hopper and later"
FLASH2 = "FlashAttention-2 packs query heads in decode steps only"
INFINIBAND = "assumed: one 400 Gb/s InfiniBand NDR port per device"
VLLM_HOST = "assumed: vLLM V1 without async scheduling"

Sourced = tuple[Any, str]


def _hardware(
    name: str,
    kind: Literal["gpu", "npu", "cpu"],
    device: Mapping[str, Sourced],
    around: Mapping[str, Mapping[str, Sourced]],
) -> Hardware:
    """Split values from their sources. `around` holds `host`, `host_link` and links by name, nearest first."""
    sources = {f"device.{key}": source for key, (_, source) in device.items()}
    for part, numbers in around.items():
        sources |= {f"{part}.{key}": source for key, (_, source) in numbers.items()}
    parts = {part: {key: value for key, (value, _) in numbers.items()} for part, numbers in around.items()}
    host, host_link = parts.pop("host"), parts.pop("host_link", None)
    return Hardware(
        name=name,
        device=Device(name=name, kind=kind, **{key: value for key, (value, _) in device.items()}),
        links=tuple(Link(name=part, **numbers) for part, numbers in parts.items()),
        host_link=Link(name="host_link", **host_link) if host_link else None,
        host=Host(**host),
        sources=sources,
    )


def _link(
    bandwidth: float, source: str, devices: int, latency_s: float = 5 * US, why: str = ASSUMED
) -> dict[str, Sourced]:
    return {
        "bandwidth_bytes_per_s": (bandwidth, source),
        "latency_s": (latency_s, why),
        "domain_devices": (devices, source),
        "jitter_s": (latency_s / 5, ASSUMED),
    }


_HOST: Mapping[str, Sourced] = {
    "step_s": (1e-3, VLLM_HOST),
    "sequence_s": (5 * US, VLLM_HOST),
    "sync_s": (50 * US, ASSUMED),
}
_NDR = _link(50 * G, INFINIBAND, 1024, latency_s=15 * US)
_REACHED: Mapping[str, Sourced] = {
    "launch_s": (3 * US, GRAPHS),
    "compute_efficiency_ratio": (0.7, KERNELS),
    "memory_efficiency_ratio": (0.8, KERNELS),
}
_HOPPER: Mapping[str, Sourced] = {
    "cores": (132, HOPPER),
    "peak_flops_per_s": (
        {"bf16": 989.4 * T, "fp16": 989.4 * T, "fp8": 1978.9 * T, "int8": 1978.9 * T, "fp32": 66.9 * T},
        H100,
    ),
    "vector_flops_per_s": (66.9 * T, H100),
    "packs_query_heads": (True, FLASH3),
}

_ALL = (
    _hardware(
        "a100-80g-sxm",
        "gpu",
        {
            "cores": (108, AMPERE),
            "peak_flops_per_s": ({"bf16": 312 * T, "fp16": 312 * T, "int8": 624 * T, "fp32": 19.5 * T}, A100),
            "vector_flops_per_s": (19.5 * T, A100),
            "memory_bytes": (80 * GIB, A100),
            "memory_bandwidth_bytes_per_s": (2039 * G, A100),
            "packs_query_heads": (False, FLASH2),
            **_REACHED,
        },
        {
            "nvlink": _link(300 * G, A100, 8),
            "infiniband": _link(
                25 * G, "assumed: one 200 Gb/s InfiniBand HDR port per device", 1024, latency_s=15 * US
            ),
            "host_link": _link(32 * G, A100, 2),
            "host": _HOST,
        },
    ),
    _hardware(
        "h100-sxm",
        "gpu",
        {"memory_bytes": (80 * GIB, H100), "memory_bandwidth_bytes_per_s": (3350 * G, H100), **_HOPPER, **_REACHED},
        {"nvlink": _link(450 * G, H100, 8), "infiniband": _NDR, "host_link": _link(64 * G, H100, 2), "host": _HOST},
    ),
    _hardware(
        "h100-64g",
        "gpu",
        {
            "memory_bytes": (64 * GIB, "MareNostrum 5 user guide: H100 with 64 GB HBM2"),
            "memory_bandwidth_bytes_per_s": (
                1631 * G,
                "assumed: four HBM2e stacks where the H100 PCIe has five and 2,039 GB/s (H100 datasheet)",
            ),
            **_HOPPER,
            **_REACHED,
        },
        {
            "nvlink": _link(450 * G, "assumed as H100 SXM", 4),
            "infiniband": _NDR,
            "host_link": _link(64 * G, "assumed as H100 SXM", 2),
            "host": _HOST,
        },
    ),
    _hardware(
        "h200-sxm",
        "gpu",
        {"memory_bytes": (141 * GIB, H200), "memory_bandwidth_bytes_per_s": (4800 * G, H200), **_HOPPER, **_REACHED},
        {"nvlink": _link(450 * G, H200, 8), "infiniband": _NDR, "host_link": _link(64 * G, H200, 2), "host": _HOST},
    ),
    _hardware(
        "b200-sxm",
        "gpu",
        {
            "cores": (148, "assumed: streaming multiprocessors reported by the driver"),
            "peak_flops_per_s": (
                {
                    "bf16": 2250 * T,
                    "fp16": 2250 * T,
                    "fp8": 4500 * T,
                    "int8": 4500 * T,
                    "fp4": 9000 * T,
                    "fp32": 75 * T,
                },
                B200,
            ),
            "vector_flops_per_s": (75 * T, B200),
            "memory_bytes": (180 * GIB, B200),
            "memory_bandwidth_bytes_per_s": (8000 * G, B200),
            "packs_query_heads": (True, FLASH3),
            **_REACHED,
        },
        {"nvlink": _link(900 * G, B200, 8), "infiniband": _NDR, "host_link": _link(64 * G, B200, 2), "host": _HOST},
    ),
    _hardware(
        "gb300-nvl72",
        "gpu",
        {
            "cores": (160, "NVIDIA technical blog, Inside NVIDIA Blackwell Ultra"),
            "peak_flops_per_s": (
                {
                    "bf16": 2500 * T,
                    "fp16": 2500 * T,
                    "fp8": 5000 * T,
                    "int8": 165 * T,
                    "fp4": 15000 * T,
                    "fp32": 80 * T,
                },
                GB300,
            ),
            "vector_flops_per_s": (80 * T, GB300),
            "memory_bytes": (279 * GIB, GB300),
            "memory_bandwidth_bytes_per_s": (8000 * G, GB300),
            "packs_query_heads": (True, FLASH3),
            **_REACHED,
        },
        {
            "nvlink": _link(900 * G, GB300, 72),
            "infiniband": _link(100 * G, "assumed: one 800 Gb/s ConnectX-8 port per device", 1024, latency_s=15 * US),
            "host_link": _link(
                225 * G, "NVLink-C2C 900 GB/s both ways per Grace CPU (datasheet), shared by two GPUs", 2
            ),
            "host": _HOST,
        },
    ),
    _hardware(
        "ascend-910b",
        "npu",
        {
            "cores": (24, CANN),
            "peak_flops_per_s": (
                {"bf16": 353.9 * T, "fp16": 353.9 * T, "int8": 707.8 * T},
                f"{CANN}; int8 assumed double",
            ),
            "vector_flops_per_s": (11 * T, f"{CANN}: 22 TFLOP/s in fp16, half assumed in fp32"),
            "memory_bytes": (64 * GIB, CANN),
            "memory_bandwidth_bytes_per_s": (1600 * G, CANN),
            "launch_s": (6 * US, "assumed: twice a GPU's"),
            "compute_efficiency_ratio": (0.6, ASSUMED),
            "memory_efficiency_ratio": (0.7, ASSUMED),
            "packs_query_heads": (True, ASSUMED),
        },
        {
            "hccs": _link(196 * G, "assumed: HCCS 392 GB/s both ways over seven peers of an Atlas 800 A2", 8, 15 * US),
            "roce": _link(25 * G, "assumed: one 200 Gb/s RoCE port per device", 1024, 20 * US),
            "host_link": _link(32 * G, "assumed: PCIe 4.0 x16", 2),
            "host": _HOST,
        },
    ),
    _hardware(
        "rtx-4090",
        "gpu",
        {
            "cores": (128, ADA),
            "peak_flops_per_s": (
                {"bf16": 165.2 * T, "fp16": 165.2 * T, "fp8": 330.3 * T, "int8": 660.6 * T, "fp32": 82.6 * T},
                ADA,
            ),
            "vector_flops_per_s": (82.6 * T, ADA),
            "memory_bytes": (24 * GIB, ADA),
            "memory_bandwidth_bytes_per_s": (1008 * G, ADA),
            "packs_query_heads": (False, FLASH2),
            **_REACHED,
        },
        {
            "pcie": _link(32 * G, "assumed: PCIe 4.0 x16", 8, 20 * US),
            "host_link": _link(32 * G, "assumed: PCIe 4.0 x16", 2),
            "host": _HOST,
        },
    ),
    _hardware(
        "cpu-core",
        "cpu",
        {
            "cores": (1, "one core"),
            "peak_flops_per_s": (
                {"bf16": 0.45 * T, "fp32": 0.22 * T},
                "assumed: 3.5 GHz, AVX-512 with bf16 dot products",
            ),
            "vector_flops_per_s": (0.1 * T, ASSUMED),
            "memory_bytes": (8 * GIB, ASSUMED),
            "memory_bandwidth_bytes_per_s": (25 * G, "assumed: what one core of a server CPU can draw"),
            "launch_s": (20 * US, "assumed: one eager PyTorch operator on a CPU"),
            "compute_efficiency_ratio": (0.7, ASSUMED),
            "memory_efficiency_ratio": (0.8, ASSUMED),
            "packs_query_heads": (False, ASSUMED),
        },
        {"host": {**_HOST, "sync_s": (0.0, "device and host are one")}},
    ),
)

PRESETS: Mapping[str, Hardware] = {hardware.name: hardware for hardware in _ALL}
"""Hardware by name."""


def preset(name: str) -> Hardware:
    """The preset of this name, case and underscores forgiven. Raises ValueError that lists the known names.

    >>> preset("H100_SXM").device.memory_bandwidth_bytes_per_s
    3350000000000.0
    """
    try:
        return PRESETS[name.lower().replace("_", "-")]
    except KeyError:
        raise ValueError(f"hardware {name!r} is not known; expected one of {', '.join(PRESETS)}, or a file") from None
