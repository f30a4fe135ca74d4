"""What an awk program works on: its variables and arrays, the record and its fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from services.sandbox_manager.emulated.awk.expressions import Node
from services.sandbox_manager.emulated.awk.lexer import AwkError
from services.sandbox_manager.emulated.awk.values import Given, Value, number, regex, split_by, splitter, text

Array = dict[str, Value]
_MOST_FIELD: Final = 1_000_000


class Memory:
    """Variables, and the record that is worked on."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._globals: dict[str, Any] = {
            "FS": " ", "OFS": " ", "ORS": "\n", "RS": "\n", "SUBSEP": "\x1c", "CONVFMT": "%.6g", "OFMT": "%.6g",
            "NR": 0.0, "FNR": 0.0, "RSTART": 0.0, "RLENGTH": -1.0, "FILENAME": "", **variables,
        }  # fmt: skip
        self._locals: dict[str, Any] = {}
        self._record = ""
        self._fields: list[Value] | None = []

    def _value(self, node: Node) -> Value:
        raise AwkError(f"{node[0]} has no value")

    # Records

    def _split_records(self, content: str) -> Iterator[str]:
        at = 0
        while at < len(content):
            separator = text(self._globals["RS"])
            if separator == "":
                start = re.compile(r"\n*").match(content, at)
                at = start.end() if start else at
                found = re.compile(r"\n\n+").search(content, at)
                if at >= len(content):
                    return
                end, following = found.span() if found else (len(content.rstrip("\n")), len(content))
            elif len(separator) == 1:
                end = content.find(separator, at)
                end, following = (len(content), len(content)) if end < 0 else (end, end + 1)
            else:
                found = regex(separator).search(content, at)
                end, following = found.span() if found else (len(content.removesuffix("\n")), len(content))
            yield content[at:end]
            at = max(following, at + 1)

    def _set_record(self, record: str) -> None:
        self._record, self._fields = record, None

    def _split(self) -> list[Value]:
        if self._fields is None:
            separator = text(self._globals["FS"])
            if text(self._globals["RS"]) == "" and separator != " ":
                parts = split_by(re.compile(f"\n|{regex(separator).pattern}"), self._record)
            else:
                parts = splitter(separator)(self._record)
            self._fields = [Given(part) for part in parts]
        return self._fields

    def _set_field(self, index: int, value: Value) -> None:
        if index == 0:
            self._set_record(self._text(value))
            return
        fields = self._split()
        self._grow(fields, index)
        fields[index - 1] = value if value is None or isinstance(value, Given) else Given(self._text(value))
        self._join_fields(fields)

    def _set_count(self, count: int) -> None:
        fields = self._split()
        self._grow(fields, count)
        del fields[count:]
        self._join_fields(fields)

    def _grow(self, fields: list[Value], count: int) -> None:
        if not 0 <= count <= _MOST_FIELD:
            raise AwkError(f"there is no field {count}")
        fields += [Given("")] * (count - len(fields))

    def _join_fields(self, fields: list[Value]) -> None:
        self._record = text(self._globals["OFS"]).join(text(each) for each in fields)

    # Names

    def _text(self, value: Value) -> str:
        return text(value, text(self._globals["CONVFMT"])) if isinstance(value, float) else text(value)

    def _scope(self, name: str) -> dict[str, Any]:
        return self._locals if name in self._locals else self._globals

    def _name(self, name: str) -> Value:
        if name == "NF":
            return float(len(self._split()))
        value = self._scope(name).get(name)
        if isinstance(value, dict):
            raise AwkError(f"{name} is an array")
        return value

    def _set_name(self, name: str, value: Value) -> None:
        if name == "NF":
            self._set_count(int(number(value)))
            return
        scope = self._scope(name)
        if isinstance(scope.get(name), dict):
            raise AwkError(f"{name} is an array")
        scope[name] = value

    def _array(self, name: str) -> Array:
        scope = self._scope(name)
        found = scope.get(name)
        if found is None:
            found = scope[name] = {}
        if not isinstance(found, dict):
            raise AwkError(f"{name} is no array")
        return found

    def _key(self, subscript: Sequence[Node]) -> str:
        return text(self._globals["SUBSEP"]).join(self._text(self._value(each)) for each in subscript)

    def _field_number(self, node: Node) -> int:
        index = int(number(self._value(node)))
        if index < 0:
            raise AwkError(f"there is no field {index}")
        return index

    def _get(self, place: Node) -> Value:
        match place[0]:
            case "name":
                return self._name(place[1])
            case "element":
                return self._array(place[1]).setdefault(self._key(place[2]), None)
        index = self._field_number(place[1])
        if index == 0:
            return Given(self._record)
        fields = self._split()
        return fields[index - 1] if index <= len(fields) else None

    def _set(self, place: Node, value: Value) -> Value:
        match place[0]:
            case "name":
                self._set_name(place[1], value)
            case "element":
                self._array(place[1])[self._key(place[2])] = value
            case _:
                self._set_field(self._field_number(place[1]), value)
        return value
