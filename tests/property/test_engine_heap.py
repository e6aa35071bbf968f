"""The kernel's heap: the smallest comes first, and any row can be taken out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.engine.kernel_parts import heap_pop, heap_push, heap_remove

FIELDS, KEY = 3, 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_left_comes_out_in_order(keys, data):
    rows = np.zeros(FIELDS * len(keys), np.int64)
    rows[KEY::FIELDS] = keys
    heap = np.empty(len(keys), np.int64)
    inside = list(range(0, FIELDS * len(keys), FIELDS))
    for count, row in enumerate(inside):
        heap_push(heap, count, rows, KEY, row)
    for _ in range(data.draw(st.integers(0, len(keys)))):
        gone = inside.pop(data.draw(st.integers(0, len(inside) - 1)))
        heap_remove(heap, len(inside) + 1, rows, KEY, gone)
    out = [heap_pop(heap, count, rows, KEY) for count in range(len(inside), 0, -1)]
    assert sorted(out) == inside
    assert [rows[row + KEY] for row in out] == sorted(rows[row + KEY] for row in inside)
