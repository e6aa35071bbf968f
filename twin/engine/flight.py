"""Sums over steps that last first, first + growth, first + 2 growth, ... picoseconds. Whole numbers only.

Law: `steps_to_reach` is the least number of steps whose sum reaches the span.
"""

from math import sqrt


def flight_ps(steps: int, first_ps: int, growth_ps: int) -> int:
    """How long so many steps last.

    >>> flight_ps(3, 10, 1)
    33
    """
    return steps * first_ps + growth_ps * (steps * (steps - 1) // 2)


def steps_to_reach(span_ps: int, first_ps: int, growth_ps: int) -> int:
    """The least number of steps >= 1 that last `span_ps` or longer.

    >>> steps_to_reach(30, 10, 0), steps_to_reach(31, 10, 0), steps_to_reach(32, 10, 1), steps_to_reach(-5, 10, 0)
    (3, 4, 3, 1)
    """
    if span_ps <= first_ps:
        return 1
    if growth_ps == 0:
        return -(-span_ps // first_ps)
    half = first_ps - growth_ps / 2
    steps = int((sqrt(half * half + 2.0 * growth_ps * span_ps) - half) / growth_ps)
    # The root is a float; settle the last unit in integers.
    while flight_ps(steps, first_ps, growth_ps) < span_ps:
        steps += 1
    while flight_ps(steps - 1, first_ps, growth_ps) >= span_ps:
        steps -= 1
    return steps
