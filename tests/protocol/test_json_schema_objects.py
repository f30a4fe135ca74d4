from __future__ import annotations

from protocol import jsjson
from tests.protocol.json_schema_checks import fits, issues, messages, parsed

MISSING = "Invalid input: expected string, received undefined"


def test_declared_members_come_first_and_in_schema_order() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    assert jsjson.dumps(parsed(schema, {"b": 1, "a": 2, "z": 4})) == '{"z":4,"a":2,"b":1}'


def test_index_keys_come_first_as_in_every_javascript_object() -> None:
    schema = {"type": "object", "properties": {"z": {}}}
    assert jsjson.dumps(parsed(schema, {"3": 0, "b": 1, "z": 4})) == '{"3":0,"z":4,"b":1}'


def test_required_members_are_told_by_their_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {}},
        "required": ["b", "a", "zz"],
    }
    assert issues(schema, {}) == [
        (["a"], "invalid_type", MISSING),
        (["b"], "invalid_type", "Invalid input: expected nonoptional, received undefined"),
    ]
    fits(schema, {"a": "", "b": None})


def test_required_may_be_a_text_of_one_letter_names() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": "xa"}
    assert messages(schema, {}) == [MISSING]


def test_defaults_are_filled_in_unchecked() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "string", "default": 5}, "l": {"default": []}, "o": {"type": "null"}},
        "required": ["n"],
    }
    assert parsed(schema, {}) == {"n": 5, "l": []}
    assert messages(schema, {"n": 5}) == ["Invalid input: expected string, received number"]


def test_a_default_is_a_new_object_each_time() -> None:
    default: list[int] = []
    schema = {"type": "object", "properties": {"l": {"default": default}}}
    parsed(schema, {})["l"].append(1)
    assert parsed(schema, {}) == {"l": []}


def test_a_default_inside_an_absent_object_is_not_filled_in() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"default": 1}}}}}
    assert parsed(schema, {}) == {}
    assert parsed(schema, {"a": {}}) == {"a": {"b": 1}}


def test_a_default_in_an_option_fills_in_too() -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"default": 1}]}}}
    assert parsed(schema, {}) == {"a": 1}


def test_extra_members_are_refused_together_and_last() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert issues(schema, {"x": 1, "y": 2}) == [
        (["a"], "invalid_type", MISSING),
        ([], "unrecognized_keys", 'Unrecognized keys: "x", "y"'),
    ]


def test_additional_members_have_their_schema() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "number"}}
    fits(schema, {"a": "x", "n": 1})
    assert issues(schema, {"a": "x", "n": "1"})[0][0] == ["n"]


def test_an_additional_schema_that_accepts_nothing_closes_the_object() -> None:
    for nothing in ({"not": {}}, {"enum": []}, {"type": []}):
        schema = {"type": "object", "additionalProperties": nothing}
        assert messages(schema, {"x": 1}) == ['Unrecognized key: "x"']


def test_a_member_whose_schema_is_false_may_only_be_absent() -> None:
    schema = {"type": "object", "properties": {"a": False}}
    fits(schema, {})
    assert messages(schema, {"a": 1}) == ["Invalid input: expected never, received number"]


def test_patterns_of_names_have_their_schemas_and_other_members_pass() -> None:
    schema = {"type": "object", "patternProperties": {"^x-": {"type": "number"}}}
    fits(schema, {"y": "z", "x-a": 1})
    assert issues(schema, {"x-a": "1"})[0][0] == ["x-a"]
    assert messages(schema, 5) == ["Invalid input: expected record, received number"]


def test_a_closed_object_with_patterns_is_checked_for_extra_members_once_the_rest_fits() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "patternProperties": {"^x-": {"type": "number"}},
        "additionalProperties": False,
    }
    fits(schema, {"a": "s", "x-a": 1})
    assert messages(schema, {"y": 1}) == ['Unrecognized key: "y"']
    assert messages(schema, {"y": 1, "a": 1}) == ["Invalid input: expected string, received number"]


def test_names_are_refused_one_by_one_and_nothing_else_is_told() -> None:
    schema = {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": False}
    assert issues(schema, {"A": 1, "B": 2}) == [
        (["A"], "invalid_key", "Invalid key in record"),
        (["B"], "invalid_key", "Invalid key in record"),
    ]


def test_the_number_of_members_is_checked_before_anything_else() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "minProperties": 1,
    }
    assert issues(schema, {}) == [([], "too_small", "Too small: expected object to have >=1 properties")]
    assert messages({"type": "object", "maxProperties": 1}, {"a": 1, "b": 2}) == [
        "Too big: expected object to have <=1 properties"
    ]


def test_the_prototype_member_is_read_but_never_passed_on() -> None:
    assert parsed({"type": "object"}, {"__proto__": 1, "a": 2}) == {"a": 2}
    closed = {"type": "object", "additionalProperties": False}
    assert messages(closed, {"__proto__": 1}) == ['Unrecognized key: "__proto__"']


def test_a_member_named_like_one_of_every_object_is_never_absent() -> None:
    schema = {"type": "object", "properties": {"constructor": {"type": "string"}, "toString": {}}}
    assert messages(schema, {}) == ["Invalid input: expected string, received function"]
    assert parsed({"type": "object", "properties": {"toString": {}}, "required": ["toString"]}, {}) == {}


def test_keywords_without_a_type_do_nothing() -> None:
    fits({"properties": {"a": {"type": "string"}}, "required": ["a"], "minLength": 3}, {}, 5, "", {"a": 1})
