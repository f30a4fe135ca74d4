"""`session.mcp`: the first snapshot of a session counts for its life (harness-api 5.6, mcp-pool 6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgspec import UNSET

from protocol import jsjson
from protocol.errors import HarnessApiError
from protocol.methods import SessionMcpParams
from services.dev_core.effects.held import HeldRun, is_active, own_session, turn_cancelled
from services.dev_core.store import events, sessions
from services.dev_core.store.transaction import Tx

_STRINGS: Final = ("capabilityId", "serverName", "serverToolName", "name")


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a harness reported: `snapshot` is JSON text, None when it sent none."""

    snapshot: str | None
    diagnostics: list[dict[str, Any]]


def read_discovered(params: SessionMcpParams, plain: bool) -> Discovered:
    """Checks a report. Raises HarnessApiError `invalid`."""
    for diagnostic in params.diagnostics:
        if not isinstance(diagnostic, dict) or not isinstance(diagnostic.get("serverName"), str):
            raise HarnessApiError("invalid", "An MCP diagnostic is an object that names its server")
    if params.snapshot is UNSET:
        return Discovered(None, params.diagnostics)
    _check_snapshot(params.snapshot)
    return Discovered(jsjson.dumps(params.snapshot, plain=plain), params.diagnostics)


def _check_snapshot(snapshot: Any) -> None:
    if not isinstance(snapshot, dict) or snapshot.get("snapshotSchemaVersion") != 1:
        raise HarnessApiError("invalid", "An MCP snapshot has snapshotSchemaVersion 1")
    if not isinstance(snapshot.get("manifestHash"), str) or not isinstance(snapshot.get("mcpTools"), list):
        raise HarnessApiError("invalid", "An MCP snapshot has a manifestHash and its mcpTools")
    for index, record in enumerate(snapshot["mcpTools"]):
        if (
            not isinstance(record, dict)
            or not all(isinstance(record.get(name), str) for name in _STRINGS)
            or not isinstance(record.get("inputSchema"), dict)
            or not isinstance(record.get("agentId", ""), str)
        ):
            raise HarnessApiError("invalid", f"mcpTools[{index}] of the snapshot is not a tool's record")


def record(tx: Tx, run: HeldRun, found: Discovered, now_ms: int) -> str:
    """Commits a report and returns the session's snapshot (JSON text). Raises HarnessApiError."""
    session = own_session(tx, run)
    if not is_active(session, run):
        raise turn_cancelled(run)
    stored = sessions.document(tx, run.session_id, "mcp_snapshot")
    if stored is None:
        if found.snapshot is None:
            raise HarnessApiError("invalid", "The session has no MCP snapshot yet and none was sent")
        sessions.put_document(tx, run.session_id, "mcp_snapshot", found.snapshot)
        diagnostics = found.diagnostics
    else:
        kept: Any = jsjson.loads(sessions.document(tx, run.session_id, "mcp_diagnostics") or "[]")
        diagnostics = merge(kept, found.diagnostics)
    servers = jsjson.dumps(diagnostics)
    sessions.put_document(tx, run.session_id, "mcp_diagnostics", servers)
    if stored is None:
        assert found.snapshot is not None
        payload = f'{{"servers":{servers}}}'
        events.append(tx, run.session_id, "mcp.discovered", run.turn_id, payload, now_ms)
        return found.snapshot
    return stored


def merge(kept: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Diagnostics by capability and server: a newer one takes the older one's place, others follow."""
    merged = list(kept)
    for diagnostic in new:
        key = (diagnostic.get("capabilityId"), diagnostic["serverName"])
        for index, old in enumerate(merged):
            if (old.get("capabilityId"), old["serverName"]) == key:
                merged[index] = diagnostic
                break
        else:
            merged.append(diagnostic)
    return merged
