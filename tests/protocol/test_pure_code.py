"""Protocol, engines and the channel hold nothing that differs between two runs of the same input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.pure_code import faults

ROOT = Path(__file__).parents[2]
PURE = ("protocol", "gateway/engine", "gateway/harness_api")


@pytest.mark.parametrize("folder", PURE)
def test_pure_packages_use_no_clock_chance_environment_or_set_order(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    found = [
        fault for path in paths for fault in faults(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from random import choice",
        "def f():\n    from asyncio import sleep",
        "x = hash('a')",
        "open('f')",
        "print(1)",
        "async def f(): ...",
        "for x in {1, 2}: ...",
        "for x in set(y): ...",
        "a = frozenset(y)\nb = [x for x in a]",
        "def f(a: set[str]):\n    return list(a)",
        "def f():\n    a = {1}\n    b = a | c\n    return [*b]",
        "', '.join({'a'})",
        "a = {1}\nnext(iter(a))",
        "a: set[int] = set()\na.pop()",
        "sum(x for x in a.union(b))",
        "dict.fromkeys({1})",
    ],
)
def test_each_banned_thing_is_found(source: str) -> None:
    assert faults(source, "m.py")


@pytest.mark.parametrize(
    "source",
    [
        "import hashlib, re, math\nimport msgspec",
        "from protocol import jsjson",
        "from .time import x",
        "class A:\n    def __hash__(self): return hash(self.x)",
        "a = {1}\nb = 1 in a\nc = sorted(a)\nlen(a | {2})",
        "a = {1: 2}\nfor x in a: ...",
        "b = {x for x in {1, 2}}",
        "sorted(x for x in {1, 2})",
        "any(x for x in a.union(b))",
        "for x in {1, 2}:  # in any order: only counted\n    n += 1",
        "a = [1]\na.pop()",
        "def f():\n    a = {1}\n\ndef g(a):\n    return list(a)",
    ],
)
def test_nothing_else_is_found(source: str) -> None:
    assert faults(source, "m.py") == []
