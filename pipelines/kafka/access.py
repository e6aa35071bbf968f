"""How to reach a Kafka cluster: address, encryption, credentials. Connects to nothing.

Law: a password is in no text that this module makes.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from aiokafka.helpers import create_ssl_context

from pipelines.errors import ConfigError

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
_PREFIX = "TWINCAST_"


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """Address and credentials. `bootstrap` is one or more host:port, separated by commas.

    `ca_file` None trusts what the system trusts; `cert_file` and `key_file` are the client's own, for mutual TLS.
    """

    bootstrap: str
    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism = "PLAIN"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        for server in self.bootstrap.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
                raise ConfigError(f"TWINCAST_BOOTSTRAP must be host:port[,host:port], got {server!r}; correct it")
        _require_member("SECURITY_PROTOCOL", self.protocol, get_args(Protocol))
        _require_member("SASL_MECHANISM", self.mechanism, get_args(Mechanism))
        if self.protocol.startswith("SASL") and not (self.username and self.password):
            raise ConfigError(f"{self.protocol} needs TWINCAST_SASL_USERNAME and TWINCAST_SASL_PASSWORD; set both")
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("TWINCAST_TLS_CERT_FILE and TWINCAST_TLS_KEY_FILE go together; set both or neither")

    def servers(self) -> list[str]:
        """The bootstrap servers one by one."""
        return [server.strip() for server in self.bootstrap.split(",")]

    def client_arguments(self) -> dict[str, Any]:
        """Arguments that every aiokafka client takes. Raises ConfigError for files that cannot be used."""
        arguments: dict[str, Any] = {"bootstrap_servers": self.servers(), "security_protocol": self.protocol}
        if self.protocol.startswith("SASL"):
            arguments |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        if self.protocol.endswith("SSL"):
            arguments["ssl_context"] = self.ssl_context()
        return arguments

    def ssl_context(self) -> ssl.SSLContext:
        """Certificates to trust and to show. Raises ConfigError for files that cannot be used."""
        try:
            context: ssl.SSLContext = create_ssl_context(
                cafile=None if self.ca_file is None else str(self.ca_file),
                certfile=None if self.cert_file is None else str(self.cert_file),
                keyfile=None if self.key_file is None else str(self.key_file),
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the TLS files cannot be used ({error}); correct TWINCAST_TLS_*_FILE") from error
        return context


def cluster_access(environ: Mapping[str, str], bootstrap: str | None = None) -> ClusterAccess:
    """Access from an environment; `bootstrap` goes before TWINCAST_BOOTSTRAP.

    The variables: TWINCAST_BOOTSTRAP, _SECURITY_PROTOCOL, _SASL_MECHANISM, _SASL_USERNAME, _SASL_PASSWORD,
    _TLS_CA_FILE, _TLS_CERT_FILE, _TLS_KEY_FILE. Raises ConfigError for values that cannot be.
    """
    own = {name.removeprefix(_PREFIX): text for name, text in environ.items() if name.startswith(_PREFIX) and text}
    address = bootstrap or own.get("BOOTSTRAP")
    if address is None:
        raise ConfigError("no Kafka cluster is named; set TWINCAST_BOOTSTRAP=host:port")
    files = {name: Path(own[f"TLS_{name}_FILE"]) for name in ("CA", "CERT", "KEY") if f"TLS_{name}_FILE" in own}
    return ClusterAccess(
        bootstrap=address,
        protocol=own.get("SECURITY_PROTOCOL", "PLAINTEXT"),  # type: ignore[arg-type]  # checked where it is built
        mechanism=own.get("SASL_MECHANISM", "PLAIN"),  # type: ignore[arg-type]  # checked where it is built
        username=own.get("SASL_USERNAME"),
        password=own.get("SASL_PASSWORD"),
        ca_file=files.get("CA"),
        cert_file=files.get("CERT"),
        key_file=files.get("KEY"),
    )


def _require_member(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{_PREFIX}{name} must be one of {', '.join(allowed)}, got {value!r}; correct it")
