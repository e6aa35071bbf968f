"""Settings of one deployment's core, checked where they are built. Reads no environment and no file.

Law: equal settings have equal hashes, and every setting that changes an output changes the hash.
"""

import math
from dataclasses import dataclass
from hashlib import blake2b

from schemas.alerts import AlertKind
from schemas.slos import SloTarget
from schemas.topics import REQUESTS, STEPS
from twin.advise.policy import Policy
from twin.detectors import DetectorSettings
from twin.drift import detectors
from twin.job import DEFAULT_HORIZONS_S
from twin.traffic.scenarios import BASELINE, BURST, LONG_TAIL, Scenario

TWINCAST_VERSION = "0.1.0"
"""Part of every lineage; equal to the version of the distribution."""
NATIVE_LATENESS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """What a core does with its records.

    Parameters
    ----------
    period_s
        Forecasts are made at event times k * period.
    staggered
        Whether a deployment's ticks come later by a part of the period that its name tells, so that the forecasts of
        many are not all due at once.
    horizons_s
        Spans ahead, rising.
    coarse_replications, fine_replications
        Replications of each scenario; the coarse ones are the first of the fine ones.
    steps_expected
        Whether step records are a source that the watermark waits for (levels S2 and S3).
    lateness_s
        How far out of order a source's records may come.
    slos
        Targets until a record on the SLO topic says otherwise.
    snapshot_ticks
        A snapshot is offered every so many ticks.
    insight
        Whether fine forecasts hold the ceiling, the bottlenecks and the response surface.
    false_alarms_per_day
        Drift alerts to expect of each monitor where nothing drifts; there is one per engine, length and metric.
    smallest_effect_ratio
        The least change worth a drift alert: 0.25 tells of levels from 1.25 times the usual on.
    policy
        When actions are proposed; None: never.
    """

    period_s: float = 10.0
    staggered: bool = False
    horizons_s: tuple[float, ...] = DEFAULT_HORIZONS_S
    scenarios: tuple[Scenario, ...] = (BASELINE, BURST, LONG_TAIL)
    coarse_replications: int = 4
    fine_replications: int = 30
    root_seed: int = 20_260_101
    steps_expected: bool = True
    lateness_s: float = NATIVE_LATENESS_S
    slos: tuple[SloTarget, ...] = ()
    routing: str = "least_outstanding"
    snapshot_ticks: int = 3
    insight: bool = True
    false_alarms_per_day: float = 0.1
    smallest_effect_ratio: float = 0.25
    policy: Policy | None = Policy()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        for name, least in (("period_s", 0.1), ("lateness_s", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"settings.{name} must be a finite number >= {least}, got {value}")
        for name, most in (("false_alarms_per_day", 1_000.0), ("smallest_effect_ratio", 100.0)):
            if not 0.0 < getattr(self, name) <= most:
                raise ValueError(f"settings.{name} must be > 0 and at most {most:g}, got {getattr(self, name)}")
        if not 1 <= self.coarse_replications <= self.fine_replications:
            raise ValueError(
                "settings need 1 <= coarse_replications <= fine_replications, "
                f"got {self.coarse_replications} and {self.fine_replications}"
            )
        horizons = self.horizons_s
        if not horizons or list(horizons) != sorted(set(horizons)) or not 0 < horizons[0] <= horizons[-1] <= 86_400:
            raise ValueError(f"settings.horizons_s must rise within 0 .. 86400, got {horizons}")
        if BASELINE not in self.scenarios:
            raise ValueError("settings.scenarios must hold the baseline")
        if self.snapshot_ticks < 1:
            raise ValueError(f"settings.snapshot_ticks must be >= 1, got {self.snapshot_ticks}")

    @property
    def period_us(self) -> int:
        """The period in microseconds."""
        return round(self.period_s * 1e6)

    def tick_offset_us(self, deployment: str) -> int:
        """How much later than multiples of the period this deployment's ticks come, in whole milliseconds."""
        if not self.staggered:
            return 0
        drawn = int.from_bytes(blake2b(deployment.encode(), digest_size=8).digest(), "big")
        return drawn % (self.period_us // 1000) * 1000

    @property
    def sources(self) -> dict[str, int]:
        """Topics that the watermark waits for, and their lateness in microseconds."""
        names = (REQUESTS.name, STEPS.name) if self.steps_expected else (REQUESTS.name,)
        return dict.fromkeys(names, round(self.lateness_s * 1e6))

    @property
    def drift_detectors(self) -> dict[AlertKind, DetectorSettings]:
        """When a drift alert is raised, per kind."""
        return detectors(self.false_alarms_per_day, self.smallest_effect_ratio)

    @property
    def digest(self) -> str:
        """16 hex digits of blake2b over all settings."""
        return blake2b(repr(self).encode(), digest_size=8).hexdigest()
