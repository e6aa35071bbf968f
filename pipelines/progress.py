"""A progress bar on stderr for long work, gone when it is done; nothing where stderr is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the share of 1 that is done; before its first call the bar only shows work."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda share: bar.update(task, total=1.0, completed=share)
