"""The scheduler against every batch that a real vLLM formed: which requests, how many tokens, how many blocks left.

Durations play no part: requests are queued before the step before which the real engine took them.
"""

import gzip
import json
import os
from pathlib import Path

import pytest

from schemas.engines import EngineConfig
from twin.engine.memory import BlockMemory
from twin.engine.request import Request
from twin.engine.scheduler import VllmScheduler

ROOT = Path(os.environ.get("TWINCAST_RECORDINGS", Path(__file__).parents[2].parent / "shared" / "recordings"))
NAMES = sorted(path.parent.name for path in ROOT.glob("*/steps.jsonl.gz"))
QUICK_STEPS = 2500


def rows_of(name, kind):
    with gzip.open(ROOT / name / f"{kind}.jsonl.gz", "rt") as lines:
        for line in lines:
            yield json.loads(line)


def config_of(name):
    arguments = json.loads((ROOT / name / "meta.json").read_text())["engine_args"]
    values = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    return EngineConfig(
        deployment=name,
        engine="0",
        at_us=1_700_000_000_000_000,
        block_size_tokens=int(values["--block-size"]),
        kv_blocks=int(values["--num-gpu-blocks-override"]),
        max_num_seqs=int(values["--max-num-seqs"]),
        max_num_batched_tokens=int(values["--max-num-batched-tokens"]),
        enable_prefix_caching="--no-enable-prefix-caching" not in arguments,
    )


def check_batches(name, engine, most_steps):
    config = config_of(name)
    size, usable = config.block_size_tokens, config.kv_blocks - config.reserved_blocks
    scheduler = VllmScheduler(config, BlockMemory(usable, size, caching=config.enable_prefix_caching), 0)
    requests = [r for r in rows_of(name, "requests") if r["eng_queued"] is not None and r["inst"] == engine]
    coming = iter(sorted(requests, key=lambda r: r["eng_queued"]))
    following = next(coming, None)
    preemptions = compared = 0
    for step in rows_of(name, "steps"):
        if compared == most_steps:
            break
        if step.get("inst", 0) != engine:
            continue
        while following is not None and following["eng_queued"] <= step["t0"]:
            keys = [following["pool"] * 1000 + i for i in range(following["shared"] // size)]
            shared = keys if following["pool"] >= 0 and keys else None
            scheduler.waiting.push(Request(following["i"], following["n_prompt"], following["n_out"], 0, shared))
            following = next(coming, None)
        if not step["batch"] and not scheduler.waiting and not scheduler.running:
            continue
        before = {request.row: request.preemptions for request in scheduler.running.values()}
        rows = scheduler.schedule()
        compared += 1
        chosen = sorted((row.request.row, row.tokens, row.before) for row in rows)
        real = sorted((row[0], row[2], row[3]) for row in step["batch"])
        assert chosen == real, f"{name} step {step['step']}"
        assert sum(row.decode for row in rows) == step["dec_reqs"], f"{name} step {step['step']}"
        assert scheduler.memory.free == step["kv_free"], f"{name} step {step['step']}"
        waiting = {request.row for request in scheduler.waiting}
        assert sorted(row for row in before if row in waiting) == sorted(step["preempted"]), f"{name} {step['step']}"
        preemptions += len(step["preempted"])
        for row in rows:
            if row.samples:
                row.request.placeholders -= 1
                row.request.generated += 1
                if row.request.generated == row.request.osl:
                    scheduler.drop(row.request)
    return compared, preemptions


@pytest.mark.skipif(not NAMES, reason="no recordings at hand: set TWINCAST_RECORDINGS")
@pytest.mark.parametrize("name", NAMES)
def test_first_recorded_batches_are_the_schedulers(name):
    compared, _ = check_batches(name, 0, QUICK_STEPS)
    assert compared > 100


@pytest.mark.slow
@pytest.mark.skipif(not NAMES, reason="no recordings at hand: set TWINCAST_RECORDINGS")
@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_batch_is_the_schedulers(name):
    engines = sorted({step.get("inst", 0) for step in rows_of(name, "steps")})
    for engine in engines:
        check_batches(name, engine, 10**9)
