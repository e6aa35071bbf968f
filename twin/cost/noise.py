"""What a cost model leaves unexplained, as plain numbers a simulation can draw from. Draws nothing itself.

Three scales, because a slow minute is slow for all its steps: one factor per window and replication
(`window_sigma_ratio`), one factor per 64-step epoch that wanders around it (`epoch_sigma_ratio`, autocorrelation
`epoch_rho`), and the distribution of single steps per role, which sums average out.
Law: every number is finite and >= 0, and `epoch_rho` is in [0, 1).
"""

from dataclasses import dataclass

from twin.cost.shape import Role

EPOCH_STEPS = 64
"""Steps that share one noise factor."""
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Levels of `RoleNoise.ratio_quantiles`."""


@dataclass(frozen=True, slots=True)
class RoleNoise:
    """Distribution of observed / predicted duration of single steps of one role.

    `ratio_quantiles` at the levels of `QUANTILES`, non-decreasing, > 0. `steps` is the weight behind them.
    """

    ratio_quantiles: tuple[float, ...]
    steps: float


@dataclass(frozen=True, slots=True)
class StepNoise:
    """Noise of a frozen cost. All sigmas are standard deviations of log(observed / predicted).

    `window_sigma_ratio`: of the total step time of the next `horizon_s` against costs frozen now.
    `epoch_sigma_ratio`, `epoch_rho`: stationary standard deviation and lag-one autocorrelation of the mean ratio of
    64 consecutive steps around the level of their window: e[k+1] = rho e[k] + sqrt(1 - rho^2) sigma N(0, 1).
    `windows` is the number of disjoint windows behind `window_sigma_ratio`; 0 means it is the prior.
    """

    horizon_s: float
    window_sigma_ratio: float
    epoch_sigma_ratio: float
    epoch_rho: float
    windows: float
    prefill: RoleNoise
    decode: RoleNoise
    mixed: RoleNoise

    def role(self, role: Role) -> RoleNoise:
        """The distribution of single steps of one role."""
        if role is Role.PREFILL:
            return self.prefill
        return self.decode if role is Role.DECODE else self.mixed
