"""The state of an engine at a past moment, from requests that have all ended since. For closed windows only.

Never for forecasts: it knows how long requests turned out. Law: every request on the way at that moment is in the
state once, with the output length it came to have; the state fits the engine's limits.
"""

import numpy as np

from schemas.engines import EngineConfig
from twin.ends.finished_log import ARRIVED, COMPUTED, FIRST, ISL, LAST, OSL, SCHEDULED, UNKNOWN, IntArray
from twin.engine.types import CarriedRequest, EngineState

PS_PER_US = 1_000_000


def state_then(table: IntArray, at_us: int, config: EngineConfig) -> EngineState:
    """Who ran and who waited at `at_us`; `table` as of `FinishedLog`. Tokens are taken to have come evenly."""
    rows = table[(table[:, ARRIVED] <= at_us) & (table[:, LAST] > at_us)]
    rows = rows[np.lexsort((rows[:, ARRIVED], rows[:, FIRST]))]
    free = config.kv_blocks - config.reserved_blocks
    running: list[CarriedRequest] = []
    waiting: list[CarriedRequest] = []
    for row in rows.tolist():
        request = _carried(row, at_us)
        blocks = -(-request.computed_tokens // config.block_size_tokens)
        if request.computed_tokens and blocks <= free and len(running) < config.max_num_seqs:
            free -= blocks
            running.append(request)
        else:
            waiting.append(_waiting(row, at_us))
    waiting.sort(key=lambda request: request.arrival_ps)
    return EngineState(running=tuple(running), waiting=tuple(waiting))


def _carried(row: list[int], at_us: int) -> CarriedRequest:
    generated = computed = 0
    if row[FIRST] <= at_us:
        share = (at_us - row[FIRST]) / max(row[LAST] - row[FIRST], 1)
        generated = min(1 + int(share * (row[OSL] - 1)), row[OSL] - 1)
        computed = row[ISL] + generated - 1
    elif UNKNOWN != row[SCHEDULED] <= at_us:
        share = (at_us - row[SCHEDULED]) / max(row[FIRST] - row[SCHEDULED], 1)
        computed = min(row[ISL] - row[COMPUTED] + int(share * row[COMPUTED]), row[ISL] - 1)
    return CarriedRequest(
        isl_tokens=row[ISL],
        osl_tokens=row[OSL],
        arrival_ps=(row[ARRIVED] - at_us) * PS_PER_US,
        computed_tokens=computed,
        generated_tokens=generated,
        scheduled_ps=None if not computed else (max(row[SCHEDULED], row[ARRIVED]) - at_us) * PS_PER_US,
        first_token_ps=None if not generated else (row[FIRST] - at_us) * PS_PER_US,
    )


def _waiting(row: list[int], at_us: int) -> CarriedRequest:
    return CarriedRequest(isl_tokens=row[ISL], osl_tokens=row[OSL], arrival_ps=(row[ARRIVED] - at_us) * PS_PER_US)
