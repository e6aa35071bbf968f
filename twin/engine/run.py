"""The two entry points: simulate one engine, or many at once. Picks the fastest engine that can do it.

Law: which engine ran never changes a result; where a slower one had to run, the result says why.
"""

from collections.abc import Sequence

from schemas.engines import EngineConfig
from twin.cost.frozen import StepCost
from twin.engine.fast import run_fast, unsupported
from twin.engine.kernel_run import kernel_unsupported, run_kernel
from twin.engine.plain import run_plain
from twin.engine.prepare import Prepared, prepare
from twin.engine.scheduler import SchedulerOf
from twin.engine.types import EngineChoice, EngineResult, EngineState, Grid, Job, Noise, Workload


def simulate(
    config: EngineConfig,
    cost: StepCost,
    workload: Workload,
    state: EngineState | None = None,
    noise: Noise | None = None,
    *,
    grid: Grid | None = None,
    until_ps: int | None = None,
    engine: EngineChoice = "auto",
    scheduler_of: SchedulerOf | None = None,
) -> EngineResult:
    """Run one engine from `state` (None: empty) until all requests are done, or until no step may start any more.

    `scheduler_of` makes the scheduler of another serving engine than vLLM; it runs step by step. Raises ValueError
    before anything runs if the engine, the state or a request cannot work, or an own scheduler would need KV tiers.
    """
    job = Job(config, cost, workload, state or EngineState(), noise, grid, until_ps)
    if scheduler_of is None:
        return simulate_many([job], engine=engine)[0]
    if config.kv_tiers:
        raise ValueError(f"engine {config.engine!r} has kv_tiers, which only vLLM's scheduler knows; leave them out")
    return run_plain(prepare(job), "an own scheduler", scheduler_of)


def simulate_many(jobs: Sequence[Job], *, engine: EngineChoice = "auto") -> list[EngineResult]:
    """Run independent engines; results in order. All are checked before the first one runs.

    Those that the kernel can do are done in one compiled call that holds no interpreter lock, so a thread may run it
    beside an event loop. `engine` asks for one of the engines; it still falls back where that cannot do the job.
    """
    prepared = [prepare(job) for job in jobs]
    reasons = [kernel_unsupported(one) if engine in ("auto", "kernel") else "not asked for" for one in prepared]
    groups = run_kernel([[one] for one, why in zip(prepared, reasons, strict=True) if not why])
    compiled = iter([group.engines[0] for group in groups])
    return [
        _run_simpy(one, why if engine in ("auto", "kernel") else "", plainly=engine == "plain")
        if why
        else next(compiled)
        for one, why in zip(prepared, reasons, strict=True)
    ]


def _run_simpy(prepared: Prepared, fallback: str, *, plainly: bool) -> EngineResult:
    if plainly:
        return run_plain(prepared)
    why = unsupported(prepared)
    return run_plain(prepared, why) if why else run_fast(prepared, fallback)
