"""What follows from a chain: the finding in one sentence, the advice and its risks, and what is not shown.

Laws: without a change beyond noise, or where only the traffic differs, there is no recommendation; below grade B
advice is titled a hypothesis.
"""

from collections.abc import Container, Iterable, Sequence

from schemas.evidence import Advice, ClassChange, Fact, Grade, Hypothesis
from twin.evidence.class_guide import UNKNOWN, title_of
from twin.evidence.measure import SERVED
from twin.evidence.sensitivity import TOGETHER

GOOD: tuple[Grade, ...] = ("A", "B")
CARRIES_RATIO = 0.4
"""A class with a smaller share of a change does not carry it."""
_WHOLE = {"kernel": "kernel time", "engine": "the time of a step (fitted)"}
LATENCIES = ("TTFT", "TPOT", "E2E")
FELT = (*LATENCIES, SERVED)
_RISKS = {
    "prefix_reuse": (
        "the gain is that of these hit ratios: traffic that shares less keeps less of it",
        "cached blocks compete with running requests for KV memory under load",
    ),
    "load": ("a service judged under other traffic may look better or worse than it is",),
    "machine": ("a slower machine hides or exaggerates what a change of settings does",),
    "setting": ("a setting that helps at this load may hurt at another; see the simulated values beside it",),
    "cost": ("step costs of a role may have moved with the batch shapes seen; a profile would tell",),
    "class": ("a class may be hidden behind another: its time is not the time it would save",),
}


def felt(facts: Iterable[Fact]) -> list[Fact]:
    """Facts that users feel."""
    return [fact for fact in facts if fact.level == "request" and fact.name.split()[0] in FELT]


def leading(hypotheses: Sequence[Hypothesis]) -> Hypothesis | None:
    """The hypothesis with the largest simulated effect, all together left aside."""
    return next((each for each in hypotheses if each.code != TOGETHER), None)


def carried_by(classes: Sequence[ClassChange], void: Container[str] = ()) -> str:
    """Which class carries most of the change, on the level nearest to the kernels that is not void; empty for none."""
    for level in ("kernel", "engine"):
        if level in void:
            continue
        rows = [row for row in classes if row.level == level and row.share_of_change_ratio is not None]
        if rows:
            most = max(rows, key=lambda row: row.share_of_change_ratio or 0.0)
            share = most.share_of_change_ratio or 0.0
            if most.span_class == UNKNOWN or share < CARRIES_RATIO:
                return "no class stands out"
            return f"{title_of(most.span_class)} carries {share * 100:.0f} % of the change of {_WHOLE[level]}"
    return ""


def finding(
    lead: Hypothesis | None, facts: Iterable[Fact], user_changed: bool, *, tried: str = "", carried: str = ""
) -> str:
    """What happened, in one sentence with its figures."""
    facts = tuple(facts)
    if not _has_latencies(facts):
        said = (lead.statement if lead is not None else "", carried, "whether it reached users was not measured")
        return "; ".join(part for part in said if part)
    if not user_changed:
        return "no latency that a user feels changed by more than noise"
    moved = [
        f"{fact.name} {_value(fact.base)} -> {_value(fact.candidate)} {fact.unit} ({_percent(fact.change_ratio)})"
        for fact in felt(facts)
        if fact.changed is not False and not fact.group and fact.change_ratio is not None
    ]
    reached = f"{f'for {tried} ' if tried else ''}it reached the user: {'; '.join(moved) or 'see the facts'}"
    if lead is None:
        return f"figures changed and no difference between the sides explains it; {reached}"
    return "; ".join(part for part in (lead.statement, carried, reached) if part)


def advise(lead: Hypothesis | None, facts: Sequence[Fact], grade: Grade, user_changed: bool) -> Advice:
    """The advice under its title."""
    if not _has_latencies(facts):
        return Advice(
            title="No recommendation",
            text="measure latencies of requests on both sides first: nothing here says what users feel",
        )
    if not user_changed:
        return Advice(title="No recommendation", text="keep things as they are: nothing changed beyond noise")
    if lead is None:
        return Advice(
            title="No recommendation",
            text="figures changed, but no difference between the sides is known that could be acted on",
        )
    kind = lead.code.split(":")[0]
    if kind == "load":
        return Advice(
            title="No recommendation",
            text="the traffic differs: compare under one and the same traffic before changing anything",
            risks=_RISKS["load"],
        )
    fewer = next((fact for fact in facts if fact.name == SERVED and fact.changed), None)
    if fewer is not None:
        return Advice(
            title="No recommendation",
            text=f"one side serves fewer requests ({_value(fewer.base)} -> {_value(fewer.candidate)} %): its latencies"
            " are those of fewer requests; compare at equal shares served",
        )
    better = _better(facts)
    return Advice(
        title="Recommendation" if grade in GOOD and lead.verdict != "disagrees" else "Hypothesis",
        text=_text(lead, kind, better),
        risks=_RISKS.get(kind, ()),
    )


def not_shown(facts: Sequence[Fact], told: frozenset[str], repeats: int, kept_up: bool | None) -> tuple[str, ...]:
    """What nobody may conclude from this chain."""
    names = {fact.name for fact in facts}
    found = []
    if "output throughput" not in names:
        found.append("throughput: not measured")
    elif kept_up:
        found.append(
            "throughput: both sides kept up with what was offered, so it could not change; ceilings are simulated only"
        )
    if not {"chunk_tokens", "kv_times"} <= told:
        found.append(
            "chunk level: no KV lookup, load and write durations per chunk"
            if "chunk_tokens" in told
            else "chunk level: nothing is told per chunk"
        )
    if repeats < 2:
        found.append("stability: one run of each side, no repeat")
    return tuple(found)


def _has_latencies(facts: Iterable[Fact]) -> bool:
    return any(fact.name != SERVED for fact in felt(facts))


def _better(facts: Sequence[Fact]) -> bool:
    """Whether the candidate is the better side for users: latencies that changed mostly fell."""
    moved = [
        fact.change_ratio
        for fact in felt(facts)
        if fact.name != SERVED and fact.changed is not False and fact.change_ratio is not None
    ]
    return sum(1 if ratio < 0 else -1 for ratio in moved) > 0


def _text(lead: Hypothesis, kind: str, better: bool) -> str:
    side = "the candidate" if better else "the base"
    if kind == "prefix_reuse":
        switch = "" if lead.parameter == "prefix_hit_ratio" else f" ({lead.parameter} as in {side})"
        return (
            f"keep {side}'s prefix cache{switch} for traffic that shares prefixes, and route requests that share one"
            " to the same engine"
        )
    if kind == "setting":
        return f"set {lead.parameter} as in {side}"
    if kind == "machine":
        return f"find out what makes every step {'faster' if better else 'slower'} before touching any setting"
    if kind == "cost":
        return f"keep {side}'s build or placement: its {lead.parameter} is the lower one"
    return f"look into {lead.parameter}: {side} spends less time there"


def _value(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _percent(ratio: float | None) -> str:
    if ratio is None:
        return "unknown"
    return f"{ratio * 100:+.0f} %" if ratio < 3.0 else f"{ratio + 1.0:.0f} times"
