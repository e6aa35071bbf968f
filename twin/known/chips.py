"""Device time that prefill and decode took in a run, per token. Counts busy time only; idle devices are the caller's.

A step that does both is shared out: prefill bears what its own tokens add to the step, decode the rest, for the step
would have been made without the prefill. Law: prefill and decode add up to the busy time of all devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.cost.frozen import PS_PER_S, FrozenStepCost, StepCost
from twin.cost.shape import Role
from twin.engine.types import WORK_COLUMNS, EngineResult, Status
from twin.known.run import KnownEngine, KnownRun

PER_TOKENS = 1000
_COLUMN = {name: place for place, name in enumerate(WORK_COLUMNS)}


@dataclass(frozen=True, slots=True)
class ChipUse:
    """Of `chips` devices; None where there was no such token. Prompt tokens count cached ones too."""

    chips: int
    prefill_chip_s: float
    decode_chip_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def prefill_chip_s_per_1000_tokens(self) -> float | None:
        """Device seconds of prefill for 1,000 prompt tokens of finished requests."""
        return self.prefill_chip_s * PER_TOKENS / self.prompt_tokens if self.prompt_tokens else None

    @property
    def decode_chip_s_per_1000_tokens(self) -> float | None:
        """Device seconds of decode for 1,000 output tokens."""
        return self.decode_chip_s * PER_TOKENS / self.output_tokens if self.output_tokens else None


def chip_use(run: KnownRun, isl_tokens: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> ChipUse:
    """What a run took; `isl_tokens` are the prompts of its requests."""
    prefill_s = decode_s = 0.0
    for engine, result in zip(run.engines, run.results, strict=True):
        prefill, decode = _busy_s(engine, result)
        prefill_s += prefill * engine.devices
        decode_s += decode * engine.devices
    finished = run.status == Status.FINISHED
    return ChipUse(
        chips=chips_of(run.engines),
        prefill_chip_s=prefill_s,
        decode_chip_s=decode_s,
        prompt_tokens=int(np.asarray(isl_tokens)[finished].sum()),
        output_tokens=int(run.generated_tokens[finished].sum()),
    )


def chips_of(engines: Sequence[KnownEngine]) -> int:
    """Devices of all engines."""
    return sum(engine.devices for engine in engines)


def _busy_s(engine: KnownEngine, result: EngineResult) -> tuple[float, float]:
    """Seconds of prefill and of decode of one engine; one that does half of the work does nothing else."""
    busy = result.work[:, _COLUMN["busy_ps"]] / PS_PER_S
    if engine.config.role != "both":
        total = float(busy.sum())
        return (total, 0.0) if engine.config.role == "prefill" else (0.0, total)
    prefill, decode, mixed = (float(busy[place]) for place in range(len(Role)))
    own = min(_prefill_of_mixed_s(engine.cost, result), mixed)
    return prefill + own, decode + mixed - own


def _prefill_of_mixed_s(cost: StepCost, result: EngineResult) -> float:
    """What prefill tokens added to mixed steps; costs that are not affine do not tell, so all is the decode's."""
    if not isinstance(cost, FrozenStepCost):
        return 0.0
    row = result.work[list(Role).index(Role.MIXED)]
    role = cost.mixed
    total_ps = (
        role.prefill_request_ps * int(row[_COLUMN["prefill_requests"]])
        + role.prefill_token_ps * int(row[_COLUMN["prefill_tokens"]])
        + role.prefill_attention_pair_ps * int(row[_COLUMN["prefill_attention_pairs"]])
    )
    return total_ps / PS_PER_S
