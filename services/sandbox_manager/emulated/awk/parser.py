"""An awk program: its rules and statements, as trees."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.sandbox_manager.emulated.awk.expressions import MOST_DEPTH, Expressions, Node
from services.sandbox_manager.emulated.awk.lexer import AwkError, tokens_of


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern (None: every record; with a second one: a range) and its action (None: print)."""

    pattern: Node | None
    until: Node | None
    action: Node | None


@dataclass(slots=True)
class Program:
    """What a program does at the start, with each record, at the end, and its functions: parameters and body."""

    begin: list[Node] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    end: list[Node] = field(default_factory=list)
    functions: dict[str, tuple[tuple[str, ...], Node]] = field(default_factory=dict)


def parse(source: str) -> Program:
    """Reads a program. Raises AwkError."""
    return _Parser(tokens_of(source)).program()


class _Parser(Expressions):
    # Rules

    def program(self) -> Program:
        """The whole."""
        made = Program()
        self._ends()
        while self._kind != "end":
            self._item(made)
            self._ends()
        return made

    def _item(self, made: Program) -> None:
        if self._take("function"):
            name = self._next().text
            self._need("(")
            parameters: list[str] = []
            while not self._take(")"):
                parameters.append(self._need("name").text)
                if self._take(","):
                    self._lines()
            self._lines()
            made.functions[name] = (tuple(parameters), self._block())
        elif self._take("BEGIN"):
            made.begin.append(self._block())
        elif self._take("END"):
            made.end.append(self._block())
        else:
            pattern = until = None
            if self._kind != "{":
                pattern = self._expression()
                if self._take(","):
                    self._lines()
                    until = self._expression()
            action = self._block() if self._kind == "{" else None
            made.rules.append(Rule(pattern, until, action))

    def _block(self) -> Node:
        self._need("{")
        body: list[Node] = []
        self._ends()
        while not self._take("}"):
            body.append(self._statement())
            self._ends()
        return ("block", tuple(body))

    # Statements

    def _statement(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise AwkError("the program is nested too deeply")
        try:
            return self._one_statement()
        finally:
            self._depth -= 1

    def _one_statement(self) -> Node:
        match self._kind:
            case "{":
                return self._block()
            case "if":
                return self._if()
            case "while":
                self._next()
                condition = self._in_parentheses()
                return ("while", condition, self._body())
            case "do":
                self._next()
                body = self._body()
                self._ends()
                self._need("while")
                made = ("do", body, self._in_parentheses())
                self._end_statement()
                return made
            case "for":
                return self._for()
            case ";":
                return ("block", ())
        made = self._simple()
        self._end_statement()
        return made

    def _end_statement(self) -> None:
        if self._kind not in {"}", "end"} and not (self._take(";") or self._take("\n")):
            raise self._wrong()

    def _in_parentheses(self) -> Node:
        self._need("(")
        made = self._whole()
        self._need(")")
        return made

    def _body(self) -> Node:
        self._lines()
        if self._take(";"):
            return ("block", ())
        return self._statement()

    def _if(self) -> Node:
        self._next()
        condition = self._in_parentheses()
        then = self._body()
        kept = self._at
        self._ends()
        if not self._take("else"):
            self._at = kept
            return ("if", condition, then, None)
        return ("if", condition, then, self._body())

    def _for(self) -> Node:
        self._next()
        self._need("(")
        words = [token.kind for token in self._tokens[self._at : self._at + 4]]
        if words == ["name", "in", "name", ")"]:
            name, _, array, _ = (self._next() for _ in range(4))
            return ("for in", name.text, array.text, self._body())
        begin = None if self._kind == ";" else self._simple()
        self._need(";")
        self._lines()
        condition = None if self._kind == ";" else self._expression()
        self._need(";")
        self._lines()
        step = None if self._kind == ")" else self._simple()
        self._need(")")
        return ("for", begin, condition, step, self._body())

    def _simple(self) -> Node:
        kind = self._kind
        if kind in {"next", "nextfile", "break", "continue"}:
            self._next()
            return (kind,)
        if kind in {"exit", "return"}:
            self._next()
            value = None if self._kind in {";", "\n", "}", "end"} else self._expression()
            return (kind, value)
        if kind == "delete":
            self._next()
            name = self._need("name").text
            return ("delete", name, self._subscript() if self._kind == "[" else None)
        if kind in {"print", "printf"}:
            return self._print(kind)
        return ("do expression", self._expression())

    def _print(self, kind: str) -> Node:
        self._next()
        kept, self._no_greater = self._no_greater, True
        values: list[Node] = []
        if self._kind not in {";", "\n", "}", "end", ">", ">>", "|"}:
            values = self._list()
        self._no_greater = kept
        if len(values) == 1 and values[0][0] == "group":
            values = list(values[0][1])
        target = None
        if self._kind in {">", ">>", "|"}:
            sign = self._next().kind
            target = (sign, self._joined())
        if kind == "printf" and not values:
            raise self._wrong()
        return (kind, tuple(values), target)
