"""What `simulate` found, as tables for a person. Decides nothing."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from schemas.engines import EngineConfig
from twin.known.comparison import Comparison, Pair
from twin.known.effects import KnownEffect, RelativeChange

PLAIN_WIDTH = 200
_METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
_COUNTS = {
    "preemptions": "preemptions",
    "success_ratio": "success",
    "saturated_ratio": "saturated",
    "prefill_tokens": "prefill tokens",
    "cached_tokens": "cached tokens",
}
_BASES = {"engine": "queued in the engine to first and last token", "client": "arrival to first and last token"}


def plain_console() -> Console:
    """Stdout: as wide as the terminal, or wide enough where it is none."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def engine_lines(configs: Sequence[EngineConfig], routing: str) -> Iterator[str]:
    """How engines are set, equal ones in one line, and how requests find them."""
    names: dict[str, list[str]] = {}
    for config in configs:
        devices = config.tensor_parallel * config.pipeline_parallel
        text = (
            f"{config.max_num_seqs} sequences, {config.max_num_batched_tokens:,} tokens per step,"
            f" {config.kv_blocks:,} KV blocks of {config.block_size_tokens}"
            + (f", {devices} devices" if devices > 1 else "")
            + (", prefix caching" if config.enable_prefix_caching else "")
        )
        names.setdefault(text, []).append(config.engine)
    for text, same in names.items():
        yield f"engine{'s' * (len(same) > 1)} {', '.join(same)}: {text}"
    if len(configs) > 1:
        yield f"routing: {routing.replace('_', ' ')}"


def print_comparison(found: Comparison, console: Console) -> None:
    """Latencies and counts, recorded beside simulated where there is anything recorded."""
    told = any(pair.observed is not None for cells in found.metrics.values() for pair in cells.values())
    console.print(f"{found.requests:,} requests; times from {_BASES[found.basis]}:")
    table = Table("", *(("recorded", "twin", "error") if told else ("twin",)), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for metric, cells in found.metrics.items():
        for name, pair in cells.items():
            _row(table, f"{_METRICS[metric]} {name.upper()}", _seconds(pair.observed), _seconds(pair.twin), pair, told)
    for field, label in _COUNTS.items():
        pair = getattr(found, field)
        as_text = _share if field.endswith("_ratio") else _count
        _row(table, label, as_text(pair.observed), as_text(pair.twin), pair, told)
    if len(found.balance) > 1:
        for engine, pair in found.balance.items():
            _row(table, f"requests to engine {engine}", _share(pair.observed), _share(pair.twin), pair, told)
    console.print(table)


def print_effects(found: list[KnownEffect], console: Console) -> None:
    """What ten per cent of each thing is worth, the most helpful first."""
    console.print("Ten per cent cheaper (limits: ten per cent wider), same requests, change with 90 % interval:")
    table = Table("", "kind", "TTFT P95", "TPOT P95", "ceiling", box=None)
    for effect in found:
        table.add_row(
            effect.name, effect.kind, _change(effect.ttft_p95), _change(effect.tpot_p95), _change(effect.ceiling)
        )
    console.print(table)


def _row(table: Table, label: str, observed: str, twin: str, pair: Pair, told: bool) -> None:
    error = pair.error_ratio
    table.add_row(label, *((observed, twin, "" if error is None else f"{error:+.1%}") if told else (twin,)))


def _change(change: RelativeChange | None) -> str:
    if change is None:
        return "-"
    interval = "" if change.low is None or change.high is None else f" ({change.low:+.1%} .. {change.high:+.1%})"
    return f"{change.mean:+.1%}{interval}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} s" if value >= 1.0 else f"{value * 1e3:.1f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
