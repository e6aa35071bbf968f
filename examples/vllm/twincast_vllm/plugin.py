"""The entry point that vLLM calls in each of its processes; hooks the scheduler of the engine's process.

Settings come from the environment, so that `vllm serve` needs no flag:

    TWINCAST_TAP         kafka://host:port or file:///path; without it the tap stays out
    TWINCAST_DEPLOYMENT  name of the deployment (default: the served model's name)
    TWINCAST_ENGINE      name of this engine (default: 0, or the data-parallel rank)
    TWINCAST_TAP_REPORT  log what the tap costs every so many steps

Law: whatever goes wrong in the tap, the engine's own calls return what they would have returned; after
`MAX_ERRORS` errors the tap takes itself out.
"""

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from twincast_vllm.observer import EngineObserver
from twincast_vllm.publisher import FileSink, KafkaSink, Publisher, Sink

log = logging.getLogger("twincast_vllm")

MAX_ERRORS = 20
_MARK = "_twincast_tap"


class Tap:
    """One per scheduler: made at its first step or request."""

    def __init__(self, scheduler: Any) -> None:
        config = scheduler.vllm_config
        served = config.model_config.served_model_name
        named = served[0] if isinstance(served, list | tuple) and served else served
        rank = getattr(config.parallel_config, "data_parallel_rank", 0) or 0
        deployment = os.environ.get("TWINCAST_DEPLOYMENT") or str(named or config.model_config.model)
        engine = os.environ.get("TWINCAST_ENGINE") or str(rank)
        self.observer = EngineObserver(deployment, engine, self._emit, epoch=int(time.time()))
        self.publisher = Publisher(_sink(os.environ["TWINCAST_TAP"], deployment), self.observer.envelope)
        self.publisher.start()
        self.spent_s = 0.0
        self.steps = 0
        self._report_steps = int(os.environ.get("TWINCAST_TAP_REPORT", "0"))
        log.warning("twincast tap: deployment %s engine %s -> %s", deployment, engine, os.environ["TWINCAST_TAP"])

    def count_step(self) -> None:
        """One more step; says now and then what the tap cost on average."""
        self.steps += 1
        if self._report_steps and self.steps % self._report_steps == 0:
            own, other = self.spent_s / self.steps * 1e6, self.publisher.cpu_s / self.steps * 1e6
            log.warning(
                "twincast tap: %d steps, %.1f us each on the engine's thread, %.1f us beside it", self.steps, own, other
            )
            log.warning(
                "twincast tap: %d records dropped, %d failures", self.publisher.dropped, self.publisher.failures
            )

    def _emit(self, topic: str, key: str, record: dict[str, Any]) -> None:
        self.publisher.put(topic, key, record)


def register() -> None:
    """Hook vLLM's scheduler class; does nothing without `TWINCAST_TAP`, or if it is hooked already."""
    if not os.environ.get("TWINCAST_TAP"):
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    hook(Scheduler)


def hook(scheduler_class: type[Any]) -> None:
    """Wrap the calls of a scheduler class. A second time changes nothing."""
    if getattr(scheduler_class, _MARK, False):
        return
    setattr(scheduler_class, _MARK, True)
    errors = 0

    def guarded(scheduler: Any, act: Callable[[Tap], None]) -> None:
        nonlocal errors
        if errors >= MAX_ERRORS:
            return
        started = time.perf_counter()
        try:
            tap = scheduler.__dict__.get("_twincast")
            if tap is None:
                tap = scheduler._twincast = Tap(scheduler)
            act(tap)
            tap.spent_s += time.perf_counter() - started
        except Exception:
            errors += 1
            log.exception("the tap failed (%d of %d times before it takes itself out)", errors, MAX_ERRORS)

    schedule, update = scheduler_class.schedule, scheduler_class.update_from_output
    add, free = scheduler_class.add_request, scheduler_class._free_request

    @functools.wraps(schedule)
    def tapped_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        output = schedule(self, *args, **kwargs)
        guarded(self, lambda tap: tap.observer.on_scheduled(self, output, started))
        return output

    @functools.wraps(update)
    def tapped_update(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        guarded(self, lambda tap: tap.observer.on_updating())
        outputs = update(self, scheduler_output, *args, **kwargs)
        guarded(self, lambda tap: tap.observer.on_updated(scheduler_output, started))
        guarded(self, Tap.count_step)
        return outputs

    @functools.wraps(add)
    def tapped_add(self: Any, request: Any) -> Any:
        known = request.request_id in self.requests
        result = add(self, request)
        if not known:
            guarded(self, lambda tap: tap.observer.on_added(request))
        return result

    @functools.wraps(free)
    def tapped_free(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = free(self, request, *args, **kwargs)
        guarded(self, lambda tap: tap.observer.on_freed(request))
        return result

    scheduler_class.schedule = tapped_schedule
    scheduler_class.update_from_output = tapped_update
    scheduler_class.add_request = tapped_add
    scheduler_class._free_request = tapped_free


def _sink(target: str, deployment: str) -> Sink:
    if target.startswith("kafka://"):
        return KafkaSink(target.removeprefix("kafka://"), deployment)
    if target.startswith("file://"):
        return FileSink(target.removeprefix("file://"))
    raise ValueError(f"TWINCAST_TAP must be kafka://host:port or file:///path, got {target!r}")
