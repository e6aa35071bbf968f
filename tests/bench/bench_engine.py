"""How fast the engines simulate: SimPy, the compiled kernel, one engine and many, beside a peer if one is at hand.

The load: prompts lognormal with mean 1,000, outputs exponential with mean 250, 64 sequences, a budget of 2,048 tokens,
60,000 KV tokens, no prefix cache, Poisson arrivals at 80 % of what the engine can do. Seconds are of CPU time of one
thread, checks and results included, the best of several runs: the machine may be shared.

Run: python -m tests.bench.bench_engine. With TWINCAST_PEER_PYTHON naming a Python that has `ai-dynamo-runtime`, its
offline replay (Rust) runs the same trace, at 80 % of what its own engine model can do.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import msgspec
import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.cluster import ClusterEngine, ClusterJob, simulate_cluster
from twin.engine.run import simulate_many
from twin.engine.types import EngineChoice, Job, Workload

CONFIG = EngineConfig(
    deployment="bench",
    engine="0",
    at_us=1_700_000_000_000_000,
    block_size_tokens=16,
    kv_blocks=60_000 // 16 + 1,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    enable_prefix_caching=False,
)
COST = FrozenStepCost.uniform(
    fixed_ps=6 * 10**9,
    decode_request_ps=5 * 10**7,
    prefill_token_ps=2 * 10**7,
    prefill_attention_pair_ps=500,
    decode_context_token_ps=30_000,
)
"""About an 8 B model on a large GPU: 6 ms and more a decode step, 20 us a prompt token."""
LOAD_RATIO = 0.8
PEER = """
import json, sys, time
from dynamo._core import run_mocker_trace_replay
trace, requests = sys.argv[1], int(sys.argv[2])
engine = {"backend": "vllm", "num_gpu_blocks": 3751, "block_size": 16, "max_num_seqs": 64,
          "max_num_batched_tokens": 2048, "enable_prefix_caching": False, "speedup_ratio": float(sys.argv[3])}
def run():
    began = time.process_time()
    result = run_mocker_trace_replay([trace], extra_engine_args={"engine": engine}, trace_block_size=512,
                                     capture_planner_details=False)
    return time.process_time() - began, result.summary
taken, summary = min((run() for _ in range(3)), key=lambda pair: pair[0])
print(json.dumps({"seconds": taken, "completed": summary["completed_requests"], "duration_ms": summary["duration_ms"]}))
"""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output tokens of n requests, and the unit gaps of their arrivals."""

    isl: np.ndarray
    osl: np.ndarray
    gaps: np.ndarray

    @classmethod
    def draw(cls, n: int) -> "Lengths":
        """The same first requests for every n."""
        streams = [np.random.Generator(np.random.Philox(key=key)) for key in (1, 2, 3)]
        isl = np.clip(np.rint(streams[0].lognormal(np.log(1000) - 0.32, 0.8, n)), 1, 8000)
        osl = np.clip(np.rint(streams[1].exponential(250, n)), 1, 2000)
        return cls(isl.astype(np.int64), osl.astype(np.int64), streams[2].exponential(1.0, n))

    def arriving(self, rate_per_s: float) -> Workload:
        """At this rate."""
        return Workload.from_seconds(
            arrival_s=np.cumsum(self.gaps) / rate_per_s, isl_tokens=self.isl, osl_tokens=self.osl
        )


def main() -> None:
    """All figures."""
    lengths = Lengths.draw(10_000)
    flood = Workload.build(arrival_ps=np.zeros(10_000, np.int64), isl_tokens=lengths.isl, osl_tokens=lengths.osl)
    ceiling_per_s = 10_000 / (simulate_many([Job(CONFIG, COST, flood)])[0].end_ps / PS_PER_S)
    rate = LOAD_RATIO * ceiling_per_s
    load = lengths.arriving(rate)
    simpy, kernel = one(load, "simpy"), one(load, "kernel")
    print(f"simpy: {simpy:,.0f} requests/s (bar: >= 50,000)")
    print(f"kernel: {kernel / 1e6:.2f} M requests/s, {kernel / simpy:.0f}x simpy (bar: >= 1.5 M)")
    linear(rate, simpy, kernel)
    engines(rate, simpy, kernel)
    replications(load)
    prefix_cache(load)
    peer(load, lengths, rate, simpy, kernel)


