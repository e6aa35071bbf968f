"""The input formats there are, and how a file's format is told. To add one: a file in `formats/`, a line here.

Law: formats exclude each other on well-formed files, so the order of the table does not matter.
"""

from pipelines.ingest.formats import (
    aibrix,
    aiperf,
    azure,
    burstgpt,
    burstgpt_replay,
    dynamo_fpm,
    engine_series,
    hashed_prompts,
    kernel_profile,
    llmperf,
    llmservingsim,
    metrics_pages,
    native,
    otlp_file,
    ragpulse,
    servegen,
    vllm_step_log,
)
from pipelines.ingest.rows import Format, Head

FORMATS: dict[str, Format] = {
    known.name: known
    for known in (
        native.FORMAT,
        otlp_file.FORMAT,
        metrics_pages.PAGES,
        metrics_pages.TEXT,
        vllm_step_log.FORMAT,
        dynamo_fpm.FORMAT,
        kernel_profile.FORMAT,
        azure.FORMAT,
        burstgpt.FORMAT,
        hashed_prompts.MOONCAKE,
        hashed_prompts.QWEN_BAILIAN,
        ragpulse.FORMAT,
        servegen.FORMAT,
        aibrix.FORMAT,
        aiperf.FORMAT,
        llmperf.FORMAT,
        llmservingsim.REQUESTS,
        llmservingsim.META,
        burstgpt_replay.FORMAT,
        engine_series.VLLM_LOG,
        engine_series.TIMESERIES,
        engine_series.ARRAYS,
    )
}
RECORDING = "recording"
"""A folder, in the project's own layout or as a recorded vLLM wrote it; read by `recording.read_recording`."""


def detect(head: Head) -> Format | None:
    """The format of a file by its beginning; None if no format knows it."""
    return next((known for known in FORMATS.values() if known.matches(head)), None)
