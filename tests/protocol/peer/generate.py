"""Makes the random schemas, values and patterns of this folder, and has the peer judge them.

Not part of the build. Needs Node 24 and zod 4.6.7:

    python -m tests.protocol.peer.generate NODE PATH/TO/zod/index.js [SEED COUNT FOLDER]

With a seed and a folder of one's own it is a differential test: `compare` reads any folder of such files.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

KEYS = [
    "a",
    "b",
    "c",
    "x-1",
    "10",
    "2",
    "01",
    "length",
    "toString",
    "constructor",
    "__proto__",
    "é",
    "😀",
    "",
]
TEXTS = [
    *("", "a", "ab", "abc", "xyz", "1", "10", "x-1", "Z", "😀", "😀😀", "aé", "\ud83d", "null"),
    *("2024-02-29", "a@b.co", "https://a.b/c", "  https://x.y ", "01:02:03Z", "P1D", "::1", "1.2.3.4"),
]
NUMBERS = [0, 1, 2, 3, -1, 5, 10, 0.1, 0.3, 0.25, 1.5, -0.5, 2**53, 2**53 - 1, -(2**53), 1e21, 1e-7, 2.03]
PATTERNS = ["^a", "b", "^[a-z]+$", "^x-", "a/b", "\\d+", "[", "^.$", "^(a|b)*$", "1"]
TYPES = ["string", "number", "integer", "boolean", "null", "object", "array"]
ODD: list[Any] = [None, 0, 1, "", "a", [], {}, True, False, [1], {"a": 1}, "ab", 1.5, -1]

FORMATS: dict[str, list[str]] = {
    "email": ["a@b.co", "a.b+c@d.example.com", "o'x@b.co", "a'@b.co", "a..b@c.de", "a@-b.co", "a@b-.co"],
    "uri": ["https://a.b/c?d#e", "mailto:a@b.c", " http://x ", "http://[::1]:80/", "ht!tp://x", "http:a"],
    "uri-reference": ["http://é.de", "http://xn--a", "//x", "http://a b", "ht\ntp://a", "foo:bar"],
    "uuid": ["550e8400-e29b-41d4-a716-446655440000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"],
    "guid": ["550e8400-e29b-91d4-a716-446655440000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date-time": ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123+02:00", "2026-01-02T23:59:60Z"],
    "date": ["2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2026-04-31", "0000-02-29"],
    "time": ["01:02:03Z", "01:02:03.5+23:59", "01:02Z", "01:02:03+24:00"],
    "duration": ["P1D", "PT1H", "P1W", "P1Y2M3DT4H5M6.7S", "P", "PT", "P1Y1W", "PT1,5S", "PT5M3H"],
    "hostname": ["a.b", "a.b.", "-a.b", "a-.b", "a" * 63 + ".b", "a" * 64 + ".b", "a..b", ".", "1.2.3.4"],
    "ipv4": ["1.2.3.4", "01.2.3.4", "256.1.1.1", "1.2.3"],
    "ipv6": ["::1", "1::", "1:2:3:4:5:6:7:8", "::1.2.3.4", "::01.2.3.4", "1::2::3", "12345::", "::1%eth0"],
    "mac": ["00:1a:2b:3c:4d:5e", "00:1A:2B:3C:4D:5E", "00:1a:2B:3c:4d:5e"],
    "cidr": ["1.2.3.4/8", "1.2.3.4/32", "1.2.3.4/33", "1.2.3.4/08"],
    "cidr-v6": ["::/0", "::1/128", "::1/129", "::1/01", "::1/0.5", "::1/NaN", "::1"],
    "base64": ["", "aGk=", "aGk", "====", "A===", "AB==", "AB=C", "aG k="],
    "base64url": ["", "aGk", "aGk=", "a-_b", "A", "ABCDE"],
    "e164": ["+1234567", "+123456", "+0123456789", "+1234567890123456"],
    "credit_card": ["4111111111111111", "4111 1111-1111 1111", "4111--1111", "4111111111111112"],
    "iban": ["GB82WEST12345698765432", "DE89370400440532013000", "GB00WEST12345698765432"],
    "jwt": ["eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.a.b", "e30.a.b", "W10.a.b", "eyJhbGciOltdfQ=.a.b", "a.b"],
    "emoji": ["😀", "1", "#️⃣", "👨‍👩‍👧", "🇩🇪", "a😀", "❤️", "™", "\u200d", "🏽"],
    "nanoid": ["a" * 21, "a" * 20],
    "cuid": ["cabcdef", "Cabcdef", "cABCDEF", "cabcde"],
    "cuid2": ["abc", "ABC"],
    "ulid": ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "81ARZ3NDEKTSV4RRFFQ69G5FAV"],
    "xid": ["9m4e2mr0ui3e8a215n4g", "9m4e2mr0ui3e8a215n4w"],
    "ksuid": ["a" * 27, "a" * 26],
    "regex": ["["],
}

TOKENS = [
    *("a", "b", ".", "^", "$", "\\b", "\\B", "\\d", "\\D", "\\w", "\\W", "\\s", "*", "+", "?", "*?", "{2}"),
    *("{1,2}", "{0,}", "{,2}", "{2,1}", "{", "}", "]", "[", "[ab]", "[^a]", "[\\d-x]", "[\\b]", "[^]", "[]"),
    *("(", "(?:", "(?=", "(?!", "(?<=", "(?<!", ")", ")", ")", "|", "\\1", "\\2", "\\k<n>", "(?<n>", "(?<m>"),
    *(
        "\\0",
        "\\01",
        "\\8",
        "\\x61",
        "\\x6",
        "\\u0061",
        "\\u{61}",
        "\\cA",
        "\\c",
        "[\\c]",
        "[\\c1]",
        "\\p{L}",
    ),
    *(
        "\\Z",
        "/",
        "-",
        "😀",
        "\\ud83d",
        "[😀]",
        "[\\u0000-\\uffff]",
        "[^\\ud83d]",
        "é",
        "(?i:",
        "(?-i:",
        "(?s:",
    ),
    *("(?m:", "(?im-s:", "(?i", "[a-", "[z-a]", "\\", "\n", "(?<$a>", "(?<1>", "\\k", "(?P<n>", "[\\k]", "k"),
    *("K", "ſ", "(?i-:", "(?:a*)*", "(?i:[a-k])", "[/]", "{99999999999}", "(?<a\\u{62}>", "[\\1]"),
]
PLAIN_TOKENS = [
    *(
        "a",
        "b",
        "a",
        "b",
        ".",
        "^",
        "$",
        "\\b",
        "\\B",
        "\\w",
        "\\s",
        "*",
        "+",
        "?",
        "{2}",
        "{1,2}",
        "(",
        "(?:",
    ),
    *("(?=", "(?!", "(?<=", "(?<!", ")", ")", ")", ")", "|", "[ab]", "[^a]", "(?i:", "(?s:", "(?m:", "😀"),
]
PATTERN_TEXTS = [
    *(
        "",
        "a",
        "b",
        "ab",
        "aa",
        "aab",
        "abc",
        "cab",
        "A",
        "aB",
        "1",
        "a b",
        "\n",
        "a\nb",
        "😀",
        "a😀",
        "😀😀",
    ),
    *(
        "\ud83d",
        "x-1",
        "aaaa",
        "bababa",
        "é",
        "K",
        "k",
        "ſ",
        "s",
        "\\",
        "/",
        "a{,2}",
        "k<n>",
        "p{L}",
        "uuu",
        "\x08",
    ),
]


class Random:
    """Schemas of all kinds, and values that often nearly fit."""

    def __init__(self, seed: int, oddness: float) -> None:
        self.random = random.Random(seed)
        self.choice = self.random.choice
        self.oddness = oddness

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def some(self, least: int, most: int) -> range:
        return range(self.random.randint(least, most))

    def value(self, depth: int = 0) -> Any:
        kind = self.random.random()
        if kind < 0.4 or depth > 3:
            return self.choice(
                [self.choice(TEXTS), self.choice(TEXTS[:6]), self.choice(NUMBERS), None, True, False]
            )
        if kind < 0.7:
            return [self.value(depth + 1) for _ in self.some(0, 4)]
        return {self.choice(KEYS): self.value(depth + 1) for _ in self.some(0, 4)}

    def schema(self, depth: int = 0) -> Any:
        if self.chance(self.oddness):
            return self.choice(ODD)
        if self.chance(0.06):
            return self.choice([True, False])
        schema: dict[str, Any] = {}
        kind = self.random.random()
        if kind < 0.75:
            self.typed(schema, depth)
        elif kind < 0.82:
            schema["enum"] = [
                self.choice([self.choice(TEXTS), self.choice(NUMBERS), None, True, [1, "a"], {}])
                if self.chance(0.5)
                else self.choice(TEXTS)
                for _ in self.some(0, 4)
            ]
        elif kind < 0.87:
            schema["const"] = self.value(2)
        elif kind < 0.93:
            schema["$ref"] = self.choice(["#", "#/$defs/A", "#/$defs/B", "#/definitions/A", "#/$defs/A/x"])
        for keyword, share in (("anyOf", 0.15), ("oneOf", 0.08), ("allOf", 0.12)):
            if self.chance(share):
                schema[keyword] = [self.schema(depth + 1) for _ in self.some(0, 3)]
        if self.chance(0.12):
            schema["default"] = self.value(2)
        for keyword in ("readOnly", "nullable"):
            if self.chance(0.05):
                schema[keyword] = True
        if self.chance(0.01):
            schema["not"] = self.choice([{}, [], {"a": 1}, None, True])
        if depth == 0:
            schema["$defs"] = {"A": self.schema(2), "B": self.schema(2)}
            if self.chance(0.3):
                schema["definitions"] = {"A": self.schema(2)}
                schema["$schema"] = "http://json-schema.org/draft-07/schema#"
        if self.chance(self.oddness):
            schema[self.choice([*schema, "if", "dependentRequired", "x"])] = self.choice(ODD)
        return schema

    def typed(self, schema: dict[str, Any], depth: int) -> None:
        kinds = [self.choice(TYPES[: 5 if depth > 3 else 7])]
        schema["type"] = kinds[0]
        if self.chance(0.12):
            kinds += [self.choice(TYPES) for _ in self.some(0, 2)]
            schema["type"] = kinds
        for kind in kinds:
            if kind == "string":
                self.bounds(schema, ("minLength", "maxLength"), [0, 1, 2, 3, -1, 1.5])
                if self.chance(0.25):
                    schema["pattern"] = self.choice(PATTERNS)
                if self.chance(0.25):
                    schema["format"] = self.choice(list(FORMATS))
            elif kind in ("number", "integer"):
                self.bounds(schema, ("minimum", "maximum"), [0, 1, 2, -1, 0.5, 10])
                self.bounds(schema, ("exclusiveMinimum", "exclusiveMaximum"), [0, 1, 3, True, False])
                self.bounds(schema, ("multipleOf",), [1, 2, 0.1, 0.5, 0.07, 0, -2])
            elif kind == "object":
                self.object(schema, depth)
            elif kind == "array":
                self.array(schema, depth)

    def bounds(self, schema: dict[str, Any], keywords: tuple[str, ...], limits: list[Any]) -> None:
        for keyword in keywords:
            if self.chance(0.25):
                schema[keyword] = self.choice(limits)

    def object(self, schema: dict[str, Any], depth: int) -> None:
        if self.chance(0.8):
            schema["properties"] = {self.choice(KEYS): self.schema(depth + 1) for _ in self.some(0, 3)}
        if self.chance(0.5):
            schema["required"] = [self.choice(KEYS) for _ in self.some(0, 3)]
        if self.chance(0.45):
            schema["additionalProperties"] = self.choice([True, False, False, self.schema(depth + 2)])
        if self.chance(0.2):
            schema["patternProperties"] = {
                self.choice(PATTERNS): self.schema(depth + 2) for _ in self.some(1, 2)
            }
        if self.chance(0.15):
            names = [self.schema(depth + 2), {"pattern": "^[a-z]+$"}, {"minLength": 2}, True, False]
            schema["propertyNames"] = self.choice(names)
        self.bounds(schema, ("minProperties", "maxProperties"), [0, 1, 2, 3])

    def array(self, schema: dict[str, Any], depth: int) -> None:
        if self.chance(0.6):
            schema["items"] = self.schema(depth + 1)
        for keyword, share in (("items", 0.2), ("prefixItems", 0.25)):
            if self.chance(share):
                schema[keyword] = [self.schema(depth + 1) for _ in self.some(0, 3)]
        if self.chance(0.2):
            schema["additionalItems"] = self.choice([True, False, self.schema(depth + 2)])
        self.bounds(schema, ("minItems", "maxItems"), [0, 1, 2, 3, -1, 1.5])
        self.bounds(schema, ("uniqueItems",), [True, True, False])
        if self.chance(0.2):
            schema["contains"] = self.schema(depth + 2)
        self.bounds(schema, ("minContains", "maxContains"), [0, 1, 2, 3])

    def fitting(self, schema: Any, root: Any, depth: int = 0) -> Any:
        """A value that the schema may well accept."""
        if not isinstance(schema, dict) or self.chance(0.12) or depth > 6:
            return self.value(depth)
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "$ref" in schema:
            path = str(schema["$ref"]).split("/")
            known = root.get("$defs") if isinstance(root, dict) else None
            target = known.get(path[2]) if len(path) > 2 and isinstance(known, dict) else root
            return self.fitting(target, root, depth + 1)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword] and self.chance(0.6):
                return self.fitting(self.choice(schema[keyword]), root, depth + 1)
        kind = schema.get("type")
        kind = self.choice(kind) if isinstance(kind, list) and kind else kind
        if kind == "object":
            return self.fitting_object(schema, root, depth)
        if kind == "array":
            return self.fitting_array(schema, root, depth)
        if kind == "string":
            return self.choice(TEXTS)
        return self.choice(NUMBERS) if kind in ("number", "integer") else self.value(4)

    def fitting_object(self, schema: dict[str, Any], root: Any, depth: int) -> dict[str, Any]:
        declared = schema.get("properties")
        members = {
            key: self.fitting(entry, root, depth + 1)
            for key, entry in (declared.items() if isinstance(declared, dict) else ())
            if self.chance(0.7)
        }
        for _ in self.some(0, 2):
            key = self.choice([*KEYS, "x-a", "abc"])
            members[key] = self.fitting(schema.get("additionalProperties"), root, depth + 2)
        items = list(members.items())
        self.random.shuffle(items)
        return dict(items)

    def fitting_array(self, schema: dict[str, Any], root: Any, depth: int) -> list[Any]:
        lists = [
            entry for entry in (schema.get("prefixItems"), schema.get("items")) if isinstance(entry, list)
        ]
        first = lists[0] if lists else []
        items = [
            self.fitting(first[index] if index < len(first) else schema.get("items"), root, depth + 1)
            for index in self.some(0, 4)
        ]
        return [*items, self.choice(items)] if items and self.chance(0.3) else items

    def changed(self, text: str) -> str:
        letters = list(text)
        for _ in self.some(0, 2):
            at = self.random.randint(0, len(letters))
            if self.chance(0.4):
                letters.insert(at, self.choice("aAzZ09.:-+@/ _'=\n\t,TPWé😀\u2028%[]\\"))
            elif letters:
                letters[min(at, len(letters) - 1)] = self.choice("aZ09.:-+@/ =")
        return "".join(letters)

    def pattern(self) -> str:
        tokens = self.choice([TOKENS, PLAIN_TOKENS])
        return "".join(self.choice(tokens) for _ in self.some(1, 9))


def schema_lines(seed: int, count: int, *, oddness: float = 0.01, longest: int = 600) -> list[Any]:
    """`{schema, values}`, and as many again for each format and for `multipleOf`."""
    source = Random(seed, oddness)
    lines: list[Any] = []
    while len(lines) < count:
        schema = source.schema()
        if len(json.dumps(schema)) <= longest:
            values = [source.fitting(schema, schema) for _ in range(5)] + [source.value()]
            lines.append({"schema": schema, "values": values})
    for name, examples in FORMATS.items():
        texts = [*examples, *(source.changed(source.choice(examples)) for _ in range(count // 20))]
        lines.append({"schema": {"type": "string", "format": name}, "values": texts})
    for step in (0.1, 0.01, 0.07, 3, 2, 0.5, 1e-10, 0, -0.1, 0.001, 1.1):
        numbers = [*NUMBERS, *(round(source.random.uniform(-1000, 1000), place % 5) for place in range(20))]
        lines.append({"schema": {"type": "number", "multipleOf": step}, "values": numbers})
    return lines


def pattern_lines(seed: int, count: int) -> list[Any]:
    """`{pattern, texts}`."""
    source = Random(seed, 0)
    patterns = dict.fromkeys(source.pattern() for _ in range(count))
    return [{"pattern": pattern, "texts": PATTERN_TEXTS} for pattern in patterns]


def record(node: str, zod: str, lines: list[Any], target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        command = [node, str(FOLDER / "record.mjs"), zod, str(source), str(target)]
        subprocess.run(command, check=True, timeout=600)


def main(arguments: list[str]) -> None:
    node, zod, *rest = arguments
    seed, count = (int(rest[0]), int(rest[1])) if rest else (2026, 500)
    folder = Path(rest[2]) if rest else FOLDER
    record(node, zod, schema_lines(seed, count), folder / "schemas.jsonl")
    record(node, zod, pattern_lines(seed, count * 4), folder / "patterns.jsonl")


if __name__ == "__main__":
    main(sys.argv[1:])
