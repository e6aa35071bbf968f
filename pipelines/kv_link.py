"""How KV travels from prefill to decode engines: as the command line says, or as the hardware allows.

Law: a link ends as valid numbers or as one `ConfigError` that names the part.
"""

import math
from collections.abc import Callable

from pipelines.errors import ConfigError
from pipelines.simulation_costs import Costs
from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S
from twin.engine.cluster_types import KvLink

PS_PER_US = 1_000_000
MOST_US = 1e9
_PARTS = ("microseconds per token", "fixed microseconds", "coefficient of variation")


def parse_link(text: str, *, overlapped: bool) -> KvLink:
    """`US_PER_TOKEN[:FIXED_US[:CV]]`. Raises ConfigError.

    >>> parse_link("0.5:200:0.1", overlapped=False).token_ps
    500000
    """
    words = text.split(":")
    if not 1 <= len(words) <= len(_PARTS):
        raise ConfigError(
            f"--kv-link must be US_PER_TOKEN[:FIXED_US[:CV]] such as 0.5:200:0.1, got {text!r}; correct it"
        )
    values = [0.0] * len(_PARTS)
    for place, (word, name) in enumerate(zip(words, _PARTS, strict=False)):
        try:
            values[place] = float(word)
        except ValueError:
            values[place] = math.nan
        if not 0.0 <= values[place] <= MOST_US:
            raise ConfigError(f"--kv-link {text}: {name} must be a finite number >= 0, got {word!r}; correct it")
    try:
        return KvLink(round(values[0] * PS_PER_US), round(values[1] * PS_PER_US), values[2], overlapped)
    except ValueError as error:
        raise ConfigError(f"--kv-link {text}: {error}; correct it") from error


def link_of(costs: Costs, given: KvLink | None, *, overlapped: bool) -> Callable[[EngineConfig], KvLink] | None:
    """The given link, else what the hardware's nearest link between engines does; None where neither is known."""
    if given is not None:
        return lambda _: given
    prior = costs.prior
    if prior is None:
        return None

    def found(config: EngineConfig) -> KvLink:
        graph = prior.graph_of(config)
        try:
            link = prior.hardware.link_for(2 * graph.devices)
        except ValueError as error:
            raise ConfigError(f"prefill and decode on {prior.hardware.name}: {error}; or give --kv-link") from error
        token_s = graph.kv_bytes_per_token / link.bandwidth_bytes_per_s
        return KvLink(round(token_s * PS_PER_S), round(link.latency_s * PS_PER_S), overlapped=overlapped)

    return found
