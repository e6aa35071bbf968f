"""The policy file `policy.toml`: when actions are proposed, per deployment. Decides nothing.

    [policy]                 # every deployment; the keys are those of `twin.advise.policy.Policy`
    tolerance_ratio = 1.0
    most_engines = 8

    [deployments.chat]       # what differs for one
    allowed = ["scale"]

    [deployments.batch]
    enabled = false          # no proposals

Law: an unknown key and an impossible threshold are refused in one line that names the file, the table and the key.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pipelines.errors import ConfigError
from pipelines.toml_tables import Document, Table
from twin.advise.policy import Policy

EVERY_DEPLOYMENT = "*"


def read_policies(path: Path, *, required: bool) -> dict[str, Policy | None]:
    """Policies by deployment, `*` for all others; None where nothing is to be proposed. Raises ConfigError."""
    document = Document.read(path, required=required)
    base = _policy(document.table("policy"), Policy())
    found: dict[str, Policy | None] = {EVERY_DEPLOYMENT: base}
    for name, table in document.tables("deployments").items():
        found[name] = _policy(Table(document.where, f"deployments.{name}", table), base or Policy())
    document.finish()
    return found


def policy_of(policies: Mapping[str, Policy | None], deployment: str) -> Policy | None:
    """The policy of one deployment; the default one where no file was read."""
    return policies.get(deployment, policies.get(EVERY_DEPLOYMENT, Policy()))


def _policy(table: Table, base: Policy) -> Policy | None:
    enabled = table.boolean("enabled", True)
    changes: dict[str, Any] = {}
    for field in fields(Policy):
        value = getattr(base, field.name)
        if field.name not in table.rest:
            table.known.append(field.name)
        elif isinstance(value, int):
            changes[field.name] = table.integer(field.name, value)
        elif isinstance(value, float):
            changes[field.name] = table.number(field.name, value)
        else:
            changes[field.name] = tuple(table.texts(field.name))
    table.finish()
    try:
        policy = replace(base, **changes)
    except ValueError as error:
        raise ConfigError(f"{table.where} [{table.name}]: {error}; correct it") from None
    return policy if enabled else None
