"""Expressions of awk as trees: tuples whose first member is the name of what they are."""

from __future__ import annotations

from typing import Any, Final

from services.sandbox_manager.emulated.awk.lexer import AwkError, Token

Node = tuple[Any, ...]

_ASSIGNMENTS: Final = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "^="})
_COMPARISONS: Final = frozenset({"<", "<=", "==", "!=", ">", ">="})
_BEGINS_OPERAND: Final = frozenset(
    {"number", "string", "regex", "name", "call", "function name", "$", "!", "(", "-", "+", "++", "--"}
)
MOST_DEPTH: Final = 200


class Expressions:
    """Reads expressions from words, one after the other."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._no_in = False
        self._no_greater = False

    # Words

    @property
    def _kind(self) -> str:
        return self._tokens[self._at].kind

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _take(self, kind: str) -> bool:
        if self._kind == kind:
            self._at += 1
            return True
        return False

    def _need(self, kind: str) -> Token:
        if self._kind != kind:
            raise self._wrong()
        return self._next()

    def _wrong(self) -> AwkError:
        token = self._tokens[self._at]
        return AwkError(f"syntax error at source line {token.line} near {token.text or 'the end'!r}")

    def _lines(self) -> None:
        while self._kind == "\n":
            self._at += 1

    def _ends(self) -> None:
        while self._kind in {"\n", ";"}:
            self._at += 1

    def _whole(self) -> Node:
        """An expression in which `in` and `>` mean what they always mean."""
        kept = self._no_in, self._no_greater
        self._no_in = self._no_greater = False
        made = self._expression()
        self._no_in, self._no_greater = kept
        return made

    def _list(self) -> list[Node]:
        values = [self._expression()]
        while self._take(","):
            self._lines()
            values.append(self._expression())
        return values

    # Expressions, from what binds least

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise AwkError("the program is nested too deeply")
        try:
            return self._assignment()
        finally:
            self._depth -= 1

    def _assignment(self) -> Node:
        left = self._choice()
        if self._kind in _ASSIGNMENTS and left[0] in {"name", "element", "field"}:
            sign = self._next().kind
            self._lines()
            return ("assign", sign[:-1], left, self._assignment())
        return left

    def _choice(self) -> Node:
        condition = self._or()
        if not self._take("?"):
            return condition
        self._lines()
        then = self._assignment()
        self._lines()
        self._need(":")
        self._lines()
        return ("choice", condition, then, self._assignment())

    def _or(self) -> Node:
        left = self._and()
        while self._take("||"):
            self._lines()
            left = ("or", left, self._and())
        return left

    def _and(self) -> Node:
        left = self._membership()
        while self._take("&&"):
            self._lines()
            left = ("and", left, self._membership())
        return left

    def _membership(self) -> Node:
        left = self._match()
        while not self._no_in and self._take("in"):
            subscript = left[1] if left[0] == "group" else (left,)
            left = ("in", subscript, self._need("name").text)
        return left

    def _match(self) -> Node:
        left = self._comparison()
        while True:
            if self._take("~"):
                left = ("match", left, self._comparison(), True)
            elif self._kind == "!" and self._tokens[self._at + 1].kind == "~":
                self._at += 2
                left = ("match", left, self._comparison(), False)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._joined()
        if self._kind in _COMPARISONS and not (self._kind == ">" and self._no_greater):
            sign = self._next().kind
            return ("compare", sign, left, self._joined())
        if self._kind == "|" and self._tokens[self._at + 1].kind == "getline":
            raise AwkError("the emulated awk starts no commands: `command | getline` is not there")
        return left

    def _joined(self) -> Node:
        left = self._sum()
        while self._kind in _BEGINS_OPERAND and self._kind not in {"+", "-"}:
            if self._kind == "!" and self._tokens[self._at + 1].kind == "~":
                break
            left = ("join", left, self._sum())
        return left

    def _sum(self) -> Node:
        left = self._product()
        while self._kind in {"+", "-"}:
            left = ("calculate", self._next().kind, left, self._product())
        return left

    def _product(self) -> Node:
        left = self._unary()
        while self._kind in {"*", "/", "%"}:
            left = ("calculate", self._next().kind, left, self._unary())
        return left

    def _unary(self) -> Node:
        if self._take("!"):
            return ("not", self._unary())
        if self._take("-"):
            return ("negative", self._unary())
        if self._take("+"):
            return ("positive", self._unary())
        return self._power()

    def _power(self) -> Node:
        left = self._stepped()
        if self._take("^"):
            # It binds to the right, and more than a sign before it but less than one after it.
            return ("calculate", "^", left, self._power_of())
        return left

    def _power_of(self) -> Node:
        for sign, name in (("-", "negative"), ("+", "positive"), ("!", "not")):
            if self._take(sign):
                return (name, self._power_of())
        return self._power()

    def _stepped(self) -> Node:
        if self._kind in {"++", "--"}:
            sign = self._next().kind
            return ("step before", 1 if sign == "++" else -1, self._place(self._primary()))
        made = self._primary()
        if self._kind in {"++", "--"} and made[0] in {"name", "element", "field"}:
            return ("step after", 1 if self._next().kind == "++" else -1, made)
        return made

    def _place(self, made: Node) -> Node:
        if made[0] not in {"name", "element", "field"}:
            raise self._wrong()
        return made

    def _primary(self) -> Node:
        token = self._next()
        match token.kind:
            case "number":
                return ("constant", float(token.text))
            case "string":
                return ("constant", token.text)
            case "regex":
                return ("regex", token.text)
            case "$":
                return ("field", self._field_number())
            case "(":
                return self._group()
            case "-":
                return ("negative", self._unary())
            case "+":
                return ("positive", self._unary())
            case "!":
                return ("not", self._unary())
            case "name":
                if self._kind == "[":
                    return ("element", token.text, self._subscript())
                return ("name", token.text)
            case "call":
                return ("call", token.text, self._arguments())
            case "function name":
                if self._kind == "(":
                    return ("built in", token.text, self._arguments())
                if token.text == "length":
                    return ("built in", "length", ())
            case "getline":
                return self._getline()
        self._at -= 1
        raise self._wrong()

    def _field_number(self) -> Node:
        if self._kind in {"++", "--"}:
            return self._stepped()
        if self._take("-"):
            return ("negative", self._field_number())
        return self._primary()

    def _group(self) -> Node:
        kept = self._no_in, self._no_greater
        self._no_in = self._no_greater = False
        values = self._list()
        self._no_in, self._no_greater = kept
        self._need(")")
        if len(values) == 1:
            return ("in parentheses", values[0])
        return ("group", tuple(values))

    def _subscript(self) -> tuple[Node, ...]:
        self._need("[")
        kept = self._no_in, self._no_greater
        self._no_in = self._no_greater = False
        values = self._list()
        self._no_in, self._no_greater = kept
        self._need("]")
        return tuple(values)

    def _arguments(self) -> tuple[Node, ...]:
        self._need("(")
        kept = self._no_in, self._no_greater
        self._no_in = self._no_greater = False
        self._lines()
        values = [] if self._kind == ")" else self._list()
        self._lines()
        self._no_in, self._no_greater = kept
        self._need(")")
        return tuple(values)

    def _getline(self) -> Node:
        place = None
        if self._kind in {"name", "$"}:
            place = self._place(self._primary())
        if self._take("<"):
            return ("getline", place, self._primary())
        return ("getline", place, None)
