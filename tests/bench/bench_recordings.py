"""Whole recordings of a real vLLM, simulated from an empty engine, against what the clients saw.

Costs come from the same recording's steps (the ceiling's from another one); arrivals are the planned ones plus the
frontend's learned overhead. Each fidelity figure stands with the saturation it was measured at: the share of step time
with requests waiting. `level: mean` scales the learned shape of costs to the recording's mean level; `level: followed`
lets it wander with the recording, smoothed over 5 s. Measured on a tiny model on one CPU core, eager mode.

Run: python -m tests.bench.bench_recordings [NAME ...]. Needs ../shared; says so and ends where it is absent.
"""

import csv
import gzip
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from pipelines.operator_tables import read_llmservingsim
from schemas.engines import EngineConfig
from tests.bench.bench_operators import LLAMA_8B
from tests.bench.step_recordings import RECORDINGS, ROOT, START_US, engines, names
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.model import StepCostModel
from twin.cost.prior import step_seconds
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.cost.tables import MeasuredCosts
from twin.engine.cluster import ClusterEngine, ClusterJob, simulate_cluster
from twin.engine.levels import followed_level
from twin.engine.run import simulate
from twin.engine.types import EngineResult, Grid, Noise, Outcomes, Status, Workload
from twin.graph.build import operator_graph
from twin.graph.model import model_from_config
from twin.hardware.presets import preset
from twin.hardware.topology import Host

FloatArray = NDArray[np.float64]
CONFIG = EngineConfig(
    deployment="recorded",
    engine="0",
    at_us=START_US,
    block_size_tokens=32,
    kv_blocks=160,
    max_num_seqs=24,
    max_num_batched_tokens=256,
    max_model_len_tokens=4096,
)
QUANTILES = (0.5, 0.95, 0.99)
RUN = ROOT / "data" / "vllm_runs_llmservingsim" / "RTX4090_Llama-3.1-8B" / "vllm"
PROFILE = ROOT / "data" / "cost_tables" / "llmservingsim/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1"


@dataclass(frozen=True, slots=True)
class Learned:
    """Costs of one engine from one recording's steps: at its mean level, and how the level wandered."""

    cost: FrozenStepCost
    followed: Noise


def main() -> None:
    """All rows that the recordings at hand allow."""
    wanted = sys.argv[1:] or names()
    if not names():
        print("recordings: none at hand; set TWINCAST_RECORDINGS to their folder")
    for letter, bars in (("A_", None), ("B_", (7.0, 3.0)), ("D_", (7.0, 3.0)), ("C_", None), ("F_", None)):
        for name in (n for n in wanted if n.startswith(letter)):
            one_engine(name, bars)
    for name in (n for n in wanted if n.startswith("C_")):
        overload(name)
        for source in (n for n in names() if n.startswith("A_")):
            ceiling(source, name)
    for name in (n for n in wanted if n.startswith("G_")):
        refusals(name)
    for name in (n for n in wanted if n.startswith("H_")):
        two_engines(name)
    for name in (n for n in wanted if n.startswith("E_prefix_on")):
        prefix_cache(name, name.replace("_on", "_off"))
    rtx4090()


def one_engine(name: str, bars: tuple[float, float] | None) -> None:
    """Fidelity of every cell, with the level at its mean and followed; where it has bars, in a random order too."""
    rows = requests(name)
    learned = learn(name)
    levels: dict[str, Noise | None] = {"mean": None, "followed": learned.followed}
    if bars is not None:
        levels["followed in a random order"] = shuffled(learned.followed)
    for level, noise in levels.items():
        result = simulate(config_of(name), learned.cost, workload(rows), noise=noise)
        print(f"{name}, level: {level}, {saturation(name)}, twin {share(result):.0%}; {preemptions(rows, result)}")
        errors = table(rows, result.requests)
        told = f"worst cell {max(errors):.1f} %, median cell {np.median(errors):.1f} %"
        bar = "" if bars is None else f" (bars: every cell {bars[0]:.0f} %, median {bars[1]:.0f} %)"
        print(f"{name}, level: {level}: {told}{bar}")


def shuffled(noise: Noise) -> Noise:
    """The same levels at other times: what is told by when they were is gone."""
    order = np.random.default_rng(1).permutation(noise.multipliers.shape[1])
    return Noise(np.ascontiguousarray(noise.multipliers[:, order]))


