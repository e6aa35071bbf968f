"""What a core has folded and learned of its deployment, part by part, and its snapshot. Decides nothing.

Law: parts restored from a snapshot go on as those it was taken of would have; snapshots of older programs still read.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from schemas.state import Snapshot
from twin.advise.advisor import Advisor
from twin.calibration import Calibration
from twin.credibility import Authority
from twin.deployment import DeploymentState
from twin.drift import DriftAlerts
from twin.metrics import CLOSES_AFTER_S
from twin.outlook import STEP_S, STEPS
from twin.outlook_widths import OutlookWidths
from twin.replay_calibration import ReplayCalibration
from twin.risk import RiskAlerts
from twin.scoring import SkillLedger
from twin.settings import CoreSettings
from twin.windows import OpenWindows

FORMAT_VERSION = 1


class SnapshotError(Exception):
    """A snapshot that cannot be taken over: corrupt, or of a newer program."""


class Parts:
    """Of one deployment; see each part's own module."""

    def __init__(self, deployment: str, settings: CoreSettings) -> None:
        self.deployment = deployment
        self.settings = settings
        self.state = DeploymentState(settings.horizons_s[-1] + CLOSES_AFTER_S + 2 * settings.period_s, settings.slos)
        self.ledger = SkillLedger()
        self.authority = Authority()
        self.calibration = Calibration()
        self.replays = ReplayCalibration()
        self.drift = DriftAlerts(deployment, settings.drift_detectors)
        self.risk = RiskAlerts(deployment)
        self.advisor = Advisor(settings.policy)
        self.windows = OpenWindows()
        self.outlook_widths = OutlookWidths(STEPS, STEP_S)

    def plain(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "state": self.state.snapshot(),
            "ledger": self.ledger.snapshot(),
            "authority": self.authority.snapshot(),
            "calibration": self.calibration.snapshot(),
            "replays": self.replays.snapshot(),
            "drift": self.drift.snapshot(),
            "risk": self.risk.snapshot(),
            "advisor": self.advisor.snapshot(),
            "windows": self.windows.snapshot(),
            "outlook_widths": self.outlook_widths.snapshot(),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take over what `plain` gave."""
        self.state.restore(data["state"])
        self.ledger = SkillLedger.restore(data["ledger"])
        self.authority = Authority.restore(data["authority"])
        self.calibration = Calibration.restore(data["calibration"])
        if "replays" in data:  # older snapshots have none
            self.replays = ReplayCalibration.restore(data["replays"])
        self.drift = DriftAlerts.restore(data["drift"], self.settings.drift_detectors)
        self.risk = RiskAlerts.restore(data["risk"])
        if "advisor" in data:  # older snapshots have none
            self.advisor = Advisor.restore(data["advisor"], self.settings.policy)
        self.windows = OpenWindows.restore(data["windows"])
        if "outlook_widths" in data:  # older snapshots have none
            self.outlook_widths = OutlookWidths.restore(data["outlook_widths"], STEPS, STEP_S)

    def adopt(self, earlier: Mapping[str, Any]) -> None:
        """Begin warm: take over costs, overheads and interval widths of another run, not its time or requests."""
        self.state.adopt(earlier["state"])
        self.calibration = Calibration.restore(earlier["calibration"])


def check(snapshot: Snapshot) -> None:
    """Raise SnapshotError for a snapshot that is corrupt or of another format."""
    if snapshot.format_version != FORMAT_VERSION:
        raise SnapshotError(
            f"snapshot of {snapshot.deployment} has format {snapshot.format_version}, this program reads "
            f"{FORMAT_VERSION}; update the program, or start without state"
        )
    if digest(snapshot.state) != snapshot.sha256:
        raise SnapshotError(f"snapshot of {snapshot.deployment} is corrupt: its digest differs; use an older one")


def digest(state: Mapping[str, Any]) -> str:
    """Hex digits of sha256 over plain data."""
    return sha256(msgspec.json.encode(state)).hexdigest()
