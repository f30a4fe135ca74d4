from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.js_regex import JsRegex, RegexInvalid, RegexTooCostly, js_regex


@pytest.mark.parametrize(
    "pattern",
    [
        "(?<n>a)",
        "(?<n>a)|(?<n>b)",
        "((?<n>a)|(?<n>b))c",
        "(?i:a)",
        "(?-i:a)",
        "(?im-s:a)",
        "(?<=a)b",
        "(?<!a)b",
        "(?=a)*",
        "\\Z",
        "\\p{L}",
        "a{,2}",
        "{",
        "}",
        "]",
        "\\c",
        "[\\d-x]",
        "\\8",
        "\\k<n>",
        "\\k<n>(?<n>a)",
        "(?<$é>a)",
        "(?<\\u0061>a)",
        "x{99999999999}",
        "[^]",
        "[]",
        "\ud83d",
    ],
)
def test_what_javascript_accepts(pattern: str) -> None:
    JsRegex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?P<n>a)",
        "(?i)a",
        "a++",
        "a**",
        "\\b*",
        "\\B?",
        "^*",
        "$+",
        "^{2}",
        "(?<=a)*",
        "(?<!a){2}",
        "*",
        "{2}",
        "a{2,1}",
        "(",
        ")",
        "(?:",
        "[a",
        "[b-a]",
        "\\",
        "[\\",
        "(?<n>a)(?<n>b)",
        "(?<n>a(?<n>b))",
        "(?<n>a)\\k<m>",
        "(?<n>a)\\k",
        "(?<1>a)",
        "(?<>a)",
        "(?-:a)",
        "(?ii:a)",
        "(?i-i:a)",
        "(?u:a)",
        "(?",
    ],
)
def test_what_javascript_refuses(pattern: str) -> None:
    with pytest.raises(RegexInvalid, match=r"\(at character \d+\)"):
        JsRegex(pattern)


@pytest.mark.parametrize(
    ("pattern", "matches", "misses"),
    [
        ("", ["", "a"], []),
        ("b", ["abc"], ["xyz"]),
        ("^a.c$", ["abc", "a\x85c"], ["a\nc", "a\u2028c", "abcd", "abc\n"]),
        ("^.$", ["é", "\ud83d"], ["😀", ""]),
        ("^..$", ["😀"], ["😀a"]),
        ("^[😀]", ["\ud83d"], ["a"]),
        ("\\ud83d\\ude00", ["😀"], ["\ud83d"]),
        ("^[^a]+$", ["😀b"], ["ba"]),
        ("^\\d+$", ["12"], ["١"]),
        ("^\\w$", ["_"], ["é"]),
        ("^\\s$", ["\ufeff", "\u2028", "\xa0"], ["\x85", "\x1c"]),
        ("\\bfoo\\b", ["a foo b", "foo"], ["food", "éfoof"]),
        ("\\Bo", ["foo"], ["o"]),
        ("(?m:^b$)", ["a\nb\nc"], ["a b"]),
        ("(?s:^.$)", ["\n"], []),
        ("(?i:k)", ["K", "k"], ["\u212a"]),
        ("^(?i:[^k])$", ["x"], ["K"]),
        ("a(?=b)", ["ab"], ["ac"]),
        ("^(?!.*x)", ["ab"], ["abx"]),
        ("(?<=a|b)c", ["bc"], ["c", "xc"]),
        ("(?<!a)c", ["c", "bc"], ["ac"]),
        ("^(?=(?!ab)a.)", ["ac"], ["ab"]),
        ("^(ab){2,3}$", ["abab", "ababab"], ["ab", "abababab"]),
        ("^(a|b)*?c{0}$", ["", "abba"], ["c"]),
        ("^(\\w)\\1$", ["aa"], ["ab"]),
        ("^(a)\\1\\u{2}(?<b\\u{62}>)$", ["aauu"], ["aa\x02"]),
        ("^(?<q>['\"]).*\\k<q>$", ["'a'"], ["'a\""]),
        ("\\x61\\u0062\\143\\cJ", ["abc\n"], ["abc"]),
        ("^[\\b\\-\\]]+$", ["\x08-]"], ["b"]),
        ("^[\\w-.]+$", ["a-."], ["a b"]),
        ("^\\c$", ["\\c"], ["c"]),
        ("^a{,2}$", ["a{,2}"], ["a"]),
        ("^\\p{L}$", ["p{L}"], ["é"]),
    ],
)
def test_matches(pattern: str, matches: list[str], misses: list[str]) -> None:
    regex = JsRegex(pattern)
    assert [text for text in matches if not regex.test(text)] == []
    assert [text for text in misses if regex.test(text)] == []


@pytest.mark.parametrize(
    ("pattern", "printed"),
    [
        ("a/b", "/a\\/b/"),
        ("a\\/b[/]/", "/a\\/b[/]\\//"),
        ("", "/(?:)/"),
        ("\n\\\n\u2028", "/\\n\\n\\u2028/"),
        ("[\\]/]", "/[\\]/]/"),
    ],
)
def test_it_is_printed_as_javascript_prints_it(pattern: str, printed: str) -> None:
    assert str(JsRegex(pattern)) == printed


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "^(a|aa)+$b",
        "(a*)*b",
        "a*a*a*a*a*a*b",
        "(?=(a+)+b)a",
        "(.*)*x",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
    ],
)
def test_patterns_that_make_others_backtrack_take_no_time(pattern: str) -> None:
    begun = time.monotonic()
    assert not JsRegex(pattern).test("a" * 100_000)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("pattern", ["(?:x{1000}){1000}", "(?:(?:x{1000}){1000}){1000}"])
def test_a_pattern_of_too_many_states_is_valid_and_stops(pattern: str) -> None:
    with pytest.raises(RegexTooCostly, match="too large"):
        JsRegex(pattern).test("x")


def test_a_pattern_whose_states_explode_stops() -> None:
    text = "".join(random.Random(1).choices("ab", k=200_000))
    with pytest.raises(RegexTooCostly, match="too long"):
        JsRegex("(?:[ab]*a[ab]{60}){3}c").test(text)


def test_back_references_are_matched_within_a_bound() -> None:
    regex = JsRegex("^(a*)*\\1$")
    assert regex.test("aaaa")
    with pytest.raises(RegexTooCostly):
        regex.test("a" * 40)
    quoted = JsRegex("^([\"']).*\\1$")
    assert quoted.test("'" + "a" * 1_000 + "'")
    with pytest.raises(RegexTooCostly):
        quoted.test("'" + "a" * 100_000)


def test_groups_may_nest_deep_but_not_without_end() -> None:
    assert JsRegex("(" * 2_000 + "a" + ")" * 2_000).test("a")
    assert JsRegex("(?=" * 2_000 + "a" + ")" * 2_000).test("a")
    with pytest.raises(RegexInvalid, match="too deep"):
        JsRegex("(" * 100_000 + ")" * 100_000)


def test_a_pattern_is_compiled_once() -> None:
    assert js_regex("^kettle$") is js_regex("^kettle$")
    assert js_regex("a" * 5_000) is not js_regex("a" * 5_000)


@settings(max_examples=300, deadline=None)
@given(st.text("ab(|)*+?[]^$\\.{}1,<=!:kd-", max_size=12), st.text("ab1 -\n", max_size=8))
def test_nothing_but_the_named_errors_comes_out(pattern: str, text: str) -> None:
    try:
        JsRegex(pattern).test(text)
    except (RegexInvalid, RegexTooCostly):
        return
