"""Whether a port can be had, asked before anything is started for it. Holds none.

Law: a port that another program listens at is told in one line, and asking leaves nothing bound.
"""

import socket

from pipelines.errors import ConfigError


def require_free(what: str, host: str, port: int) -> None:
    """Raise ConfigError where `what` could not be served, since another program is there or the host is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{what} cannot be served at {host}:{port} ({error.strerror}); choose another port"
            ) from error
