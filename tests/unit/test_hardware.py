"""Hardware: validation names the field, every preset number has a source, and TOML files load into the same struct."""

import dataclasses
import math
from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.hardware_file import load_hardware, read_hardware
from twin.hardware.presets import PRESETS, preset
from twin.hardware.topology import Device, Hardware, Host, Link

BAD_NUMBERS = [-1.0, 0.0, math.nan, math.inf, "fast", True, None]


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    hardware = PRESETS[name]
    parts: dict[str, object] = {"device": hardware.device, "host": hardware.host}
    parts |= {link.name: link for link in hardware.links}
    if hardware.host_link:
        parts["host_link"] = hardware.host_link
    numbers = {
        f"{part}.{field.name}"
        for part, value in parts.items()
        for field in dataclasses.fields(value)  # type: ignore[arg-type]
        if field.name not in ("name", "kind")
    }
    assert numbers == set(hardware.sources)
    assert all(hardware.sources.values())


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize("field", ["memory_bandwidth_bytes_per_s", "memory_bytes", "vector_flops_per_s"])
def test_a_bad_device_number_is_refused_by_name(field: str, bad: object) -> None:
    with pytest.raises(ValueError, match=rf"device 'h100-sxm': {field} must be .*got {bad!r}"):
        dataclasses.replace(preset("h100-sxm").device, **{field: bad})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"compute_efficiency_ratio": 1.5}, "compute_efficiency_ratio must be a finite number > 0 and <= 1"),
        ({"cores": 0}, "cores must be a finite number >= 1"),
        ({"peak_flops_per_s": {"bf16": math.nan}}, "peak_flops_per_s.bf16 must be"),
        ({"peak_flops_per_s": {"bf17": 1e12}}, "peak_flops_per_s.bf17 is unknown"),
        ({"peak_flops_per_s": {}}, "peak_flops_per_s must be a table"),
        ({"kind": "tpu"}, "kind must be one of gpu, npu, cpu"),
        ({"packs_query_heads": 1}, "packs_query_heads must be true or false"),
        ({"launch_s": -1e-6}, "launch_s must be a finite number >= 0"),
    ],
)
def test_a_bad_device_field_is_refused_by_name(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(preset("h100-sxm").device, **change)


@pytest.mark.parametrize("bad", BAD_NUMBERS)
def test_a_bad_link_bandwidth_is_refused_by_name(bad: object) -> None:
    with pytest.raises(ValueError, match="link 'x': bandwidth_bytes_per_s must be"):
        Link(name="x", bandwidth_bytes_per_s=bad, latency_s=0.0, domain_devices=8)  # type: ignore[arg-type]


def test_a_negative_host_time_is_refused() -> None:
    with pytest.raises(ValueError, match="host: step_s must be"):
        Host(step_s=-1.0)


def test_the_nearest_link_that_is_large_enough_is_used() -> None:
    hardware = preset("h100-sxm")
    assert [hardware.link_for(n).name for n in (2, 8, 9)] == ["nvlink", "nvlink", "infiniband"]
    with pytest.raises(ValueError, match="no link that joins 2000 devices, the largest domain holds 1024"):
        hardware.link_for(2000)


def test_links_go_from_near_to_far() -> None:
    hardware = preset("h100-sxm")
    with pytest.raises(ValueError, match="smallest domain to the largest"):
        dataclasses.replace(hardware, links=hardware.links[::-1])


def test_a_rack_is_one_nvlink_domain() -> None:
    assert preset("gb300-nvl72").link_for(72).name == "nvlink"


def test_an_unknown_preset_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"hardware 'h900' is not known; expected one of a100-80g-sxm, .*or a file"):
        preset("h900")


def test_a_missing_data_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"device 'a100-80g-sxm' has no peak_flops_per_s for 'fp8'"):
        preset("a100-80g-sxm").device.peak("fp8")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


WHOLE = """
name = "own"
[device]
kind = "gpu"
cores = 10
peak_flops_per_s = { bf16 = 1e14 }
vector_flops_per_s = 1e13
memory_bytes = 4e10
memory_bandwidth_bytes_per_s = 1e12
launch_s = 2e-6
compute_efficiency_ratio = 0.7
memory_efficiency_ratio = 0.8
[[links]]
name = "wire"
bandwidth_bytes_per_s = 1e10
latency_s = 1e-5
domain_devices = 2
"""


def test_a_whole_file_loads_into_the_same_struct(tmp_path: Path) -> None:
    path = write(tmp_path / "own.toml", WHOLE)
    expected = Hardware(
        name="own",
        device=Device(
            name="own",
            kind="gpu",
            cores=10,
            peak_flops_per_s={"bf16": 1e14},
            vector_flops_per_s=1e13,
            memory_bytes=4e10,
            memory_bandwidth_bytes_per_s=1e12,
            launch_s=2e-6,
            compute_efficiency_ratio=0.7,
            memory_efficiency_ratio=0.8,
        ),
        links=(Link(name="wire", bandwidth_bytes_per_s=1e10, latency_s=1e-5, domain_devices=2),),
    )
    assert dataclasses.replace(load_hardware(str(path)), sources={}) == expected


def test_a_file_may_change_a_preset(tmp_path: Path) -> None:
    path = write(tmp_path / "h.toml", 'base = "h100-sxm"\n[device]\nmemory_bandwidth_bytes_per_s = 1.6e12\n')
    changed, base = read_hardware(path), preset("h100-sxm")
    assert changed.device == dataclasses.replace(base.device, memory_bandwidth_bytes_per_s=1.6e12)
    assert (changed.links, changed.host, changed.host_link) == (base.links, base.host, base.host_link)
    assert changed.sources["device.memory_bandwidth_bytes_per_s"] == str(path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "memory_bandwidth_bytes_per_s = 1e12",
            "memory_bandwidth_bytes_per_s = -1",
            "memory_bandwidth_bytes_per_s must",
        ),
        ("memory_bandwidth_bytes_per_s = 1e12", "memory_bandwidth_bytes_per_s = nan", "got nan"),
        ("memory_bandwidth_bytes_per_s = 1e12", "", "device.memory_bandwidth_bytes_per_s is missing"),
        ("cores = 10", "coers = 10", "device.coers is an unknown key"),
        ('name = "own"', 'name = "own"\nspeed = 1', "speed is an unknown key"),
        ("latency_s = 1e-5", "latency = 1e-5", "links.latency is an unknown key"),
        ("latency_s = 1e-5", "latency_s = -1", "link 'wire': latency_s must be"),
        ("{ bf16 = 1e14 }", "1e14", "peak_flops_per_s must be a table"),
        ("[[links]]", "[links]", "links must be an array of tables"),
        ('name = "own"', 'name = "own"\nhost = 3', "host must be a table"),
        ('name = "own"', 'base = "h900"', "hardware 'h900' is not known"),
        ('name = "own"', "", "name is missing"),
        ("[device]", "[device", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_path_and_field(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = write(tmp_path / "bad.toml", WHOLE.replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        read_hardware(path)
    assert str(path) in str(refused.value)
    assert told in str(refused.value)


def test_an_absent_file_and_a_name_that_is_neither_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_hardware(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"is no preset \(.*\) and no .toml file"):
        load_hardware("h900")
