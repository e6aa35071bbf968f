"""Files of the simulation commands: costs and engines read back or are refused by field; traces hold together."""

import csv
import io
import json
import os
from pathlib import Path

import pytest

from pipelines.cost_file import costs_json, read_costs
from pipelines.engine_file import changed_engines, parse_settings, read_engines
from pipelines.errors import ConfigError
from pipelines.grid_arguments import parse_grid
from pipelines.kv_link import parse_link
from pipelines.perfetto import perfetto_trace
from pipelines.simulation_rows import rows_file
from pipelines.whole_file import require_writable, write_whole
from tests.made_jobs import AS_OF_US, COST, config
from tests.made_known import engine, recorded, served, steps, traffic
from twin.cost.block import StepBlock
from twin.cost.frozen import PS_PER_S
from twin.cost.static import static_cost
from twin.engine.types import Grid, Status
from twin.known.requests import known_requests

ENGINE = "block_size_tokens = 16\nmax_num_seqs = 8\nmax_num_batched_tokens = 512\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_costs_read_back_to_the_picosecond(tmp_path: Path) -> None:
    for number, cost in enumerate((COST, static_cost(StepBlock.from_steps(steps(600)), 64).cost)):
        path = tmp_path / f"{number}.json"
        path.write_bytes(costs_json(cost, "here"))
        assert read_costs(path) == cost


def test_one_table_may_stand_for_all_roles(tmp_path: Path) -> None:
    text = (
        "[all]\ndecode_requests_us = [5000, 5100.5]\nprefill_token_us = 150.0\n[decode]\ndecode_requests_us = [4000]\n"
    )
    found = read_costs(written(tmp_path / "c.toml", text))
    assert found.mixed == found.prefill
    assert found.mixed.decode_requests_ps == (5_000_000_000, 5_100_500_000)
    assert found.decode.decode_requests_ps == (4_000_000_000,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[all]\ndecode_requests_us = [nan]\n", r"prefill.decode_requests_us\[0\] must be a finite number"),
        ("[all]\ndecode_requests_us = [-5.0]\n", r"decode_requests_us\[0\] must be a finite number .* got -5.0"),
        ("[all]\ndecode_requests_us = []\n", "decode_requests_us must be a list"),
        ("[all]\ndecode_requests_us = [5.0, 4.0]\n", "must never fall"),
        (
            "[all]\ndecode_requests_us = [5.0]\nprefill_tokens_us = 1.0\n",
            "prefill_tokens_us is an unknown field; did you",
        ),
        ("[decode]\ndecode_requests_us = [5.0]\n", "no table 'prefill'"),
        ("[gemm]\nx = 1\n", "gemm is an unknown table"),
        ("[all\n", "neither JSON nor TOML"),
    ],
)
def test_a_bad_cost_file_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_costs(written(tmp_path / "c.toml", text))


def test_an_engine_file_is_one_engine_or_several(tmp_path: Path) -> None:
    one, computed = read_engines(written(tmp_path / "one.toml", ENGINE + "kv_blocks = 100\n"))
    assert not computed
    assert [(found.engine, found.kv_blocks) for found in one] == [("0", 100)]
    tables = "".join(f"[[engine]]\nengine = '{name}'\nkv_blocks = 90\n{ENGINE}" for name in "ab")
    assert [found.engine for found in read_engines(written(tmp_path / "two.toml", tables))[0]] == ["a", "b"]
    as_json = json.dumps({"kv_blocks": 7, "block_size_tokens": 1, "max_num_seqs": 2, "max_num_batched_tokens": 3})
    assert read_engines(written(tmp_path / "e.json", as_json))[0][0].kv_blocks == 7


def test_blocks_are_computed_where_that_can_be_done_and_asked_for_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path / "e.toml", ENGINE)
    engines, computed = read_engines(path, lambda found: found.block_size_tokens * 10)
    assert (engines[0].kv_blocks, computed) == (160, True)
    with pytest.raises(ConfigError, match=r"kv_blocks is missing .*--hardware"):
        read_engines(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENGINE + "kv_blocks = 0\n", "kv_blocks: Expected `int` >= 1, got 0"),
        (ENGINE + "kv_blocks = nan\n", "kv_blocks: Expected `int`, got `float`"),
        (ENGINE + "kv_block = 5\n", "kv_block is an unknown field; did you mean kv_blocks?"),
        (ENGINE + "kv_blocks = 5\nat_us = 1\n", "at_us is an unknown field"),
        ("kv_blocks = 5\n", "block_size_tokens is missing"),
        ("kv_blocks = 5\n[[engine]]\n" + ENGINE, "kv_blocks stands beside"),
        ("[[engine]]\nkv_blocks = 5\n" + ENGINE + "[[engine]]\nengine = '0'\nkv_blocks = 5\n" + ENGINE, "must differ"),
        ("", "block_size_tokens is missing"),
    ],
)
def test_a_bad_engine_file_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_engines(written(tmp_path / "e.toml", text))


