"""Sample data that comes with the project, and where it is. Reads nothing but its place."""

from pathlib import Path

import pipelines
from pipelines.errors import ConfigError

EXAMPLES = Path(pipelines.__file__).resolve().parent.parent / "examples"
RAMP = EXAMPLES / "recordings" / "ramp"
"""A real vLLM's ramp from 30 % over 130 % of its capacity and back, six minutes."""
STEADY = EXAMPLES / "recordings" / "steady"
"""The same service at half of its capacity, six minutes."""
WARM = EXAMPLES / "warm.json.gz"
"""What a run over the steady recording has learned."""


def sample(path: Path) -> Path:
    """The path itself. Raises ConfigError where the sample is not there, as in an installed package."""
    if not path.exists():
        raise ConfigError(f"no sample data at {path}; run this in a clone of the project, or name a recording")
    return path
