"""What every compiled schema node can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from protocol.json_schema.js_values import ABSENT
from protocol.json_schema.outcome import Fault, Outcome, wrong_type
from protocol.steps import Steps

PASSES_ABSENCE: Final = 1
"""The node takes care of an absent value itself, so no `expected nonoptional` is reported."""
FILLS_ABSENCE: Final = 2
"""The node puts a default where a value is absent."""

Verdict = Outcome | None
"""None: the value fits and stays as it is."""


MAX_MOVES: Final = 2_000_000
"""Steps that the issues of one validation may take up towards the root, all together. A list of a million wrong
items needs a million; branches of an `allOf` that refer to each other would double them at every level."""


class TooManyIssues(RuntimeError):
    """The issues of one validation would fill the memory."""


class Run:
    """One validation: what has to be remembered between nodes."""

    __slots__ = ("_moves", "remembered", "unfinished")

    def __init__(self) -> None:
        self.remembered: dict[tuple[int, int], Verdict] = {}
        """Verdicts of referenced schemas, by node and value: without it, references that meet again and again
        would take time that doubles with every level."""
        self.unfinished = False
        """Some validated value holds an absent or inherited member, which the result must not."""
        self._moves = 0

    def under(self, key: str | int, faults: list[Fault]) -> list[Fault]:
        """The issues of a member or an element as issues of the whole. Raises `TooManyIssues`."""
        self.count(len(faults))
        return [fault.under(key) for fault in faults]

    def count(self, moves: int) -> None:
        self._moves += moves
        if self._moves > MAX_MOVES:
            raise TooManyIssues


MAX_HEIGHT: Final = 3
"""Combinations in combinations that may still be leaves: these use Python's stack and remember nothing."""


class Node:
    """A compiled schema. `leaf` nodes answer with `test`, the others with `steps`."""

    __slots__ = ("absence", "height")

    leaf = False

    def __init__(self) -> None:
        self.absence = 0
        """0, `PASSES_ABSENCE` or `FILLS_ABSENCE`."""
        self.height = 0
        """Combinations of leaves below a leaf."""

    def test(self, value: Any) -> Verdict:
        """The verdict of a leaf. Raises TypeError where the node is none."""
        raise TypeError(f"{type(self).__name__} is not a leaf")

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        """The verdict of a node with children, as a computation for `run_steps`. Raises TypeError for a leaf."""
        raise TypeError(f"{type(self).__name__} is a leaf")

    def absence_from(self) -> tuple[Node, ...]:
        """The nodes this one's `absence` is the highest of."""
        return ()


class Combination(Node):
    """A node that is a leaf as long as the nodes it is made of are, and not too many levels of them."""

    __slots__ = ("leaf",)

    def __init__(self, parts: Iterable[Node]) -> None:
        super().__init__()
        parts = list(parts)
        self.height = 1 + max((part.height for part in parts), default=0)
        self.leaf = self.height <= MAX_HEIGHT and all(part.leaf for part in parts)


class AnyNode(Node):
    """Accepts everything, absence included."""

    __slots__ = ()
    leaf = True

    def test(self, value: Any) -> Verdict:
        return None


class NeverNode(Node):
    __slots__ = ()
    leaf = True

    def test(self, value: Any) -> Verdict:
        return Outcome(value, [wrong_type("never", value)])


class DefaultNode(Combination):
    """Fills in a default, unchecked, where the value is absent."""

    __slots__ = ("default", "inner")

    def __init__(self, inner: Node, default: Any) -> None:
        super().__init__([inner])
        self.inner = inner
        self.default = default
        self.absence = FILLS_ABSENCE

    def test(self, value: Any) -> Verdict:
        return Outcome(self._copy(), []) if value is ABSENT else self.inner.test(value)

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        if value is ABSENT:
            return Outcome(self._copy(), [])
        verdict: Verdict = yield self.inner.steps(value, run)
        return verdict

    def _copy(self) -> Any:
        default = self.default
        if isinstance(default, dict):
            return dict(default)
        return list(default) if isinstance(default, list) else default


class RefNode(Node):
    """A referenced schema; its target may still be under construction when the reference is made."""

    __slots__ = ("target",)

    def __init__(self) -> None:
        super().__init__()
        self.target: Node | None = None

    def steps(self, value: Any, run: Run) -> Steps[Verdict]:
        target = self.target
        assert target is not None
        if target.leaf:
            return target.test(value)
        key = (id(target), id(value))
        if key in run.remembered:
            return run.remembered[key]
        verdict: Verdict = yield target.steps(value, run)
        run.remembered[key] = verdict
        return verdict

    def absence_from(self) -> tuple[Node, ...]:
        return () if self.target is None else (self.target,)
