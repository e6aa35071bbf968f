"""The page of a real Apache Kafka that is stopped and started again: told as stale meanwhile, up to date afterwards."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest
from browser import browsing, find_chromium
from made_page import PARTITIONS, Told, fill, story

from pipelines.broker import JvmKafka, broker_settings, choose_broker
from pipelines.places import Place, open_log
from pipelines.settings import read_settings
from schemas.topics import FORECASTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here; install it, or name it by TWINCAST_CHROMIUM"),
]

UNTIL_S = 125.0


@pytest.fixture(scope="module")
def broker() -> Iterator[JvmKafka]:
    settings = broker_settings({name: text for name, text in os.environ.items() if name != "TWINCAST_BOOTSTRAP"})
    choice = choose_broker(settings)
    if choice.kind != "jvm":
        pytest.skip("no Apache Kafka on the JVM here: " + "; ".join(over.reason for over in choice.passed_over))
    with JvmKafka(choice.classpath, java=choice.java) as running:
        yield running


@contextmanager
def page(environ: dict[str, str]) -> Iterator[str]:
    """`twincast web` as a process; gives its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "web", "0"], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        lines: Queue[str] = Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in process.stdout or ()], daemon=True).start()
        try:
            found = re.search(r"http://\S+", lines.get(timeout=60.0))
            if found is None:
                raise AssertionError("the page told no address")
            yield found[0]
        finally:
            process.terminate()
            assert process.wait(20.0) == 0


def write(environ: dict[str, str], place: Place, told: list[Told]) -> None:
    async def act() -> None:
        async with open_log(read_settings(environ), place) as log:
            await fill(log, told)

    asyncio.run(act())


def told_of(count: int) -> str:
    """Whether the page has seen so many forecasts."""
    return f"document.querySelector('.title p').innerText.includes(' {count} forecasts')"


def test_a_restart_of_the_broker_is_told_and_survived(broker: JvmKafka, tmp_path: Path) -> None:
    place = Place(kind="kafka", where=broker.bootstrap, namespace=f"t{uuid.uuid4().hex[:8]}")
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TWINCAST_")} | {
        "TWINCAST_BOOTSTRAP": place.where,
        "TWINCAST_NAMESPACE": place.namespace,
        "TWINCAST_CACHE_DIR": str(tmp_path),
        "TWINCAST_PARTITIONS": str(PARTITIONS),
    }
    told = list(story(UNTIL_S))
    forecasts = [each for each in told if each.message.topic == FORECASTS.name]
    write(environ, place, told)

    async def look(url: str) -> list[str]:
        async with browsing() as tab:
            await tab.open(f"{url}#/d/tiny")
            await tab.until("document.querySelectorAll('.chart canvas').length >= 6", 30.0)
            await tab.until(told_of(len(forecasts)))
            await asyncio.to_thread(broker.kill)
            await tab.until("document.getElementById('banner').innerText.includes('does not answer')", 30.0)
            assert await tab.run("document.querySelector('.grid').classList.contains('stale')")
            await asyncio.to_thread(broker.start)
            await asyncio.to_thread(write, environ, place, forecasts[-1:])
            await tab.until(told_of(len(forecasts) + 1), 60.0)
            await tab.until("document.getElementById('banner').hidden", 10.0)
            assert await tab.run("document.getElementById('link').dataset.state") == "live"
            return tab.problems

    with page(environ) as url:
        assert asyncio.run(look(url)) == []
