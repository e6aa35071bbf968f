"""The ingest stage: raw OTLP messages of any key in, records keyed by deployment out. Talks to no log.

One object per process. Spans are held while their trace may still be joined, so a driver numbers its messages and
commits the offset of one only when `oldest_mark` lies above it, or spans held would be missing after a kill; records of
stock vLLM need no join and are never held.

Laws: no bytes whatever make `handle` raise; every unit of a message is used, held, ignored or refused: with its index,
or, when it came with an earlier message, as the span itself.
"""

import contextlib
from dataclasses import dataclass

from pipelines.errors import ConfigError
from pipelines.ingest.join import SpanJoiner
from pipelines.ingest.otlp import Span, flatten, protobuf_reader
from pipelines.ingest.otlp_metrics import engine_stats_of
from pipelines.ingest.recording import Event, event_of
from pipelines.ingest.span_mapping import SpanMapping
from pipelines.ingest.spans import WANTED
from schemas.codec import SchemaError
from schemas.topics import OTLP_METRICS, OTLP_SPANS


@dataclass(frozen=True, slots=True)
class Ingested:
    """What a message became: events to write, and refusals by index; index None refuses the message whole.

    `refused_spans` came with earlier messages.
    """

    events: tuple[Event, ...] = ()
    refused: tuple[tuple[int | None, SchemaError], ...] = ()
    units: int = 1
    refused_spans: tuple[tuple[Span, SchemaError], ...] = ()


class RawStage:
    """Turns messages of the raw topics into events. `mapping` says which deployment and engine a span belongs to."""

    def __init__(self, mapping: SpanMapping | None = None) -> None:
        self._mapping = mapping or SpanMapping()
        self._wanted = WANTED | self._mapping.keys
        self._joiner = SpanJoiner(self._mapping)
        with contextlib.suppress(ConfigError):  # loading it takes longer than a record may
            protobuf_reader()

    @property
    def held_spans(self) -> int:
        """Spans that wait for the rest of their trace."""
        return self._joiner.held_spans

    @property
    def counts(self) -> dict[str, int]:
        """What became of spans so far: used, orphan, ignored, refused."""
        return dict(self._joiner.counts)

    @property
    def oldest_mark(self) -> int | None:
        """The smallest mark of messages of which a span may be held; None when no span is held."""
        return self._joiner.oldest_mark

    def handle(self, topic: str, value: bytes | None, mark: int = 0) -> Ingested:
        """Take one message of `otlp_spans` or `otlp_metrics`. A null value is nothing to read.

        `mark` is the message's number, rising, see `oldest_mark`.
        """
        if value is None:
            return Ingested()
        try:
            if topic == OTLP_METRICS.name:
                return Ingested(tuple(map(event_of, engine_stats_of(value, self._mapping))))
            if topic == OTLP_SPANS.name:
                return self._spans(value, mark)
        except SchemaError as error:
            return Ingested(refused=((None, error),))
        return Ingested(refused=((None, SchemaError("unknown_topic", f"{topic} is no raw input", topic)),))

    def flush(self) -> Ingested:
        """The stream is over: what is held becomes records or orphans."""
        joined = self._joiner.flush()
        return Ingested(tuple(map(event_of, joined.records)), (), 0, tuple(joined.refused))

    def _spans(self, value: bytes, mark: int) -> Ingested:
        found = flatten(value, self._wanted)
        joined = self._joiner.add(found.spans, mark)
        events = tuple(map(event_of, joined.records))
        if not joined.refused:
            return Ingested(events, found.refused, found.units)
        unread = {index for index, _ in found.refused}
        indexes = (index for index in range(found.units) if index not in unread)
        places = {id(span): index for index, span in zip(indexes, found.spans, strict=True)}
        here = [(places[id(span)], error) for span, error in joined.refused if id(span) in places]
        earlier = tuple((span, error) for span, error in joined.refused if id(span) not in places)
        return Ingested(events, (*found.refused, *here), found.units, earlier)
