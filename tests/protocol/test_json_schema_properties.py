from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import jsjson
from protocol.json_schema import (
    Schema,
    SchemaUnsupported,
    Valid,
    ValidationStopped,
    compile_schema,
    usable_schema,
)
from tests.protocol.peer import compare, generate

KEYS = st.sampled_from(["a", "b", "10", "2", "toString", "__proto__", "é"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-5, 5, width=16)
    | st.sampled_from(["", "a", "abc"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3).map(jsjson.js_order),
    max_leaves=8,
)
LIMITS = st.integers(0, 3)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    members = st.dictionaries(KEYS, inner, max_size=3).map(jsjson.js_order)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["string", "number", "integer", "boolean", "null", "object", "array", ["object", "null"]]
            ),
            "properties": members,
            "required": st.lists(KEYS, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
            "propertyNames": st.booleans() | inner,
            "items": inner | some,
            "prefixItems": some,
            "contains": inner,
            "uniqueItems": st.booleans(),
            "minItems": LIMITS,
            "maxItems": LIMITS,
            "minLength": LIMITS,
            "pattern": st.sampled_from(["a", "^b", ""]),
            "minimum": LIMITS,
            "multipleOf": st.sampled_from([0.1, 2]),
            "enum": st.lists(SCALARS, max_size=3),
            "const": VALUES,
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "default": SCALARS,
            "not": st.just({}),
            "$ref": st.sampled_from(["#", "#/$defs/A"]),
        },
    )


SCHEMAS = st.recursive(st.booleans() | st.just({}), _schemas, max_leaves=6)
ANYTHING = st.recursive(
    SCALARS | st.sampled_from(["object", "array", "#", "#/$defs/A"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "$ref", "$defs", "A", "anyOf", "enum", "pattern", "not"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


def _compiled(schema: Any) -> Schema | None:
    try:
        return compile_schema(schema)
    except SchemaUnsupported:
        return None


@settings(max_examples=400, deadline=None)
@given(SCHEMAS | ANYTHING, VALUES)
def test_nothing_but_the_named_errors_comes_out(schema: Any, value: Any) -> None:
    compiled = _compiled(schema)
    if compiled is None:
        return
    before = jsjson.dumps(value)
    try:
        compiled.validate(value)
    except ValidationStopped:
        return
    assert jsjson.dumps(value) == before


@settings(max_examples=400, deadline=None)
@given(SCHEMAS, VALUES)
def test_a_validated_value_without_defaults_fits_again_and_stays(schema: Any, value: Any) -> None:
    compiled = _compiled(_without(schema, ("default",)))
    if compiled is None:
        return
    try:
        first = compiled.validate(value)
        if not isinstance(first, Valid):
            return
        second = compiled.validate(first.value)
    except ValidationStopped:
        return
    # The members that a validated object leaves out may have been what a count or a name was about.
    if "__proto__" in jsjson.dumps(value):
        return
    assert isinstance(second, Valid)
    assert jsjson.dumps(second.value) == jsjson.dumps(first.value)


def _without(schema: Any, keywords: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_without(entry, keywords) for entry in schema]
    if isinstance(schema, dict):
        return {key: _without(entry, keywords) for key, entry in schema.items() if key not in keywords}
    return schema


@settings(max_examples=600, deadline=None)
@given(SCHEMAS | ANYTHING)
def test_a_servers_schema_is_usable_exactly_when_it_compiles(schema: Any) -> None:
    if "enum" in jsjson.dumps(schema) and _has_text_enum(schema):
        return
    assert usable_schema(schema) == (isinstance(schema, dict) and _compiled(schema) is not None)


def _has_text_enum(schema: Any) -> bool:
    """The one difference: the importer takes an empty text, and one of a single letter, for a list."""
    if isinstance(schema, list):
        return any(map(_has_text_enum, schema))
    if isinstance(schema, dict):
        return isinstance(schema.get("enum"), str) or any(map(_has_text_enum, schema.values()))
    return False


@pytest.mark.parametrize("kind", ["schemas", "patterns"])
def test_recorded_random_cases_are_judged_as_the_peer_judged_them(kind: str) -> None:
    judge = compare.schema_faults if kind == "schemas" else compare.pattern_faults
    path = generate.FOLDER / f"{kind}.jsonl"
    faults = [fault for record in compare.records(path) for fault in judge(record)]
    assert not faults, "\n".join(faults[:10])