def test_settings_of_the_command_line_change_every_engine() -> None:
    changed = changed_engines([config(), config(engine="e1")], parse_settings(["max_num_seqs=3", "policy=priority"]))
    assert [(found.max_num_seqs, found.policy) for found in changed] == [(3, "priority")] * 2
    (padded,) = changed_engines([config()], parse_settings(["cudagraph_capture_sizes=[1, 8]"]))
    assert padded.cudagraph_capture_sizes == (1, 8)
    for texts, said in (
        (["kv_blocks"], "field=value"),
        (["kv=1"], "no engine setting"),
        (["role=x", "role=y"], "twice"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_settings(texts)
    with pytest.raises(ConfigError, match="max_num_seqs: Expected `int`"):
        changed_engines([config()], {"max_num_seqs": "many"})


def test_a_grid_is_every_combination_and_limits_stand_apart() -> None:
    points, limits_s = parse_grid(["engines=1,2", "kv_blocks=400,800", "tpot_limit_s=0.02,0.01"])
    assert len(points) == 4
    assert points[1] == {"engines": 1, "kv_blocks": "800"}
    assert limits_s == [0.02, 0.01]
    assert parse_grid([]) == ([{}], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_num_seq=8", "max_num_seq is an unknown field; did you mean max_num_seqs?"),
        ("engines=two", "engines: 'two' is no whole number"),
        ("isl_factor=1,,2", "isl_factor has an empty value"),
        ("engines", "field=value,value"),
        ("isl_factor=" + ",".join(str(1 + i / 1e5) for i in range(10_001)), "10,001 points"),
    ],
)
def test_a_bad_grid_is_refused_by_field(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_grid([text])
    with pytest.raises(ConfigError, match="twice"):
        parse_grid(["engines=1", "engines=2"])


def test_spans_of_a_lane_are_apart_or_inside_one_another() -> None:
    requests = traffic(150, rate_per_s=20.0)
    run = served(requests, engine(kv_blocks=60, max_queued_requests=20), grid=Grid(PS_PER_S // 10, 500))
    events = json.loads(perfetto_trace(requests, run, "made"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    done = int((run.status == Status.FINISHED).sum())
    assert sum(event["name"].startswith("request ") for event in spans) == done < len(requests)
    assert sum(event["ph"] == "i" for event in events) == len(requests) - done
    for lane in {event["tid"] for event in spans}:
        open_until: list[float] = []
        for event in sorted((e for e in spans if e["tid"] == lane), key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)
    for event in spans:
        assert event["dur"] >= 0.0


def test_phases_fill_a_request_and_counters_tell_the_most_that_ran() -> None:
    requests = traffic(40)
    run = served(requests, grid=Grid(PS_PER_S // 1000, 20_000))
    events = json.loads(perfetto_trace(requests, run, "made"))["traceEvents"]
    phases = sum(
        event["dur"] for event in events if event["ph"] == "X" and event["name"] in ("queued", "prefill", "decode")
    )
    whole = sum(event["dur"] for event in events if event["ph"] == "X" and event["name"].startswith("request "))
    assert phases == pytest.approx(whole, rel=1e-9)
    ran = [event["args"]["running"] for event in events if event["ph"] == "C" and event["name"] == "running"]
    assert max(ran) == run.results[0].timeline.running.max()
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert names == {"engine e0"}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_rows_are_one_per_request_and_empty_where_undefined(suffix: str) -> None:
    requests = traffic(60, rate_per_s=30.0)
    run = served(requests, engine(max_queued_requests=10))
    again = known_requests(recorded(requests, served(requests)), AS_OF_US)
    text = rows_file(Path(f"x{suffix}"), again, run, "engine").decode()
    as_csv = suffix == ".csv"
    rows = list(csv.DictReader(io.StringIO(text))) if as_csv else [json.loads(line) for line in text.splitlines()]
    assert [row["request_id"] for row in rows] == list(requests.ids)
    refused = [row for row in rows if row["status"] == "rejected"]
    assert 0 < len(refused) < len(rows)
    assert {row["e2e_s"] for row in refused} == {"" if as_csv else None}
    done = next(row for row in rows if row["status"] == "finished")
    assert float(done["last_token_s"]) - float(done["queued_s"]) == pytest.approx(float(done["e2e_s"]))


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", no_space)
        with pytest.raises(ConfigError, match="No space"):
            write_whole(path, b"three")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="no folder"):
        require_writable(tmp_path / "absent" / "a.json")
    with pytest.raises(ConfigError, match="is a folder"):
        require_writable(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_whole(tmp_path / "absent" / "a.json", b"")


def test_a_link_stays_a_link_and_no_device_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    require_writable(link)
    write_whole(link, b"one")
    write_whole(link, b"two")
    assert link.is_symlink()
    assert real.read_bytes() == b"two"
    link.unlink()
    link.symlink_to(tmp_path / "absent" / "real.json")
    with pytest.raises(ConfigError, match="no folder"):
        require_writable(link)
    # A pipe stands for every device: a test that failed on /dev/null would leave the machine without one.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_writable(pipe)
        write_whole(pipe, b"data")
        assert os.read(reader, 100) == b"data"
    finally:
        os.close(reader)
    assert not pipe.is_file()
    assert sorted(tmp_path.iterdir()) == sorted([link, pipe, real])


def test_a_kv_link_is_time_per_token_and_more() -> None:
    link = parse_link("0.5:200:0.1", overlapped=True)
    assert (link.token_ps, link.fixed_ps, link.cv, link.overlapped) == (500_000, 200_000_000, 0.1, True)
    wrong = {"x": "per token", "1:-2": "fixed", "1:2:nan": "variation", "1:2:3:4": "US_PER_TOKEN", "1:1:99": "cv"}
    for text, said in wrong.items():
        with pytest.raises(ConfigError, match=said):
            parse_link(text, overlapped=False)
