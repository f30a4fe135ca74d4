"""The tables of docs/http-api.md are those of the development core."""

from __future__ import annotations

import ast
import re
from typing import get_args

from services.dev_core.http.items import TYPES
from services.dev_core.http.openapi import document
from services.dev_core.problems import STATUS_OF
from services.dev_core.store.sessions import Status
from tests.docs.pages import DOCS, ROOT, Page, code_of

PAGE = Page(DOCS / "http-api.md")
ROWS = PAGE.rows()


def test_every_error_stands_with_its_status() -> None:
    shown = {
        code: int(row.cells[0])
        for row in ROWS
        if row.header == ("status", "code", "when")
        for code in code_of(row.cells[1])
    }
    assert shown == STATUS_OF


def test_every_status_of_a_session_is_explained() -> None:
    header = ("status", "meaning", "what to do")
    shown = [status for row in ROWS if row.header == header for status in code_of(row.cells[0])]
    assert sorted(shown) == sorted(get_args(Status))


def test_every_call_is_listed() -> None:
    shown = set()
    for row in ROWS:
        if row.header == ("call", "answer"):
            base = ""
            for call in code_of(row.cells[0]):
                match = re.fullmatch(r"(?:(GET|PUT|POST|DELETE) )?(/\S+)", call)
                if match is None:
                    continue  # a body
                method, path = match[1] or "GET", match[2]
                path = path if match[1] else base.rpartition("/")[0] + path
                base = path
                shown.add((method, re.sub(r"\{\w+\}", "{}", path)))
    known = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, methods in document()["paths"].items()
        for method in methods
    }
    assert shown == known | {("GET", "/openapi.json")}


def test_every_event_is_written_by_the_core() -> None:
    shown = {
        event
        for row in ROWS
        if row.header == ("event", "payload")
        for event in code_of(row.cells[0])
        if not event.startswith("sandbox.")  # the sandbox-manager's, claimed through the gateway
    }
    literals = set(TYPES)
    for path in (ROOT / "services" / "dev_core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                literals.add(node.value)
    assert shown - literals - {"turn.uncertain", "turn.waiting"} == set()
