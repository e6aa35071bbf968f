"""Settings of the shell: the one place that reads the environment and the files `twincast.toml` and `slos.toml`.

Starts and connects to nothing. Law: whatever the environment and the files hold, the answer is settings that work
together or one ConfigError that names the file, the key, what was found and what was expected.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipelines.broker.settings import BrokerSettings, broker_settings, cache_dir
from pipelines.errors import ConfigError
from pipelines.ingest.endpoint import endpoint_of
from pipelines.log import TOPIC_NAME
from pipelines.otlp_port import host_and_port
from pipelines.outlets.outlet_settings import OutletSettings
from pipelines.policy_file import policy_of, read_policies
from pipelines.toml_tables import Document, Table, require_between
from schemas.slos import Metric, SloTarget
from twin.advise.policy import Policy
from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE, BURST, LONG_TAIL

if TYPE_CHECKING:
    from pipelines.kafka.access import ClusterAccess

CONFIG_FILE = "twincast.toml"
SLOS_FILE = "slos.toml"
POLICY_FILE = "policy.toml"
SPANS_FILE = "spans.toml"
EVERY_DEPLOYMENT = "*"
SCENARIOS = {scenario.name: scenario for scenario in (BASELINE, BURST, LONG_TAIL)}
MAX_PARTITIONS = 1024


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker runs.

    `slot` is the number of this worker among those of its group: a restart in the same slot takes its partitions
    back without a rebalance. `simulators` is the number of processes that simulate. `max_backlog_units` is how many
    records of a deployment may wait for a simulation before its input pauses. A worker that makes no progress on a
    partition with unread records for `stall_timeout_s` ends itself. `silence_ticks` writes time as records for
    live services that fall silent. `warm_file` holds what an earlier run had
    learned, `spans_file` which deployment a raw span belongs to. At `otlp`, PORT or HOST:PORT, OTLP exports are taken
    over HTTP; nowhere if it is empty. At `web`, in the same form, a page is served beside the worker. `scrape` names
    metrics endpoints of engines, DEPLOYMENT[/ENGINE]=URL each: for one worker of a group.
    """

    group: str = "twincast"
    slot: int = 0
    simulators: int = 1
    max_backlog_units: int = 8_000
    stall_timeout_s: float = 90.0
    stop_timeout_s: float = 2.0
    silence_ticks: bool = True
    warm_file: Path | None = None
    spans_file: Path | None = None
    otlp: str = ""
    web: str = ""
    scrape: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not TOPIC_NAME.fullmatch(self.group):
            raise ConfigError(f"worker.group must be 1 to 249 of a-z A-Z 0-9 . _ -, got {self.group!r}; rename it")
        for name, least, most in (("slot", 0, 9999), ("simulators", 1, 256), ("max_backlog_units", 100, 10**8)):
            require_between(f"worker.{name}", getattr(self, name), least, most)
        for name, least_s, most_s in (("stall_timeout_s", 1.0, 86_400.0), ("stop_timeout_s", 0.1, 600.0)):
            require_between(f"worker.{name}", getattr(self, name), least_s, most_s)
        if self.otlp:
            host_and_port(self.otlp)
        for text in self.scrape:
            endpoint_of(text)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the shell.

    `namespace` stands before every topic's name, with a dot. `data_dir` holds the embedded log; `cache_dir` what can be
    made again. `defaults` are a deployment's settings unless `deployments` has its own.
    """

    broker: BrokerSettings
    data_dir: Path
    cache_dir: Path
    namespace: str = ""
    partitions: int = 4
    worker: WorkerSettings = WorkerSettings()
    outlets: OutletSettings = field(default_factory=OutletSettings)
    defaults: CoreSettings = field(default_factory=CoreSettings)
    deployments: Mapping[str, CoreSettings] = field(default_factory=dict)
    slos: Mapping[str, tuple[SloTarget, ...]] = field(default_factory=dict)
    policies: Mapping[str, Policy | None] = field(default_factory=dict)
    log_level: str = "info"
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_between("topics.partitions", self.partitions, 1, MAX_PARTITIONS)
        if self.namespace and not TOPIC_NAME.fullmatch(self.namespace):
            raise ConfigError(f"topics.namespace must be of a-z A-Z 0-9 . _ -, got {self.namespace!r}; rename it")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(
                f"TWINCAST_LOG_LEVEL must be debug, info, warning or error, got {self.log_level!r}; correct it"
            )

    def core(self, deployment: str) -> CoreSettings:
        """Settings of a deployment, its targets included."""
        found = self.deployments.get(deployment, self.defaults)
        if self.policies:
            found = replace(found, policy=policy_of(self.policies, deployment))
        slos = self.slos.get(deployment, self.slos.get(EVERY_DEPLOYMENT, ()))
        return replace(found, slos=slos) if slos else found

    def access(self, bootstrap: str | None = None) -> "ClusterAccess":
        """How to reach the cluster. Raises ConfigError where none is named."""
        from pipelines.kafka.access import cluster_access

        return cluster_access(self.environ, bootstrap or self.broker.bootstrap)


def read_settings(
    environ: Mapping[str, str] | None = None,
    *,
    config: Path | None = None,
    slos: Path | None = None,
    directory: Path | None = None,
) -> Settings:
    """Settings from the environment, `twincast.toml`, `slos.toml` and `policy.toml`.

    The files are looked for in `directory` (the working directory) unless named here or by TWINCAST_CONFIG,
    TWINCAST_SLOS and TWINCAST_POLICY; a named one must exist. A `spans.toml` there, or named by TWINCAST_SPANS, is
    for workers that take in raw spans. The environment goes before the files. Its variables: TWINCAST_NAMESPACE,
    _PARTITIONS, _GROUP, _SLOT, _SIMULATORS, _WARM_FILE, _OTLP, _WEB, _METRICS, _ALERTMANAGER, _ALERTS_FILE,
    _REPLAYED, _DATA_DIR, _CACHE_DIR, _LOG_LEVEL, those of `broker_settings` and of `cluster_access`. Raises
    ConfigError.
    """
    env = dict(os.environ if environ is None else environ)
    own = {name.removeprefix("TWINCAST_"): text for name, text in env.items() if name.startswith("TWINCAST_") and text}
    here = directory or Path.cwd()
    path = config or _path_of(own.get("CONFIG"))
    document = Document.read(path or here / CONFIG_FILE, required=path is not None)
    slos_path = slos or _path_of(own.get("SLOS"))
    targets = read_slos(slos_path or here / SLOS_FILE, required=slos_path is not None)
    policy_path = _path_of(own.get("POLICY"))
    policies = read_policies(policy_path or here / POLICY_FILE, required=policy_path is not None)
    broker, topics, worker, outlets = map(document.table, ("broker", "topics", "worker", "outlets"))
    defaults = _core_settings(document, document.table("forecast"), CoreSettings())
    deployments = {
        name: _core_settings(document, Table(document.where, f"deployments.{name}", table), defaults)
        for name, table in document.tables("deployments").items()
    }
    document.finish()
    cache = cache_dir(env)
    return Settings(
        broker=_broker(env, broker),
        data_dir=Path(own.get("DATA_DIR") or topics.text("data_dir", str(cache / "log"))),
        cache_dir=cache,
        namespace=own.get("NAMESPACE") or topics.text("namespace", ""),
        partitions=_env_int(own, "PARTITIONS", topics.integer("partitions", 4)),
        worker=_worker(own, worker, here),
        outlets=_outlets(own, outlets),
        defaults=defaults,
        deployments=deployments,
        slos=targets,
        policies=policies,
        log_level=own.get("LOG_LEVEL", "info").lower(),
        environ={name: text for name, text in env.items() if name.startswith("TWINCAST_")},
    )


def read_slos(path: Path, *, required: bool) -> dict[str, tuple[SloTarget, ...]]:
    """Targets by deployment from a file of `[[slo]]` tables; `deployment` left out or "*" means every one."""
    document = Document.read(path, required=required)
    found: dict[str, list[SloTarget]] = {}
    for number, entry in enumerate(document.list_of_tables("slo"), 1):
        table = Table(document.where, f"slo {number}", entry)
        deployment = table.text("deployment", EVERY_DEPLOYMENT)
        target = slo_target(
            table.text("metric", ""),
            table.number("quantile", 0.95),
            table.number("limit_s", 0.0),
            table.text("traffic_class", ""),
            where=f"{path} slo {number}",
        )
        table.finish()
        found.setdefault(deployment, []).append(target)
    document.finish()
    return {deployment: tuple(targets) for deployment, targets in found.items()}


def parse_slo(text: str) -> SloTarget:
    """A target as the command line has it: metric:quantile:limit in seconds.

    >>> parse_slo("ttft_s:0.95:0.5").limit_s
    0.5
    """
    parts = text.split(":")
    try:
        metric, quantile, limit_s = parts[0], float(parts[1]), float(parts[2])
    except (IndexError, ValueError):
        raise ConfigError(f"an SLO must be metric:quantile:limit_s such as ttft_s:0.95:0.5, got {text!r}") from None
    return slo_target(metric, quantile, limit_s, parts[3] if len(parts) > 3 else "", where=f"SLO {text!r}")


def slo_target(metric: str, quantile: float, limit_s: float, traffic_class: str, *, where: str) -> SloTarget:
    """A checked target. Raises ConfigError naming `where` it was read."""
    if metric not in get_args(Metric):
        raise ConfigError(f"{where}: metric must be one of {', '.join(get_args(Metric))}, got {metric!r}; correct it")
    if not 0.0 < quantile < 1.0:
        raise ConfigError(f"{where}: quantile must lie between 0 and 1, got {quantile}; correct it")
    if not 0.0 < limit_s <= 1e6:
        raise ConfigError(f"{where}: limit_s must be > 0 seconds, got {limit_s}; set it")
    return SloTarget(metric=metric, quantile=quantile, limit_s=limit_s, traffic_class=traffic_class)  # type: ignore[arg-type]


def _core_settings(document: Document, table: Table, base: CoreSettings) -> CoreSettings:
    kinds = {item.name: type(getattr(base, item.name)) for item in fields(CoreSettings)}
    changes: dict[str, Any] = {}
    for key in list(table.rest):
        kind = kinds.get(key)
        if key == "scenarios":
            changes[key] = _scenarios(table)
        elif key == "horizons_s":
            changes[key] = tuple(float(value) for value in table.numbers(key))
        elif key in ("slos", "policy") or kind is None:
            continue  # an unknown key: `finish` says so
        elif kind is bool:
            changes[key] = table.boolean(key, False)
        elif kind is int:
            changes[key] = table.integer(key, 0)
        elif kind is float:
            changes[key] = table.number(key, 0.0)
        else:
            changes[key] = table.text(key, "")
    table.finish()
    try:
        return replace(base, **changes)
    except ValueError as error:
        raise ConfigError(f"{document.where} [{table.name}]: {error}; correct it") from None


def _scenarios(table: Table) -> tuple[Any, ...]:
    names = table.texts("scenarios")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise table.wrong("scenarios", f"names out of {', '.join(SCENARIOS)}", unknown[0])
    return tuple(SCENARIOS[name] for name in names)


def _broker(env: Mapping[str, str], table: Table) -> BrokerSettings:
    """The file's values go in as the environment would hold them, so that both are checked alike."""
    merged = dict(env)
    names = {"bootstrap": "BOOTSTRAP", "only": "BROKER", "data_dir": "BROKER_DIR", "port": "BROKER_PORT"}
    for key, name in names.items():
        if key in table.rest:
            value = table.rest.pop(key)
            merged.setdefault(f"TWINCAST_{name}", str(value))
    table.finish()
    return broker_settings(merged)


