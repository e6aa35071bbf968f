"""Outputs are CloudEvents 1.0 in Kafka's binary mode, and the AsyncAPI document hangs together.

References: CloudEvents specification 1.0.2 and its Kafka protocol binding; AsyncAPI 3.0.0.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from made_forecasts import forecast

from pipelines.contracts import CLOUD_EVENT_HEADERS, contract_files
from pipelines.outputs import outgoing
from schemas.topics import DLQ, FORECASTS, OUTPUTS, TOPICS
from twin.effects import Emit

ASYNCAPI: dict[str, Any] = json.loads(contract_files()["asyncapi.json"])


def headers_of(deployment: str, tick: int = 0) -> dict[str, str]:
    message = outgoing(Emit(FORECASTS, deployment, forecast(tick, deployment=deployment)), deployment)
    return {name: value.decode("utf-8") for name, value in message.headers}


@pytest.mark.parametrize("deployment", ["chat", "chat eu/west", "чат?#", "a%20b"])
def test_an_output_has_every_attribute_of_a_cloud_event(deployment: str) -> None:
    headers = headers_of(deployment)
    assert set(headers) == set(CLOUD_EVENT_HEADERS)
    assert headers["ce_specversion"] == "1.0"
    assert headers["ce_type"] == "twincast.forecasts.v1.forecast"
    assert headers["content-type"] == "application/json"
    assert datetime.fromisoformat(headers["ce_time"]).tzinfo is not None
    source = urlsplit(headers["ce_source"])
    assert re.fullmatch(r"[A-Za-z0-9/%._~-]+", headers["ce_source"])  # a URI reference, whatever the name holds
    assert unquote(source.path) == f"/twincast/{deployment}"
    assert (source.query, source.fragment) == ("", "")


def test_a_redelivery_has_the_same_id_and_another_record_another_one() -> None:
    assert headers_of("chat")["ce_id"] == headers_of("chat")["ce_id"]
    assert len({headers_of("chat", 0)["ce_id"], headers_of("chat", 1)["ce_id"], headers_of("mail")["ce_id"]}) == 3


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "$ref":
                yield each
            else:
                yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    files, found = contract_files(), list(references(ASYNCAPI))
    assert len(found) > 2 * len(TOPICS)
    for reference in found:
        if reference.startswith("#/"):
            at: Any = ASYNCAPI
            for part in reference[2:].split("/"):
                at = at[part]
        else:
            assert reference.removeprefix("./") in files


def test_asyncapi_3_has_its_required_parts() -> None:
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert set(ASYNCAPI["info"]) >= {"title", "version"}
    assert set(ASYNCAPI["channels"]) == set(TOPICS)
    for name, operation in ASYNCAPI["operations"].items():
        assert re.fullmatch(r"\w+", name)
        assert operation["action"] in ("send", "receive")
        topic = TOPICS[operation["channel"]["$ref"].removeprefix("#/channels/")]
        assert (operation["action"] == "send") == (topic in OUTPUTS or topic is DLQ)
    assert len(ASYNCAPI["operations"]) == len(TOPICS)


def test_outputs_declare_their_cloud_event_headers() -> None:
    for name, channel in ASYNCAPI["channels"].items():
        message = channel["messages"]["record"]
        declared = set(message.get("headers", {}).get("properties", {}))
        assert declared == (set(CLOUD_EVENT_HEADERS) if TOPICS[name] in OUTPUTS else set())
