"""`whippletree mcp list`: which servers and tools an agent would have, without a core."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cli.gate_choice import GateChoiceError, choose_gate
from cli.gate_here import GateHere
from cli.recordings.show import say
from cli.up import state_path
from protocol.canonical import manifest_hash
from protocol.jsjson import JsonError, JsonValue, Parsed, dumps, loads, parse
from services.common.logs import configure_logging
from services.common.settings import Environment, SettingsError
from services.mcp_pool.connection import Connecting, Connection, Connector
from services.mcp_pool.connector import ServerConnector
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.executor import McpExecutor
from services.mcp_pool.failures import McpFailure
from services.mcp_pool.gate.connection import GateConnector
from services.mcp_pool.launch import HarnessRoot, base_environment
from services.mcp_pool.limits import Limits
from services.mcp_pool.session import PoolKey, Session
from services.mcp_pool.settings import read_limits
from services.tool_gate.credentials import ConfigInvalid, GateConfig, load_config

CONNECTED: Final = 0
NOT_ALL: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130

DESCRIPTION_WIDTH: Final = 60
_SESSION: Final = Session("here", "whippletree-mcp-list")
_STACK_GATE: Final = (
    "NYLORUN_GATES_URL names a gates service, which answers to runs alone. Without that variable remote servers "
    "are asked from here, with the headers of WHIPPLETREE_TOOL_GATE_CONFIG."
)


class _Unusable(Exception):
    """The text says what is wrong with what was given."""


def run_mcp_list(
    manifest: Path,
    plugin_roots: Sequence[str],
    root: Path | None,
    *,
    as_json: bool,
    environ: Mapping[str, str],
) -> int:
    """Discovers the servers of a manifest and prints them; the exit code.

    0: all are connected; 1: some are not; 2: what was given can't be used.
    """
    configure_logging("mcp-pool", stream=_Nowhere())
    try:
        document, hash_ = _read_manifest(manifest)
        roots = dict(_plugin_root(text) for text in plugin_roots)
        config = _gate_config(environ)
        env = Environment(environ)
        limits = read_limits(env)
        env.finish()
        with _folder(root) as folder:
            place = HarnessRoot(folder)
            place.create()
            found = asyncio.run(
                _discover(place, base_environment(environ, place), limits, config, document, hash_, roots)
            )
    except (_Unusable, SettingsError, GateChoiceError) as error:
        say(str(error), file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        say(f"The folder for servers can't be used: {error.strerror}.", file=sys.stderr)
        return UNUSABLE
    snapshot, diagnostics = found
    if as_json:
        print(dumps({"snapshot": snapshot, "diagnostics": diagnostics}))
    else:
        for line in lines(snapshot, diagnostics):
            say(line)
    return CONNECTED if all(item["outcome"] == "connected" for item in diagnostics) else NOT_ALL


def lines(snapshot: Mapping[str, Any], diagnostics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The two tables: servers with what became of them, and tools with their names for a model."""
    tools: Sequence[Mapping[str, Any]] = snapshot["mcpTools"]
    if not diagnostics:
        return ["The manifest declares no MCP servers."]
    servers = [
        (
            item["serverName"],
            _whose(item),
            item["outcome"],
            str(sum(_is_of(tool, item) for tool in tools)),
            _line(item["message"]),
        )
        for item in diagnostics
    ]
    shown = _table(("server", "capability", "outcome", "tools", "message"), servers)
    if tools:
        rows = [
            (
                tool["name"],
                tool["serverToolName"],
                tool["serverName"],
                _whose(tool),
                _short(tool.get("description", "")),
            )
            for tool in tools
        ]
        shown += ["", *_table(("name for the model", "tool", "server", "capability", "description"), rows)]
    return shown


def _whose(item: Mapping[str, Any]) -> str:
    """The capability; with the agent used as a tool that declares it."""
    return f"{item['agentId']}/{item['capabilityId']}" if "agentId" in item else str(item["capabilityId"])


def _is_of(tool: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    return all(tool.get(name) == server.get(name) for name in ("agentId", "capabilityId", "serverName"))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows)]


def _line(text: str) -> str:
    return " ".join(text.split())


def _short(text: str) -> str:
    line = _line(text)
    return line if len(line) <= DESCRIPTION_WIDTH else line[: DESCRIPTION_WIDTH - 1] + "…"


async def _discover(
    place: HarnessRoot,
    base: Mapping[str, str],
    limits: Limits,
    config: GateConfig | None,
    manifest: Parsed,
    hash_: str,
    roots: dict[str, str],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    async with contextlib.AsyncExitStack() as stack:
        gate: Connector = _NoGate()
        if config is not None:
            assert isinstance(manifest.value, dict)
            here = GateHere(manifest.value, config, request_s=limits.request)
            stack.push_async_callback(here.close)
            gate = GateConnector(here)
        executor = McpExecutor(ServerConnector(place, base, limits, gate), limits)
        stack.push_async_callback(executor.close)
        found = await executor.discover(_SESSION, manifest, hash_, roots)
    snapshot, diagnostics = loads(found.snapshot), loads(found.diagnostics)
    assert isinstance(snapshot, dict)
    assert isinstance(diagnostics, list)
    return snapshot, [item for item in diagnostics if isinstance(item, dict)]


def _read_manifest(path: Path) -> tuple[Parsed, str]:
    try:
        parsed = parse(path.read_bytes())
    except OSError as error:
        raise _Unusable(f"{path} can't be read: {error.strerror}.") from None
    except JsonError as error:
        raise _Unusable(f"{path} is not JSON: {error}.") from None
    manifest: JsonValue = parsed.value
    if isinstance(manifest, dict) and "capabilities" not in manifest and "manifest" in manifest:
        # The body with which an agent is put into the development core.
        manifest = manifest["manifest"]
    if not isinstance(manifest, dict) or not isinstance(manifest.get("capabilities"), list):
        raise _Unusable(f"{path} is not an agent's manifest: it has no array `capabilities`.")
    return Parsed(manifest, parsed.plain), manifest_hash(manifest)


def _plugin_root(text: str) -> tuple[str, str]:
    key, equals, folder = text.partition("=")
    if not key or not equals or not os.path.isabs(folder):
        raise _Unusable(f"--plugin-root {text}: it must be CAPABILITY=/an/absolute/path.")
    return key, folder


@contextlib.contextmanager
def _folder(root: Path | None) -> Iterator[str]:
    if root is not None:
        yield str(root.absolute())
        return
    with tempfile.TemporaryDirectory(prefix="whippletree-mcp-", ignore_cleanup_errors=True) as folder:
        yield folder


def _gate_config(environ: Mapping[str, str]) -> GateConfig | None:
    """The file that `up` would give its Tool Gate; None when NYLORUN_GATES_URL names another gate.

    Raises GateChoiceError.
    """
    choice = choose_gate(environ, state_path(environ))
    if choice is None:
        return None
    try:
        return GateConfig() if choice.config is None else load_config(str(choice.config), environ)
    except ConfigInvalid as error:
        raise GateChoiceError(f"{choice.config}: {error}.") from None


class _NoGate:
    """Stands for a gate that can't be asked from here."""

    def connect(
        self, key: PoolKey, server: DeclaredServer, on_end: Callable[[Connection], None]
    ) -> Connecting:
        """Raises McpFailure."""
        raise McpFailure(_STACK_GATE)


class _Nowhere(io.StringIO):
    def write(self, text: str, /) -> int:
        return len(text)
