"""Learner state to plain data and back: lists of numbers for JSON or msgpack, never pickle. Interprets no value.

Law: load(dump(state)) equals the state bit by bit, and what is damaged is refused before anything is taken over.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from twin.cost.learner import State
from twin.cost.residuals import Residuals

VERSION: Final = 1
SETTINGS: Final = ("level_half_life_s", "shape_half_life_s", "jump_ratio")
SPARSE: Final = ("gram", "moment", "weight", "touched_us")
"""Arrays by stratum: only the strata met are written."""


def dump(state: State) -> dict[str, Any]:
    """Plain data of a state; strata without rows are left out."""
    met = np.flatnonzero(state.weight)
    data: dict[str, Any] = {"strata": [int(stratum) for stratum in met]}
    for name in State._fields:
        if name != "noise":
            array = getattr(state, name)
            data[name] = (array[met] if name in SPARSE else array).tolist()
    data["noise"] = {name: getattr(state.noise, name).tolist() for name in Residuals._fields}
    return data


def load(data: Any, empty: State) -> State:
    """A state of the form of `empty`, filled from plain data. Raises ValueError naming the part that is damaged."""
    if not isinstance(data, Mapping):
        raise ValueError(f"step cost snapshot: state must be a mapping, got {type(data).__name__}")
    strata = _array("strata", data.get("strata"), np.dtype(np.int64), None)
    if len(strata) and not (strata.min() >= 0 and strata.max() < len(empty.weight) and (np.diff(strata) > 0).all()):
        raise ValueError(f"step cost snapshot: strata must rise within 0 .. {len(empty.weight) - 1}")
    parts: dict[str, Any] = {}
    for name in State._fields:
        if name == "noise":
            continue
        like = getattr(empty, name)
        if name in SPARSE:
            parts[name] = np.zeros_like(like)
            parts[name][strata] = _array(name, data.get(name), like.dtype, (len(strata), *like.shape[1:]))
        else:
            parts[name] = _array(name, data.get(name), like.dtype, like.shape)
    noise = data.get("noise")
    if not isinstance(noise, Mapping):
        raise ValueError(f"step cost snapshot: noise must be a mapping, got {type(noise).__name__}")
    accounts = {
        name: _array(f"noise.{name}", noise.get(name), like.dtype, like.shape)
        for name, like in zip(Residuals._fields, empty.noise, strict=True)
    }
    return State(**parts, noise=Residuals(**accounts))


def check_version(data: Mapping[str, Any]) -> None:
    """Raise ValueError unless the snapshot is of this version."""
    if data.get("version") != VERSION:
        raise ValueError(f"step cost snapshot: version {data.get('version')!r} cannot be read here, expected {VERSION}")


def _array(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    try:
        array = np.array(value if value else np.zeros(shape or 0), dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"step cost snapshot: {name} must hold numbers") from error
    if shape is not None and array.shape != shape:
        raise ValueError(f"step cost snapshot: {name} must have the shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"step cost snapshot: {name} must hold finite numbers")
    return array
