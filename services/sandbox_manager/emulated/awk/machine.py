"""Runs an awk program over records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from services.sandbox_manager.emulated.awk.expressions import Node
from services.sandbox_manager.emulated.awk.functions import Functions, array_parameters
from services.sandbox_manager.emulated.awk.lexer import AwkError
from services.sandbox_manager.emulated.awk.memory import Memory
from services.sandbox_manager.emulated.awk.parser import Program, Rule
from services.sandbox_manager.emulated.awk.streams import Streams
from services.sandbox_manager.emulated.awk.values import (
    Given,
    Value,
    calculate,
    compare,
    formatted,
    number,
    regex,
    split_by,
    splitter,
    text,
    truth,
)


class _Next(Exception):
    pass


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


class _Exit(Exception):
    pass


class Machine(Memory):
    """One run of a program. `variables` are set before it begins."""

    def __init__(self, program: Program, streams: Streams, variables: dict[str, Any]) -> None:
        super().__init__(variables)
        self._program = program
        self._streams = streams
        self._functions = Functions()
        self._started: set[int] = set()
        self._array_parameters = array_parameters(program)
        self.exit_code = 0

    def run(self, inputs: Iterator[tuple[str, str]]) -> None:
        """Runs all of it; `inputs` gives file names and contents. Raises AwkError."""
        self._records = self._all_records(inputs)
        try:
            try:
                for action in self._program.begin:
                    self._do(action)
                if self._program.rules or self._program.end:
                    self._main()
            except _Exit:
                if self._ending:
                    return
            self._ending = True
            for action in self._program.end:
                self._do(action)
        except _Exit:
            pass
        except (_Next, _Break, _Continue, _Return):
            raise AwkError("next, break, continue or return stands where it can't") from None

    _ending = False

    def assign(self, name: str, value: str) -> None:
        """An assignment among the files."""
        self._set_name(name, Given(value))

    # Records

    def _main(self) -> None:
        for record in self._records:
            self._set_record(record)
            try:
                for place, rule in enumerate(self._program.rules):
                    if self._applies(place, rule):
                        self._do(rule.action or ("print", (), None))
            except _Next:
                continue

    def _applies(self, place: int, rule: Rule) -> bool:
        if rule.pattern is None:
            return True
        if rule.until is None:
            return truth(self._value(rule.pattern))
        if place not in self._started:
            if not truth(self._value(rule.pattern)):
                return False
            self._started.add(place)
        if truth(self._value(rule.until)):
            self._started.discard(place)
        return True

    def _all_records(self, inputs: Iterator[tuple[str, str]]) -> Iterator[str]:
        for name, content in inputs:
            self._globals["FILENAME"] = name
            self._globals["FNR"] = 0.0
            for record in self._split_records(content):
                self._globals["NR"] = number(self._globals["NR"]) + 1
                self._globals["FNR"] = number(self._globals["FNR"]) + 1
                yield record

    # Statements

    def _do(self, node: Node) -> None:
        match node[0]:
            case "block":
                for each in node[1]:
                    self._do(each)
            case "do expression":
                self._value(node[1])
            case "print" | "printf":
                self._print(node)
            case "if":
                chosen = node[2] if truth(self._value(node[1])) else node[3]
                if chosen is not None:
                    self._do(chosen)
            case "while":
                self._loop(lambda: truth(self._value(node[1])), node[2], None)
            case "do":
                if self._body(node[1]):
                    self._loop(lambda: truth(self._value(node[2])), node[1], None)
            case "for":
                if node[1] is not None:
                    self._do(node[1])
                self._loop(lambda: node[2] is None or truth(self._value(node[2])), node[4], node[3])
            case "for in":
                for key in list(self._array(node[2])):
                    self._set_name(node[1], Given(key))
                    if not self._body(node[3]):
                        break
            case "delete":
                if node[2] is None:
                    self._array(node[1]).clear()
                else:
                    self._array(node[1]).pop(self._key(node[2]), None)
            case _:
                self._leave(node)

    def _leave(self, node: Node) -> None:
        match node[0]:
            case "next":
                raise _Next
            case "break":
                raise _Break
            case "continue":
                raise _Continue
            case "return":
                raise _Return(None if node[1] is None else self._value(node[1]))
            case "exit":
                if node[1] is not None:
                    self.exit_code = int(number(self._value(node[1]))) & 0xFF
                raise _Exit
        raise AwkError(f"the emulated awk has no {node[0]}")

    def _loop(self, goes_on: Callable[[], bool], body: Node, step: Node | None) -> None:
        while goes_on():
            if not self._body(body):
                return
            if step is not None:
                self._do(step)

    def _body(self, body: Node) -> bool:
        try:
            self._do(body)
        except _Break:
            return False
        except _Continue:
            pass
        return True

    def _print(self, node: Node) -> None:
        values = [self._value(each) for each in node[1]]
        if node[0] == "printf":
            printed = formatted(self._text(values[0]), values[1:])
        else:
            form = text(self._globals["OFMT"])
            shown = [text(value, form) for value in values] if values else [self._record]
            printed = text(self._globals["OFS"]).join(shown) + text(self._globals["ORS"])
        if node[2] is None:
            self._streams.stdout.append(printed)
        else:
            self._streams.write(node[2][0], self._text(self._value(node[2][1])), printed)

    # Expressions

    def _value(self, node: Node) -> Value:
        match node[0]:
            case "constant":
                return node[1]  # type: ignore[no-any-return]
            case "name" | "element" | "field":
                return self._get(node)
            case "in parentheses":
                return self._value(node[1])
            case "join":
                return self._text(self._value(node[1])) + self._text(self._value(node[2]))
            case "calculate":
                return calculate(node[1], number(self._value(node[2])), number(self._value(node[3])))
            case "compare":
                return float(compare(node[1], self._value(node[2]), self._value(node[3])))
            case "assign":
                return self._assign(node[1], node[2], node[3])
            case "step before":
                return self._set(node[2], number(self._get(node[2])) + node[1])
            case "step after":
                before = number(self._get(node[2]))
                self._set(node[2], before + node[1])
                return before
            case "built in":
                return self._built_in(node[1], node[2])
            case "call":
                return self._call(node[1], node[2])
            case "getline":
                return self._getline(node[1], node[2])
            case "choice":
                return self._value(node[2] if truth(self._value(node[1])) else node[3])
            case "negative":
                return -number(self._value(node[1]))
            case "positive":
                return number(self._value(node[1]))
        return float(self._holds(node))

    def _holds(self, node: Node) -> bool:
        match node[0]:
            case "regex":
                return regex(node[1]).search(self._record) is not None
            case "match":
                return (self._regex(node[2]).search(self._text(self._value(node[1]))) is not None) is node[3]
            case "in":
                return self._key(node[1]) in self._array(node[2])
            case "not":
                return not truth(self._value(node[1]))
            case "and":
                return truth(self._value(node[1])) and truth(self._value(node[2]))
            case "or":
                return truth(self._value(node[1])) or truth(self._value(node[2]))
        raise AwkError("syntax error: a list stands where a value is needed")

    def _regex(self, node: Node) -> re.Pattern[str]:
        while node[0] == "in parentheses":
            node = node[1]
        return regex(node[1] if node[0] == "regex" else self._text(self._value(node)))

    def _assign(self, sign: str, place: Node, source: Node) -> Value:
        value = self._value(source)
        if sign:
            value = calculate(sign, number(self._get(place)), number(value))
        return self._set(place, value)

    def _getline(self, place: Node | None, file: Node | None) -> Value:
        try:
            record = (
                next(self._records, None)
                if file is None
                else self._streams.line(self._text(self._value(file)))
            )
        except OSError:
            return -1.0
        if record is None:
            return 0.0
        if place is None:
            self._set_record(record)
        else:
            self._set(place, Given(record))
        return 1.0

    def _call(self, name: str, arguments: Sequence[Node]) -> Value:
        if name not in self._program.functions:
            raise AwkError(f"function {name} is not defined")
        parameters, body = self._program.functions[name]
        if len(arguments) > len(parameters):
            raise AwkError(f"function {name} is called with too many values")
        given: dict[str, Any] = {}
        for place, parameter in enumerate(parameters):
            argument = arguments[place] if place < len(arguments) else None
            if argument is None:
                given[parameter] = None
            elif argument[0] == "name" and place in self._array_parameters[name]:
                given[parameter] = self._array(argument[1])
            else:
                given[parameter] = self._value(argument)
        kept, self._locals = self._locals, given
        try:
            self._do(body)
        except _Return as returned:
            return returned.value
        finally:
            self._locals = kept
        return None

    def _built_in(self, name: str, given: Sequence[Node]) -> Value:
        match name:
            case "length":
                if (
                    given
                    and given[0][0] == "name"
                    and isinstance(self._scope(given[0][1]).get(given[0][1]), dict)
                ):
                    return float(len(self._array(given[0][1])))
                return float(len(self._text(self._value(given[0])) if given else self._record))
            case "split":
                return self._split_into(given)
            case "sub" | "gsub":
                return self._substitute(name == "gsub", given)
            case "match":
                found = self._regex(given[1]).search(self._text(self._value(given[0])))
                self._globals["RSTART"] = float(found.start() + 1) if found else 0.0
                self._globals["RLENGTH"] = float(found.end() - found.start()) if found else -1.0
                return self._globals["RSTART"]  # type: ignore[no-any-return]
            case "system":
                raise AwkError("the emulated awk starts no commands: system() is not there")
            case "close" if given:
                return self._streams.close(self._text(self._value(given[0])))
        values = [self._value(each) for each in given]
        return self._functions.call(name, values, text(self._globals["CONVFMT"]))

    def _split_into(self, given: Sequence[Node]) -> Value:
        if len(given) < 2 or given[1][0] != "name":
            raise AwkError("split needs a text and an array")
        whole = self._text(self._value(given[0]))
        if len(given) > 2 and given[2][0] == "regex":
            parts = split_by(regex(given[2][1]), whole)
        else:
            separator = self._text(self._value(given[2])) if len(given) > 2 else text(self._globals["FS"])
            parts = splitter(separator)(whole)
        array = self._array(given[1][1])
        array.clear()
        array.update((str(place), Given(part)) for place, part in enumerate(parts, 1))
        return float(len(parts))

    def _substitute(self, all_: bool, given: Sequence[Node]) -> Value:
        if len(given) < 2:
            raise AwkError("sub and gsub need an expression and a text")
        place = given[2] if len(given) > 2 else ("field", ("constant", 0.0))
        by = self._text(self._value(given[1]))

        def replaced(found: re.Match[str]) -> str:
            return _AMPERSAND.sub(lambda each: {"&": found.group(), "\\&": "&"}.get(each.group(), "\\"), by)

        changed, count = self._regex(given[0]).subn(
            replaced, self._text(self._value(place)), count=0 if all_ else 1
        )
        if count and place[0] in {"name", "element", "field"}:
            self._set(place, changed)
        return float(count)


_AMPERSAND: Final = re.compile(r"\\\\|\\&|&")
