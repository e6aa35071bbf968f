"""The closed loop: a simulated service obeys, and violations are weighed against engine-hours. See `closed_loop.toml`.

python -m tests.bench.bench_closed_loop [--quick] [--trace NAME ...] [--seeds N]

The twin's functions are driven directly at each period (traffic history, trials, advisor), not the whole live core: a
fine forecast with stress scenarios, bottlenecks and the ceiling would take twenty times as long and decide the same.
"""

import argparse
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from schemas.engines import EngineConfig
from schemas.slos import SloTarget
from tests.bench.closed_loop_schedulers import Foresight, Reactive, Scheduler, Twin
from tests.bench.closed_loop_service import Account, Limits, Requests, Service, hidden
from tests.bench.traffic_series import Series, all_series
from twin.advise.policy import Policy
from twin.cost.frozen import FrozenStepCost
from twin.cost.prior import engine_prior
from twin.engine.run import simulate
from twin.engine.types import Workload
from twin.hardware.presets import preset
from twin.tally import seconds

CHECKED_S = 60.0
TOML = Path(__file__).with_name("closed_loop.toml")
MODEL = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One trace and seed, ready to be served."""

    name: str
    requests: Requests
    config: EngineConfig
    prior: FrozenStepCost
    seed: int
    start_engines: int
    settings: dict[str, Any]

    def service(self) -> Service:
        """A fresh service with the costs that only the seed knows."""
        given, slo = self.settings["service"], self.settings["slo"]
        service = Service(
            requests=self.requests,
            config=self.config,
            cost=hidden(self.prior, self.seed, *given["hidden_scale"]),
            limits=Limits(slo["ttft_p95_s"], slo["tpot_p95_s"]),
            start_s=given["start_s"],
            noise_sigma_ratio=given["noise_sigma_ratio"],
            noise_rho=given["noise_rho"],
            seed=self.seed,
        )
        service.begin(self.start_engines)
        return service

    @property
    def slos(self) -> tuple[SloTarget, ...]:
        """The two targets."""
        slo = self.settings["slo"]
        return (
            SloTarget(metric="ttft_s", quantile=0.95, limit_s=slo["ttft_p95_s"]),
            SloTarget(metric="tpot_s", quantile=0.95, limit_s=slo["tpot_p95_s"]),
        )

    def run(self, scheduler: Scheduler) -> Account:
        """Serve the whole trace."""
        given = self.settings["service"]
        service, period_s = self.service(), given["period_s"]
        for k in range(round(given["settle_s"] / period_s), int(self.requests.span_s / period_s) + 1):
            service.order(k * period_s, scheduler.decide(service, k * period_s))
        return service.account(given["counted_from_s"])

    def twin(self, policy: Policy, *, persistence: bool = False) -> Twin:
        """The twin with a policy; `persistence` without its forecast."""
        return Twin(policy, self.prior, self.slos, self.settings["service"]["period_s"], self.seed, persistence)

    def carried_per_s(self) -> float:
        """Requests per second that one engine of the hardware's costs carries within the limits; for rate targets."""
        rng = np.random.default_rng(9)
        slo, best = self.settings["slo"], 0.5
        for rate in np.arange(0.5, 30.0, 0.25):
            count = int(rate * 240)
            rows = rng.integers(0, self.requests.isl_tokens.size, count)
            limit = (self.config.max_model_len_tokens or 2**20) - 1
            isl = np.minimum(self.requests.isl_tokens[rows], limit - 1)
            osl = np.maximum(np.minimum(self.requests.osl_tokens[rows], limit - isl), 1)
            arrived = np.sort(rng.uniform(0, 240, count))
            load = Workload.from_seconds(arrival_s=arrived, isl_tokens=isl, osl_tokens=osl)
            done = simulate(self.config, self.prior, load).requests
            first, last = seconds(done.first_token_ps), seconds(done.last_token_ps)
            tpot = (last - first) / np.maximum(osl - 1, 1)
            if np.mean((first - arrived > slo["ttft_p95_s"]) | (tpot > slo["tpot_p95_s"])) > 0.05:
                break
            best = float(rate)
        return best


