"""How far the operator level is from what was measured by others: `python -m tests.bench.bench_operators`.

Two shapes per cluster predict the other rows of a profile, by two rules: the smallest and the largest by roofline
seconds, and the shapes a tenth of the way in from both ends. The prior alone, without any data, against the step logs
of an H100 and of a CPU core. Needs ../shared; says so and ends where it is absent.
"""

import csv
import dataclasses
import gzip
import json
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipelines.operator_tables import read_llmservingsim, read_vidur_mlp, read_vidur_send_recv
from twin.cost.freeze import OperatingRange, freeze_error_ratio
from twin.cost.prior import kv_capacity_tokens, prior_step_cost, step_seconds
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.cost.tables import Curve, Measured, MeasuredCosts, two_shapes
from twin.graph.build import Parallelism, operator_graph
from twin.graph.layers import Split, elementwise
from twin.graph.model import model_from_config
from twin.graph.operators import Operator
from twin.graph.timeline import step_s
from twin.hardware.presets import preset
from twin.hardware.topology import Host

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PROFILE = "llmservingsim/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1"
H100_KV_TOKENS = 334_944
"""KV cache size that the H100 runs print in their own logs."""
RTX4090_KV_TOKENS = 41_408
"""KV cache size in that run's `meta.json`."""

LLAMA_8B: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
LLAMA_2_7B = {**LLAMA_8B, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32768}

Points = list[tuple[float, float]]
RULES = ((0.0, "smallest and largest shape"), (0.1, "shapes a tenth in from both ends"))


def main() -> int:
    """Print one line per figure."""
    if not DATA.is_dir():
        print(f"operators: skipped, {DATA} is absent", file=sys.stderr)
        return 0
    total("Vidur and LLMServingSim, all rows", vidur_tables(), llmservingsim_tables())
    h100_prior()
    cpu_prior()
    rtx4090_table()
    affine_form()
    return 0


def vidur_tables() -> list[list[float]]:
    """A100, Llama-2-7B, 40 clusters of 259 rows; and two links."""
    roofline = Roofline(preset("a100-80g-sxm"))
    model = model_from_config(LLAMA_2_7B)
    clusters, from_tensor_1 = [], []
    operators = {}
    for tensor in (1, 2, 4, 8):
        graph = operator_graph(model, Parallelism(tensor=tensor))
        split = Split(model=model, tensor=tensor, expert=1, kv_element_bytes=2.0)
        operators[tensor] = {**graph.operators, "add": elementwise(split, "add", 3 * model.hidden)}
    measured = read_vidur_mlp(DATA / "cost_tables/vidur/a100/meta-llama/Llama-2-7b-hf/mlp.csv")
    curves: dict[str, Curve] = {}
    for (tensor, name), rows in sorted(measured.items()):
        points = points_of(rows, operators[tensor], roofline)
        clusters.append(points)
        if tensor == 1:
            curves[name] = Curve.through(points)
        else:
            from_tensor_1 += [abs(curves[name].at(x) / y - 1.0) for x, y in points]
    mlp = report("Vidur A100 layers", clusters)
    links = read_vidur_send_recv(DATA / "cost_tables/vidur/network/a100_pairwise_nvlink/send_recv.csv")
    nvlink, across = preset("a100-80g-sxm").links
    near = report("Vidur A100 send over NVLink", [[(nvlink.transfer_s(size), s) for size, s in links[2]]])
    far = report("Vidur A100 send across nodes", [[(across.transfer_s(size), s) for size, s in links[1]]])
    line("Vidur A100 layers split over 2, 4 and 8 devices, from the table of one", from_tensor_1, None)
    return total("Vidur, all rows", mlp, near, far)


