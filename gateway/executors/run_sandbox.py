"""What one run's manifest and routing say about its workspace, looked up once and kept with the run."""

from __future__ import annotations

import hashlib

from gateway.executors.contract import RunContext
from gateway.executors.servers_of import sandbox_spec
from protocol.jsjson import dumps_bytes

_PIN = "sandbox"
_Tool = tuple[str | None, object, object]


class RunSandbox:
    """Whose workspace a run uses, its key, and the specs behind the tools that work in it.

    Raises UnicodeEncodeError for an id with a lone surrogate.
    """

    def __init__(self, run: RunContext) -> None:
        self.routing = run.sandbox
        self.owner_id = run.sandbox.owner_id if run.sandbox is not None else run.session_id
        self.sandbox_id = run.sandbox.sandbox_id if run.sandbox is not None else None
        self.key = workspace_key(run.tenant_id, self.owner_id, self.sandbox_id)
        self._manifest = run.root_manifest
        self._specs: dict[_Tool, bytes | None] = {}

    def spec(self, agent_id: str | None, capability_id: object, tool_name: object) -> bytes | None:
        """The text of the spec behind a tool, or None when it is no sandbox tool."""
        if not isinstance(capability_id, str) or not isinstance(tool_name, str):
            return None
        tool = (agent_id, capability_id, tool_name)
        if tool not in self._specs:
            spec = sandbox_spec(self._manifest, agent_id, capability_id, tool_name)
            self._specs[tool] = None if spec is None else dumps_bytes(spec)
        return self._specs[tool]


def sandbox_for(run: RunContext) -> RunSandbox:
    """The run's own, made anew when its routing is another one. Raises UnicodeEncodeError."""
    kept = run.pins.get(_PIN)
    if not isinstance(kept, RunSandbox) or kept.routing is not run.sandbox:
        kept = run.pins[_PIN] = RunSandbox(run)
    return kept


def workspace_key(tenant_id: str, owner_id: str, sandbox_id: str | None) -> str:
    """The key of a workspace (sandbox-manager 2). Raises UnicodeEncodeError for a lone surrogate."""
    prefix = f"nylorun-{tenant_id}-" + ("" if sandbox_id is None else "sbx-")
    identity = owner_id if sandbox_id is None else sandbox_id
    return prefix + hashlib.sha256(identity.encode()).hexdigest()[:16]