def cases(settings: dict[str, Any], names: list[str], seeds: list[int], quick: bool) -> Iterator[Case]:
    """Every trace that is here, for every seed."""
    series = {} if quick else {each.name: each for each in all_series()}
    for trace in settings["traces"]:
        if names and trace["name"] not in names:
            continue
        if "minutes" not in trace and trace["name"] not in series:
            print(f"closed loop: {trace['name']} is not here, skipped", file=sys.stderr)
            continue
        config = EngineConfig(
            deployment="loop",
            engine="e",
            at_us=1_800_000_000_000_000,
            enable_prefix_caching=False,
            **settings["service"]["engine"],
        )
        prior = engine_prior(config, preset(settings["service"]["hardware"]), MODEL).scaled(trace["slowdown"])
        for seed in seeds:
            made = _made(trace, seed) if "minutes" in trace else _overlaid(trace, series[trace["name"]], settings, seed)
            yield Case(trace["name"], made, config, prior, seed, trace["start_engines"], settings)


def _overlaid(trace: dict[str, Any], series: Series, settings: dict[str, Any], seed: int) -> Requests:
    shift = np.random.default_rng([seed, 3]).uniform(0.0, settings["schedulers"]["shift_s"], trace["copies"])
    times = np.concatenate([series.arrived_s + each for each in shift])
    order = np.argsort(times, kind="stable")
    columns = [np.tile(each, trace["copies"])[order] for each in (series.isl_tokens, series.osl_tokens)]
    return Requests(trace["name"], times[order] - float(times.min()) + 0.01, *columns)


def _made(trace: dict[str, Any], seed: int) -> Requests:
    """Poisson arrivals that rise from `low_per_s` to `high_per_s` and fall again; lengths of a chat."""
    rng = np.random.default_rng([seed, 4])
    span_s = trace["minutes"] * 60.0
    low, high = trace["low_per_s"], trace["high_per_s"]
    at_s = np.sort(rng.uniform(0.0, span_s, rng.poisson(high * span_s)))
    rate = low + (high - low) * np.clip(1.25 * (1.0 - np.abs(2.0 * at_s / span_s - 1.0)) - 0.125, 0.0, 1.0)
    at_s = at_s[rng.uniform(0.0, high, at_s.size) < rate]
    isl = np.clip(rng.lognormal(6.6, 0.9, at_s.size), 16, 8_000).astype(np.int64)
    return Requests(
        trace["name"], at_s + 0.01, isl, np.clip(rng.geometric(1 / 180, at_s.size), 1, 1_000).astype(np.int64)
    )


def schedulers(case: Case) -> Iterator[tuple[str, float, Callable[[], Scheduler]]]:
    """Name, setting and maker of every scheduler that the file asks for."""
    asked, given = case.settings["schedulers"], case.settings["service"]
    least, most = given["least_engines"], given["most_engines"]
    hold_s, carried = asked["reactive_down_hold_s"], case.carried_per_s()
    for target in asked["reactive_targets"]:
        yield "reactive, in flight", target, lambda t=target: Reactive(t, least, most, hold_s)
    for target in asked["reactive_rate_targets"]:
        yield "reactive, rate", target, lambda t=target: Reactive(t, least, most, hold_s, carried)
    for ratio in asked["persistence_tolerances"]:
        policy = replace(policy_of(given), tolerance_ratio=ratio, release_ratio=0.8 * ratio, carries_ratio=0.95 * ratio)
        yield "persistence", ratio, lambda p=policy: case.twin(p, persistence=True)
    for ratio in asked["twin_demand_ratios"]:
        policy = replace(policy_of(given), demand_ratio=ratio)
        yield "twin", ratio, lambda p=policy: case.twin(p)
    for share in asked["foresight_violations"]:
        yield "foresight", share, lambda s=share: Foresight(s, least, most)


def policy_of(given: dict[str, Any]) -> Policy:
    """The default policy with the bounds and the start time of the service."""
    return Policy(
        least_engines=given["least_engines"],
        most_engines=given["most_engines"],
        start_s=given["start_s"],
        allowed=("scale",),
    )