def _worker(own: Mapping[str, str], table: Table, here: Path) -> WorkerSettings:
    base = WorkerSettings(simulators=max(1, (os.cpu_count() or 2) - 1))
    found = WorkerSettings(
        group=own.get("GROUP") or table.text("group", base.group),
        slot=_env_int(own, "SLOT", table.integer("slot", base.slot)),
        simulators=_env_int(own, "SIMULATORS", table.integer("simulators", base.simulators)),
        max_backlog_units=table.integer("max_backlog_units", base.max_backlog_units),
        stall_timeout_s=table.number("stall_timeout_s", base.stall_timeout_s),
        stop_timeout_s=table.number("stop_timeout_s", base.stop_timeout_s),
        silence_ticks=table.boolean("silence_ticks", base.silence_ticks),
        warm_file=_path_of(own.get("WARM_FILE") or table.text("warm_file", "")),
        spans_file=_path_of(own.get("SPANS")) or (here / SPANS_FILE if (here / SPANS_FILE).exists() else None),
        otlp=own.get("OTLP") or table.text("otlp", base.otlp),
        web=own.get("WEB") or table.text("web", base.web),
        scrape=tuple(own.get("SCRAPE", "").split() or table.texts("scrape")),
    )
    table.finish()
    return found


def _outlets(own: Mapping[str, str], table: Table) -> OutletSettings:
    replayed = own.get("REPLAYED", "")
    try:
        speed = float(replayed) if replayed else None
    except ValueError:
        raise ConfigError(f"TWINCAST_REPLAYED must be a number, got {replayed!r}; correct it or unset it") from None
    found = OutletSettings(
        metrics=own.get("METRICS") or table.text("metrics", ""),
        alertmanager=own.get("ALERTMANAGER") or table.text("alertmanager", ""),
        alerts_file=_path_of(own.get("ALERTS_FILE") or table.text("alerts_file", "")),
        replayed_speed=speed,
    )
    table.finish()
    return found


def _env_int(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is not None and not text.isdecimal():
        raise ConfigError(f"TWINCAST_{name} must be a whole number, got {text!r}; correct it or unset it")
    return default if text is None else int(text)


def _path_of(text: str | None) -> Path | None:
    return Path(text) if text else None
