"""Evidence on recordings: the prefix cache found, placebos left alone, a slower machine found, worked cases.

    python -m tests.bench.bench_evidence [FOLDER OF RECORDINGS]

Placebos are parts of one recording of constant traffic, which no recommendation may follow from.
"""

import sys
import time
from pathlib import Path

from pipelines.evidence.evidence_cases import chain_of_case
from pipelines.evidence.evidence_windows import Asked, windows_chain
from pipelines.samples import EXAMPLES
from schemas.evidence import Evidence

SHARED = Path(__file__).resolve().parents[3] / "shared" / "recordings"
CASES = EXAMPLES / "evidence"
PLACEBOS = (
    ("A_steady_s101", ("0:180", "180:360")),
    ("A_steady_s101", ("180:360", "0:180")),
    ("A_steady_s101", ("0:120", "120:240")),
    ("A_steady_s101", ("0:120", "240:360")),
    ("A_steady_s101", ("120:240", "240:360")),
    ("B_bursty_s201", ("0:180", "180:360")),
    ("D_longtail_s401", ("0:150", "150:300")),
    ("H_two_s801", ("0:90", "90:180")),
)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    if folder.is_dir():
        _prefix(folder / "E_prefix_off_s501", folder / "E_prefix_on_s501", "off -> on")
        _prefix(folder / "E_prefix_on_s501", folder / "E_prefix_off_s501", "on -> off")
        _placebos(folder)
        _drift(folder / "F_drift_s601")
    else:
        print(f"no recordings in {folder}: only the worked cases")
    _cases()


def _prefix(base: Path, candidate: Path, name: str) -> None:
    started = time.perf_counter()
    found = windows_chain(Asked(base=base, candidate=candidate))
    wall_s = time.perf_counter() - started
    lead = found.hypotheses[0]
    groups = [effect for effect in lead.effects if effect.group]
    within = sum(
        (effect.observed_low_ratio or 0.0) <= (effect.change_ratio or 0.0) <= (effect.observed_high_ratio or 0.0)
        for effect in groups
    )
    told = ", ".join(
        f"{effect.group.removeprefix('hit ratio ')} simulated {(effect.change_ratio or 0) * 100:+.1f} measured"
        f" {(effect.observed_ratio or 0) * 100:+.1f} [{(effect.observed_low_ratio or 0) * 100:+.1f},"
        f" {(effect.observed_high_ratio or 0) * 100:+.1f}] %"
        for effect in groups
    )
    classes = ", ".join(found.span_classes)
    print(f"evidence, prefix cache {name}: {lead.code}, class {classes} (bar: the class of the change found)")
    print(f"evidence, prefix cache {name}, TTFT P50 by hit ratio: {within} of {len(groups)} within (bar: all): {told}")
    print(f"evidence, prefix cache {name}: grade {found.grade} (bar: B), {found.advice.title}, {wall_s:.1f} s")


def _placebos(folder: Path) -> None:
    advised, changed = [], 0
    for name, (first, second) in PLACEBOS:
        path = folder / name
        found = windows_chain(Asked(base=path, candidate=path, base_window=first, candidate_window=second))
        changed += "within noise" not in _felt(found)
        if found.advice.title != "No recommendation":
            advised.append(f"{name} {first} {second}: {found.advice.text}")
    print(f"evidence, placebos: {len(advised)} of {len(PLACEBOS)} give a recommendation (bar: 0) {'; '.join(advised)}")
    print(f"evidence, placebos: {changed} of {len(PLACEBOS)} show a changed latency (bar: stated)")


def _felt(found: Evidence) -> str:
    nothing = found.advice.text.startswith("keep things as they are")
    return "within noise" if nothing else "changed"


def _drift(path: Path) -> None:
    found = windows_chain(Asked(base=path, candidate=path, base_window="0:150", candidate_window="150:300"))
    lead = found.hypotheses[0]
    print(
        f"evidence, CPU hog from half time: {lead.code}, {lead.verdict}, grade {found.grade} (bar: the machine found)"
    )


def _cases() -> None:
    for name in ("prefix_cache", "published_prefix", "tpot_limit"):
        path = CASES / f"{name}.toml"
        started = time.perf_counter()
        found = chain_of_case(path, Asked(base=path, candidate=path))
        print(
            f"evidence, worked case {name}: grade {found.grade}, {found.advice.title}, {len(found.missing)} missing,"
            f" {len(found.limits)} limits, {time.perf_counter() - started:.1f} s"
        )


if __name__ == "__main__":
    main()
