"""What the pages link to and tell people to type exists."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from whippletree.v1 import admin_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2

from cli.commands import app
from cli.service_argv import parse_service
from gateway.health import OWN_NAME
from services.dev_core.http.openapi import document
from tests.docs.pages import ROOT, Page, pages
from tests.docs.settings_read import NAME, PROCESSES, literal_names, read_by
from tests.docs.shell import Command, commands

PAGES = pages()
COMMANDS = [command for page in PAGES for command in commands(page)]
HEALTH_PATHS = {"/health", "/ready", "/fleet", "/drain"}
CONTRACT = (admin_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2)
"""Importing them fills the descriptor pool."""


def with_page(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=with_page)
def test_links_lead_to_files_and_headings(page: Page) -> None:
    wrong = []
    for line, link in page.links():
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"line {line}: there is no {link}")
        elif anchor and anchor not in Page(target).anchors():
            wrong.append(f"line {line}: {link} names no heading")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=with_page)
def test_json_blocks_are_json(page: Page) -> None:
    for block in page.blocks:
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=with_page)
def test_python_blocks_compile(page: Page) -> None:
    for block in page.blocks:
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=with_page)
def test_lines_fit_a_terminal(page: Page) -> None:
    long = [number for number, line in page.prose if len(line) > 120 and not line.lstrip().startswith("|")]
    assert long == []


def of_program(*names: str) -> list[Command]:
    found = [command for command in COMMANDS if command.program in names]
    assert found, f"no page shows {names}"
    return found


def at(command: Command) -> str:
    return command.place


@pytest.mark.parametrize("command", of_program("whippletree"), ids=at)
def test_whippletree_commands_and_flags_exist(command: Command) -> None:
    words = list(command.words[1:])
    if words[0].startswith("--service"):
        parse_service(words)
    elif words[0] not in ("--help", "--version"):
        assert f"{words[0]}" in app
        app.parse_args([word for word in words if word != "--help"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", of_program("make"), ids=at)
def test_make_targets_exist(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for word in command.words[1:]:
        assert word in targets or re.fullmatch(r"PYTHON=\S+", word)


@pytest.mark.parametrize("command", of_program("python", "python3"), ids=at)
def test_python_modules_exist(command: Command) -> None:
    words = command.words
    if "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None
    elif "-c" not in words:
        # Scripts are those of the repository, or those that the page itself shows.
        if (ROOT / words[1]).is_file():
            return
        page = next(page for page in PAGES if command.place.startswith(f"{page.name}:"))
        assert words[1].endswith(".py")
        assert any(block.language == "python" for block in page.blocks)


def test_settings_that_are_typed_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = literal_names()
    for process in PROCESSES:
        read |= set(read_by(process, monkeypatch))
    for command in COMMANDS:
        typed = {name for name in command.assigned if NAME.fullmatch(name)}
        assert typed <= read, command.place


@pytest.mark.parametrize("command", of_program("curl"), ids=at)
def test_addresses_and_bodies_of_calls_are_those_of_the_apis(command: Command) -> None:
    [address] = [word for word in command.words if "://" in word or word.startswith("127.0.0.1")]
    match = re.fullmatch(r"(?:http://)?127\.0\.0\.1:(4000|4300)(/[^?\"]*)(?:\?.*)?", address)
    assert match is not None, address
    path = re.sub(r"/(SESSION|EFFECT|ses_[0-9a-f]+|hello|letters|shop|builder)(?=/|$)", "/X", match[2])
    known = {re.sub(r"\{[a-z]+\}", "X", known) for known in document()["paths"]}
    assert path in (known | {"/openapi.json"} if match[1] == "4000" else HEALTH_PATHS)
    for flag, body in zip(command.words, command.words[1:], strict=False):
        if flag == "-d" and not body.startswith("@"):
            json.loads(body)


@pytest.mark.parametrize("command", of_program("grpcurl"), ids=at)
def test_rpcs_and_messages_exist(command: Command) -> None:
    known = descriptor_pool.Default()
    for word in command.words:
        service, _, method = word.partition("/")
        if service.startswith("whippletree.v1.") and method:
            assert method in known.FindServiceByName(service).methods_by_name
        elif re.fullmatch(r"whippletree\.v1\.\w+", word):
            known.FindMessageTypeByName(word)
    for flag, body in zip(command.words, command.words[1:], strict=False):
        if flag == "-d" and body != "@":
            json.loads(body)


def test_the_gateway_is_drained_by_its_name() -> None:
    assert OWN_NAME == "harness"


def test_no_page_is_empty_or_without_a_title() -> None:
    for page in PAGES:
        assert page.headings(), page.name
        assert page.lines[0].startswith("# "), page.name


def test_every_page_under_docs_is_reachable_from_the_readme() -> None:
    by_path = {page.path: page for page in PAGES}
    left, seen = [ROOT / "README.md"], set[Path]()
    while left:
        path = left.pop()
        if path not in seen and path in by_path:
            seen.add(path)
            left += [(path.parent / link.partition("#")[0]).resolve() for _, link in by_path[path].links()]
    assert [page.name for page in PAGES if page.path not in seen] == []
