"""Kernel traces: share of kernel time unclassified, agreement with labels given by hand, speed.

python -m tests.bench.bench_kernels [FOLDER OF TRACES]
"""

import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from pipelines.ingest.kernel_trace import read_profile
from pipelines.ingest.lines import read_all
from tests.kernel_labels import BY_DIGEST, BY_NAME, digest
from tests.kernel_labels_second import AFTER_VERSION_3, BEFORE_VERSION_3, WITH_PLAIN_WORDS
from twin.cost.span_rules import RULES_VERSION, SpanRules

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "kernel_traces"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    rules = SpanRules()
    events: Counter[str] = Counter()
    seconds = 0.0
    for path in sorted(folder.glob("*.json*")):
        started = time.perf_counter()
        profile = read_profile(path, rules)
        seconds += time.perf_counter() - started
        shares = ", ".join(f"{name} {us / profile.total_us * 100:.1f}" for name, us in profile.class_us.items())
        print(
            f"kernels, {path.name}: {profile.unknown_ratio * 100:.2f} % of kernel time unclassified (bar: < 5 %);"
            f" {profile.device_events} events; per cent by class: {shares}"
        )
        trace = msgspec.json.decode(read_all(path))["traceEvents"]
        events.update(event["name"] for event in trace if event.get("ph") == "X" and event.get("cat") == "kernel")
    right = sum(rules.classify(name) == label for name, label in BY_NAME.items())
    known = {name: BY_DIGEST[digest(name)] for name in events if digest(name) in BY_DIGEST}
    right += sum(rules.classify(name) == label for name, label in known.items())
    labelled = len(BY_NAME) + len(known)
    print(
        f"kernels, labels by hand: {right} of {labelled} names agree, {right / labelled * 100:.1f} % (bar: >= 95 %;"
        f" version 1 of the rules: 180 of 200, now version {RULES_VERSION})"
    )
    for told, labels, first in (
        ("before version 3 was written", BEFORE_VERSION_3, "version 2: 157, version 3 at first sight: 243 of 250"),
        ("when it stood", AFTER_VERSION_3, "at first sight 76 of 85"),
        ("when it had learned from those", WITH_PLAIN_WORDS, "at first sight 39 of 39"),
    ):
        agreed = sum(rules.classify(name) == label for name, label in labels.items())
        print(
            f"kernels, further names labelled {told}: {agreed} of {len(labels)} agree,"
            f" {agreed / len(labels) * 100:.1f} % (bar: >= 95 %; {first})"
        )
    weighed = sum(events[name] for name, label in known.items() if rules.classify(name) == label)
    if known:
        total = sum(events[name] for name in known)
        print(
            f"kernels, labels by hand: {weighed / total * 100:.2f} % of {total:,} kernels of the traces (bar: >= 95 %)"
        )
        print(f"kernels, reading: {sum(events.values()) / max(seconds, 1e-9):,.0f} kernels/s (bar: stated)")


if __name__ == "__main__":
    main()
