"""The functions of awk that take values alone, and which parameters of a program's own ones are arrays."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from services.sandbox_manager.emulated.awk.lexer import AwkError
from services.sandbox_manager.emulated.awk.parser import Program
from services.sandbox_manager.emulated.awk.values import Value, formatted, number, text

_VALUES_OF: Final = {"substr": 2, "index": 2, "atan2": 2, "rand": 0, "srand": 0, "fflush": 0}
_ARRAY_NODES: Final = {"element": 1, "delete": 1, "for in": 2, "in": 2}


class Functions:
    """They, with the state of the random numbers."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._seed = 0.0

    def call(self, name: str, values: Sequence[Value], form: str) -> Value:
        """What a function gives; `form` is CONVFMT. Raises AwkError."""
        needed = _VALUES_OF.get(name, 1)
        if len(values) < needed:
            raise AwkError(f"{name} needs {needed} values")
        match name:
            case "substr":
                return _substr(text(values[0], form), *(number(value) for value in values[1:3]))
            case "index":
                return float(text(values[0], form).find(text(values[1], form)) + 1)
            case "sprintf":
                return formatted(text(values[0], form), values[1:])
            case "tolower":
                return text(values[0], form).lower()
            case "toupper":
                return text(values[0], form).upper()
            case "int":
                return float(math.trunc(number(values[0])))
            case "rand":
                return self._random.random()
            case "srand":
                before, self._seed = self._seed, number(values[0]) if values else float(int(time.time()))
                self._random.seed(self._seed)
                return before
            case "fflush":
                return 0.0
            case "atan2":
                return math.atan2(number(values[0]), number(values[1]))
        try:
            return float(getattr(math, name)(number(values[0])))
        except (ValueError, OverflowError):
            return math.inf if name == "exp" else math.nan


def _substr(whole: str, start: float, length: float = math.inf) -> str:
    if math.isnan(start) or math.isnan(length):
        return ""
    begin = round(start)
    end = math.inf if math.isinf(length) else begin + round(length)
    first = max(begin, 1)
    return whole[first - 1 :] if end == math.inf else whole[first - 1 : max(int(end) - 1, first - 1)]


def array_parameters(program: Program) -> dict[str, set[int]]:
    """Which parameters of each function are arrays: what it or one that it calls uses as such."""
    found: dict[str, set[int]] = {name: set() for name in program.functions}
    changed = True
    while changed:
        changed = False
        for name, (parameters, body) in program.functions.items():
            arrays = {parameters.index(used) for used in _arrays_in(body, found) if used in parameters}
            if not arrays <= found[name]:
                found[name] |= arrays
                changed = True
    return found


def _arrays_in(node: Any, known: dict[str, set[int]]) -> Iterator[str]:
    if not isinstance(node, tuple):
        return
    if node and isinstance(node[0], str):
        if node[0] in _ARRAY_NODES:
            yield node[_ARRAY_NODES[node[0]]]
        if node[:2] == ("built in", "split") and len(node[2]) > 1 and node[2][1][0] == "name":
            yield node[2][1][1]
        if node[0] == "call":
            for place in known.get(node[1], ()):
                if place < len(node[2]) and node[2][place][0] == "name":
                    yield node[2][place][1]
    for each in node:
        yield from _arrays_in(each, known)
