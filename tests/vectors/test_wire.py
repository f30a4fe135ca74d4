from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.checks import assert_passes, files_of
from tests.vectors.wire.equality import difference, same, without


@pytest.mark.parametrize(("kind", "path"), files_of("wire"))
def test_every_recorded_conversation_is_repeated(kind: str, path: Path) -> None:
    (case,) = assert_passes(kind, path)
    assert case.verdict == "passed"


def test_frames_are_compared_without_member_order_and_with_types() -> None:
    assert same({"a": 1, "b": [1, {"c": None}]}, {"b": [1, {"c": None}], "a": 1})
    assert not same({"a": 1}, {"a": True})
    assert not same({"a": 1}, {"a": 1, "b": None})
    assert not same([1, 2], [2, 1])


def test_free_members_are_left_out() -> None:
    assert without({"p": {"name": "x", "a/b": 1}}, ["/p/name", "/p/a~1b", "/q/r"]) == {"p": {}}


def test_a_difference_names_its_place() -> None:
    assert difference({"a": [{"b": 1}]}, {"a": [{"b": 2}]}).startswith("/a/0/b")
    assert difference({"a": 1}, {"a": 1}) == ""
