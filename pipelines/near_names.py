"""What a mistyped name was meant to be, for errors. Decides nothing."""

from collections.abc import Sequence
from difflib import get_close_matches


def instead_of(name: str, known: Sequence[str]) -> str:
    """The end of an error about an unknown name.

    >>> instead_of("max_nums_seqs", ["max_num_seqs", "kv_blocks"])
    'did you mean max_num_seqs?'
    >>> instead_of("batch", ["max_num_seqs", "kv_blocks"])
    'expected one of max_num_seqs, kv_blocks'
    """
    close = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
