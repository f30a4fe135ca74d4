"""From a JSON Schema to nodes: the keyword rules of the peer's importer (agent-engine 11).

The model. A schema becomes a *base* by the first of these it has: `not`, `$ref`, `enum`, `const`, a list of types,
a type; else it accepts anything. `anyOf`, `oneOf` and `allOf` then narrow the base when the schema names a type, an
enum or a constant, and replace it when it does not: that is why `required` and bounds in a branch without a type do
nothing. `default` comes last and is never checked. What the importer does not know makes the schema unusable when
ignoring it would accept more than the author meant (`if`, `dependentRequired`, …) and is ignored otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from protocol.js_regex import JsRegex, RegexInvalid, js_regex
from protocol.jsjson import is_index_key, js_order
from protocol.json_schema.arrays import ArrayNode, TupleNode
from protocol.json_schema.checks import length_bounds, number_of
from protocol.json_schema.combine import AllOfNode, OneOfNode, UnionNode
from protocol.json_schema.errors import SchemaUnsupported
from protocol.json_schema.formats import FORMATS
from protocol.json_schema.guards import ArrayGuard, ObjectGuard
from protocol.json_schema.js_values import ABSENT, INHERITED, PROTO, NoPrimitive, to_string, truthy, type_name
from protocol.json_schema.nodes import AnyNode, DefaultNode, NeverNode, Node, RefNode
from protocol.json_schema.objects import ClosedNode, Member, ObjectNode, PatternNode
from protocol.json_schema.scalars import (
    BooleanNode,
    NullNode,
    NumberBound,
    NumberNode,
    StringNode,
    ValuesNode,
)
from protocol.steps import NestingError, Steps, run_steps
from protocol.utf16 import utf16_length

_CONDITIONAL: Final = "Conditional schemas (if/then/else) are not supported"
_DEPENDENT: Final = "dependentSchemas and dependentRequired are not supported"
_REFUSED: Final = {
    "unevaluatedItems": "unevaluatedItems is not supported",
    "unevaluatedProperties": "unevaluatedProperties is not supported",
    "if": _CONDITIONAL,
    "then": _CONDITIONAL,
    "else": _CONDITIONAL,
    "dependentSchemas": _DEPENDENT,
    "dependentRequired": _DEPENDENT,
}
"""Keywords that can't be compiled, in the order they are looked for, with the peer's words: a model reads
them when an agent used as a tool can't be rebuilt (agent-engine 17)."""

OLD_DRAFTS: Final = frozenset(
    {"http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"}
)
"""Values of `$schema` with which references go to `definitions`; with every other one they go to `$defs`."""

_ANY: Final = AnyNode()


def convert(schema: Any) -> Node:
    """The node of a schema. Raises `SchemaUnsupported`."""
    if not isinstance(schema, bool | dict | list):
        raise SchemaUnsupported("a schema is an object, true or false")
    converter = Converter(schema if isinstance(schema, dict) else {})
    try:
        node = run_steps(converter.schema(schema))
    except NestingError:
        raise SchemaUnsupported("the schema nests too deep") from None
    converter.settle_absence()
    return node