def llmservingsim_tables() -> list[list[float]]:
    """RTX 4090, Llama-3.1-8B; attention clusters are those of one tile geometry (chunk tokens, decoding sequences)."""
    roofline = Roofline(preset("rtx-4090"))
    operators = dict(operator_graph(model_from_config(LLAMA_8B)).operators)
    groups: dict[tuple[object, ...], list[Measured]] = {}
    for row in read_llmservingsim(DATA / "cost_tables" / PROFILE):
        geometry = (row.shape.prefill_tokens, row.shape.decode_requests) if row.kind == "attention" else ()
        groups.setdefault((row.kind, *geometry), []).append(row)
    points = {key: points_of(rows, operators, roofline) for key, rows in groups.items() if len(rows) > 2}
    attention = {key: cluster for key, cluster in points.items() if key[0] == "attention"}
    tables = [report("LLMServingSim RTX 4090 layers", [c for key, c in points.items() if key not in attention])]
    for name, chosen in (
        ("prefill", [c for key, c in attention.items() if not key[2]]),
        ("decode", [c for key, c in attention.items() if not key[1]]),
        ("mixed", [c for key, c in attention.items() if key[1] and key[2]]),
    ):
        tables.append(report(f"LLMServingSim RTX 4090 attention, {name}", chosen))
    return total("LLMServingSim, all rows", *tables)


def h100_prior() -> None:
    """Llama-3.1-8B-instruct: the prior against the median decode step between two samples of the run's own counters."""
    graph = operator_graph(model_from_config(LLAMA_8B))
    for name, why in (("h100-sxm", "3.35 TB/s"), ("h100-64g", "64 GiB as their KV size tells, 1.63 TB/s assumed")):
        hardware = preset(name)
        work = OperatingRange(max_num_seqs=1024, max_num_batched_tokens=2048, context_tokens=(16, 128, 512))
        cost = prior_step_cost(graph, hardware, work)
        everything = []
        for run in sorted((DATA / "vllm_step_logs/llama-3.1-8b-instruct").iterdir()):
            seen = decode_steps(run)
            predicted = np.array([cost.step_ps(shape) / 1e12 for shape, _ in seen])
            observed = np.array([seconds for _, seconds in seen])
            errors = predicted / observed - 1.0
            everything += np.abs(errors).tolist()
            print(
                f"operators: prior only, {name} ({why}), run {run.name}: {1e3 * np.median(observed):.1f} ms seen, "
                f"{1e3 * np.median(predicted):.1f} ms said, median error {100 * np.median(errors):+.1f} %"
            )
        line(f"prior only, {name} ({why}), H100 step logs", everything, None)
    said = kv_capacity_tokens(graph, preset("h100-64g"))
    print(
        f"operators: KV capacity of these runs: {H100_KV_TOKENS} tokens seen, {said} said "
        f"({100 * (said / H100_KV_TOKENS - 1):+.1f} %)"
    )


def cpu_prior() -> None:
    """The project's own recording at half load: a tiny Llama in eager mode on one CPU core."""
    folder = DATA.parent / "recordings" / "A_steady_s101"
    if not folder.is_dir():
        print(f"operators: CPU prior skipped, {folder} is absent", file=sys.stderr)
        return
    config = json.loads((folder / "meta.json").read_text())["model_config"]
    work = OperatingRange(max_num_seqs=24, max_num_batched_tokens=256, context_tokens=(64, 256, 1024))
    cost = prior_step_cost(operator_graph(model_from_config(config)), preset("cpu-core"), work)
    errors = []
    with gzip.open(folder / "steps.jsonl.gz", "rt", encoding="utf-8") as file:
        for step in map(json.loads, file):
            shape = StepShape(step["pre_reqs"], step["pre_tok"], step["pre_attn"], step["dec_reqs"], step["dec_ctx"])
            if shape.prefill_tokens or shape.decode_requests:
                errors.append(abs(cost.step_ps(shape) / 1e9 / step["dur_ms"] - 1.0))
    line("prior only, cpu-core, steps of recording A_steady (tiny model, one core, eager)", errors, None)


def rtx4090_table() -> None:
    """A whole measured table in the graph, against seconds of a real run in which requests only decoded."""
    hardware = dataclasses.replace(preset("rtx-4090"), host=Host())
    graph = operator_graph(model_from_config(LLAMA_8B))
    costs = MeasuredCosts.of(read_llmservingsim(DATA / "cost_tables" / PROFILE), graph, Roofline(hardware))
    errors = []
    with (DATA / "vllm_runs_llmservingsim/RTX4090_Llama-3.1-8B/vllm/timeseries.csv").open(newline="") as file:
        rows = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    for before, row in pairwise(rows):
        # Counts are taken at the end of a second: the mean of both ends stands for it.
        running = round((before["running"] + row["running"]) / 2)
        if (
            before["prompt_throughput"]
            or row["prompt_throughput"]
            or running < 1
            or abs(before["running"] - row["running"]) > 2
        ):
            continue
        context = round((before["kv_cache_pct"] + row["kv_cache_pct"]) / 200 * RTX4090_KV_TOKENS)
        said = step_s(graph, costs, StepShape(decode_requests=running, decode_context_tokens=context))
        errors.append(abs(said / (running / row["gen_throughput"]) - 1.0))
    line("RTX 4090 run, decode steps from its full table", errors, None)


