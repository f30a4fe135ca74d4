from __future__ import annotations

from typing import Any

import pytest

from protocol.json_schema import ABSENT, SchemaUnsupported, check_tool_input_schema, compile_schema
from tests.protocol.json_schema_checks import fits, issues, messages, parsed, refused

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"not": {"type": "string"}}, "not is not supported"),
        ({"not": None}, "not is not supported"),
        ({"if": True}, "Conditional schemas (if/then/else) are not supported"),
        ({"then": None}, "Conditional schemas (if/then/else) are not supported"),
        ({"else": {}}, "Conditional schemas (if/then/else) are not supported"),
        ({"dependentSchemas": {}}, "dependentSchemas and dependentRequired are not supported"),
        ({"dependentRequired": {}}, "dependentSchemas and dependentRequired are not supported"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties is not supported"),
        ({"unevaluatedItems": False}, "unevaluatedItems is not supported"),
        ({"type": "foo"}, "Unsupported type: foo"),
        ({"type": {"a": 1}}, "Unsupported type: object"),
        ({"type": ["string", 5]}, "Unsupported type: number"),
        ({"enum": "ab"}, "enum must be a list"),
        ({"enum": None}, "enum must be a list"),
        ({"type": "object", "required": {"a": 1}}, "required must be a list of names"),
        ({"type": "string", "pattern": "("}, "is no regular expression: a group is not closed"),
        ({"type": "object", "patternProperties": {"[": {}}}, "is no regular expression"),
        ({"type": "object", "properties": {"a": None}}, "a schema is an object, true or false, not null"),
        ({"type": "object", "additionalProperties": None}, "a schema is an object"),
        ({"type": "array", "items": "string"}, "a schema is an object, true or false, not string"),
        ({"anyOf": [5]}, "a schema is an object, true or false, not number"),
        ({"$ref": "https://example.com/x.json"}, "External $ref is not supported"),
        ({"$ref": 5}, "External $ref is not supported"),
        ({"$ref": "#/$defs/A"}, "Reference not found: #/$defs/A"),
        ({"$ref": "#/properties/a", "properties": {"a": {}}}, "Reference not found: #/properties/a"),
        ({"$ref": "#/definitions/A", "definitions": {"A": {}}}, "Reference not found: #/definitions/A"),
        ({"$ref": "#/$defs/A", "$defs": {"A": False}}, "Reference not found: #/$defs/A"),
        (None, "a schema is an object, true or false"),
        ("string", "a schema is an object, true or false"),
    ],
)
def test_what_can_not_be_compiled_is_named(schema: Any, said: str) -> None:
    assert said in refused(schema)


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("if", "Conditional schemas (if/then/else) are not"),
        ("dependentRequired", "dependentSchemas and dependentRequired are not"),
        ("unevaluatedProperties", "unevaluatedProperties is not"),
    ],
)
def test_an_unsupported_keyword_counts_wherever_it_is_looked_at(keyword: str, said: str) -> None:
    inner = {keyword: {}}
    for schema in (
        {"type": "object", "properties": {"a": inner}},
        {"type": "array", "items": inner},
        {"type": "array", "contains": inner},
        {"type": "object", "propertyNames": inner},
        {"allOf": [inner]},
        {"$ref": "#/$defs/A", "$defs": {"A": inner}},
    ):
        assert f"{said} supported" in refused(schema)


def test_what_is_not_looked_at_may_hold_anything() -> None:
    fits({"properties": {"a": {"if": 1}}, "$defs": {"A": {"if": 1}}, "anyOf": {"if": 1}}, 1)
    fits({"$ref": "#/$defs/A", "minLength": {"if": 1}, "$defs": {"A": {"type": "string"}}}, "")
    fits({"enum": [{"if": 1}, "a"]}, "a")
    fits({"not": {}, "anyOf": [True]}, 1)


def test_references_reach_definitions_by_the_drafts_name() -> None:
    new = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}
    old = {"$schema": DRAFT_7, "$ref": "#/definitions/A", "definitions": {"A": {"type": "string"}}}
    for schema in (new, old):
        fits(schema, "a")
        assert messages(schema, 1) == ["Invalid input: expected string, received number"]


def test_references_are_decoded_and_end_at_the_second_segment() -> None:
    schema = {"$ref": "#/$defs/a~1b~0c/x/y", "$defs": {"a/b~c": {"type": "string"}}}
    assert messages(schema, 1) == ["Invalid input: expected string, received number"]


def test_a_schema_may_refer_to_itself() -> None:
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}, "v": {"type": "number"}}}
    assert parsed(schema, {"v": 1, "child": {"v": 2}}) == {"child": {"v": 2}, "v": 1}
    assert issues(schema, {"child": {"v": "x"}})[0][0] == ["child", "v"]


def test_a_combination_beside_a_reference_takes_its_place() -> None:
    schema = {"$ref": "#/$defs/A", "anyOf": [{"type": "number"}], "$defs": {"A": {"type": "string"}}}
    fits(schema, 1)
    assert len(issues({**schema, "type": "null"}, True)) == 2


def test_a_list_where_a_schema_may_stand_accepts_everything() -> None:
    fits({"type": "object", "properties": {"a": [1]}}, {"a": 5})


def test_a_tool_takes_an_object() -> None:
    check_tool_input_schema({"type": "object"})
    for schema in ({}, True, {"type": ["object"]}, {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}):
        compile_schema(schema)
        with pytest.raises(
            SchemaUnsupported, match=r"^Tool inputSchema JSON Schema root type must be object$"
        ):
            check_tool_input_schema(schema)


def test_numbers_beyond_a_double_count_as_null() -> None:
    fits({"type": "number", "minimum": float("inf")}, 1)
    fits({"const": float("inf")}, None)


def test_an_absent_value_is_judged_like_any_other() -> None:
    assert messages({"type": "string"}, ABSENT) == ["Invalid input: expected string, received undefined"]
    assert parsed({"default": [1]}, ABSENT) == [1]
    assert parsed({}, ABSENT) is ABSENT
