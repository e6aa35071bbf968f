"""A window of an archive or a recording into a case: replayed through the live core, observed, and asked.

Prints and writes nothing. Law: what a case says was known at a moment comes from a replay up to that moment, which has
seen nothing later.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.archive.feeds import Feed
from pipelines.archive.moments import Until, utc
from pipelines.archive.replaying import Plan, Replay, Simulate
from pipelines.errors import ConfigError
from pipelines.incident.case import Case, Phase, Span
from pipelines.incident.findings import Breach, Foresight, find_breaches, foresight_of, longest, risk_of
from pipelines.incident.observing import US_PER_S, Observation, Requests
from pipelines.incident.remedies import Remedy, remedies
from schemas.actions import Action, CutOver, HoldBack, Scale, SetLimit, What, Withdrawal
from schemas.alerts import Alert
from schemas.codec import decode
from schemas.forecasts import Forecast
from schemas.scores import Score
from schemas.slos import SloTarget
from schemas.topics import OUTPUTS
from twin.insight import insight, run_with_insight
from twin.job import SimulationJob

MAX_WINDOW_S = 6 * 3600.0
AFTER_S = 120.0
"""Played on after the window, so that what arrived in it has ended and its forecasts are scored."""
CALM_RATIO = 0.3
_OUTPUT_NAMES = frozenset(topic.name for topic in OUTPUTS)


@dataclass(slots=True)
class _Heard:
    """What the replayed core told of the window."""

    forecasts: list[Forecast] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    actions: list[Action | Withdrawal] = field(default_factory=list)
    jobs: dict[int, SimulationJob] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to look at: a window, a deployment (empty: the only one), targets (empty: those recorded or set)."""

    from_us: int
    to_us: int
    deployment: str = ""
    slos: tuple[SloTarget, ...] = ()
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        span_s = (self.to_us - self.from_us) / US_PER_S
        if not 0.0 < span_s <= MAX_WINDOW_S:
            raise ConfigError(f"--to must lie after --from, by at most {MAX_WINDOW_S / 3600:g} h; got {span_s:g} s")


def inquire(
    feed: Feed,
    question: Question,
    plan: Plan,
    *,
    simulate: Simulate = run_with_insight,
    progress: Callable[[float], None] = lambda _: None,
) -> Case:
    """The case. Raises ConfigError for a window without requests, or of several deployments where none is named."""
    if question.from_us > feed.end_us or question.to_us <= feed.start_us:
        raise _nothing(feed, question, question.deployment or feed.name)
    watch = Observation(question.from_us, question.to_us, question.deployment, bool(question.deployment))
    heard = _Heard()
    stop = Until(at_us=question.to_us + round(AFTER_S * US_PER_S))

    def keep(job: SimulationJob, _: object) -> None:
        inside = question.from_us <= job.as_of_us < question.to_us
        if inside and job.phase == "fine" and job.traffic.rate.mean_per_s(job.horizons_s[-1]) > 0.0:
            heard.jobs[job.as_of_us] = job

    replay = Replay(feed, replace(plan, until=stop), simulate, keep)
    for number, played in enumerate(replay):
        watch.take(played.fed.message, played.fed.at_us)
        for message in played.outputs:
            if message.topic in _OUTPUT_NAMES and message.deployment == watch.deployment:
                _hear(heard, decode(message.topic, message.value).record)
        if number % 200 == 0:
            progress(min(number / max(feed.records, 1), 1.0))
    requests = watch.requests()
    inside = (requests.arrived_us >= question.from_us) & (requests.arrived_us < question.to_us)
    if not inside.any():
        raise _nothing(feed, question, watch.deployment or feed.name)
    core = replay.runtime.cores.get(watch.deployment)
    authority = () if core is None else core.authority.changes
    targets = question.slos or watch.targets or plan.settings_of(watch.deployment).slos
    return _case(feed, question, watch, heard, requests, targets, authority)


def _nothing(feed: Feed, question: Question, name: str) -> ConfigError:
    return ConfigError(
        f"no request of {name} arrived from {utc(question.from_us)} to {utc(question.to_us)}; {feed.name} reaches from "
        f"{utc(feed.start_us)} to {utc(feed.end_us)}: name a window in it"
    )


def _hear(heard: _Heard, record: Any) -> None:
    if isinstance(record, Forecast):
        if record.phase == "fine":
            heard.forecasts.append(record)
    elif isinstance(record, Alert):
        heard.alerts.append(record)
    elif isinstance(record, Score):
        if record.phase == "fine":
            heard.scores.append(record)
    elif isinstance(record, Action | Withdrawal):
        heard.actions.append(record)


