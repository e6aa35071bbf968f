"""TOML files as tables that are read key by key. Knows no setting.

Law: a key that nobody asked for is an error, so a slip of the pen never passes for a setting.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.errors import ConfigError


def require_between(name: str, value: float, least: float, most: float) -> None:
    """Raise ConfigError, naming the setting, unless `least` <= value <= `most`."""
    if not least <= value <= most:
        raise ConfigError(f"{name} must be {least} to {most}, got {value}; correct it")


@dataclass(slots=True)
class Table:
    """One table of a file; what is read is taken out of `rest`, so that `finish` finds what nobody knows."""

    where: str
    name: str
    rest: dict[str, Any]
    known: list[str] = field(default_factory=list)

    def text(self, key: str, default: str) -> str:
        return str(self._take(key, default, str, "a text"))

    def integer(self, key: str, default: int) -> int:
        value = self._take(key, default, int, "a whole number")
        if isinstance(value, bool):
            raise self.wrong(key, "a whole number", value)
        return int(value)

    def number(self, key: str, default: float) -> float:
        value = self._take(key, default, (int, float), "a number")
        if isinstance(value, bool):
            raise self.wrong(key, "a number", value)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        return bool(self._take(key, default, bool, "true or false"))

    def numbers(self, key: str) -> list[float]:
        return self._list(key, (int, float), "numbers")

    def texts(self, key: str) -> list[str]:
        return self._list(key, str, "texts")

    def _list(self, key: str, kind: type | tuple[type, ...], words: str) -> list[Any]:
        values = self._take(key, [], list, f"a list of {words}")
        if not all(isinstance(value, kind) for value in values):
            raise self.wrong(key, f"a list of {words}", values)
        return list(values)

    def _take(self, key: str, default: Any, kind: type | tuple[type, ...], words: str) -> Any:
        self.known.append(key)
        value = self.rest.pop(key, default)
        if not isinstance(value, kind):
            raise self.wrong(key, words, value)
        return value

    def wrong(self, key: str, expected: str, found: object) -> ConfigError:
        return ConfigError(f"{self.where} [{self.name}] {key} must be {expected}, got {found!r}; correct it")

    def finish(self) -> None:
        """Raise ConfigError for the first key that nobody took."""
        for key in self.rest:
            known = f"; known are {', '.join(sorted(set(self.known)))}" if self.known else ""
            raise ConfigError(f"{self.where} [{self.name}] has no setting {key!r}{known}; remove or correct it")


@dataclass(slots=True)
class Document:
    """A file of settings; an absent one is empty unless it was named."""

    where: str
    rest: dict[str, Any]

    @classmethod
    def read(cls, path: Path, *, required: bool) -> "Document":
        try:
            return cls(str(path), tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            if required:
                raise ConfigError(f"no file {path}; write it, or name another") from None
            return cls(str(path), {})
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); correct its rights or its encoding") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}; correct it") from error

    def table(self, name: str) -> Table:
        return Table(self.where, name, self._require_table(name, self.rest.pop(name, {})))

    def tables(self, name: str) -> dict[str, dict[str, Any]]:
        found = self._require_table(name, self.rest.pop(name, {}))
        return {key: self._require_table(f"{name}.{key}", value) for key, value in found.items()}

    def list_of_tables(self, name: str) -> Iterable[dict[str, Any]]:
        found = self.rest.pop(name, [])
        if not isinstance(found, list):
            raise ConfigError(f"{self.where}: write [[{name}]] for each entry, not [{name}]")
        return [self._require_table(name, entry) for entry in found]

    def _require_table(self, name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}: {name} must be a table, got {value!r}; write [{name}]")
        return dict(value)

    def finish(self) -> None:
        for key in self.rest:
            raise ConfigError(f"{self.where} has no table {key!r}; remove or correct it")
