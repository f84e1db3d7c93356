"""What every library has to do, written once. Each scenario has servers of its own.

No scenario asserts that something is fast: a busy machine is no fault. Where time matters, only a
wrong program can miss the bound: it is a moment that the runner saw before, or a lease that is many
times longer than the step. Where a slow machine can miss it too, `scene.in_time` finds out which of
the two it was, and the scenario is repeated with longer times (`scene.pace`).
"""

from scene import SCENARIOS

from . import bad_input, cancellation, connections, ordinary, replies, restarts, validity

__all__ = [
    "SCENARIOS",
    "bad_input",
    "cancellation",
    "connections",
    "ordinary",
    "replies",
    "restarts",
    "validity",
]
