"""What comes of a stage whose branches ran side by side (flow-engine 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.engine.failures import Suspended
from gateway.engine.flow.effects import FlowEffects
from gateway.engine.flow.failures import NodeFailure, as_node_failure
from gateway.engine.flow.values import Value
from gateway.engine.tasks import Settled


def outputs_of(
    settled: Sequence[Settled[Value]],
    effects: FlowEffects,
    *,
    path_of: Callable[[int], str],
    choose: Callable[[Sequence[tuple[int, NodeFailure]]], NodeFailure],
) -> list[Value]:
    """The outputs of all branches, in their order.

    Any failure beats any suspension: it gives up what the flow still waits for. `path_of` names a branch for
    a raw failure, `choose` picks one of the failures, which it gets in the order of branches. Raises
    NodeFailure and Suspended.
    """
    failures: list[tuple[int, NodeFailure]] = []
    suspended: Suspended | None = None
    for index, one in enumerate(settled):
        failure = one.failure
        if failure is None:
            continue
        if isinstance(failure, Suspended):
            suspended = suspended or failure
        else:
            failures.append((index, as_node_failure(failure, path_of(index))))
    if failures:
        effects.cancel_suspended()
        raise choose(failures)
    if suspended is not None:
        raise suspended
    return [one.get() for one in settled]


def first_of(failures: Sequence[tuple[int, NodeFailure]]) -> NodeFailure:
    """The failure of the first branch in order."""
    return failures[0][1]
