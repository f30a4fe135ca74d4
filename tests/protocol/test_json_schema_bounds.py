"""Deep, large and hostile schemas and values: an answer in bounded time, and never a RecursionError."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from protocol.json_schema import Invalid, Valid, ValidationStopped, compile_schema, usable_schema


def nested(levels: int, inner: Any, key: str) -> Any:
    for _ in range(levels):
        inner = (
            {"type": "object", "properties": {key: inner}} if key else {"anyOf": [inner, {"type": "null"}]}
        )
    return inner


def deep_value(levels: int, inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = {"a": inner}
    return inner


@pytest.fixture(params=[None, 150], ids=["any stack", "little stack"])
def _stack(request: pytest.FixtureRequest) -> Any:
    if request.param is None:
        yield
        return
    limit = sys.getrecursionlimit()
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth += 1
        frame = frame.f_back
    sys.setrecursionlimit(depth + request.param)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("_stack")
def test_deep_schemas_and_values_get_a_verdict() -> None:
    schema = nested(440, {"type": "number"}, "a")
    assert isinstance(compile_schema(schema).validate(deep_value(440)), Valid)
    assert usable_schema(schema)
    assert isinstance(compile_schema(nested(440, {"type": "string"}, "")).validate(5), Invalid)
    tree = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    verdict = compile_schema(tree).validate(deep_value(890))
    assert isinstance(verdict, Invalid)
    assert len(verdict.issues[0].path) == 890
    assert isinstance(compile_schema({}).validate(deep_value(5_000)), Valid)


@pytest.mark.usefixtures("_stack")
def test_deep_values_are_compared_and_merged() -> None:
    deep = deep_value(800)
    unique = compile_schema({"type": "array", "uniqueItems": True})
    assert isinstance(unique.validate([deep, deep_value(800)]), Invalid)
    tree = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "number"}]}}}
    both = {"allOf": [{"$ref": "#/$defs/T"}, {"$ref": "#/$defs/U"}], "$defs": {"T": tree, "U": dict(tree)}}
    assert isinstance(compile_schema(both).validate(deep), Valid)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "object", "allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    ],
)
def test_a_schema_that_is_only_itself_is_stopped(schema: Any) -> None:
    with pytest.raises(ValidationStopped, match="refers to itself without end"):
        compile_schema(schema).validate({})


@pytest.mark.parametrize("inner", ["{}", "members"])
def test_references_that_meet_again_take_no_more_time(inner: str) -> None:
    defs: dict[str, Any] = {"A200": {"type": "string"}}
    for level in range(200):
        onward = {"$ref": f"#/$defs/A{level + 1}"}
        if inner == "members":
            onward = {"type": "object", "properties": {"a": onward}}
        defs[f"A{level}"] = {"anyOf": [onward, dict(onward)]}
    schema = compile_schema({"$ref": "#/$defs/A0", "$defs": defs})
    verdict = schema.validate(deep_value(201))
    assert isinstance(verdict, Invalid)


def test_repeated_types_take_no_more_time() -> None:
    schema: Any = {"type": "string"}
    for _ in range(300):
        schema = {"type": ["object", "object", "null"], "properties": {"a": schema}}
    assert isinstance(compile_schema(schema).validate(deep_value(300)), Invalid)


def test_issues_that_double_at_every_level_are_stopped() -> None:
    defs = {
        "A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "allOf": [{"$ref": "#/$defs/B"}]},
        "B": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}},
    }
    with pytest.raises(ValidationStopped, match="too many issues"):
        compile_schema({"$ref": "#/$defs/A", "$defs": defs}).validate(deep_value(800))


def test_ten_thousand_members_and_items_are_no_trouble() -> None:
    names = [f"p{index}" for index in range(10_000)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    verdict = compile_schema(schema).validate({})
    assert isinstance(verdict, Invalid)
    assert len(verdict.issues) == 10_000
    items = compile_schema({"type": "array", "items": {"type": "object"}, "uniqueItems": True})
    assert isinstance(items.validate([{"a": index} for index in range(10_000)]), Valid)


def test_a_pattern_that_would_hang_others_answers() -> None:
    schema = compile_schema({"type": "string", "pattern": "^(a+)+$"})
    assert isinstance(schema.validate("a" * 100_000 + "!"), Invalid)


def test_a_pattern_that_could_hang_us_stops() -> None:
    schema = compile_schema({"type": "string", "pattern": "^(a*)*\\1$"})
    with pytest.raises(ValidationStopped, match="too long"):
        schema.validate("a" * 100)
