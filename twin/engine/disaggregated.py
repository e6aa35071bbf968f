"""Prefill and decode on different engines, in SimPy: a request is prefilled, its KV moves, it is decoded elsewhere.

As vLLM's connectors do it: the prefill engine computes the prompt and one token, which is thrown away; the decode
engine gets the prompt's KV, computes the last prompt token again, and its token is the first that the client sees.
Blocks at the decode engine are taken when the KV has arrived, not while it travels; it arrives a picosecond later than
the link says.
Law: a request's decode never begins before its prefill has ended and its KV has arrived.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from twin.engine.bell import Arrival
from twin.engine.cluster_simpy import Fleet, Pool, Process, arrivals, job_router
from twin.engine.cluster_types import ClusterJob, ClusterResult
from twin.engine.prepare import Prepared, Table
from twin.engine.types import Int64Array, Outcomes, Status


def run_disaggregated(job: ClusterJob, prepared: Sequence[Prepared], fallback: str, *, plainly: bool) -> ClusterResult:
    """Simulate a cluster of prefill and decode engines."""
    n = job.workload.requests
    first = prepared[0].first_new
    both = _doubled(prepared[0].table, n)
    fleet = Fleet(job, [replace(one, table=both) for one in prepared], plainly=plainly)
    pools = {
        role: Pool(fleet, [i for i, one in enumerate(job.engines) if one.config.role == role], job_router(job))
        for role in ("prefill", "decode")
    }
    if job.link is None:
        raise ValueError("cluster.link must be given with prefill and decode engines")
    overlapped, transfer = job.link.overlapped, job.link.transfers_ps(job.workload.isl_tokens, job.seed)

    def send(row: int, now: int) -> int:
        return pools["prefill" if row < first + n else "decode"].send(row, now)

    def move(row: int) -> Process:
        left = int(transfer[row - first])
        if overlapped:
            left = max(fleet.ledger.scheduled[row] + left - int(fleet.env.now), 0)
        # Never at the instant at which the prefill ended: who else steps at that instant would or would not have seen
        # it, whichever came first.
        yield Arrival(fleet.env, left + 1)
        send(row + n, int(fleet.env.now))

    def hand_over(row: int) -> None:
        # Rows of prefills go on as rows of decodes, which end for good.
        if first <= row < first + n:
            fleet.env.process(move(row))

    def again(row: int, now: int) -> int:
        # The KV is lost with the engine, so a decode begins anew with its prefill.
        return send(row if row < first + n else row - n, now)

    for engine in fleet.engines:
        engine.on_finish = hand_over
    fleet.env.process(arrivals(fleet, send, first, prepared[0].offered))
    fleet.start(again)
    fleet.env.run()
    return _joined(fleet, first, n, fallback)


def _doubled(table: Table, n: int) -> Table:
    """The table with a second row for each new request, for its decode."""
    new = slice(table.carried, table.carried + n)

    def twice(column: Int64Array) -> Int64Array:
        return np.concatenate((column, column[new]))

    keys = np.diff(table.key_offsets)
    starts = table.key_offsets[:-1]
    own = [table.keys[a : a + c] for a, c in zip(starts[new], keys[new], strict=True)]
    osl = twice(table.osl_tokens)
    osl[new] = 1
    return replace(
        table,
        arrival_ps=twice(table.arrival_ps),
        deadline_ps=twice(table.deadline_ps),
        isl_tokens=twice(table.isl_tokens),
        osl_tokens=osl,
        computed_tokens=twice(table.computed_tokens),
        generated_tokens=twice(table.generated_tokens),
        scheduled_ps=twice(table.scheduled_ps),
        first_token_ps=twice(table.first_token_ps),
        preemptions=twice(table.preemptions),
        cached_tokens=twice(table.cached_tokens),
        rank=np.concatenate((table.rank, table.rank[new] + table.rows)),
        key_offsets=np.concatenate(([0], np.cumsum(np.concatenate((keys, keys[new]))))),
        keys=np.concatenate((table.keys, *own)) if own else table.keys,
        arrived_tokens=np.concatenate((np.zeros(table.rows, np.int64), table.isl_tokens[new] - 1)),
    )


def _joined(fleet: Fleet, first: int, n: int, fallback: str) -> ClusterResult:
    """One outcome per request, from its two rows."""
    result = fleet.result(fallback)
    names = [field.name for field in fields(Outcomes)]
    prefill = {name: getattr(result.requests, name)[:n] for name in names}
    decode = {name: getattr(result.requests, name)[n:] for name in names}
    merged = decode | {name: prefill[name] for name in ("queued_ps", "scheduled_ps", "cached_tokens")}
    merged["preemptions"] = prefill["preemptions"] + decode["preemptions"]
    merged["status"] = np.where(prefill["status"] == Status.FINISHED, decode["status"], prefill["status"])
    return replace(
        result,
        requests=Outcomes(**merged),
        engine_index=result.engine_index[n:],
        prefill_engine_index=result.engine_index[:n],
    )
