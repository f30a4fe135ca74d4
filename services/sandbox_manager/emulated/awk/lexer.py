"""The words of an awk program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


class AwkError(Exception):
    """A program that can't be read or run; the text is what awk says."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word: its kind (`number`, `string`, `regex`, `name`, `call`, `function`, `end`, or the sign or keyword
    itself) and its text."""

    kind: str
    text: str
    line: int


KEYWORDS: Final = frozenset({
    "BEGIN", "END", "function", "func", "if", "else", "while", "for", "do", "break", "continue", "next", "nextfile",
    "exit", "return", "delete", "in", "getline", "print", "printf",
})  # fmt: skip
FUNCTIONS: Final = frozenset({
    "length", "substr", "index", "split", "sub", "gsub", "match", "sprintf", "sin", "cos", "atan2", "exp", "log",
    "sqrt", "int", "rand", "srand", "tolower", "toupper", "system", "close", "fflush",
})  # fmt: skip
_SPACE: Final = re.compile(r"(?:[ \t\r]|\\\r?\n|#[^\n]*)+")
_NUMBER: Final = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIGNS: Final = (
    "**=", "+=", "-=", "*=", "/=", "%=", "^=", "==", "<=", ">=", "!=", "++", "--", "&&", "||", ">>", "**",
    "{", "}", "(", ")", "[", "]", ";", "\n", ",", "+", "-", "*", "/", "%", "^", "!", ">", "<", "|", "?", ":",
    "~", "$", "=",
)  # fmt: skip
_BEFORE_DIVISION: Final = frozenset(
    {"number", "string", "regex", "name", "function", ")", "]", "$", "++", "--"}
)
"""After these a slash divides; anywhere else it begins a regular expression."""
_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "/": "/", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
}  # fmt: skip


def tokens_of(source: str) -> list[Token]:
    """All words of a program, with one of kind `end` last. Raises AwkError."""
    found: list[Token] = []
    at, line = 0, 1
    while True:
        space = _SPACE.match(source, at)
        if space is not None:
            line += space.group().count("\n")
            at = space.end()
        if at >= len(source):
            found.append(Token("end", "", line))
            return found
        token, at = _token(source, at, line, found[-1].kind if found else "")
        found.append(token)
        line += token.kind == "\n"


def _token(source: str, at: int, line: int, before: str) -> tuple[Token, int]:
    character = source[at]
    if character == '"':
        text, at = _quoted(source, at + 1, line)
        return Token("string", text, line), at
    if character == "/" and before not in _BEFORE_DIVISION:
        return _regex(source, at + 1, line)
    if number := _NUMBER.match(source, at):
        return Token("number", number.group(), line), number.end()
    if name := _NAME.match(source, at):
        text, at = name.group(), name.end()
        if text in KEYWORDS:
            return Token("function" if text == "func" else text, text, line), at
        if text in FUNCTIONS:
            return Token("function name", text, line), at
        return Token("call" if source[at : at + 1] == "(" else "name", text, line), at
    for sign in _SIGNS:
        if source.startswith(sign, at):
            kind = sign.replace("**", "^")
            return Token(kind, sign, line), at + len(sign)
    raise AwkError(f"syntax error at source line {line}: {character!r}")


def _quoted(source: str, at: int, line: int) -> tuple[str, int]:
    parts: list[str] = []
    while at < len(source) and source[at] not in '"\n':
        if source[at] == "\\" and at + 1 < len(source):
            text, at = _escape(source, at + 1)
            parts.append(text)
            continue
        parts.append(source[at])
        at += 1
    if source[at : at + 1] != '"':
        raise AwkError(f"a string does not end at source line {line}")
    return "".join(parts), at + 1


def _escape(source: str, at: int) -> tuple[str, int]:
    octal = re.compile("[0-7]{1,3}").match(source, at)
    if octal is not None:
        return chr(int(octal.group(), 8) & 0xFF), octal.end()
    character = source[at]
    if character == "\n":
        return "", at + 1
    return _ESCAPES.get(character, "\\" + character), at + 1


def unescape(text: str) -> str:
    """The text of a string with its escapes, as in an assignment on the command line."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            part, at = _escape(text, at + 1)
        else:
            part, at = text[at], at + 1
        parts.append(part)
    return "".join(parts)


def _regex(source: str, at: int, line: int) -> tuple[Token, int]:
    start, bracket = at, False
    while at < len(source) and source[at] != "\n":
        character = source[at]
        if character == "\\":
            at += 2
            continue
        if character == "[" and not bracket:
            bracket = True
            # A closing bracket that comes first is one of the class.
            at += 1 + (source[at + 1 : at + 2] == "^")
            at += source[at : at + 1] == "]"
            continue
        if character == "]":
            bracket = False
        elif character == "/" and not bracket:
            return Token("regex", source[start:at], line), at + 1
        at += 1
    raise AwkError(f"a regular expression does not end at source line {line}")
