"""Sums of learning rows per stratum of like shapes, and the fit of all of them. Knows neither level nor noise.

A stratum loses weight with the half-life only down to `FLOOR_ROWS`, so steady traffic cannot push the rest of the
operating range out. Roles are fitted together first, then each is drawn towards that joint fit, so a role seldom seen
starts from what the others teach.
Law: weights only shrink by decay and grow by rows.
"""

from typing import Final, NamedTuple

import numba
import numpy as np

from twin.cost.block import FloatArray, IntArray
from twin.cost.fit import (
    PACKED,
    STRATA,
    TOKEN_BINS,
    WIDTH,
    add_scaled,
    continue_segments,
    solve,
    unpack,
)

ALL: Final = 3
"""Place of the sum over roles, after the three roles."""
FLOOR_ROWS: Final = 20.0
PRIOR_ROWS: Final = 0.03
POOL_ROWS: Final = 20.0
CONTINUATION_ROWS: Final = 1.0


class Strata(NamedTuple):
    """Sums of rows: `gram` (STRATA, PACKED) and `moment` (STRATA, WIDTH), `weight` (STRATA,) in rows, and `touched_us`
    (STRATA,), the event time of the last row."""

    gram: FloatArray
    moment: FloatArray
    weight: FloatArray
    touched_us: IntArray


class Prior(NamedTuple):
    """What is believed before data: coefficients per role (3, WIDTH), squares of their grids (3, WIDTH, WIDTH)."""

    roles: FloatArray
    squares: FloatArray


def empty() -> Strata:
    """No rows."""
    return Strata(
        gram=np.zeros((STRATA, PACKED)),
        moment=np.zeros((STRATA, WIDTH)),
        weight=np.zeros(STRATA),
        touched_us=np.zeros(STRATA, dtype=np.int64),
    )


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def keep_of(strata: Strata, stratum: int, now_us: int, half_life_s: float) -> float:
    """Share of a stratum's weight that is left now: by half-life, but never below FLOOR_ROWS."""
    keep = 0.5 ** (max(now_us - strata.touched_us[stratum], 0) * 1e-6 / half_life_s)
    return float(max(keep, min(1.0, FLOOR_ROWS / strata.weight[stratum])))


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def add_to(
    strata: Strata, stratum: int, half_life_s: float, at_us: int, features: FloatArray, weight: float, target: float
) -> None:
    """Let a stratum forget up to now, then add one row of features (WIDTH,).

    Places in the tables are written out: a view of a row per step costs more than the sums.
    """
    gram, moment = strata.gram, strata.moment
    if strata.weight[stratum] > 0.0:
        keep = keep_of(strata, stratum, at_us, half_life_s)
        for i in range(gram.shape[1]):
            gram[stratum, i] *= keep
        for i in range(moment.shape[1]):
            moment[stratum, i] *= keep
        strata.weight[stratum] *= keep
    index = 0
    for i in range(WIDTH):
        scaled = weight * features[i]
        if scaled != 0.0:
            for j in range(i, len(features)):
                gram[stratum, index + j - i] += scaled * features[j]
            moment[stratum, i] += scaled * target
        index += WIDTH - i
    strata.weight[stratum] += 1.0
    strata.touched_us[stratum] = at_us


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def refit(strata: Strata, prior: Prior, half_life_s: float, now_us: int, joint: FloatArray, roles: FloatArray) -> None:
    """Solve anew, in place: `joint` (WIDTH,) of all roles, then `roles` (3, WIDTH), each drawn towards it."""
    squares = np.zeros((4, WIDTH, WIDTH))
    moments = np.zeros((4, WIDTH))
    rows = _gather(strata, half_life_s, now_us, squares, moments)
    efficiency = _efficiency(prior.roles, squares, moments)
    square = np.zeros((WIDTH, WIDTH))
    moment = np.zeros(WIDTH)
    add_scaled(square, squares[ALL], 1.0)
    add_scaled(moment, moments[ALL], 1.0)
    for role in range(3):
        _add_prior(square, moment, prior, role, efficiency, PRIOR_ROWS)
    continue_segments(square, joint, CONTINUATION_ROWS)
    solve(square, moment, joint)
    pool = POOL_ROWS / rows
    for role in range(3):
        for i in range(WIDTH):
            moment[i] = moments[role, i]
            for j in range(WIDTH):
                square[i, j] = squares[role, i, j] + pool * squares[ALL, i, j]
                moment[i] += pool * squares[ALL, i, j] * joint[j]
        _add_prior(square, moment, prior, role, efficiency, PRIOR_ROWS)
        continue_segments(square, roles[role], CONTINUATION_ROWS)
        solve(square, moment, roles[role])
        roles[role, 0] = max(roles[role, 0], 1e-3 * joint[0], 1e-9)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _gather(strata: Strata, half_life_s: float, now_us: int, squares: FloatArray, moments: FloatArray) -> float:
    """Sum the strata as they weigh now, per role and (at ALL) of all; returns the rows behind them."""
    rows = 0.0
    for stratum in range(STRATA):
        if strata.weight[stratum] <= 0.0:
            continue
        role = 1 if stratum % TOKEN_BINS == 0 else (0 if stratum < TOKEN_BINS else 2)
        keep = keep_of(strata, stratum, now_us, half_life_s)
        unpack(strata.gram[stratum], keep, squares[role])
        add_scaled(moments[role], strata.moment[stratum], keep)
        rows += keep * strata.weight[stratum]
    for role in range(3):
        add_scaled(squares[ALL], squares[role], 1.0)
        add_scaled(moments[ALL], moments[role], 1.0)
    return rows


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _efficiency(prior_roles: FloatArray, squares: FloatArray, moments: FloatArray) -> float:
    """Factor on the prior that fits the rows best; 1 without rows."""
    above = 0.0
    below = 0.0
    for role in range(3):
        for i in range(WIDTH):
            above += prior_roles[role, i] * moments[role, i]
            for j in range(WIDTH):
                below += prior_roles[role, i] * squares[role, i, j] * prior_roles[role, j]
    return float(above / below) if above > 0.0 and below > 0.0 else 1.0


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _add_prior(square: FloatArray, moment: FloatArray, prior: Prior, role: int, efficiency: float, rows: float) -> None:
    """Add the prior's grid as `rows` rows at its learned efficiency."""
    for i in range(WIDTH):
        total = 0.0
        for j in range(WIDTH):
            square[i, j] += rows * prior.squares[role, i, j] / (efficiency * efficiency)
            total += prior.squares[role, i, j] * prior.roles[role, j]
        moment[i] += rows * total / efficiency
