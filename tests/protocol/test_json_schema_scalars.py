from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.json_schema_checks import fits, issues, messages, parsed

INF = float("inf")


@pytest.mark.parametrize(
    ("kind", "value", "received"),
    [
        ("string", 1, "number"),
        ("string", None, "null"),
        ("string", [], "array"),
        ("number", "1", "string"),
        ("number", True, "boolean"),
        ("number", INF, "Infinity"),
        ("integer", {}, "object"),
        ("boolean", 0, "number"),
        ("null", False, "boolean"),
        ("object", [], "array"),
        ("array", -INF, "-Infinity"),
    ],
)
def test_a_value_of_another_type_is_named_by_both_types(kind: str, value: Any, received: str) -> None:
    expected = "number" if kind == "integer" else kind
    message = f"Invalid input: expected {expected}, received {received}"
    assert issues({"type": kind}, value) == [([], "invalid_type", message)]


def test_values_of_every_type_fit_it() -> None:
    fits({"type": "string"}, "", "a\ud83d")
    fits({"type": "number"}, 0, -0.5, 1e308)
    fits({"type": "integer"}, 0, 2.0, -(2**53 - 1))
    fits({"type": "boolean"}, True, False)
    fits({"type": "null"}, None)
    fits({}, 1, "a", None, {"b": [1]})
    fits(True, 1)


def test_a_fraction_is_the_only_issue_of_an_integer() -> None:
    schema = {"type": "integer", "minimum": 5, "multipleOf": 2}
    assert issues(schema, 1.5) == [([], "invalid_type", "Invalid input: expected int, received number")]
    assert messages(schema, 3) == [
        "Too small: expected number to be >=5",
        "Invalid number: must be a multiple of 2",
    ]


def test_an_integer_beyond_the_safe_ones_is_told_before_the_bounds_of_the_schema() -> None:
    assert messages({"type": "integer", "maximum": 3}, 2**53) == [
        "Too big: expected int to be <=9007199254740991",
        "Too big: expected number to be <=3",
    ]
    assert messages({"type": "integer"}, -(2**53)) == ["Too small: expected int to be >=-9007199254740991"]


@pytest.mark.parametrize(
    ("keywords", "inside", "outside", "message"),
    [
        ({"minimum": 1}, 1, 0.9, "Too small: expected number to be >=1"),
        ({"maximum": 1.5}, 1.5, 2, "Too big: expected number to be <=1.5"),
        ({"exclusiveMinimum": 1}, 1.1, 1, "Too small: expected number to be >1"),
        ({"exclusiveMaximum": 1e21}, 1, 1e21, "Too big: expected number to be <1e+21"),
        ({"minimum": 1, "exclusiveMinimum": True}, 2, 1, "Too small: expected number to be >1"),
        ({"maximum": 1, "exclusiveMaximum": True}, 0, 1, "Too big: expected number to be <1"),
        ({"multipleOf": 0.1}, 0.3, 0.25, "Invalid number: must be a multiple of 0.1"),
        ({"multipleOf": 0.07}, 2.03, 2.04, "Invalid number: must be a multiple of 0.07"),
    ],
)
def test_bounds_of_numbers(keywords: dict[str, Any], inside: Any, outside: Any, message: str) -> None:
    schema = {"type": "number", **keywords}
    fits(schema, inside)
    assert messages(schema, outside) == [message]


def test_bounds_that_are_no_numbers_do_nothing() -> None:
    fits({"type": "number", "minimum": "5", "maximum": None, "multipleOf": INF}, 1)
    fits({"type": "number", "exclusiveMinimum": True}, -5)
    fits({"type": "string", "minLength": True}, "")


def test_nothing_is_a_multiple_of_zero() -> None:
    assert messages({"type": "number", "multipleOf": 0}, 0) == ["Invalid number: must be a multiple of 0"]


def test_string_lengths_count_code_points() -> None:
    schema = {"type": "string", "minLength": 2, "maxLength": 3}
    fits(schema, "😀😀", "😀a😀")
    assert messages(schema, "😀") == ["Too small: expected string to have >=2 characters"]
    assert messages(schema, "abcd") == ["Too big: expected string to have <=3 characters"]


def test_a_string_tells_format_then_lengths_then_pattern() -> None:
    schema = {"type": "string", "pattern": "^z", "minLength": 5, "format": "email"}
    assert issues(schema, "ab") == [
        ([], "invalid_format", "Invalid email address"),
        ([], "too_small", "Too small: expected string to have >=5 characters"),
        ([], "invalid_format", "Invalid string: must match pattern /^z/"),
    ]


def test_what_has_a_length_is_measured_even_where_a_string_is_expected() -> None:
    schema = {"type": "string", "minLength": 2}
    assert messages(schema, []) == [
        "Invalid input: expected string, received array",
        "Too small: expected array to have >=2 items",
    ]
    assert messages(schema, {"length": "1"})[1] == "Too small: expected unknown to be >=2"
    assert len(messages(schema, {"length": [7]})) == 1
    assert len(messages(schema, 7)) == 1


def test_a_pattern_is_searched_for_anywhere() -> None:
    fits({"type": "string", "pattern": "b"}, "abc")
    assert messages({"type": "string", "pattern": "^a/b"}, "x") == [
        "Invalid string: must match pattern /^a\\/b/"
    ]


def test_an_enum_of_texts_lists_them_and_one_of_other_values_does_not() -> None:
    assert issues({"enum": ["a", "b"]}, 1) == [
        ([], "invalid_value", 'Invalid option: expected one of "a"|"b"')
    ]
    assert issues({"enum": ["a", 1, None]}, 2) == [([], "invalid_union", "Invalid input")]
    assert messages({"enum": ["a"]}, "b") == ['Invalid input: expected "a"']
    assert messages({"enum": ["b", "10", "2", "b"]}, 0) == ['Invalid option: expected one of "2"|"10"|"b"']
    assert messages({"enum": []}, 0) == ["Invalid input: expected never, received number"]


def test_true_is_not_one_and_one_is_one_point_zero() -> None:
    fits({"enum": [1, "x"]}, 1.0)
    assert messages({"const": 1}, True) == ["Invalid input: expected 1"]
    assert messages({"const": True}, 1) == ["Invalid input: expected true"]


def test_a_constant_that_is_an_object_matches_nothing() -> None:
    assert messages({"const": {"a": 1}}, {"a": 1}) == ["Invalid input: expected [object Object]"]


def test_a_constant_that_is_an_array_stands_for_its_members() -> None:
    fits({"const": [1, 2]}, 2)
    assert messages({"const": [1, [2, None]]}, [1]) == ["Invalid option: expected one of 1|2,"]


def test_beside_an_enum_or_a_constant_other_keywords_do_nothing() -> None:
    fits({"type": "string", "enum": ["a", "b"], "minLength": 5}, "a")
    fits({"type": "string", "const": 1, "minLength": 5}, 1)


def test_a_url_goes_on_without_white_space_around_it() -> None:
    assert parsed({"type": "string", "format": "uri"}, " https://a.b/\n ") == "https://a.b/"
    assert messages({"type": "string", "format": "uri", "minLength": 4}, "  a:b  ") == [
        "Too small: expected string to have >=4 characters"
    ]
