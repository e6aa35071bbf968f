"""The sample data that comes with the project is there, small, and of this program's formats."""

from pipelines.ingest.recording import read_recording
from pipelines.samples import EXAMPLES, RAMP, STEADY, WARM, sample
from pipelines.warmth import read_warm

MAX_BYTES = 3_000_000


def test_both_recordings_are_read_and_are_of_one_service() -> None:
    ramp, steady = read_recording(sample(RAMP)), read_recording(sample(STEADY))
    assert ramp.deployment == steady.deployment
    assert ramp.counts["finished"] > 3_000
    assert steady.counts["step"] > 30_000


def test_what_was_learned_can_be_begun_with() -> None:
    """If not: make warm-snapshot."""
    assert read_warm(sample(WARM)).deployment == read_recording(sample(STEADY)).deployment


def test_they_stay_small() -> None:
    files = [file for part in (RAMP, STEADY) for file in part.iterdir()] + [WARM]
    assert sum(file.stat().st_size for file in files) < MAX_BYTES
    assert all(file.is_relative_to(EXAMPLES) for file in files)
