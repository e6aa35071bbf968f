"""Learner state to plain data and back: lists of numbers for JSON or msgpack, never pickle. Interprets no value.

Law: load(dump(state)) equals the state bit by bit, and what is damaged is refused before anything is taken over.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from twin.cost.learner import State
from twin.cost.residuals import Residuals
from twin.cost.strata import Strata

VERSION: Final = 1
SETTINGS: Final = ("level_half_life_s", "shape_half_life_s", "jump_ratio")
PLAIN: Final = ("joint", "roles", "numbers", "whole", "refused")


def dump(state: State) -> dict[str, Any]:
    """Plain data of a state; strata without rows are left out."""
    met = np.flatnonzero(state.strata.weight)
    return {
        **{name: getattr(state, name).tolist() for name in PLAIN},
        "met": met.tolist(),
        "strata": {name: getattr(state.strata, name)[met].tolist() for name in Strata._fields},
        "noise": {name: getattr(state.noise, name).tolist() for name in Residuals._fields},
    }


def load(data: Any, empty: State) -> State:
    """A state of the form of `empty`, filled from plain data. Raises ValueError naming the part that is damaged."""
    data = _mapping("state", data)
    parts = {name: _like(name, data.get(name), getattr(empty, name)) for name in PLAIN}
    met = _array("met", data.get("met"), np.dtype(np.int64), None)
    if len(met) and not (met.min() >= 0 and met.max() < len(empty.strata.weight) and (np.diff(met) > 0).all()):
        raise ValueError(f"step cost snapshot: met must rise within 0 .. {len(empty.strata.weight) - 1}")
    sums = _mapping("strata", data.get("strata"))
    columns = {}
    for name, like in zip(Strata._fields, empty.strata, strict=True):
        columns[name] = np.zeros_like(like)
        columns[name][met] = _array(f"strata.{name}", sums.get(name), like.dtype, (len(met), *like.shape[1:]))
    noise = _mapping("noise", data.get("noise"))
    accounts = {
        name: _like(f"noise.{name}", noise.get(name), like)
        for name, like in zip(Residuals._fields, empty.noise, strict=True)
    }
    return State(strata=Strata(**columns), noise=Residuals(**accounts), **parts)


def check_version(data: Mapping[str, Any]) -> None:
    """Raise ValueError unless the snapshot is of this version."""
    if data.get("version") != VERSION:
        raise ValueError(f"step cost snapshot: version {data.get('version')!r} cannot be read here, expected {VERSION}")


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"step cost snapshot: {name} must be a mapping, got {type(value).__name__}")
    return value


def _like(name: str, value: Any, like: NDArray[Any]) -> NDArray[Any]:
    return _array(name, value, like.dtype, like.shape)


def _array(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    try:
        array = np.array(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"step cost snapshot: {name} must hold numbers") from error
    if array.size == 0 and shape is not None and 0 in shape and value == []:
        array = array.reshape(shape)
    if array.ndim == 0 or (shape is not None and array.shape != shape):
        raise ValueError(f"step cost snapshot: {name} must have the shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"step cost snapshot: {name} must hold finite numbers")
    return array
