"""A whole forecast job: generation, simulation and percentiles of 10,000 requests x 5 scenarios x 30 replications.

Run as `python -m tests.bench.bench_forecast_job`. Prints one line per figure with its bar and what it was measured on.
The engine is made: batch 64, budget 2,048 tokens, 60,000 KV tokens, no prefix cache, 80 % load; prompts lognormal with
mean 1,000 tokens, outputs geometric with mean 250; step costs scaled so that 10,000 requests arrive in two minutes.
"""

import concurrent.futures
import os
import pickle
import platform
import time
from dataclasses import replace

import numpy as np

from schemas.engines import EngineConfig
from schemas.slos import SloTarget
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import RoleNoise, StepNoise
from twin.job import EngineSetup, SimulationJob
from twin.simulate import run
from twin.split import joined, split
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan
from twin.traffic.scenarios import BASELINE, LONG_TAIL, Scenario

REQUESTS = 10_000
SPAN_S = 120.0
LOAD_RATIO = 0.8
ROUNDS = 5


def plan(rate_per_s: float) -> TrafficPlan:
    """Poisson arrivals of the last minutes, to be resampled."""
    rng = np.random.default_rng(1)
    n = 8_000
    isl = np.clip(np.rint(rng.lognormal(np.log(1_000) - 0.32, 0.8, n)), 1, 20_000).astype(np.int64)
    osl = rng.geometric(1 / 250, n).astype(np.int64)
    sources = Sources.plain(np.sort(rng.uniform(0, n, n)), float(n), isl, osl)
    lengths = OutputLengths.fit(osl, np.ones(n, np.bool_))
    return TrafficPlan(sources, 10.0 * rate_per_s, RateForecast.steady(rate_per_s, 0.1), lengths)


def job() -> SimulationJob:
    """Two minutes at 80 % load."""
    config = EngineConfig(
        deployment="bench",
        engine="0",
        at_us=1_796_052_000_000_000,
        block_size_tokens=16,
        kv_blocks=3_751,
        max_num_seqs=64,
        max_num_batched_tokens=2_048,
        enable_prefix_caching=False,
    )
    flat = RoleNoise(ratio_quantiles=(1.0,) * 9, steps=1.0)
    noise = StepNoise(60.0, 0.03, 0.05, 0.5, 10.0, flat, flat, flat)
    cost = FrozenStepCost.uniform(
        fixed_ps=6 * 10**9,
        decode_request_ps=10**8,
        prefill_token_ps=2 * 10**7,
        prefill_attention_pair_ps=10**3,
        decode_context_token_ps=10**5,
    )
    made = SimulationJob(
        deployment="bench",
        as_of_us=1_796_052_000_000_000,
        tick=0,
        phase="fine",
        engines=(EngineSetup("0", config, cost, noise),),
        traffic=plan(REQUESTS / SPAN_S),
        root_seed=1,
        slos=(SloTarget(metric="ttft_s", quantile=0.95, limit_s=2.0),),
        scenarios=(
            BASELINE,
            Scenario("burst", burst_factor=1.5, burst_s=30.0),
            LONG_TAIL,
            Scenario("longer_prompts", isl_factor=1.2),
            Scenario("longer_outputs", osl_factor=1.2),
        ),
        arrivals_beyond_s=0.0,
    )
    return _at_load(made)


def _at_load(made: SimulationJob) -> SimulationJob:
    """Scale the step costs until 10,000 requests in two minutes are 80 % of the ceiling."""
    factor = 1.0
    for _ in range(4):
        engine = replace(made.engines[0], cost=made.engines[0].cost.scaled(factor))
        crowd = replace(made.traffic, rate=RateForecast.steady(5.0 * REQUESTS / SPAN_S))
        probe = replace(made, engines=(engine,), traffic=crowd, horizons_s=(SPAN_S,), scenarios=(BASELINE,))
        ceiling = float(run(probe.at_phase("coarse")).scenario().horizons[0].throughput_requests_per_s.mean())
        factor *= ceiling / (REQUESTS / SPAN_S / LOAD_RATIO)
    return replace(made, engines=(replace(made.engines[0], cost=made.engines[0].cost.scaled(factor)),))


def fastest_s(made: SimulationJob) -> tuple[float, float]:
    """Least wall and CPU seconds of some rounds, after one that compiles."""
    run(made.at_phase("coarse"))
    walls, cpus = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        run(made)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def on_two_cores_s(made: SimulationJob, pool: concurrent.futures.Executor) -> float:
    """The same with the replications dealt to two worker processes, pickling and joining included."""
    list(pool.map(run, split(made.at_phase("coarse"), 2)))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        joined(list(pool.map(run, split(made, 2))))
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the figures."""
    made = job()
    result = run(made)
    horizon = result.scenario().horizons[-1]
    busy = float(horizon.busy_ratio.mean())
    where = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"forecast job: measured on a made engine, {where}; the best of {ROUNDS} rounds")
    print(
        f"forecast job: {result.simulated_requests:,} requests in 5 scenarios x {made.replications} replications, "
        f"engine {result.engine} {result.fallback}, busy {busy:.2f}, {len(pickle.dumps(made)):,} bytes of job"
    )
    coarse = [replace(made, coarse_replications=few).at_phase("coarse") for few in (2, 3)]
    for name, asked, bar in (("whole", made, "< 1 s"), *(("coarse part", one, "< 0.1 s") for one in coarse)):
        wall_s, cpu_s = fastest_s(asked)
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            two_s = on_two_cores_s(asked, pool)
        print(
            f"forecast job, {name}: {two_s:.3f} s on two cores (bar: {bar}); one core {wall_s:.3f} s, {cpu_s:.3f} s of "
            f"CPU, {asked.replications} replications"
        )


if __name__ == "__main__":
    main()
