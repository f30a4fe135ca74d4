"""Answers effects for real: through the same services, and found by the same settings, as a gateway's.

Everything runs under ids of its own: a session that no core knows, and a workspace that is empty at first and
removed at the end. So nothing meets what the recorded run did, or joins a call of it that is still kept.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cli.recordings.changes import read_json_file
from cli.recordings.driven import Asked
from cli.recordings.find import UsageError
from cli.recordings.scripted import Given
from cli.recordings.show import say
from gateway.engine.contract import Answer, Completed, EffectRequest, Uncertain
from gateway.executors.contract import (
    AbortSignal,
    ExecutionFailed,
    RunContext,
    SandboxEvent,
    SandboxRouting,
    WorkspaceFailed,
)
from gateway.executors.factory import ConnectedExecutors, connect
from gateway.executors.run_sandbox import workspace_key
from gateway.executors.run_servers import servers_for
from gateway.executors.servers_of import sandbox_spec
from gateway.recording.left_out import without_secrets
from gateway.recording.reader import Recording
from gateway.settings import SECRETS, ServiceSettings, SettingsError, read_service_settings
from protocol.canonical import canonical_manifest
from services.common.logs import configure_logging
from services.common.secrets import forget_secrets

READY_LIMIT_S: Final = 10.0
"""How long the services are waited for, as a call of a gateway's waits for a missing one."""


class LiveServices:
    """The services, connected when the first effect needs them. Use as a context."""

    word = "live"

    def __init__(self, recording: Recording, environ: Mapping[str, str], manifest: Path | None) -> None:
        """Raises UsageError for settings or a manifest that can't be used."""
        try:
            self._settings = read_service_settings(environ)
        except SettingsError as error:
            raise UsageError(
                f"--live reaches the services as a gateway does. {str(error).splitlines()[0]}"
            ) from None
        self._recording = recording
        self._has_secrets = manifest is not None or not _left_out_servers(recording)
        self._run = _run_context(recording, _root_manifest(recording, manifest))
        self._stack = AsyncExitStack()
        self._runner = asyncio.Runner()
        self._connected: ConnectedExecutors | None = None
        self._mcp_is_open = False
        self._has_workspace = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._runner:
            self._runner.run(self._close())

    def takes(self, asked: Asked) -> bool | str:
        """As of any source."""
        return self._problem(asked.effect) or True

    def answer(self, asked: Asked) -> Given:
        """The effect's outcome, executed now. As of any source. Raises UsageError when no service is there."""
        effect = asked.effect
        if self._connected is None:
            self._announce()
        began = time.monotonic()
        answer = self._runner.run(self._execute(effect))
        return Given(answer, (time.monotonic() - began) * 1000.0)

    def _problem(self, effect: EffectRequest) -> str | None:
        """Why an effect can't be executed here."""
        if effect.kind == "model":
            return None
        if effect.kind != "tool":
            return f"Effects of kind {effect.kind} are answered by a core, not by a service."
        if self._is_mcp(effect):
            if self._has_secrets:
                return None
            return (
                "A recording leaves out what starts MCP servers: name the agent's whole manifest with "
                "--manifest FILE."
            )
        document = effect.document
        if (
            sandbox_spec(
                self._run.root_manifest,
                _agent_id(effect),
                document.get("capabilityId"),
                document.get("toolName"),
            )
            is None
        ):
            return f"The tool {document.get('toolName')} runs in an application, not in a service."
        if not self._run.tenant_id:
            return (
                "The recording was made by an older gateway and does not name the tenant of its workspaces."
            )
        return None

    def _is_mcp(self, effect: EffectRequest) -> bool:
        document = effect.document
        record = servers_for(self._run).record(
            _agent_id(effect), document.get("capabilityId"), document.get("toolName")
        )
        return record is not None

    def _announce(self) -> None:
        say("")
        for line in _warning(self._settings):
            say(line)
        say("")

    # On the loop

    async def _execute(self, effect: EffectRequest) -> Answer:
        executors = (await self._services()).executors
        signal = AbortSignal()
        try:
            if effect.kind == "model":
                value = await executors.model.execute(effect, self._run, signal, False)
            else:
                await self._prepare(effect, signal)
                value = await executors.tools.execute(effect, self._run, signal, False)
        except ExecutionFailed as failed:
            say(f"      It has no outcome, and may have happened: {failed}")
            return Uncertain()
        return Completed({"value": value.value}, value.plain)

    async def _prepare(self, effect: EffectRequest, signal: AbortSignal) -> None:
        """Opens the MCP servers before the first call of one; remembers that there is a workspace."""
        if not self._is_mcp(effect):
            self._has_workspace = True
        elif not self._mcp_is_open:
            self._mcp_is_open = True
            mcp = (await self._services()).executors.mcp
            for diagnostic in await mcp.reconnect(self._run, self._run.mcp_snapshot, signal):
                say(f"      mcp-pool: {_diagnostic_text(diagnostic)}")

    async def _services(self) -> ConnectedExecutors:
        if self._connected is not None:
            return self._connected
        configure_logging("replay", "warn", stream=sys.stderr)
        forget_secrets(SECRETS)
        settings = self._settings
        connected = await self._stack.enter_async_context(
            connect(
                settings.targets,
                settings.bearers,
                max_message_bytes=settings.max_message_bytes,
                tls=settings.tls,
            )
        )
        try:
            await asyncio.wait_for(connected.services_ready(), READY_LIMIT_S)
        except TimeoutError:
            missing = ", ".join(connected.health.missing())
            raise UsageError(
                f"--live: no answer from {missing} within {READY_LIMIT_S:.0f} s. Nothing was run."
            ) from None
        self._connected = connected
        return connected

    async def _close(self) -> None:
        async with self._stack:
            if self._connected is None or not self._has_workspace:
                return
            workspaces, run = self._connected.executors.workspaces, self._run
            assert workspaces is not None
            key = workspace_key(run.tenant_id, run.session_id, None)
            try:
                await workspaces.remove(run.tenant_id, run.preference, False, [key], [])
            except WorkspaceFailed as failed:
                say(f"The workspace {key} is left behind: {failed}", file=sys.stderr)


