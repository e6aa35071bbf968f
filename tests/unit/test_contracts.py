"""The published contracts equal what the structs make, and the examples of the wire obey them."""

from pipelines.contracts import FOLDER, contract_files


def test_published_contracts_are_up_to_date() -> None:
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert on_disk == contract_files(), "run `make generate` and commit docs/contracts"
