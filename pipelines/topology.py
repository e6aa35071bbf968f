"""The stages and their topics as data, and the picture printed from it. Runs nothing.

    python -m pipelines.topology [FILE]

prints the picture, or puts it between the marks of a file such as README.md. Law: every topic of the table is read or
written by a stage, and nothing else is.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import ConfigError
from schemas.topics import (
    ACTIONS,
    ALERTS,
    CHANGES,
    DLQ,
    ENGINES,
    EVIDENCE,
    FORECASTS,
    INPUTS,
    OTLP_METRICS,
    OTLP_SPANS,
    RAW_INPUTS,
    REQUESTS,
    SCORES,
    SLOS,
    STATE,
    STEPS,
    TICKS,
    Topic,
)

BEGIN, END = "<!-- topology -->", "<!-- /topology -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part that reads and writes topics. `ours` is False for what stands around us."""

    name: str
    about: str
    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    ours: bool = True


STAGES = (
    Stage(
        name="service",
        about="engines, gateway, players of recordings",
        writes=(REQUESTS, STEPS, ENGINES),
        ours=False,
    ),
    Stage(name="collector", about="OpenTelemetry Collector", writes=RAW_INPUTS, ours=False),
    Stage(
        name="ingest",
        about="spans and metrics to records of a deployment",
        reads=(OTLP_SPANS, OTLP_METRICS),
        writes=(REQUESTS, STEPS, DLQ),
    ),
    Stage(
        name="worker",
        about="learn, simulate, forecast, score, advise",
        reads=(*INPUTS, STATE),
        writes=(FORECASTS, SCORES, ALERTS, ACTIONS, STATE, TICKS, DLQ),
    ),
    Stage(name="compare", about="twincast evidence: two windows, graded", writes=(EVIDENCE,)),
    Stage(
        name="scheduler",
        about="schedulers, autoscalers, routers",
        reads=(FORECASTS, ALERTS, ACTIONS),
        writes=(CHANGES, SLOS),
        ours=False,
    ),
    Stage(name="watch", about="people", reads=(FORECASTS, SCORES, ALERTS, ACTIONS, EVIDENCE, DLQ), ours=False),
)


def mermaid() -> str:
    """The picture as a Mermaid flowchart: boxes are stages, rounded ones topics."""
    topics = sorted({topic.name for stage in STAGES for topic in (*stage.reads, *stage.writes)})
    lines = ["flowchart LR"]
    for stage in STAGES:
        lines.append(
            f'  {stage.name}["{stage.name}<br/><small>{stage.about}</small>"]{"" if stage.ours else ":::around"}'
        )
    lines += [f"  {_id(name)}([{name}])" for name in topics]
    for stage in STAGES:
        lines += [f"  {_id(topic.name)} --> {stage.name}" for topic in stage.reads if topic not in stage.writes]
        lines += [
            f"  {stage.name} {'<-->' if topic in stage.reads else '-->'} {_id(topic.name)}" for topic in stage.writes
        ]
    lines.append("  classDef around fill:none,stroke-dasharray:4")
    return "\n".join(lines)


def _id(topic_name: str) -> str:
    return topic_name.removeprefix("twincast.").removesuffix(".v1")


def block() -> str:
    """The picture with the marks around it, as it stands in a Markdown file."""
    return f"{BEGIN}\n```mermaid\n{mermaid()}\n```\n{END}"


def put_into(text: str, where: str) -> str:
    """A Markdown text with the picture in place of what stood between the marks. Raises ConfigError without marks."""
    head, begin, rest = text.partition(BEGIN)
    if not begin:
        raise ConfigError(f"{where} has no line {BEGIN}; write it where the picture belongs")
    _, end, tail = rest.partition(END)
    return head + block() + (tail if end else rest)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(put_into(path.read_text(encoding="utf-8"), name), encoding="utf-8")
    if len(sys.argv) == 1:
        print(mermaid())