@dataclass(frozen=True, slots=True)
class Point:
    """One run: who decided, at what setting, and its account."""

    name: str
    setting: float
    account: Account

    @property
    def told(self) -> str:
        """One line."""
        a = self.account
        return (
            f"  {self.name:20} {self.setting:6.3f}: {a.violations:6d} of {a.requests} missed "
            f"({a.violations / a.requests:.2%}), {a.engine_hours:6.2f} engine-hours, {a.steps} steps, "
            f"{a.reversals} reversals"
        )


def front(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Engine-hours and log(1 + violations) of the points that none beats in both, hours rising."""
    hours: list[float] = []
    logs: list[float] = []
    for point in sorted(points, key=lambda p: (p.account.engine_hours, p.account.violations)):
        log = float(np.log1p(point.account.violations))
        if not logs or log < logs[-1]:
            hours.append(point.account.engine_hours)
            logs.append(log)
    return hours, logs


def against(points: Sequence[Point], point: Point) -> tuple[float | None, float | None]:
    """Share of violations less at the same engine-hours, and of engine-hours less at the same violations.

    Against the lower front of `points`, log-linear between them. Beyond its ends nobody can say what as few
    engine-hours would have given, or what it takes to miss as few: there its last point is compared with, which tells a
    least difference, and None where that is not in favour.
    """
    hours, logs = front(points)
    a = point.account
    expected = float(np.expm1(np.interp(a.engine_hours, hours, logs)))
    fewer = 1.0 - a.violations / expected if expected > 0 else (-np.inf if a.violations else 0.0)
    log = float(np.log1p(a.violations))
    saved = 1.0 - a.engine_hours / float(np.interp(-log, [-each for each in logs], hours))
    if fewer is not None and fewer < 0.0 and a.engine_hours < hours[0]:
        fewer = None
    return fewer, None if saved < 0.0 and log < logs[-1] else saved


def run_case(case: Case, only: Sequence[str]) -> list[Point]:
    """All schedulers on one case, told as they end."""
    count = case.requests.arrived_s.size
    print(f"{case.name} seed {case.seed}: {count} requests, {case.carried_per_s():.2f}/s per engine")
    if case.seed == case.settings["schedulers"]["seeds"][0]:
        same = case.service().same_step_by_step(CHECKED_S)
        print(f"closed loop {case.name}: truth equals the engine that steps singly over {CHECKED_S:g} s: {same}")
    points = []
    for name, setting, make in schedulers(case):
        if only and not name.startswith(tuple(only)):
            continue
        t0 = time.perf_counter()
        points.append(Point(name, setting, case.run(make())))
        print(f"{points[-1].told} [{time.perf_counter() - t0:.0f} s]", flush=True)
    for point in points:
        for rival in ("reactive, in flight", "reactive, rate"):
            others = [each for each in points if each.name == rival]
            if others and not point.name.startswith("reactive"):
                fewer, saved = ("?" if each is None else f"{each:+.0%}" for each in against(others, point))
                print(
                    f"closed loop {case.name} seed {case.seed}: {point.name} at {point.setting:g} against {rival}: "
                    f"{fewer} fewer violations at equal hours (bar: >= 40 %), {saved} fewer hours at equal violations "
                    f"(bar: >= 20 %), {point.account.reversals} reversals",
                    flush=True,
                )
    return points


def main() -> None:
    """Print the curves and the figures with their bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the synthetic ramp, one seed")
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--only", action="append", default=[], help="schedulers whose name begins so")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="only the first setting of each forecasting scheduler")
    args = parser.parse_args()
    settings = tomllib.loads(TOML.read_text(encoding="utf-8"))
    if args.quick or args.first:
        for name in ("twin_demand_ratios", "persistence_tolerances", "foresight_violations"):
            settings["schedulers"][name] = settings["schedulers"][name][:1]
    seeds = settings["schedulers"]["seeds"][: 1 if args.quick else args.seeds]
    for case in cases(settings, args.trace or (["ramp"] if args.quick else []), seeds, args.quick):
        run_case(case, args.only)


if __name__ == "__main__":
    main()