def best(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest run, after one to warm up."""
    run()
    taken = []
    for _ in range(times):
        began = process_time()
        run()
        taken.append(process_time() - began)
    return min(taken)


def one(load: Workload, engine: EngineChoice, config: EngineConfig = CONFIG) -> float:
    """Requests per second of one engine."""
    job = Job(config, COST, load)
    return load.requests / best(lambda: simulate_many([job], engine=engine), 3 if engine == "simpy" else 15)


def linear(rate: float, simpy: float, kernel: float) -> None:
    """Ten times the requests at the same rate."""
    longer = Lengths.draw(100_000).arriving(rate)
    for name, engine, short in (("simpy", "simpy", simpy), ("kernel", "kernel", kernel)):
        job = Job(CONFIG, COST, longer)
        long = 100_000 / best(lambda j=job, e=engine: simulate_many([j], engine=e), 1 if engine == "simpy" else 5)
        print(f"{name}: 100,000 requests at {long / short:.2f} of the speed of 10,000 (bar: >= 0.75)")


def engines(rate: float, simpy: float, kernel: float) -> None:
    """64 engines behind a least outstanding router, each as loaded as the one."""
    load = Lengths.draw(64_000).arriving(64 * rate)
    members = tuple(ClusterEngine(msgspec.structs.replace(CONFIG, engine=str(i)), COST) for i in range(64))
    job = ClusterJob(members, load, "least_outstanding")
    for name, alone, bar, times in (("simpy", simpy, 0.5, 1), ("kernel", kernel, 0.4, 5)):
        many = 64_000 / best(lambda e=name: simulate_cluster(job, engine=e), times)
        print(f"{name}: 64 engines at {many / alone:.2f} of the speed of one, {many:,.0f} requests/s (bar: >= {bar})")


def replications(load: Workload) -> None:
    """150 runs of 10,000 requests in one call; drawing and percentiles are not in it."""
    jobs = [Job(CONFIG, COST, load)] * 150
    taken = best(lambda: simulate_many(jobs), 2)
    print(f"kernel: 150 replications of 10,000 requests in one call: {taken:.2f} s, {1.5 / taken:.2f} M requests/s")


def prefix_cache(load: Workload) -> None:
    """The same load with every block named and kept in the prefix cache."""
    config = msgspec.structs.replace(CONFIG, enable_prefix_caching=True)
    simpy, kernel = one(load, "simpy", config), one(load, "kernel", config)
    print(f"with prefix cache: simpy {simpy:,.0f}, kernel {kernel / 1e6:.2f} M requests/s (no bar)")


def peer(load: Workload, lengths: Lengths, rate: float, simpy: float, kernel: float) -> None:
    """NVIDIA Dynamo's offline replay of the same requests."""
    python = os.environ.get("TWINCAST_PEER_PYTHON")
    if not python:
        print("peer: not run; set TWINCAST_PEER_PYTHON to a Python with ai-dynamo-runtime")
        return
    with tempfile.TemporaryDirectory() as folder:
        trace, at = Path(folder) / "trace.jsonl", 0
        with trace.open("w") as file:
            for arrival, isl, osl in zip(load.arrival_ps, lengths.isl, lengths.osl, strict=True):
                blocks = -(-int(isl) // 512)
                row = {"timestamp": int(arrival) // 10**9, "input_length": int(isl), "output_length": int(osl)}
                file.write(json.dumps(row | {"hash_ids": list(range(at, at + blocks))}) + "\n")
                at += blocks
        flooded = replay(python, trace, load.requests, 1e-3)
        # Its own ceiling at speed 1 says how fast its engine model must be for the same load ratio.
        ceiling_per_s = load.requests / (flooded["duration_ms"] / 1e3) / 1e-3
        result = replay(python, trace, load.requests, rate / (LOAD_RATIO * ceiling_per_s))
    speed = load.requests / result["seconds"]
    done = f"{result['completed']} of {load.requests} done"
    print(f"peer (ai-dynamo-runtime offline replay): {speed:,.0f} requests/s, {done}")
    print(f"simpy: {simpy / speed:.1f}x the peer (bar: >= 3x)")
    print(f"kernel: {kernel / speed:.0f}x the peer (bar: >= 100x)")


def replay(python: str, trace: Path, requests: int, speedup: float) -> dict[str, float]:
    """One replay by the peer, its fastest of three."""
    command = [python, "-c", PEER, str(trace), str(requests), repr(speedup)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
