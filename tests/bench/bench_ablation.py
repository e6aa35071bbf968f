"""What each element of the twin is worth: P99 of TTFT, TPOT and E2E with one of them taken away, against the recorded.

Costs from the same recording's steps, speed followed, real arrivals, from empty, as in `bench_recordings`. Taken away:
topology (two engines on a machine become one of twice the size), graph (a step costs by its tokens, whatever their
phase and context), operator costs (every step costs the mean), queue model (no limit of sequences, tokens or KV
blocks), real traffic (evenly spaced arrivals of mean lengths). A tiny model on one CPU core, eager mode.

Run: python -m tests.bench.bench_ablation. Needs ../shared; says so and ends where it is absent.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from tests.bench.bench_recordings import Learned, config_of, frontend_s, learn, requests, workload
from tests.bench.step_recordings import engines, names
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.shape import StepShape
from twin.engine.cluster import ClusterEngine, ClusterJob, simulate_cluster
from twin.engine.types import Outcomes, Status, Workload

METRICS = ("ttft", "tpot", "e2e")
LEVEL = 0.99


@dataclass(frozen=True, slots=True)
class Twin:
    """What is simulated: engines behind least outstanding routing, and requests."""

    engines: tuple[ClusterEngine, ...]
    load: Workload


def full(name: str) -> Twin:
    """Every element in place."""
    found = [learn(name, number) for number in engines(name)]
    return Twin(tuple(_engine(name, one) for one in found), workload(requests(name)))


def _engine(name: str, learned: Learned) -> ClusterEngine:
    return ClusterEngine(config_of(name), learned.cost, noise=learned.followed)


def without_topology(twin: Twin, name: str) -> Twin | None:
    """One engine of the size of all; None where there is only one."""
    if len(twin.engines) == 1:
        return None
    first, n = twin.engines[0], len(twin.engines)
    config = msgspec.structs.replace(
        first.config,
        max_num_seqs=n * first.config.max_num_seqs,
        max_num_batched_tokens=n * first.config.max_num_batched_tokens,
        kv_blocks=n * first.config.kv_blocks,
    )
    return replace(twin, engines=(replace(first, config=config),))


def without_graph(twin: Twin, name: str) -> Twin:
    """A step costs so much a token."""
    found = []
    for one, block in zip(twin.engines, engines(name).values(), strict=True):
        tokens = float(block.shapes[:, 1].sum() + block.shapes[:, 3].sum())
        token_ps = round(_spent_ps(one, block.shapes) / tokens)
        cost = FrozenStepCost.uniform(fixed_ps=1, decode_request_ps=token_ps, prefill_token_ps=token_ps)
        found.append(replace(one, cost=cost))
    return replace(twin, engines=tuple(found))


def without_operator_costs(twin: Twin, name: str) -> Twin:
    """Every step costs the same."""
    found = []
    for one, block in zip(twin.engines, engines(name).values(), strict=True):
        busy = int((block.shapes[:, 1] + block.shapes[:, 3] > 0).sum())
        found.append(replace(one, cost=FrozenStepCost.uniform(fixed_ps=round(_spent_ps(one, block.shapes) / busy))))
    return replace(twin, engines=tuple(found))


def _spent_ps(one: ClusterEngine, shapes: np.ndarray) -> float:
    """What the steps of a recording cost by the full model."""
    some = shapes[shapes[:, 1] + shapes[:, 3] > 0]
    return float(sum(one.cost.step_ps(StepShape(*(int(count) for count in row))) for row in some))


def without_queue_model(twin: Twin, name: str) -> Twin:
    """Everybody is admitted at once."""

    def freed(one: ClusterEngine) -> ClusterEngine:
        config = msgspec.structs.replace(
            one.config, max_num_seqs=4_096, max_num_batched_tokens=1_000_000, kv_blocks=1_000_000
        )
        return replace(one, config=config)

    return replace(twin, engines=tuple(freed(one) for one in twin.engines))


def without_real_traffic(twin: Twin, name: str) -> Twin:
    """As many requests in the same time, evenly spaced, all of mean length."""
    load = twin.load
    n = load.requests
    even = Workload.build(
        arrival_ps=np.linspace(int(load.arrival_ps[0]), int(load.arrival_ps[-1]), n).astype(np.int64),
        isl_tokens=np.full(n, round(float(load.isl_tokens.mean()))),
        osl_tokens=np.full(n, round(float(load.osl_tokens.mean()))),
    )
    return replace(twin, load=even)


WITHOUT: dict[str, Callable[[Twin, str], Twin | None]] = {
    "nothing": lambda twin, name: twin,
    "topology": without_topology,
    "graph": without_graph,
    "operator costs": without_operator_costs,
    "queue model": without_queue_model,
    "real traffic": without_real_traffic,
}


def p99_errors(twin: Twin, name: str) -> dict[str, float]:
    """Relative error of P99 per metric."""
    rows = requests(name)
    out = simulate_cluster(ClusterJob(twin.engines, twin.load, "least_outstanding")).requests
    around_s = frontend_s(rows) + float(np.median([r["t_first"] - r["eng_first"] for r in rows if r["eng_first"]]))
    return {metric: _p99_s(twin.load, out, around_s)[metric] / _recorded(name, metric) - 1.0 for metric in METRICS}


def _recorded(name: str, metric: str) -> float:
    rows = requests(name)
    return float(np.quantile([r[f"{metric}_ms"] / 1e3 for r in rows if metric != "tpot" or r["n_out"] > 1], LEVEL))


def _p99_s(load: Workload, out: Outcomes, around_s: float) -> dict[str, float]:
    done = out.status == Status.FINISHED
    first, last = (
        (stamps[done] - load.arrival_ps[done]) / PS_PER_S for stamps in (out.first_token_ps, out.last_token_ps)
    )
    gaps = out.generated_tokens[done] - 1
    found = {"ttft": first + around_s, "tpot": (last - first)[gaps > 0] / gaps[gaps > 0], "e2e": last + around_s}
    return {metric: float(np.quantile(values, LEVEL)) for metric, values in found.items()}


def main() -> None:
    """The table, and whether each removal hurts somewhere."""
    wanted = [name for name in names() if name[0] in "BCDH"]
    if not wanted:
        print("ablation: no recordings at hand; set TWINCAST_RECORDINGS to their folder")
        return
    worst: dict[str, float] = {}
    for name in wanted:
        whole = full(name)
        for taken, change in WITHOUT.items():
            twin = change(whole, name)
            if twin is None:
                continue
            errors = p99_errors(twin, name)
            worst[taken] = max(worst.get(taken, 0.0), *(abs(error) for error in errors.values()))
            told = ", ".join(f"{metric} {error:+.1%}" for metric, error in errors.items())
            print(f"ablation {name}, without {taken}: P99 off by {told}")
    for taken, error in worst.items():
        verdict = "" if taken == "nothing" or error > 2 * worst["nothing"] else "  does not hurt"
        print(f"ablation, without {taken}: worst P99 off by {error:.1%}{verdict}")


if __name__ == "__main__":
    main()
