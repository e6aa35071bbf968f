"""Step logs of vLLM on an H100, with the shapes its scheduler must have made. Reads files; measures nothing.

The log has the time of each step but not its batch. The runs are simple enough to know it: all requests are sent at
once, prompts have 5 tokens, outputs a fixed length, so a first-come scheduler with `max_num_seqs` places follows from
them. The rate at which the frontend hands requests over is read off the first sample of the queue.
"""

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.bench.step_recordings import ROOT
from twin.cost.block import FloatArray, StepBlock

LOGS = ROOT / "data" / "vllm_step_logs" / "llama-3.1-8b-instruct"
PROMPT_TOKENS = 5
HANDOVER_PER_S = 2_000.0
"""Requests per second from frontend to engine. 1,000 to 3,000 give figures that differ by a tenth."""
_PROMPTS = re.compile(r"num_prompts=(\d+)")
_LINE = re.compile(rb"Timestamp: ([\d.]+)\. Scheduler time")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its name and the steps of the burst."""

    name: str
    block: StepBlock


def runs() -> list[Run]:
    """Runs at hand; none where the folder is absent."""
    return [_read(path.parent) for path in sorted(LOGS.glob("*/server_out.log.gz"))]


def _read(folder: Path) -> Run:
    max_num_seqs, _, lengths = folder.name.strip("_").partition("__")
    output_tokens = int(lengths.partition("_")[2])
    with gzip.open(folder / "server_out.log.gz") as lines:
        stamps = (_LINE.search(line) for line in lines)
        at_s = np.array([float(stamp[1]) for stamp in stamps if stamp])
    pause = int(np.flatnonzero(np.diff(at_s) > 1.0)[0])
    starts_s = at_s[pause + 1 :]
    duration_s = np.diff(starts_s)
    requests = max(int(found[1]) for log in folder.glob("log_*.out") if (found := _PROMPTS.search(log.read_text())))
    return Run(
        folder.name,
        StepBlock(
            at_us=np.rint(starts_s[1:] * 1e6).astype(np.int64),
            shapes=_shapes(starts_s[:-1], requests, int(max_num_seqs), output_tokens),
            duration_s=duration_s,
            gap_s=np.full(len(duration_s), np.nan),
        ),
    )


def _shapes(starts_s: FloatArray, requests: int, max_num_seqs: int, output_tokens: int) -> FloatArray:
    """Columns (n, 5): every place that falls free is taken by the next request that has come."""
    shapes = np.zeros((len(starts_s), 5))
    ages = np.zeros(0)
    admitted = 0
    for i, start_s in enumerate(starts_s):
        arrived = min(int((start_s - starts_s[0]) * HANDOVER_PER_S) + 1, requests)
        new = min(max_num_seqs - len(ages), arrived - admitted)
        admitted += new
        pairs = PROMPT_TOKENS * (PROMPT_TOKENS + 1) / 2
        context = float((PROMPT_TOKENS + ages).sum())
        shapes[i] = (new, new * PROMPT_TOKENS, new * pairs, len(ages), context)
        ages = np.concatenate([ages + 1, np.ones(new)])
        ages = ages[ages < output_tokens]
    return shapes
