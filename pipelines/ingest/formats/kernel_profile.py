"""Traces of torch's profiler as steps with class durations; rows are device events.

Only steps whose annotation tells what was scheduled become records: a duration without a shape teaches nothing.
`kernel_trace.read_profile` gives the others too.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.kernel_trace import ProfiledStep, read_profile
from pipelines.ingest.rows import Accepted, Format, Outcome, Refused, Source
from schemas.steps import Step, StepBatch


def profiled_step(number: int, profiled: ProfiledStep) -> Step:
    """A step record of a profiled step. Raises ValueError if its annotation tells no shape."""
    shape = profiled.shape
    if shape is None:
        raise ValueError(f"annotation {profiled.name!r} tells no shape; only vLLM's long form does")
    return Step(
        step=number,
        start_us=profiled.start_us,
        duration_us=profiled.duration_us,
        prefill_requests=shape.prefill_requests,
        prefill_tokens=shape.prefill_tokens,
        prefill_context_tokens=profiled.prefill_context_tokens,
        prefill_attention_pairs=shape.prefill_attention_pairs,
        decode_requests=shape.decode_requests,
        decode_context_tokens=shape.decode_context_tokens,
        running=shape.prefill_requests + shape.decode_requests,
        class_us={name: round(us) for name, us in profiled.class_us.items()},
    )


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    profile = read_profile(path)
    row = 0
    for number, profiled in enumerate(profile.steps):
        for event in range(profiled.events):
            row += 1
            if profiled.shape is None:
                yield Refused(row, "name", "no_shape", f"step {profiled.name[:60]!r} does not tell what was scheduled")
            elif event == 0:
                batch = StepBatch(
                    deployment=source.named("profile"),
                    engine=source.engine or "0",
                    steps=(profiled_step(number, profiled),),
                )
                yield Accepted(row, (batch,))
            else:
                yield Accepted(row, ())
    for _ in range(profile.outside_events):
        row += 1
        yield Refused(row, "ts", "outside_steps", "launched outside of any step annotation")


FORMAT = Format("kernel_trace", "torch-profiler traces (Chrome JSON)", lambda head: head.has_keys("traceEvents"), _read)