def _warning(settings: ServiceSettings) -> Iterator[str]:
    where = {
        name: ", ".join(target.target for target in targets) for name, targets in settings.targets.items()
    }
    yield "LIVE from here on. What the recording answers is not run again; everything else happens for real:"
    yield f"  model calls      by the model-executor at {where['model-executor']}; they may cost money"
    yield f"  MCP tools        by the mcp-pool at {where['mcp-pool']}; they do what they do"
    yield f"  sandbox tools    by the sandbox-manager at {where['sandbox-manager']}, in a new and empty workspace"
    yield "Ctrl-C stops."


def _run_context(recording: Recording, root_manifest: Mapping[str, Any]) -> RunContext:
    own = f"replay-{secrets.token_hex(8)}"
    header, given = recording.header, recording.input
    routing: Any = given.get("routing", {})

    async def claim(_event: SandboxEvent) -> None:
        """No core hears of what happens to the workspace."""

    return RunContext(
        tenant_id=_text(header.get("tenantId")),
        preference=_text(header.get("preference")),
        run_id=own,
        session_id=own,
        turn_id=_text(recording.checkpoint.get("turnId")),
        epoch=1,
        agent_id=_text(given["manifest"].get("id")),
        fixture_model=given["options"].get("fixtureModel") is True,
        root_manifest=root_manifest,
        plugin_roots=routing.get("pluginRoots", {}),
        token=lambda: None,
        claim_event=claim,
        mcp_snapshot=routing.get("mcpSnapshot"),
        sandbox=SandboxRouting(owner_id=own),
    )


def _root_manifest(recording: Recording, path: Path | None) -> Mapping[str, Any]:
    """The root manifest, whole when a file of it is given. Raises UsageError for one of another agent."""
    recorded: Any = recording.input.get("routing", {}).get("rootManifest", recording.input["manifest"])
    if path is None:
        return dict(recorded)
    manifest = read_json_file(path)
    if not isinstance(manifest, dict) or canonical_manifest(
        without_secrets(manifest)[0]
    ) != canonical_manifest(recorded):
        raise UsageError(f"--manifest {path} is not the manifest that was recorded.")
    return manifest


def _left_out_servers(recording: Recording) -> Sequence[str]:
    return [place for place in recording.left_out if "/mcpServers/" in place]


def _agent_id(effect: EffectRequest) -> str | None:
    agent: Any = effect.document.get("agent")
    return agent.get("id") if isinstance(agent, Mapping) else None


def _diagnostic_text(diagnostic: Any) -> str:
    members = diagnostic if isinstance(diagnostic, Mapping) else {}
    return ", ".join(f"{name}: {value}" for name, value in members.items() if isinstance(value, str))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
