"""Which schemas of an MCP server's tools can be used (mcp-pool 5.3)."""

from __future__ import annotations

from typing import Any, Final

from protocol.js_regex import RegexInvalid, js_regex
from protocol.json_schema.js_values import INHERITED, PROTO

_OLD_DRAFTS: Final = frozenset(
    {"http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"}
)
_REFUSED: Final = (
    "unevaluatedItems",
    "unevaluatedProperties",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependentRequired",
)


class _Unusable(Exception):
    """Some rule refuses the schema."""


def usable_schema(schema: Any) -> bool:
    """Whether a server's schema is an object that the peer's converter accepts.

    Looks at every examined sub-schema once, with a list instead of recursion, and at a referenced one once for
    each text of a reference.
    """
    if not isinstance(schema, dict):
        return False
    check = _Check(schema)
    try:
        while check.left:
            check.node(check.left.pop())
    except _Unusable:
        return False
    return True


def _truthy(value: Any) -> bool:
    return isinstance(value, list | dict) or bool(value)


class _Check:
    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.left: list[Any] = [root]
        self.references: set[str] = set()

    def node(self, node: Any) -> None:
        if isinstance(node, bool | list):
            return
        if not isinstance(node, dict):
            raise _Unusable
        self._base(node)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(node.get(keyword), list):
                self.left.extend(node[keyword])

    def _base(self, node: dict[str, Any]) -> None:
        if "not" in node:
            if not isinstance(node["not"], dict | list) or node["not"]:
                raise _Unusable
            return
        if any(keyword in node for keyword in _REFUSED):
            raise _Unusable
        if _truthy(node.get("$ref")):
            self._reference(node["$ref"])
        elif "enum" in node:
            if not isinstance(node["enum"], list):
                raise _Unusable
        elif "const" not in node:
            kinds = [node.get("type")]
            while kinds:
                kind = kinds.pop()
                if isinstance(kind, list):
                    kinds.extend(kind)
                elif _truthy(kind):
                    self._typed(kind, node)

    def _reference(self, reference: Any) -> None:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _Unusable
        if reference in self.references:
            return
        self.references.add(reference)
        path = [segment for segment in reference[1:].split("/") if segment]
        if not path:
            self.left.append(self.root)
            return
        schema = self.root.get("$schema")
        key = "definitions" if isinstance(schema, str) and schema in _OLD_DRAFTS else "$defs"
        if path[0] != key or len(path) < 2:
            raise _Unusable
        name = path[1].replace("~1", "/").replace("~0", "~")
        definitions = self.root.get("$defs")
        if not _truthy(definitions):
            definitions = self.root.get("definitions")
        if isinstance(definitions, dict) and name in definitions:
            target = definitions[name]
        else:
            target = name in INHERITED or name == PROTO
        if not _truthy(target):
            raise _Unusable
        self.left.append(target)

    def _typed(self, kind: Any, node: dict[str, Any]) -> None:
        if kind == "object":
            self._object(node)
        elif kind == "array":
            self._array(node)
        elif kind == "string":
            if _truthy(node.get("pattern")):
                _compiles(node["pattern"])
        elif kind not in ("number", "integer", "boolean", "null"):
            raise _Unusable

    def _object(self, node: dict[str, Any]) -> None:
        if _truthy(node.get("required")) and not isinstance(node["required"], list | str):
            raise _Unusable
        self._members(node.get("properties"))
        if "additionalProperties" in node and (
            node["additionalProperties"] is None or isinstance(node["additionalProperties"], dict | list)
        ):
            self.left.append(node["additionalProperties"])
        patterns = node.get("patternProperties")
        if isinstance(patterns, dict):
            for pattern in patterns:
                _compiles(pattern)
        self._members(patterns)
        if "propertyNames" in node and node["propertyNames"] is not True:
            names = node["propertyNames"]
            if isinstance(names, dict) and "type" not in names:
                names = {"type": "string", **names}
            self.left.append(names)

    def _members(self, members: Any) -> None:
        if isinstance(members, dict):
            self.left.extend(members.values())
        elif isinstance(members, list):
            self.left.extend(members)
        elif isinstance(members, str) and members:
            raise _Unusable

    def _array(self, node: dict[str, Any]) -> None:
        items = node.get("items")
        if isinstance(node.get("prefixItems"), list):
            self.left.extend(node["prefixItems"])
            if "items" in node and not isinstance(items, list | bool):
                self.left.append(items)
        elif isinstance(items, list):
            self.left.extend(items)
            if "additionalItems" in node and not isinstance(node["additionalItems"], bool):
                self.left.append(node["additionalItems"])
        elif "items" in node:
            self.left.append(items)
        if "contains" in node:
            self.left.append(node["contains"])


def _compiles(pattern: Any) -> None:
    if not isinstance(pattern, str):
        return
    try:
        js_regex(pattern)
    except RegexInvalid:
        raise _Unusable from None