def affine_form() -> None:
    """What freezing loses against the graph's own step time, at shapes between those it was fitted to."""
    graph, hardware = operator_graph(model_from_config(LLAMA_8B)), preset("h100-sxm")
    for least in (16, 512):
        work = OperatingRange(max_num_seqs=256, max_num_batched_tokens=2048, least_prefill_tokens=least)
        cost = prior_step_cost(graph, hardware, work)
        errors = freeze_error_ratio(step_seconds(graph, Roofline(hardware)), cost, work)
        told = ", ".join(f"{role} {100 * m:.1f} % (P95 {100 * p:.1f} %)" for role, (m, p) in errors.items())
        print(f"operators: affine prior against its graph, prefills of {least} tokens and more: median {told}")


def decode_steps(run: Path) -> list[tuple[StepShape, float]]:
    """(mean shape, median step) between samples 2 s apart, where the number of running requests stayed the same."""
    with gzip.open(run / "server_out.log.gz", "rt", encoding="utf-8") as file:
        stamps = np.array([float(stamp) for stamp in re.findall(r"Timestamp: (\d+\.\d+)", file.read())])
    time_s, running, kv = (np.load(run / f"{name}.npy") for name in ("time", "num_running", "gpu_cache_usage_perc"))
    steps = []
    for i in range(len(time_s) - 1):
        inside = (stamps >= time_s[i]) & (stamps < time_s[i + 1])
        if running[i] < 1 or running[i] != running[i + 1] or inside.sum() < 10:
            continue
        # Blocks are counted whole: half a block of 16 tokens per request is empty.
        context = (kv[i] + kv[i + 1]) / 2 * H100_KV_TOKENS - 8 * running[i]
        sequences = round(running[i])
        shape = StepShape(decode_requests=sequences, decode_context_tokens=max(round(context), sequences))
        steps.append((shape, float(np.median(np.diff(stamps[inside])))))
    return steps


def points_of(rows: Iterable[Measured], operators: dict[str, Operator], roofline: Roofline) -> Points:
    """(roofline, measured) seconds of rows."""
    return [(roofline.operator_s(operators[row.kind], row.shape), row.seconds) for row in rows]


def report(name: str, clusters: list[Points]) -> list[list[float]]:
    """Print the error of the rows that were not used, by both rules, and return it."""
    by_rule = []
    for margin_ratio, rule in RULES:
        errors: list[float] = []
        within = 0
        for points in clusters:
            curve, used = two_shapes(points, margin_ratio=margin_ratio)
            cluster = [abs(curve.at(x) / y - 1.0) for i, (x, y) in enumerate(points) if i not in used]
            within += float(np.median(cluster)) <= 0.1
            errors += cluster
        line(f"{name}, {rule}, {within} of {len(clusters)} clusters within 10 %", errors, "<= 10 %")
        by_rule.append(errors)
    return by_rule


def total(name: str, *tables: list[list[float]]) -> list[list[float]]:
    """Print the error over all rows of several tables, by both rules, and return it."""
    pooled = [[error for table in tables for error in table[i]] for i in range(len(RULES))]
    for errors, (_, rule) in zip(pooled, RULES, strict=True):
        line(f"{name}, {rule}", errors, "<= 10 %")
    return pooled


def line(name: str, errors: list[float], bar: str | None) -> None:
    """One figure."""
    told = f" (bar: {bar})" if bar else ""
    median, p90 = 100 * np.median(errors), 100 * np.quantile(errors, 0.9)
    print(f"operators: {name}: median error {median:.1f} %{told}, P90 {p90:.0f} %, {len(errors)} rows")


if __name__ == "__main__":
    sys.exit(main())
