from __future__ import annotations

from typing import Any

import pytest

from protocol.json_schema import usable_schema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize("schema", [True, False, None, [], "object", 1])
def test_only_an_object_is_a_servers_schema(schema: Any) -> None:
    assert not usable_schema(schema)


@pytest.mark.spec("mcp-pool:11.12")
def test_a_condition_is_refused_except_in_definitions_nothing_refers_to() -> None:
    condition = {"type": "object", "if": {"required": ["a"]}, "then": {}}
    assert not usable_schema(condition)
    assert usable_schema({"type": "object", "$defs": {"A": condition}})
    assert not usable_schema({"type": "object", "$defs": {"A": condition}, "allOf": [{"$ref": "#/$defs/A"}]})
    assert not usable_schema({"type": "object", "properties": {"a": {"not": {"type": "string"}}}})


@pytest.mark.spec("mcp-pool:11.13")
def test_definitions_are_reached_only_in_documents_of_the_old_drafts() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {}}}
    assert not usable_schema(schema)
    assert usable_schema({**schema, "$schema": DRAFT_7})
    assert usable_schema({**schema, "$schema": DRAFT_4})
    assert not usable_schema({**schema, "$schema": DRAFT_7.rstrip("#")})


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"not": {}},
        {"not": []},
        {"not": {}, "if": 1, "type": "foo", "$ref": 5},
        {"$ref": ""},
        {"$ref": "#"},
        {"$ref": "#/$defs/a~1b~0/ignored", "$defs": {"a/b~": {}}, "type": "foo"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"$ref": "#/$defs/A", "definitions": {"A": True}},
        {"enum": [{"if": 1}], "type": "foo"},
        {"const": None, "type": "foo"},
        {"type": ["string", ["null", "integer"], ""]},
        {"type": []},
        {"properties": {"a": None}, "items": 5},
        {"type": "string", "pattern": "", "format": "odd", "minLength": "x"},
        {"type": "object", "required": "abc", "additionalProperties": "x"},
        {"type": "object", "required": 0, "properties": {"a": [1, 2], "b": True}},
        {"type": "object", "patternProperties": {"^(?<n>a)|(?<n>b)": {}}, "propertyNames": True},
        {"type": "object", "propertyNames": {"pattern": "^a"}},
        {"type": "array", "prefixItems": [{}], "items": [None]},
        {"type": "array", "items": [{}], "additionalItems": False},
        {"type": "array", "items": False, "contains": True},
        {"anyOf": {"if": 1}, "oneOf": 5, "allOf": []},
        {"dependencies": {"a": None}, "nullable": 1, "default": {"if": 1}, "$dynamicRef": 5, "x": None},
    ],
)
def test_usable(schema: Any) -> None:
    assert usable_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": None},
        {"not": {"a": 1}},
        {"not": True},
        {"if": None},
        {"then": False},
        {"else": 0},
        {"unevaluatedItems": True},
        {"unevaluatedProperties": None},
        {"dependentSchemas": []},
        {"dependentRequired": {}},
        {"$ref": 1},
        {"$ref": "x"},
        {"$ref": "#/$defs"},
        {"$ref": "#/$defs/A", "$defs": {"A": False}},
        {"$ref": "#/properties/a", "properties": {"a": {}}},
        {"enum": None},
        {"enum": {"a": 1}},
        {"type": "any"},
        {"type": "file"},
        {"type": ["string", "any"]},
        {"type": {"a": 1}},
        {"type": "string", "pattern": "(?i)a"},
        {"type": "string", "pattern": "\\b+"},
        {"type": "object", "required": {"a": 1}},
        {"type": "object", "required": 5},
        {"type": "object", "properties": {"a": None}},
        {"type": "object", "properties": "ab"},
        {"type": "object", "additionalProperties": None},
        {"type": "object", "additionalProperties": {"type": "any"}},
        {"type": "object", "patternProperties": {"a++": {}}},
        {"type": "object", "patternProperties": {"a": 5}},
        {"type": "object", "propertyNames": None},
        {"type": "object", "propertyNames": {"pattern": "("}},
        {"type": "array", "prefixItems": [None]},
        {"type": "array", "prefixItems": [], "items": 5},
        {"type": "array", "items": [{}], "additionalItems": None},
        {"type": "array", "items": None},
        {"type": "array", "contains": "x"},
        {"anyOf": [None]},
        {"oneOf": [{"if": 1}]},
        {"allOf": ["x"]},
        {"type": "string", "anyOf": [{"type": "any"}]},
    ],
)
def test_unusable(schema: Any) -> None:
    assert not usable_schema(schema)


def test_a_deep_or_wide_schema_is_looked_at_once() -> None:
    deep: Any = {"type": "any"}
    for _ in range(450):
        deep = {"type": "array", "items": deep}
    assert not usable_schema(deep)
    references = [{"$ref": "#/$defs/A"} for _ in range(20_000)]
    wide = {"allOf": references, "$defs": {"A": {"anyOf": [{"type": "null"}] * 20_000}}}
    assert usable_schema(wide)
