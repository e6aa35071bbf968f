"""Prometheus text exposition: lines to samples. Does not know which metrics mean what, and keeps no state.

Law: every line is a sample, a comment, blank, or counted as malformed; none raises.
References: Prometheus text exposition format 0.0.4; OpenMetrics 1.0 (`# EOF`, exemplars after ` # `).
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?[0-9.]+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series; counters and gauges alike."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """All finite samples of one page, in its order, and how many lines were neither sample nor comment."""

    samples: tuple[Sample, ...]
    malformed: int = 0


def parse_scrape(lines: Iterable[str]) -> Scrape:
    """Samples of one metrics page.

    NaN and infinities are left out: a summary without observations has no value.

    >>> parse_scrape(['# HELP up', 'up{job="a"} 1.0', 'nonsense']).samples
    (Sample(name='up', labels={'job': 'a'}, value=1.0),)
    """
    samples: list[Sample] = []
    malformed = 0
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        sample = _parse_sample(text)
        if sample is None:
            malformed += 1
        elif math.isfinite(sample.value):
            samples.append(sample)
    return Scrape(tuple(samples), malformed)


def _parse_sample(text: str) -> Sample | None:
    match = _SAMPLE.fullmatch(text.split(" # ", 1)[0])
    if match is None:
        return None
    labels = _parse_labels(match[2] or "")
    try:
        value = float(match[3])
    except ValueError:
        return None
    return None if labels is None else Sample(match[1], labels, value)


def _parse_labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None if text[at:].strip(" ,") else labels
        labels[match[1]] = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), match[2])
        at = match.end()
    return labels
