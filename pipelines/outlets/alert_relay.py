"""Alerts from the log to an Alertmanager and to a file, as a member of a group of its own. Raises no alert itself.

Laws: offsets are committed when every sink has what stood before them, so that nothing is lost while a sink is away or
this program is; a sink that is away is asked again at growing intervals up to `LAST_RETRY_S`, and holds up no other
task; memory is bounded, for reading pauses when too much waits.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from pipelines.log import GroupBusyError, Log, LogRecord, LogUnavailableError, Member, TopicPartition
from pipelines.outlets.alert_book import AlertBook
from pipelines.outlets.alert_file import AlertFile
from pipelines.outlets.alertmanager import Alertmanager, SinkDownError
from schemas.alerts import Alert
from schemas.codec import SchemaError, decode
from schemas.topics import ALERTS

log = logging.getLogger("twincast.alerts")

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
MAX_WAITING = 10_000
POLL_S = 1.0


class AlertRelay:
    """See the module. Either sink may be None."""

    def __init__(self, log_: Log, group: str, *, webhook: Alertmanager | None, file: AlertFile | None) -> None:
        self._log = log_
        self._group = f"{group}-alerts"
        self._webhook = webhook
        self._file = file
        self._book = AlertBook()
        self._lines: list[Alert] = []
        self._committed: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}
        self._retry_s = FIRST_RETRY_S
        self._again_s = 0.0
        self.trouble = ""
        """Why alerts wait, empty while none does."""

    async def run(self) -> None:
        """Relay until cancelled."""
        member = self._log.member(self._group, [ALERTS.name], on_assigned=self._assigned, on_revoked=self._revoked)
        async with member:
            while True:
                if self._room:
                    for record in await member.get(max_records=self._room, timeout_s=POLL_S):
                        self._take(record)
                else:
                    await asyncio.sleep(POLL_S)
                if time.monotonic() >= self._again_s:
                    await self._tell()
                if not self.trouble:
                    await self._commit(member)

    @property
    def _room(self) -> int:
        return min(500, MAX_WAITING - max(len(self._book), len(self._lines)))

    async def _assigned(self, owned: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Begin at the beginning, to know what is open; what stands before the committed offset was told."""
        known = await self._log.committed(self._group, owned)
        self._committed = {place: offset or 0 for place, offset in known.items()}
        self._read = {}
        return await self._log.begin_offsets(owned)

    async def _revoked(self, lost: frozenset[TopicPartition]) -> None:
        """Whoever gets them begins at what was committed."""
        self._book, self._lines, self._read = AlertBook(), [], {}

    def _take(self, record: LogRecord) -> None:
        place = TopicPartition(record.topic, record.partition)
        self._read[place] = record.offset + 1
        told = record.offset < self._committed.get(place, 0)
        try:
            alert = decode(ALERTS.name, record.value or b"").record
        except SchemaError as error:
            log.warning("%s is no alert: %s", record, error)
            return
        self._book.take(alert, told=told)
        if not told and self._file is not None:
            self._lines.append(alert)

    async def _tell(self) -> None:
        """Tell the sinks what they do not know; what one of them does not take is told again later."""
        now_us = time.time_ns() // 1000
        troubles = []
        if self._file is not None and self._lines:
            try:
                await asyncio.to_thread(self._file.tell, self._lines)
                self._lines = []
            except SinkDownError as error:
                troubles.append(str(error))
        due = self._book.due(now_us)
        if due and self._webhook is not None:
            try:
                await self._webhook.tell(due, now_us)
                self._book.told(due, now_us)
            except SinkDownError as error:
                troubles.append(str(error))
        elif due:
            self._book.told(due, now_us)
        self._settle("; ".join(troubles))

    def _settle(self, trouble: str) -> None:
        if trouble:
            waiting = max(self._book.untold, len(self._lines))
            log.warning("%d alerts wait, again in %.1f s: %s", waiting, self._retry_s, trouble)
            self._again_s = time.monotonic() + self._retry_s
            self._retry_s = min(2.0 * self._retry_s, LAST_RETRY_S)
        else:
            if self.trouble:
                log.info("alerts are told again")
            self._retry_s, self._again_s = FIRST_RETRY_S, 0.0
        self.trouble = trouble

    async def _commit(self, member: Member) -> None:
        ahead = {place: offset for place, offset in self._read.items() if offset > self._committed.get(place, 0)}
        if not ahead:
            return
        try:
            await member.commit(ahead)
        except GroupBusyError:
            return  # it is somebody else's by now, who tells it again
        except LogUnavailableError as error:
            log.warning("offsets of alerts are not stored: %s", error)
            return
        self._committed |= ahead
