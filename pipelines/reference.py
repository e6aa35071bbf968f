"""Makes docs/reference from the code: commands, settings, topics. Run it with `make generate`. Decides nothing.

Law: what stands in docs/reference equals what this makes; a test says so.
"""

import argparse
import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import msgspec

from pipelines.broker.settings import BrokerSettings
from pipelines.cli import EXIT_CONFIG, EXIT_INTERRUPTED, parser
from pipelines.commands import NAMES, module_of
from pipelines.kafka.access import cluster_access
from pipelines.outlets.outlet_settings import OutletSettings
from pipelines.settings import Settings, WorkerSettings, read_settings
from schemas.base import SCHEMA_VERSION
from schemas.topics import TOPICS, Topic
from twin.advise.policy import Policy
from twin.risk import RiskSettings
from twin.settings import CoreSettings

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "Made from the code by `python -m pipelines.reference`; a test keeps it so.\n"
SETTINGS = (
    ("The whole", Settings, ""),
    ("Forecasts", CoreSettings, "`[forecast]` in twincast.toml; `[deployments.NAME]` for one deployment."),
    ("Actions", Policy, "When actions are proposed."),
    ("Risk alerts", RiskSettings, "Not set from outside."),
    ("Workers", WorkerSettings, "`[worker]` in twincast.toml."),
    ("Outlets", OutletSettings, "`[outlets]` in twincast.toml."),
    ("Broker of our own", BrokerSettings, "`[broker]` in twincast.toml."),
)


def reference_files() -> dict[str, str]:
    """File name -> content."""
    return {"commands.md": _commands(), "settings.md": _settings(), "topics.md": _topics()}


def write_reference(folder: Path = FOLDER) -> list[Path]:
    """Write all files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in reference_files().items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in reference_files()]


def _commands() -> str:
    parts = [
        f"# Commands\n\n{NOTE}",
        "Results go to stdout, talk to stderr. Exit codes: 0 done, 1 what the command says, "
        f"{EXIT_CONFIG} something to put right (one line says what), {EXIT_INTERRUPTED} interrupted.\n",
        _table(("option", "what"), _options(parser()._actions)),
    ]
    for name in NAMES:
        actions = _subparser(name)._actions
        about = inspect.cleandoc(module_of(name).__doc__ or "")
        words = [action for action in actions if not action.option_strings]
        usage = " ".join(["twincast", name, *("OPTIONS" for _ in actions[:1]), *map(_word, words)])
        parts.append(f"## {name}\n\n`{usage}`\n\n{about}\n")
        if words:
            rows = [(f"`{_word(action)}`", _help(action)) for action in words]
            parts.append(_table(("argument", "what"), rows))
        parts.append(_table(("option", "what"), _options(actions)))
    return "\n".join(parts)


def _subparser(name: str) -> argparse.ArgumentParser:
    found = next(a for a in parser(name)._actions if isinstance(a, argparse._SubParsersAction))
    chosen: argparse.ArgumentParser = found.choices[name]
    return chosen


def _word(action: argparse.Action) -> str:
    name = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    text = name if isinstance(name, str) else " ".join(name)
    return f"{text} ..." if action.nargs in ("+", "*") else f"[{text}]" if action.nargs == "?" else text


def _options(actions: Iterable[argparse.Action]) -> list[tuple[str, str]]:
    rows = []
    for action in actions:
        if action.option_strings and action.help != argparse.SUPPRESS and action.dest != "help":
            takes = "" if action.nargs == 0 else f" {_word(action)}"
            rows.append((f"`{', '.join(action.option_strings)}{takes}`", _help(action)))
    return rows


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return f"{text}; one of {', '.join(map(str, action.choices))}" if action.choices and action.metavar else text


def _settings() -> str:
    parts = [f"# Settings\n\n{NOTE}", _prose(inspect.getdoc(read_settings) or ""), ""]
    parts.append(_prose(inspect.getdoc(cluster_access) or "") + "\n")
    for title, kind, where in SETTINGS:
        rows = [(f"`{item.name}`", f"`{_type(item)}`", f"`{_default(item)}`") for item in fields(kind)]
        parts += [f"## {title}\n", *([f"{where}\n"] if where else [])]
        parts += [_prose(inspect.getdoc(kind) or "") + "\n", _table(("setting", "type", "default"), rows)]
    return "\n".join(parts)


def _prose(text: str) -> str:
    """A docstring as Markdown: parameters as a list, examples left out."""
    text = re.split(r"\n\s*>>> ", text)[0].rstrip()
    text = re.sub(r"\nParameters\n-+\n", "\n", text)
    return re.sub(r"^(\w[\w, ]*)\n    (.+?)(?=\n\S|\Z)", _parameter, text, flags=re.M | re.S)


def _parameter(found: "re.Match[str]") -> str:
    return f"- `{found[1]}`: {' '.join(found[2].split())}"


def _type(item: "Field[Any]") -> str:
    return item.type if isinstance(item.type, str) else str(getattr(item.type, "__name__", item.type))


def _default(item: "Field[Any]") -> str:
    if item.default is not MISSING:
        return _value(item.default)
    return "required" if item.default_factory is MISSING else "see below"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(getattr(each, "name", None) or str(each) for each in value) or "none"
    known = value is None or isinstance(value, str | int | float)
    return (str(value) or '""') if known else "see below"


def _topics() -> str:
    parts = [
        f"# Topics\n\n{NOTE}",
        f"JSON, version {SCHEMA_VERSION}; the JSON Schemas and AsyncAPI 3.0 stand in [contracts](../contracts). "
        "Outputs are CloudEvents in binary mode: `ce_id`, `ce_type`, `ce_source`, `ce_time` and `content-type` are "
        "headers. "
        "Fields with a default may be left out; unknown fields are passed over.\n",
        _table(
            ("topic", "key", "policy", "what"),
            [(f"`{t.name}`", t.key, f"{t.policy}, {_kept(t)}", t.about) for t in TOPICS.values()],
        ),
    ]
    for topic in TOPICS.values():
        if topic.type is not None:
            parts.append(f"## {topic.name}\n\n{topic.about[0].upper()}{topic.about[1:]}.\n")
            parts += [_struct(kind) for kind in _reachable(topic.type)]
    return "\n".join(parts)


def _kept(topic: Topic) -> str:
    return "kept for ever" if topic.retention_ms < 0 else f"{topic.retention_ms // 86_400_000} days"


def _reachable(kind: Any) -> list[type]:
    """The structs of a topic, the outer ones first."""
    found: dict[type, None] = {}
    waiting = [msgspec.inspect.type_info(kind)]
    while waiting:
        info = waiting.pop(0)
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls not in found:
                found[info.cls] = None
                waiting += [field.type for field in info.fields]
        else:
            waiting += [
                each
                for name in ("type", "types", "item_type", "item_types", "value_type")
                for each in _listed(getattr(info, name, ()))
            ]
    return list(found)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else [value]


def _struct(kind: type) -> str:
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.StructType):
        raise TypeError(f"{kind} is no struct")
    rows = []
    for field in info.fields:
        unset = field.default is msgspec.NODEFAULT
        default = "" if field.required else "empty" if unset or field.default in ("", (), None) else str(field.default)
        rows.append((f"`{field.encode_name}`", "yes" if field.required else "", default))
    tag = f" (`{info.tag_field}` is `{info.tag}`)" if info.tag_field else ""
    return f"### {kind.__name__}{tag}\n\n{inspect.getdoc(kind)}\n\n" + _table(("field", "required", "default"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    for written in write_reference():
        print(written)
