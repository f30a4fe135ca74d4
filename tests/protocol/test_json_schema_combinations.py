from __future__ import annotations

from typing import Any

import pytest

from protocol.json_schema import ValidationStopped, compile_schema
from tests.protocol.json_schema_checks import fits, issues, messages, parsed

NO_MATCH = [([], "invalid_union", "Invalid input")]


def test_the_first_option_that_fits_makes_the_value() -> None:
    schema = {
        "anyOf": [
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"default": 2}}},
        ]
    }
    assert parsed(schema, {"a": "x"}) == {"a": "x"}
    assert parsed(schema, {"a": 1}) == {"b": 2, "a": 1}


def test_options_hide_their_issues() -> None:
    assert issues({"anyOf": [{"type": "string"}, {"type": "number"}]}, True) == NO_MATCH
    assert issues({"anyOf": []}, 1) == NO_MATCH


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ({"type": ["string", "integer"], "minimum": 3}, 1, "Too small: expected number to be >=3"),
        ({"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]}, "x", "Invalid email address"),
        (
            {"anyOf": [{"type": "array", "items": {}, "minItems": 2}, {"type": "null"}]},
            [1],
            "Too small: expected array to have >=2 items",
        ),
    ],
)
def test_the_only_option_that_nearly_fits_tells_its_own_issues(schema: Any, value: Any, told: str) -> None:
    assert messages(schema, value) == [told]


def test_two_options_that_nearly_fit_tell_nothing() -> None:
    schema = {"anyOf": [{"type": "string", "minLength": 3}, {"type": "string", "pattern": "^z"}]}
    assert issues(schema, "a") == NO_MATCH


def test_the_only_option_is_no_union() -> None:
    assert messages({"anyOf": [{"type": "string"}]}, 1) == ["Invalid input: expected string, received number"]


def test_a_refused_guard_counts_as_no_near_fit() -> None:
    schema = {"anyOf": [{"type": "object", "minProperties": 1}, {"type": "null"}]}
    assert issues(schema, {}) == NO_MATCH


def test_exactly_one_option_of_one_of_has_to_fit() -> None:
    schema = {"oneOf": [{"type": "number", "minimum": 0}, {"type": "number", "maximum": 10}]}
    fits(schema, -1, 11)
    assert messages(schema, 5) == ["Invalid input: more than one option matched"]
    assert issues({"oneOf": [{"type": "string", "minLength": 3}, {"type": "number"}]}, "a") == NO_MATCH


def test_all_branches_tell_all_their_issues_one_after_another() -> None:
    schema = {"allOf": [{"type": "string", "minLength": 3}, {"type": "string", "maxLength": 1}]}
    assert [code for _, code, _ in issues(schema, "ab")] == ["too_small", "too_big"]
    assert len(issues(schema, 5)) == 2


def test_what_the_branches_made_of_a_value_is_merged() -> None:
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"default": 1}}},
            {"type": "object", "properties": {"b": {"type": "array", "items": {"type": "object"}}}},
        ]
    }
    assert parsed(schema, {"b": [{"x": 1}], "c": 2}) == {"a": 1, "b": [{"x": 1}], "c": 2}


def test_a_member_that_one_closed_branch_declares_is_no_extra_member() -> None:
    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    other = {"type": "object", "properties": {"b": {}}, "additionalProperties": False}
    fits({"allOf": [closed, other]}, {"a": 1, "b": 2})
    assert messages({"allOf": [closed, other]}, {"a": 1, "z": 2}) == ['Unrecognized key: "z"']


def test_a_name_that_one_branch_refuses_is_no_issue() -> None:
    short = {"type": "object", "propertyNames": {"maxLength": 1}}
    letters = {"type": "object", "propertyNames": {"pattern": "^[a-z]*$"}}
    fits({"allOf": [short, letters]}, {"abc": 1, "A": 2})
    assert issues({"allOf": [short, letters]}, {"ABC": 1})[0][:2] == (["ABC"], "invalid_key")


def test_branches_without_a_type_do_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"required": ["a"]}]}
    fits(schema, {})


def test_without_a_type_a_later_combination_takes_the_place_of_an_earlier_one() -> None:
    schema = {"anyOf": [{"type": "string"}], "oneOf": [{"type": "number"}], "allOf": [{"type": "boolean"}]}
    fits(schema, True)
    assert len(issues({"type": "boolean", **schema}, 1)) == 3
    fits({"anyOf": [{"type": "string"}], "allOf": []}, 1)


def test_a_list_of_types_applies_each_types_keywords() -> None:
    schema = {"type": ["string", "array"], "minLength": 2, "items": {"type": "number"}}
    fits(schema, "ab", [1])
    assert messages(schema, "a") == ["Too small: expected string to have >=2 characters"]
    assert messages({"type": []}, 1) == ["Invalid input: expected never, received number"]
    assert messages({"type": ["string"]}, 1) == ["Invalid input: expected string, received number"]


def test_branches_that_make_different_values_give_no_verdict() -> None:
    schema = {"allOf": [{"type": "string", "format": "uri"}, {"type": "string"}]}
    with pytest.raises(ValidationStopped, match="different values"):
        compile_schema(schema).validate(" a:b ")


def test_read_only_and_annotations_change_nothing() -> None:
    fits({"type": "string", "readOnly": True, "title": "T", "description": "D", "examples": [1]}, "a")
    fits({"type": "string", "nullable": True, "contentEncoding": "base64", "dependencies": {}}, "%%")
    assert messages({"type": "string", "nullable": True}, None) == [
        "Invalid input: expected string, received null"
    ]