class Converter:
    """The conversion of one schema document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        schema = root.get("$schema")
        self._definitions_key = "definitions" if isinstance(schema, str) and schema in OLD_DRAFTS else "$defs"
        definitions = root.get("$defs")
        self._definitions = definitions if truthy(definitions) else root.get("definitions")
        self._references: dict[str, RefNode] = {}
        self._passing: list[Node] = []
        """Every node whose handling of absence is that of its children."""

    def schema(self, schema: Any) -> Steps[Node]:
        """Any place where a schema may stand."""
        if schema is True:
            return _ANY
        if schema is False:
            return NeverNode()
        if isinstance(schema, list):
            return _ANY
        if not isinstance(schema, dict):
            raise SchemaUnsupported(f"a schema is an object, true or false, not {type_name(schema)}")
        base: Node = yield self._base(schema, schema.get("type", ABSENT))
        narrows = truthy(schema.get("type")) or "enum" in schema or "const" in schema
        parts = [base]
        for keyword, kind in (("anyOf", UnionNode), ("oneOf", OneOfNode)):
            branches = schema.get(keyword)
            if isinstance(branches, list):
                options = []
                for branch in branches:
                    options.append((yield self.schema(branch)))
                union = self._passing_node(kind(options))
                parts = [*parts, union] if narrows else [union]
        branches = schema.get("allOf")
        if isinstance(branches, list):
            if not narrows:
                parts = [] if branches else [_ANY]
            for branch in branches:
                parts.append((yield self.schema(branch)))
        node = parts[0] if len(parts) == 1 else AllOfNode(parts)
        if schema.get("readOnly") is True and isinstance(node, NeverNode):
            # As additionalProperties, a schema that accepts nothing closes the object, but not a wrapped one.
            node = AllOfNode([node])
        if "default" in schema:
            node = DefaultNode(node, schema["default"])
        return node

    def _passing_node(self, node: Node) -> Node:
        self._passing.append(node)
        return node

    def _base(self, schema: dict[str, Any], kind: Any) -> Steps[Node]:
        if "not" in schema:
            if isinstance(schema["not"], dict | list) and not schema["not"]:
                return NeverNode()
            raise SchemaUnsupported("not is not supported in Zod (except { not: {} } for never)")
        for keyword, refusal in _REFUSED.items():
            if keyword in schema:
                raise SchemaUnsupported(refusal)
        if truthy(schema.get("$ref")):
            return (yield from self._reference(schema["$ref"]))
        if "enum" in schema:
            return _enum(schema["enum"])
        if "const" in schema:
            return ValuesNode(_values_of(schema["const"]))
        if isinstance(kind, list):
            return (yield from self._types(schema, kind))
        if not truthy(kind):
            return _ANY
        if kind == "object":
            return (yield from self._object(schema))
        if kind == "array":
            return (yield from self._array(schema))
        if kind == "string":
            return _string(schema)
        if kind in ("number", "integer"):
            return _number(schema, integer=kind == "integer")
        if kind == "boolean":
            return BooleanNode()
        if kind == "null":
            return NullNode()
        named = kind if isinstance(kind, str) else type_name(kind)
        raise SchemaUnsupported(f"Unsupported type: {named}")

    def _types(self, schema: dict[str, Any], kinds: list[Any]) -> Steps[Node]:
        by_kind: dict[str, Node] = {}
        options: list[Node] = []
        for kind in kinds:
            node = by_kind.get(kind) if isinstance(kind, str) else None
            if node is None:
                node = yield self._base(schema, kind)
                if isinstance(kind, str):
                    by_kind[kind] = node
            options.append(node)
        if not options:
            return NeverNode()
        return options[0] if len(options) == 1 else self._passing_node(UnionNode(options))

    def _reference(self, reference: Any) -> Steps[Node]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaUnsupported("External $ref is not supported, only local refs (#/...) are allowed")
        path = [segment for segment in reference[1:].split("/") if segment]
        # Segments after the second are ignored, so references that differ only there share one node.
        name = None if not path else f"{path[0]}/{path[1] if len(path) > 1 else ''}"
        node = self._references.get(name or "")
        if node is None:
            target = self._root if name is None else self._definition(path, reference)
            node = RefNode()
            self._references[name or ""] = node
            node.target = yield self.schema(target)
            self._passing.append(node)
        return node.target if node.target is not None and node.target.leaf else node

    def _definition(self, path: list[str], reference: str) -> Any:
        found: Any = ABSENT
        if path[0] == self._definitions_key and len(path) > 1:
            key = path[1].replace("~1", "/").replace("~0", "~")
            definitions = self._definitions
            if key in INHERITED or key == PROTO:
                found = True
            if isinstance(definitions, dict) and key in definitions:
                found = definitions[key]
            elif isinstance(definitions, list) and is_index_key(key) and int(key) < len(definitions):
                found = definitions[int(key)]
        if not truthy(found):
            raise SchemaUnsupported(f"Reference not found: {reference}")
        return found

    def _object(self, schema: dict[str, Any]) -> Steps[Node]:
        required = _required_names(schema.get("required"))
        additional: Node | None = None
        if isinstance(schema.get("additionalProperties"), dict | list) or (
            "additionalProperties" in schema and schema["additionalProperties"] is None
        ):
            additional = yield self.schema(schema["additionalProperties"])
        members = []
        for key, entry in _entries(schema.get("properties")):
            members.append(Member(key, (yield self.schema(entry)), key in required))
        closed = schema.get("additionalProperties") is False
        node: Node
        if truthy(schema.get("patternProperties")):
            node = yield from self._patterned(schema["patternProperties"], members, closed=closed)
        elif isinstance(additional, NeverNode):
            node = ObjectNode(members, additional=None, closed=True)
        else:
            node = ObjectNode(members, additional=additional, closed=closed)
        keys: Node | None = None
        if "propertyNames" in schema and schema["propertyNames"] is not True:
            names = schema["propertyNames"]
            if isinstance(names, list) or (isinstance(names, dict) and "type" not in names):
                names = {"type": "string", **(names if isinstance(names, dict) else {})}
            keys = yield self.schema(names)
        minimum, maximum = number_of(schema, "minProperties"), number_of(schema, "maxProperties")
        if keys is not None or minimum is not None or maximum is not None:
            node = ObjectGuard(node, keys, minimum, maximum)
        return node

    def _patterned(self, patterns: Any, members: list[Member], *, closed: bool) -> Steps[Node]:
        parts: list[Node] = []
        if members:
            parts.append(ObjectNode(members, additional=None, closed=False))
        regexes = []
        for pattern, entry in _entries(patterns):
            regexes.append(_regex(pattern))
            parts.append(PatternNode(regexes[-1], (yield self.schema(entry))))
        if not parts:
            parts.append(ObjectNode([], additional=None, closed=False))
        whole = parts[0] if len(parts) == 1 else AllOfNode(parts)
        if not closed:
            return whole
        return ClosedNode(whole, frozenset(member.key for member in members), regexes)

    def _array(self, schema: dict[str, Any]) -> Steps[Node]:
        items = schema.get("items", ABSENT)
        prefix = schema.get("prefixItems")
        bounds = length_bounds(schema, "minItems", "maxItems")
        node: Node
        if isinstance(prefix, list) or isinstance(items, list):
            if isinstance(prefix, list):
                positional = prefix
                rest = False if isinstance(items, list) else items
            else:
                positional = items
                rest = schema.get("additionalItems", ABSENT)
            nodes = []
            for entry in positional:
                nodes.append((yield self.schema(entry)))
            others: Node | None = None
            if rest is ABSENT or rest is True:
                others = _ANY
            elif rest is not False:
                others = yield self.schema(rest)
            node = TupleNode(nodes, number_of(schema, "minItems") or 0, others, bounds)
        elif items is not ABSENT:
            element = yield self.schema(items)
            node = ArrayNode(element, bounds)
        else:
            node = ArrayNode(_ANY, [])
        unique = schema.get("uniqueItems") is True
        if unique or "contains" in schema:
            contains: Node | None = None
            if "contains" in schema:
                contains = yield self.schema(schema["contains"])
            node = ArrayGuard(
                node,
                unique=unique,
                contains=contains,
                minimum=number_of(schema, "minContains"),
                maximum=number_of(schema, "maxContains"),
            )
        return node

    def settle_absence(self) -> None:
        """Hand what nodes do with an absent value up to the unions and references above them."""
        above: dict[Node, list[Node]] = {}
        raised: list[Node] = []
        for node in self._passing:
            for child in node.absence_from():
                above.setdefault(child, []).append(node)
        for child in above:
            if child.absence:
                raised.append(child)
        while raised:
            child = raised.pop()
            for node in above.get(child, ()):
                if node.absence < child.absence:
                    node.absence = child.absence
                    raised.append(node)


def _entries(members: Any) -> list[tuple[str, Any]]:
    """`Object.entries` of what stands where an object belongs."""
    if isinstance(members, dict):
        return list(members.items())
    if isinstance(members, list | str):
        return [(str(index), entry) for index, entry in enumerate(members)]
    return []


def _required_names(required: Any) -> frozenset[str]:
    if not truthy(required):
        return frozenset()
    if not isinstance(required, list | str):
        raise SchemaUnsupported("required must be a list of names")
    return frozenset(name for name in required if isinstance(name, str))


def _enum(values: Any) -> Node:
    if isinstance(values, str) and utf16_length(values) <= 1:
        values = list(values)
    if not isinstance(values, list):
        raise SchemaUnsupported("enum must be a list")
    if not values:
        return NeverNode()
    if len(values) == 1:
        return ValuesNode(_values_of(values[0]))
    if all(isinstance(value, str) for value in values):
        # The peer goes through an object's members, and those have JavaScript's order.
        return ValuesNode(list(js_order(dict.fromkeys(values))))
    return UnionNode([ValuesNode(_values_of(value)) for value in values])


def _values_of(value: Any) -> list[Any]:
    """A list stands for its members, one level deep."""
    return value if isinstance(value, list) else [value]


def _string(schema: dict[str, Any]) -> Node:
    name = schema.get("format")
    pattern = schema.get("pattern")
    try:
        pattern = to_string(pattern) if truthy(pattern) else None
    except NoPrimitive:
        raise SchemaUnsupported("pattern must be a text") from None
    return StringNode(
        FORMATS.get(name) if isinstance(name, str) else None,
        length_bounds(schema, "minLength", "maxLength"),
        None if pattern is None else _regex(pattern),
    )


def _number(schema: dict[str, Any], *, integer: bool) -> Node:
    bounds = []
    minimum, maximum = number_of(schema, "minimum"), number_of(schema, "maximum")
    below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if minimum is not None and below is not True:
        bounds.append(NumberBound(minimum, is_minimum=True, inclusive=True))
    if maximum is not None and above is not True:
        bounds.append(NumberBound(maximum, is_minimum=False, inclusive=True))
    exclusive = number_of(schema, "exclusiveMinimum")
    exclusive = minimum if below is True else exclusive
    if exclusive is not None:
        bounds.append(NumberBound(exclusive, is_minimum=True, inclusive=False))
    exclusive = maximum if above is True else number_of(schema, "exclusiveMaximum")
    if exclusive is not None:
        bounds.append(NumberBound(exclusive, is_minimum=False, inclusive=False))
    return NumberNode(integer=integer, bounds=bounds, step=number_of(schema, "multipleOf"))


def _regex(pattern: str) -> JsRegex:
    try:
        return js_regex(pattern)
    except RegexInvalid as error:
        raise SchemaUnsupported(f"the pattern {pattern[:60]!r} is no regular expression: {error}") from None
