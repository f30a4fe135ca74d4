from __future__ import annotations

from tests.protocol.json_schema_checks import fits, issues, messages, parsed

NUMBERS = {"type": "array", "items": {"type": "number"}}
TWO = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]}


def test_elements_are_told_by_their_index() -> None:
    assert issues(NUMBERS, [1, "a", None])[1][0] == [2]


def test_sizes_count_only_where_items_has_a_schema() -> None:
    fits({"type": "array", "minItems": 2, "maxItems": 1}, [], [1, 2, 3])
    assert messages({"type": "array", "minItems": 1, "items": {}}, []) == [
        "Too small: expected array to have >=1 items"
    ]


def test_too_few_items_are_told_after_the_items() -> None:
    assert [code for _, code, _ in issues({**NUMBERS, "minItems": 3}, ["a"])] == ["invalid_type", "too_small"]


def test_too_many_items_are_told_alone() -> None:
    assert messages({**NUMBERS, "maxItems": 1}, ["a", "b"]) == ["Too big: expected array to have <=1 items"]


def test_a_fraction_among_integers_hides_the_size() -> None:
    assert messages({"type": "array", "items": {"type": "integer"}, "minItems": 3}, [1.5]) == [
        "Invalid input: expected int, received number"
    ]


def test_equal_items_are_found_whatever_the_order_of_their_members() -> None:
    schema = {"type": "array", "uniqueItems": True}
    assert issues(schema, [1, 1, "1", True, {"a": 1, "b": [2]}, {"b": [2], "a": 1.0}]) == [
        ([1], "custom", "Array items must be unique: element at index 1 duplicates the one at index 0"),
        ([5], "custom", "Array items must be unique: element at index 5 duplicates the one at index 4"),
    ]
    fits(schema, [1, "1", True, [1], ["1"], {}, [], None, "null"])


def test_a_repeated_item_hides_everything_else() -> None:
    schema = {**NUMBERS, "uniqueItems": True, "maxItems": 1}
    assert [code for _, code, _ in issues(schema, ["a", "a"])] == ["custom"]


def test_contains_counts_what_matches() -> None:
    schema = {"type": "array", "contains": {"type": "number"}, "minContains": 2, "maxContains": 2}
    fits(schema, [1, "a", 2])
    assert messages(schema, [1]) == ["Array must contain at least 2 matching elements; found 1"]
    assert messages(schema, [1, 2, 3]) == ["Array must contain at most 2 matching elements"]
    assert messages({"type": "array", "contains": {"type": "number"}}, ["a"]) == [
        "Array must contain at least 1 matching element; found 0"
    ]
    fits({"type": "array", "contains": {"type": "number"}, "minContains": 0}, [])


def test_a_tuple_may_be_shorter_and_longer_than_its_items() -> None:
    fits(TWO, [], ["a"], ["a", 1], ["a", 1, None])
    assert [path for path, _, _ in issues(TWO, [1, "a"])] == [[0], [1]]
    assert messages(TWO, "x") == ["Invalid input: expected tuple, received string"]


def test_a_tuple_of_the_old_drafts_is_one_too() -> None:
    schema = {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "number"}}
    fits(schema, ["a", 1])
    assert [path for path, _, _ in issues(schema, [1, 2, "x"])] == [[2], [0]]


def test_a_closed_tuple_refuses_more_items() -> None:
    assert messages({**TWO, "items": False}, ["a", 1, 2]) == ["Too big: expected array to have <=2 items"]


def test_items_up_to_the_minimum_have_to_be_there() -> None:
    schema = {**TWO, "minItems": 1}
    assert issues(schema, []) == [
        ([0], "invalid_type", "Invalid input: expected string, received undefined"),
    ]
    assert messages({**schema, "items": False}, []) == ["Too small: expected array to have >=1 items"] * 2


def test_defaults_of_missing_items_are_filled_in() -> None:
    schema = {"type": "array", "prefixItems": [{"default": 1}, {"type": "string"}, {"default": 3}]}
    assert parsed(schema, []) == [1]
    assert parsed(schema, [0, "a"]) == [0, "a", 3]