def overload(name: str) -> None:
    """The two figures that have bars in overload."""
    rows, learned = requests(name), learn(name)
    for level, noise in (("mean", None), ("followed", learned.followed)):
        result = simulate(config_of(name), learned.cost, workload(rows), noise=noise)
        seen, twin = cell(rows, result.requests, "e2e", 0.95)
        real = sum(row["preempt"] for row in rows)
        print(
            f"{name}, level: {level}: E2E P95 {seen:.2f} -> {twin:.2f} s, {100 * (twin / seen - 1):+.1f} % (bar: 7 %);"
            f" preemptions {real} -> {result.preemptions}, {100 * (result.preemptions / real - 1):+.0f} % (bar: 15 %)"
        )


def ceiling(source: str, name: str) -> None:
    """Requests per second while requests wait without a break: costs from half load, plateau from the overload."""
    rows = requests(name)
    with gzip.open(RECORDINGS / name / "steps.jsonl.gz") as lines:
        steps = [orjson.loads(line) for line in lines]
    real = plateau(
        np.array([s["t0"] for s in steps]),
        np.array([s["wait"] for s in steps]) > 0,
        np.array([row["eng_last"] for row in rows]),
    )
    grid = Grid(step_ps=PS_PER_S // 10, points=6000)
    result = simulate(config_of(name), learn(source).cost, workload(rows), grid=grid)
    if result.timeline is None:
        raise RuntimeError("a simulation with a grid has a timeline")
    times = np.arange(grid.points) * grid.step_ps / PS_PER_S
    twin = plateau(times, result.timeline.waiting > 0, result.requests.last_token_ps / PS_PER_S)
    print(
        f"{source} -> {name}: ceiling {real:.2f} -> {twin:.2f} requests/s, {100 * (twin / real - 1):+.1f} % (bar: 10 %)"
    )


def refusals(name: str) -> None:
    """A full queue refuses requests: how many come through."""
    rows, learned = requests(name, refused=True), learn(name)
    config = config_of(name)
    result = simulate(config, learned.cost, workload(rows), noise=learned.followed)
    real = np.mean([row["status"] == 200 for row in rows])
    twin = np.mean(result.requests.status == Status.FINISHED)
    limit = config.max_queued_requests
    print(
        f"{name}, at most {limit} in flight, {saturation(name)}: success rate {real:.1%} -> {twin:.1%},"
        f" {100 * (twin - real):+.1f} points (bar: 3 points)"
    )
    twins = latencies(rows, result.requests)["e2e"]
    served = [row["e2e_ms"] / 1e3 for row in rows if row["status"] == 200]
    told = [(float(np.quantile(served, q)), float(np.quantile(twins, q))) for q in QUANTILES]
    print(f"{name}: E2E P50/P95/P99 of those served " + ", ".join(f"{a:.2f} -> {b:.2f} s" for a, b in told))


def two_engines(name: str) -> None:
    """Least outstanding routing over two engines of unlike speed."""
    rows = requests(name)
    found = sorted({row["inst"] for row in rows})
    learned = [learn(name, engine) for engine in found]
    for level in ("mean", "followed"):
        members = tuple(
            ClusterEngine(config_of(name), one.cost, noise=one.followed if level == "followed" else None)
            for one in learned
        )
        result = simulate_cluster(ClusterJob(members, workload(rows), "least_outstanding"))
        print(f"{name}, level: {level}, {saturation(name)}, ran in {result.engine}")
        table(rows, result.requests)
        seen, twin = cell(rows, result.requests, "e2e", 0.95)
        first = np.mean([row["inst"] == found[0] for row in rows])
        got = np.mean(result.engine_index == 0)
        print(
            f"{name}, level: {level}: E2E P95 {100 * (twin / seen - 1):+.1f} % (bar: 10 %); share of the first engine"
            f" {first:.1%} -> {got:.1%}, {100 * (got - first):+.1f} points (bar: 5 points)"
        )


def prefix_cache(on: str, off: str) -> None:
    """What the prefix cache changes, by phase."""
    if off not in names():
        print(f"{on}: {off} is not at hand")
        return
    sides = []
    for name in (on, off):
        rows = requests(name)
        result = simulate(config_of(name), learn(name).cost, workload(rows))
        sides.append((rows, latencies(rows, result.requests)["ttft"], result.requests.cached_tokens))
    phases = np.array([row["phase"] for row in sides[0][0]])
    for phase in sorted(set(phases.tolist())):
        here = phases == phase
        prompt = sum(row["n_prompt"] for row in np.array(sides[0][0])[here])
        hit = sum(row["cached_tok"] for row in np.array(sides[0][0])[here])
        twin_hit = int(sides[0][2][here].sum())
        real = [np.median([row["ttft_ms"] for row in np.array(rows)[here]]) for rows, _, _ in sides]
        twin = [np.median(ttft[here]) * 1e3 for _, ttft, _ in sides]
        change, said = real[0] - real[1], twin[0] - twin[1]
        error = f"{abs(said):.1f} ms (bar: 5 ms)" if hit == 0 else f"{100 * (said / change - 1):+.1f} % (bar: 15 %)"
        tokens = "" if hit == 0 else f", {100 * (twin_hit / hit - 1):+.1f} % (bar: 15 %)"
        print(
            f"{on} phase {phase}, {hit / prompt:.0%} hits: change of TTFT P50 {change:+.1f} -> {said:+.1f} ms, {error};"
            f" prefill tokens saved {hit} -> {twin_hit}{tokens}"
        )


class TableCost:
    """Step costs from a whole measured table; not affine, so every step is looked up."""

    def __init__(self) -> None:
        graph = operator_graph(model_from_config(LLAMA_8B))
        roofline = Roofline(replace(preset("rtx-4090"), host=Host()))
        self._step_s = step_seconds(graph, MeasuredCosts.of(read_llmservingsim(PROFILE), graph, roofline))

    def step_ps(self, shape: StepShape) -> int:
        """Picoseconds of one step."""
        return round(self._step_s(shape) * PS_PER_S)


def rtx4090() -> None:
    """A real GPU run whose costs were measured operator by operator, in overload throughout."""
    if not RUN.exists():
        print(f"RTX 4090: {RUN} is absent")
        return
    rows = [orjson.loads(line) for line in (RUN / "requests.jsonl").read_bytes().splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    meta = orjson.loads((RUN / "meta.json").read_bytes())
    kv, engine = meta["kv_cache"], meta["engine_kwargs"]
    config = EngineConfig(
        deployment="rtx4090",
        engine="0",
        at_us=START_US,
        block_size_tokens=kv["block_size"],
        kv_blocks=kv["num_gpu_blocks"],
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        async_scheduling=meta["resolved_config"]["scheduler_config"]["async_scheduling"],
    )
    queued = np.array([row["queued_ts"] for row in rows])
    load = Workload.from_seconds(
        arrival_s=queued - queued[0],
        isl_tokens=[row["input_toks"] for row in rows],
        osl_tokens=[row["output_toks"] for row in rows],
    )
    result = simulate(config, TableCost(), load)
    with (RUN / "timeseries.csv").open(newline="") as file:
        waits = np.mean([float(row["waiting"]) > 0 for row in csv.DictReader(file)])
    print(
        f"RTX 4090, Llama-3.1-8B, {load.requests} requests: waiting {waits:.0%} of the time, twin {share(result):.0%}"
    )
    arrived = load.arrival_ps / PS_PER_S
    pairs = {
        "TTFT": (result.requests.first_token_ps, "first_token_ts"),
        "E2E": (result.requests.last_token_ps, "last_token_ts"),
    }
    for name, (twin_ps, stamp) in pairs.items():
        real, twin = np.array([row[stamp] for row in rows]) - queued, twin_ps / PS_PER_S - arrived
        for what, figure in (("mean", np.mean), ("P99", lambda x: np.quantile(x, 0.99))):
            a, b = float(figure(real)), float(figure(twin))
            print(f"RTX 4090: {name} {what} {a:.2f} -> {b:.2f} s, {100 * (b / a - 1):+.2f} % (bar: 2 %)")


def requests(name: str, *, refused: bool = False) -> list[dict[str, Any]]:
    """Rows of a recording in order of arrival; only those served, unless refused ones are wanted too."""
    with gzip.open(RECORDINGS / name / "requests.jsonl.gz") as lines:
        rows = [orjson.loads(line) for line in lines]
    return [row for row in rows if refused or row["status"] == 200]


def config_of(name: str) -> EngineConfig:
    """What the recording's own arguments say."""
    arguments = orjson.loads((RECORDINGS / name / "meta.json").read_bytes())["engine_args"]
    values = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    limit = values.get("--max-num-queued-reqs")
    return EngineConfig(
        deployment=name,
        engine="0",
        at_us=START_US,
        block_size_tokens=int(values["--block-size"]),
        kv_blocks=int(values["--num-gpu-blocks-override"]),
        max_num_seqs=int(values["--max-num-seqs"]),
        max_num_batched_tokens=int(values["--max-num-batched-tokens"]),
        enable_prefix_caching="--no-enable-prefix-caching" not in arguments,
        max_queued_requests=None if limit is None else int(limit),
    )


def workload(rows: list[dict[str, Any]]) -> Workload:
    """Planned arrivals plus the frontend's overhead: what is left of arrival to queued where no step was waited for."""
    size = CONFIG.block_size_tokens
    return Workload.from_seconds(
        arrival_s=np.array([row["t_arr"] for row in rows]) + frontend_s(rows),
        isl_tokens=[row["n_prompt"] for row in rows],
        osl_tokens=[row["n_out"] for row in rows],
        block_hashes=[
            [row["pool"] * 1000 + i for i in range(row["shared"] // size)] if row["pool"] >= 0 else [] for row in rows
        ],
        hash_block_tokens=size,
    )


def frontend_s(rows: list[dict[str, Any]]) -> float:
    """Mean of the lowest tenth of arrival to queued: those who found the engine between steps or idle."""
    waits = np.sort([row["eng_queued"] - row["t_arr"] for row in rows if row["eng_queued"] is not None])
    return float(waits[: max(len(waits) // 10, 1)].mean())


def learn(name: str, engine: int = 0) -> Learned:
    """Costs of an engine from all its steps that scheduled something."""
    block = engines(name)[engine]
    model = StepCostModel()
    model.learn_block(block)
    cost = model.freeze(CONFIG.max_num_seqs)
    some = block.shapes[:, 1] + block.shapes[:, 3] > 0
    taken = block.duration_s[some] + model.gap_s
    shapes = [StepShape(*(int(count) for count in row)) for row in block.shapes[some]]
    expected = np.array([cost.step_ps(shape) for shape in shapes]) / PS_PER_S
    ratio = taken.sum() / expected.sum()
    return Learned(cost.scaled(float(ratio)), followed_level(taken, expected * ratio))


def latencies(rows: list[dict[str, Any]], out: Outcomes) -> dict[str, FloatArray]:
    """Of the twin's finished requests as a client sees them, seconds; TPOT only where there are two tokens."""
    stamped = [row for row in rows if row["t_first"] is not None and row["eng_first"] is not None]
    to_client = float(np.median([row["t_first"] - row["eng_first"] for row in stamped]))
    done = out.status == Status.FINISHED
    arrived = np.array([row["t_arr"] for row in rows])[done]
    first, last, osl = out.first_token_ps[done], out.last_token_ps[done], out.generated_tokens[done]
    return {
        "ttft": first / PS_PER_S + to_client - arrived,
        "tpot": ((last - first) / PS_PER_S)[osl > 1] / (osl[osl > 1] - 1),
        "e2e": last / PS_PER_S + to_client - arrived,
    }


def cell(rows: list[dict[str, Any]], out: Outcomes, metric: str, quantile: float) -> tuple[float, float]:
    """(observed, twin) in seconds."""
    real = [row[f"{metric}_ms"] / 1e3 for row in rows if metric != "tpot" or row["n_out"] > 1]
    return float(np.quantile(real, quantile)), float(np.quantile(latencies(rows, out)[metric], quantile))


def table(rows: list[dict[str, Any]], out: Outcomes) -> list[float]:
    """Print all cells; their absolute errors in per cent."""
    errors = []
    for metric in ("ttft", "tpot", "e2e"):
        cells = [cell(rows, out, metric, quantile) for quantile in QUANTILES]
        errors += [abs(100 * (b / a - 1)) for a, b in cells]
        told = ", ".join(f"{a * 1e3:.1f} -> {b * 1e3:.1f} ({100 * (b / a - 1):+.1f} %)" for a, b in cells)
        print(f"  {metric} P50/P95/P99 ms: {told}")
    return errors


def share(result: EngineResult) -> float:
    """Of the step time, that with requests waiting."""
    return result.saturated_ps / max(result.busy_ps, 1)


def saturation(name: str) -> str:
    """The recording's own share of step time with requests waiting."""
    with gzip.open(RECORDINGS / name / "steps.jsonl.gz") as lines:
        steps = [orjson.loads(line) for line in lines]
    spent = np.array([step["dur_ms"] for step in steps])
    waits = np.array([step["wait"] > 0 for step in steps])
    return f"waiting in {spent[waits].sum() / spent.sum():.0%} of step time"


def preemptions(rows: list[dict[str, Any]], result: EngineResult) -> str:
    """Recorded and simulated."""
    return f"preemptions {sum(row['preempt'] for row in rows)} -> {result.preemptions}"


def plateau(times: FloatArray, waiting: NDArray[np.bool_], last_s: FloatArray) -> float:
    """Requests per second over the longest stretch in which somebody waits all the time."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], waiting.astype(int), [0]))))
    starts, ends = times[edges[::2]], times[np.minimum(edges[1::2], len(times) - 1)]
    longest = int(np.argmax(ends - starts))
    inside = (last_s > starts[longest]) & (last_s <= ends[longest])
    return float(inside.sum() / (ends[longest] - starts[longest]))


if __name__ == "__main__":
    main()
