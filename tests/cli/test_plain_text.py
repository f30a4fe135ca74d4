"""Text of others never controls the terminal."""

from __future__ import annotations

import pytest

from cli.plain_text import as_text, one_line, plain, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", "a\nb\tc"),
        ("a\r\nb", "a\nb"),
        ("over\rwritten", "over\ufffdwritten"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("\x9b2J", "\ufffd2J"),
        ("bell\a and\0nul", "bell\ufffd and\ufffdnul"),
        ("right\u202eleft", "right\ufffdleft"),
        ("\ud800", "\ufffd"),
        ("🧑\u200d🔧 नि\u200dक", "🧑\u200d🔧 नि\u200dक"),
    ],
)
def test_control_and_format_characters_are_replaced(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(text).encode()


def test_a_line_is_cut_to_its_width() -> None:
    assert one_line("a\n b\tc", 10) == "a b c"
    assert one_line("0123456789", 10) == "0123456789"
    assert one_line("0123456789a", 10) == "012345678…"


def test_values_are_shown_as_text_or_json() -> None:
    assert as_text("x") == "x"
    assert as_text({"ü": [1, None]}) == '{"ü": [1, null]}'


def test_columns_are_aligned() -> None:
    assert table(("a", "bb"), [("xxx", "y"), ("", "")]) == ["a    bb", "xxx  y", ""]
