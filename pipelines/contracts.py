"""Makes the published contracts from the structs: JSON Schemas, AsyncAPI. Run it with `make generate`.

Law: what stands in docs/contracts equals what this makes; a test says so.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from schemas.base import SCHEMA_VERSION
from schemas.topics import DLQ, OUTPUTS, TOPICS, Topic

CLOUD_EVENT_HEADERS: dict[str, dict[str, str]] = {
    "ce_specversion": {"const": "1.0"},
    "ce_id": {"description": "the same for a redelivery"},
    "ce_type": {"description": "the topic and the kind of record"},
    "ce_source": {"format": "uri-reference"},
    "ce_time": {"format": "date-time", "description": "event time"},
    "content-type": {"const": "application/json"},
}
"""Binary mode of the Kafka protocol binding for CloudEvents 1.0."""

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "contracts"


def contract_files() -> dict[str, str]:
    """File name -> content, for every topic with a struct, and `asyncapi.json`."""
    typed = [topic for topic in TOPICS.values() if topic.type is not None]
    files = {f"{topic.name}.schema.json": _pretty(_schema(topic)) for topic in typed}
    files["asyncapi.json"] = _pretty(_asyncapi(list(TOPICS.values())))
    return files


def write_contracts(folder: Path = FOLDER) -> list[Path]:
    """Write all files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in contract_files().items():
        path = folder / name
        path.write_text(content, encoding="utf-8")
        paths.append(path)
    return paths


def _schema(topic: Topic) -> dict[str, Any]:
    schema = msgspec.json.schema(topic.type)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{topic.name}: {topic.about}",
        "x-schema-version": SCHEMA_VERSION,
    } | schema


def _asyncapi(topics: list[Topic]) -> dict[str, Any]:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Twincast",
            "version": f"{SCHEMA_VERSION}.0.0",
            "description": "A streaming digital twin of LLM inference serving. Outputs are CloudEvents in binary mode.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in topics},
        "operations": {_operation_id(topic): _operation(topic) for topic in topics},
    }


def _channel(topic: Topic) -> dict[str, Any]:
    payload = {"$ref": f"./{topic.name}.schema.json"} if topic.type is not None else {}
    return {
        "address": topic.name,
        "description": topic.about,
        "messages": {"record": _message(topic, payload)},
        "bindings": {
            "kafka": {
                "topicConfiguration": {
                    "cleanup.policy": [topic.policy],
                    "retention.ms": topic.retention_ms,
                }
            }
        },
    }


def _message(topic: Topic, payload: dict[str, Any]) -> dict[str, Any]:
    """A message of a channel; outputs carry the attributes of a CloudEvent in headers."""
    message: dict[str, Any] = {
        "name": topic.name,
        "payload": payload,
        "bindings": {"kafka": {"key": {"type": "string"}}},
        "x-key": topic.key,
    }
    if topic.type is not None:
        message["contentType"] = "application/json"
    if topic in OUTPUTS:
        message["headers"] = {
            "type": "object",
            "required": list(CLOUD_EVENT_HEADERS),
            "properties": {name: {"type": "string"} | rule for name, rule in CLOUD_EVENT_HEADERS.items()},
        }
    return message


def _operation_id(topic: Topic) -> str:
    return topic.name.removeprefix("twincast.").replace(".", "_")


def _operation(topic: Topic) -> dict[str, Any]:
    action = "send" if topic in OUTPUTS or topic is DLQ else "receive"
    channel = f"#/channels/{topic.name}"
    return {"action": action, "channel": {"$ref": channel}, "messages": [{"$ref": f"{channel}/messages/record"}]}


def _pretty(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for written in write_contracts():
        print(written)
