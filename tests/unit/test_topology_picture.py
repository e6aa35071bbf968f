"""The picture of the flow is printed from its stages, and the README shows this one."""

from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.topology import BEGIN, END, STAGES, block, mermaid, put_into
from schemas.topics import TOPICS

README = Path(__file__).parents[2] / "README.md"


def test_every_topic_of_the_table_is_in_a_stage_and_no_other() -> None:
    assert {topic.name for stage in STAGES for topic in (*stage.reads, *stage.writes)} == set(TOPICS)


def test_every_topic_is_written_by_somebody_and_read_by_somebody() -> None:
    written = {topic.name for stage in STAGES for topic in stage.writes}
    read = {topic.name for stage in STAGES for topic in stage.reads}
    assert written == read == set(TOPICS)


def test_the_readme_shows_the_picture_as_it_is_printed() -> None:
    assert block() in README.read_text(encoding="utf-8"), "run: python -m pipelines.topology README.md"


def test_putting_the_picture_in_twice_changes_nothing_more() -> None:
    once = put_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", "x.md")
    assert once == put_into(once, "x.md") == f"before\n{block()}\nafter\n"
    assert mermaid() in once
    with pytest.raises(ConfigError, match=r"x\.md has no line"):
        put_into("no marks", "x.md")