def _case(
    feed: Feed,
    question: Question,
    watch: Observation,
    heard: _Heard,
    requests: Requests,
    targets: tuple[SloTarget, ...],
    authority: tuple[tuple[int, str], ...],
) -> Case:
    begin_us, end_us = question.from_us, question.to_us
    forecasts = tuple(each for each in heard.forecasts if begin_us <= each.as_of_us < end_us)
    breaches = tuple(each for target in targets for each in find_breaches(requests, target, begin_us, end_us))
    breach = longest(breaches, end_us)
    foresight = None if breach is None else foresight_of(breach, requests, forecasts, heard.alerts, begin_us, end_us)
    moment_us, tried = _remedies(breach, foresight, heard, watch)
    return Case(
        source=feed.name,
        digest=feed.digest,
        deployment=watch.deployment,
        from_us=begin_us,
        to_us=end_us,
        targets=targets,
        requests=requests,
        waiting=watch.seconds("waiting"),
        running=watch.seconds("running"),
        kv_ratio=watch.seconds("kv_ratio"),
        forecasts=forecasts,
        scores=tuple(each for each in heard.scores if begin_us <= each.as_of_us < end_us),
        alerts=tuple(each for each in heard.alerts if begin_us <= each.at_us < end_us),
        proposals=tuple(_proposals(heard, begin_us, end_us)),
        authority=authority,
        breach=breach,
        breaches=breaches,
        foresight=foresight,
        phases=_phases(breach, forecasts, heard.jobs),
        remedies_us=moment_us,
        remedies=tried,
        spans=tuple(Span(*place, *ends) for place, ends in sorted(watch.offsets.items())),
        lineage=forecasts[-1].lineage if forecasts else None,
        commands=_commands(feed, question, watch),
    )


def _commands(feed: Feed, question: Question, watch: Observation) -> tuple[str, ...]:
    """Commands that repeat this: the page, and the replay up to the window's end."""
    options = " ".join(["", *question.options])
    name = f" --deployment {watch.deployment}" if question.deployment else ""
    window = f"--from {utc(question.from_us)} --to {utc(question.to_us)}"
    return (
        f"twincast incident {feed.folder} {window}{name}{options}",
        f"twincast replay {feed.folder} --until {utc(question.to_us)}{options}",
    )


def _proposals(heard: _Heard, begin_us: int, end_us: int) -> Iterator[tuple[int, str]]:
    """Every proposal when it was made and when it changed; confirmations of the same are left out."""
    told: dict[str, tuple[Any, bool]] = {}
    for record in heard.actions:
        if isinstance(record, Withdrawal):
            before = told.pop(record.action_id, None)
            words = f"withdrawn: {'' if before is None else _words(before[0]) + ', '}{record.reason}"
        else:
            if told.get(record.action_id) == (record.what, record.executable):
                continue
            told[record.action_id] = (record.what, record.executable)
            words = f"{record.state}: {_words(record.what)}{'' if record.executable else ' (advice only)'}"
        if begin_us <= record.at_us < end_us:
            yield record.at_us, words


def _words(what: What) -> str:
    if isinstance(what, Scale):
        return f"{what.engines_before} to {what.engines_after} engines"
    if isinstance(what, SetLimit):
        return f"{what.limit} {what.before:g} to {what.after:g}"
    if isinstance(what, HoldBack):
        return f"{what.how} {what.traffic_ratio:.0%} of traffic, priority {what.priority_from} and less important"
    if isinstance(what, CutOver):
        return f"cut over from {what.engine} to {', '.join(what.to)}"
    return "route " + ", ".join(f"{each.weight:.0%} to {each.engine}" for each in what.weights)


def _remedies(
    breach: Breach | None, foresight: Foresight | None, heard: _Heard, watch: Observation
) -> tuple[int | None, tuple[Remedy, ...]]:
    """Candidates at the moment the risk alert told a scheduler, at the latest the last tick before the breach.

    Where the target was missed before the first tick, at the first one.
    """
    if breach is None or foresight is None or not heard.jobs:
        return None, ()
    told_us = breach.broke_us - 1 if foresight.fired_us is None else min(foresight.fired_us, breach.broke_us - 1)
    before = [at_us for at_us in sorted(heard.jobs) if at_us <= told_us]
    moment_us = before[-1] if before else min(heard.jobs)
    return moment_us, remedies(heard.jobs[moment_us], breach, watch.records, watch.from_us)


def _phases(
    breach: Breach | None, forecasts: tuple[Forecast, ...], jobs: dict[int, SimulationJob]
) -> tuple[Phase, ...]:
    """Rankings at the last calm forecast before the breach, at its worst moment, and once it is over."""
    if breach is None or not forecasts:
        return ()
    calm = [f for f in forecasts if f.as_of_us < breach.broke_us and risk_of(f, breach.target)[0] < CALM_RATIO]
    during = [f for f in forecasts if breach.broke_us <= f.as_of_us <= max(breach.worst_us, breach.broke_us)]
    after = [f for f in forecasts if breach.recovered_us is not None and f.as_of_us >= breach.recovered_us]
    picked = (("before", calm[-1:]), ("during", during[-1:]), ("after", after[:1]))
    return tuple(Phase(name, f.as_of_us, _ranking(f, jobs)) for name, some in picked for f in some)


def _ranking(forecast: Forecast, jobs: dict[int, SimulationJob]) -> Any:
    """The forecast's own; made now, from its job, where work per forecast left it out."""
    if forecast.bottlenecks or forecast.as_of_us not in jobs:
        return forecast.bottlenecks
    return insight(jobs[forecast.as_of_us]).bottlenecks
