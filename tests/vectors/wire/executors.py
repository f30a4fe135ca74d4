"""The executor side of a recorded conversation, as its `setup` describes it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from gateway.engine.contract import EffectRequest
from gateway.executors.contract import (
    AbortSignal,
    Discovery,
    ExecutionFailed,
    Executors,
    RunAborted,
    RunContext,
    SandboxEvent,
    WorkspaceCaller,
    WorkspaceFailed,
)
from protocol.jsjson import Parsed
from tests.vectors.wire.equality import same


class Stage:
    """What the executors share: the setup, the gates, and what was seen."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.setup = setup
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.cancelled: set[str] = set()
        self.stopped: Counter[str] = Counter()
        self._executions: Counter[str] = Counter()

    def executors(self) -> Executors:
        """Everything that stands behind the harness."""
        declared = self.setup["workspace"] is not None
        return Executors(_Model(self), _Tools(self), _Mcp(self), _Workspaces(self) if declared else None)

    async def play(self, effect: EffectRequest, run: RunContext, signal: AbortSignal) -> Parsed:
        """One execution."""
        script = self.setup["executors"].get(effect.effect_id)
        if script is None:
            raise ExecutionFailed(f"nothing is recorded for {effect.effect_id}")
        if "first" in script:
            script = script["first" if not self._executions[effect.effect_id] else "then"]
        self._executions[effect.effect_id] += 1
        for event in self.setup.get("emits", {}).get(effect.effect_id, ()):
            await run.claim_event(
                SandboxEvent(
                    event["sessionId"], event["turnId"], event["type"], event["payload"], event.get("record")
                )
            )
        if script.get("untilAbort"):
            raise RunAborted(await signal.wait())
        if "gate" in script:
            await self._pass(script["gate"], signal, script.get("ignoresAbort", False))
        if "error" in script:
            raise ExecutionFailed(script["error"])
        return Parsed(script["value"], plain=False)

    async def _pass(self, label: str, signal: AbortSignal, ignores_abort: bool) -> None:
        gate = self.gates[label]
        if ignores_abort:
            await gate.wait()
            return
        waits = {asyncio.create_task(gate.wait()), asyncio.create_task(signal.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not gate.is_set():
            signal.raise_if_set()

    async def serve(self, method: str, params: dict[str, Any], signal: AbortSignal | None) -> Any:
        """The recorded answer to a workspace request."""
        for served in self.setup.get("serves", ()):
            if served["method"] == method and same(served["params"], params):
                if served.get("untilAbort"):
                    assert signal is not None
                    abort = await signal.wait()
                    self.stopped[method] += 1
                    raise RunAborted(abort)
                if "error" in served:
                    raise WorkspaceFailed(served["error"]["code"], served["error"]["message"])
                return served["result"]
        raise WorkspaceFailed("internal", f"nothing is recorded for {method} {params}")


class _Model:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def recovers(self) -> bool:
        return bool(self._stage.setup["recovers"]["model"])

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        return await self._stage.play(effect, run, signal)


class _Tools:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def recovers(self, effect: EffectRequest, run: RunContext) -> bool:
        return effect.kind == "tool" and bool(self._stage.setup["recovers"]["remoteMcp"])

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        return await self._stage.play(effect, run, signal)

    async def cancel(self, effect: EffectRequest, run: RunContext) -> None:
        self._stage.cancelled.add(effect.effect_id)


class _Mcp:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def discover(self, run: RunContext, manifest_hash: str, signal: AbortSignal) -> Discovery:
        found = self._stage.setup["mcp"]
        return Discovery(found["snapshot"], found["diagnostics"])

    async def reconnect(self, run: RunContext, snapshot: Any, signal: AbortSignal) -> list[Any]:
        return []

    async def put_grant(self, session_id: str, epoch: int, token: str, expires_at: str | None) -> None:
        return None


class _Workspaces:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(
        self, caller: WorkspaceCaller, spec: Any, tool: str, input_: Any, signal: AbortSignal
    ) -> Parsed:
        method = {"bash": "exec", "write": "write", "edit": "write"}.get(tool, "read")
        params = {"session": _session(caller), "spec": spec, "tool": tool, "input": input_}
        return Parsed(await self._stage.serve(f"workspace.{method}", params, signal), plain=False)

    async def read_bytes(
        self, caller: WorkspaceCaller, spec: Any, path: str, max_bytes: int, signal: AbortSignal
    ) -> Any:
        params = {"session": _session(caller), "spec": spec, "bytes": {"path": path, "maxBytes": max_bytes}}
        return await self._stage.serve("workspace.read", params, signal)

    async def list_files(
        self, caller: WorkspaceCaller, spec: Any, dir_: str, max_entries: int, signal: AbortSignal
    ) -> Any:
        params = {"session": _session(caller), "spec": spec, "list": {"dir": dir_, "maxEntries": max_entries}}
        return await self._stage.serve("workspace.read", params, signal)

    async def report(self, tenant_id: str, preference: str) -> Any:
        return await self._stage.serve("workspace.report", {}, None)

    async def sweep(self, tenant_id: str, preference: str, now_ms: float | None, claim_event: Any) -> Any:
        params = {} if now_ms is None else {"now": int(now_ms)}
        answer = await self._stage.serve("workspace.sweep", params, None)
        return answer["workspaces"]

    async def remove(self, tenant_id: str, preference: str, all_: bool, keys: Any, sandbox_ids: Any) -> None:
        params: dict[str, Any] = {"all": True} if all_ else {}
        if keys:
            params["keys"] = list(keys)
        if sandbox_ids:
            params["sandboxIds"] = list(sandbox_ids)
        await self._stage.serve("workspace.remove", params, None)


def _session(caller: WorkspaceCaller) -> dict[str, Any]:
    session: dict[str, Any] = {"ownerId": caller.owner_id, "activeTurnId": caller.active_turn_id}
    if caller.sandbox_id is not None:
        session["sandboxId"] = caller.sandbox_id
    return session
