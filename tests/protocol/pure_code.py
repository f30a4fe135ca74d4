"""Finds, in the syntax tree of a module, what would make a replayed run differ from the recorded one.

A line that takes a set's members in whatever order they come, and where that can't show, says so with the
comment `in any order`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

IMPORTS = {
    "asyncio": "the run loop owns tasks and waits",
    "concurrent": "the run loop owns tasks and waits",
    "datetime": "times come in as numbers or text",
    "io": "the edges read and write",
    "logging": "the edges log",
    "multiprocessing": "the run loop owns tasks and waits",
    "os": "settings and files belong to the edges",
    "pathlib": "settings and files belong to the edges",
    "random": "ids are derived from the checkpoint",
    "secrets": "ids are derived from the checkpoint",
    "select": "the edges read and write",
    "signal": "the process edge stops runs",
    "socket": "the edges read and write",
    "ssl": "the edges read and write",
    "subprocess": "services run processes",
    "tempfile": "settings and files belong to the edges",
    "threading": "the run loop owns tasks and waits",
    "time": "the time comes in as `now_ms`",
    "uuid": "ids are derived from the checkpoint",
}
"""Modules that pure code may not import, and what it does instead."""

CALLS = {
    "breakpoint": "no I/O",
    "eval": "no code from text",
    "exec": "no code from text",
    "hash": "differs between processes: use the text itself or hashlib",
    "input": "no I/O",
    "open": "no I/O",
    "print": "no I/O",
    "__import__": "import by name",
}
"""Builtins that pure code may not call, and why or what instead."""

_ORDER_FREE = {"sorted", "any", "all", "set", "frozenset", "min", "max"}

_SETS = {"set", "frozenset"}
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
_ORDER_KEEPERS = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed", "next"}


def faults(source: str, name: str) -> list[str]:
    """One sentence per fault, with the line."""
    tree = ast.parse(source)
    lines = source.splitlines()
    unordered = [fault for fault in _set_order(tree) if "# in any order" not in lines[fault[0] - 1]]
    found = [*_imports(tree), *_calls(tree), *_coroutines(tree), *unordered]
    return [f"{name}:{line}: {text}" for line, text in sorted(set(found))]


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        for module in modules:
            top = module.partition(".")[0]
            if top in IMPORTS:
                yield node.lineno, f"imports {top}: {IMPORTS[top]}"


def _calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__":
            allowed.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node not in allowed:
            reason = CALLS.get(node.func.id)
            if reason is not None:
                yield node.lineno, f"calls {node.func.id}: {reason}"


def _coroutines(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield node.lineno, "is a coroutine: pure code gives back what to do next"


def _set_order(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Places where a set's order, which differs between processes, comes out."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    module_names = _names_of_sets(tree)
    free = {
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDER_FREE
        for argument in node.args
        if isinstance(argument, ast.GeneratorExp)
    }
    for scope in (tree, *functions):
        names = module_names | _names_of_sets(scope)
        for node in ast.walk(scope):
            for expression in () if node in free else _ordered_uses(node):
                if _is_set(expression, names):
                    yield expression.lineno, "uses the order of a set: sort it, or use dict keys"


def _names_of_sets(scope: ast.AST) -> set[str]:
    """Names that the scope binds to set expressions, or annotates as sets."""
    names: set[str] = set()
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign) and _is_set(node.value, names):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if _is_set_annotation(node.annotation) or (node.value and _is_set(node.value, names)):
                names.add(node.target.id)
        elif isinstance(node, ast.arg) and node.annotation and _is_set_annotation(node.annotation):
            names.add(node.arg)
    return names


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope without those of the functions inside it."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))


def _is_set_annotation(annotation: ast.expr) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(base, ast.Name) and base.id in _SETS | {"AbstractSet", "Set"}


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Name(id=name)):
            return name in _SETS
        case ast.Call(func=ast.Attribute(value=value, attr=method)):
            return method in _SET_METHODS or (method == "copy" and _is_set(value, names))
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
            return _is_set(left, names) or _is_set(right, names)
        case _:
            return False


def _ordered_uses(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions whose order the node brings out."""
    match node:
        case ast.For(iter=iterated):
            yield iterated
        case ast.ListComp(generators=generators) | ast.DictComp(generators=generators):
            yield from (generator.iter for generator in generators)
        case ast.GeneratorExp(generators=generators):
            yield from (generator.iter for generator in generators)
        case ast.Starred(value=value):
            yield value
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _ORDER_KEEPERS:
            yield from arguments
        case ast.Call(func=ast.Attribute(attr="join" | "extend" | "fromkeys"), args=arguments):
            yield from arguments
        case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
            yield value
