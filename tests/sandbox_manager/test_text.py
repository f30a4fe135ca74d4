import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.utf16 import utf16_length
from services.sandbox_manager.text import cut_line, cut_middle, decode, encode, head, quote, tail


@pytest.mark.spec("sandbox-manager:19.14")
def test_only_more_than_the_limit_loses_its_middle() -> None:
    assert cut_middle("a" * 30_000) == ("a" * 30_000, False)
    cut, was_cut = cut_middle("a" * 30_001)
    assert was_cut
    assert cut == "a" * 15_000 + "\n… [1 characters omitted] …\n" + "a" * 15_000


@pytest.mark.spec("sandbox-manager:19.15")
def test_cut_emoji_leave_no_half() -> None:
    cut, was_cut = cut_middle("😀" * 20_000)
    assert was_cut
    assert "[10000 characters omitted]" in cut
    cut.encode()


def test_a_cut_inside_a_pair_moves_by_one_unit() -> None:
    assert head("a😀b", 2) == "a"
    assert head("a😀b", 3) == "a😀"
    assert tail("a😀b", 2) == "b"
    assert tail("a😀b", 3) == "😀b"


@given(st.text(), st.integers(min_value=0, max_value=20))
def test_cuts_keep_whole_characters_and_their_length(text: str, units: int) -> None:
    for part in (head(text, units), tail(text, units)):
        assert utf16_length(part) <= units
        assert part in text
        if utf16_length(text) > units:
            assert utf16_length(part) >= units - 1


def test_long_lines_end_with_an_ellipsis() -> None:
    assert cut_line("a" * 2000) == "a" * 2000
    assert cut_line("a" * 2001) == "a" * 2000 + "…"
    assert cut_line("é" * 2000) == "é" * 2000
    assert cut_line("a" + "😀" * 1000) == "a" + "😀" * 999 + "…"


@pytest.mark.parametrize(("text", "word"), [("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''")])
def test_words_are_quoted_for_a_shell(text: str, word: str) -> None:
    assert quote(text) == word


def test_what_is_no_utf8_is_replaced_and_a_mark_stays() -> None:
    assert decode(b"\xef\xbb\xbfa\xff\r\n") == "\ufeffa\ufffd\r\n"
    assert encode("a\ud800b\ud83d\ude00") == "a\ufffdb😀".encode()
