"""Imports run one way, schemas <- twin <- pipelines; twin/ touches no Kafka, files, clock or threads."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {
    "schemas": {"msgspec", "orjson"},
    "twin": {"schemas", "msgspec", "numpy", "river", "simpy", "numba"},
}
STDLIB_FORBIDDEN_IN_TWIN = {
    "time",
    "datetime",
    "os",
    "pathlib",
    "io",
    "threading",
    "asyncio",
    "socket",
    "random",
    "sys",
}
KAFKA = {"aiokafka", "faust", "mode"}


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    third_party_or_ours = {"schemas", "twin", "pipelines", "faust", "aiokafka", "mode", "orjson", "msgspec", "numpy"}
    third_party_or_ours |= {"river", "simpy", "numba", "pyarrow", "rich", "aiohttp", "scipy", "pandas", "psutil"}
    for path in files_of(package):
        foreign = (imports_of(path) & third_party_or_ours) - ALLOWED[package] - {package}
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


def test_the_core_touches_no_clock_file_or_thread() -> None:
    for path in files_of("twin"):
        touched = imports_of(path) & STDLIB_FORBIDDEN_IN_TWIN
        assert not touched, f"{path.relative_to(ROOT)} imports {sorted(touched)}"


def test_kafka_is_imported_in_one_place() -> None:
    users = {path.relative_to(ROOT).as_posix() for path in files_of("pipelines") if imports_of(path) & KAFKA}
    assert all(user.startswith("pipelines/kafka") for user in users), users


@pytest.mark.parametrize("package", ["schemas", "twin", "pipelines"])
def test_import_names_resolve_to_this_tree(package: str) -> None:
    found = Path(str(import_module(package).__file__)).resolve()
    assert found.is_relative_to(ROOT)
