"""What the core must know of a manifest: whether it may be put, who runs which tool, which agents it embeds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from protocol import jsjson
from protocol.canonical import manifest_hash
from protocol.manifest import SANDBOX_TOOLS, ManifestInvalid, validate_agent_manifest
from protocol.mcp_servers import servers_of
from protocol.workflow import is_workflow, validate_workflow

Engine: TypeAlias = Literal["agent", "flow-1", "flow-2"]
"""What runs a manifest: the agent engine, or the flow engine of a workflow's version."""
ToolRunner: TypeAlias = Literal["mcp", "remote-mcp", "sandbox", "artifact", "action"]

MAX_CACHED_CHARS: Final = 64 * 1024 * 1024
"""Text of manifests, or of snapshots, whose facts are kept in memory."""

ARTIFACTS: Final = "nylorun.artifacts"
SAVE_ARTIFACT: Final = "save_artifact"


class ManifestRefused(Exception):
    """A manifest that can't be put: it breaks a rule."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A manifest that may be put, with its hash and its compact text."""

    hash: str
    text: str
    engine: Engine


@dataclass(frozen=True, slots=True)
class AgentTools:
    """The tools that one agent of a manifest declares, by capability."""

    declared: Mapping[str, frozenset[str]]
    sandboxed: frozenset[str]


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """One manifest. `agents` holds the root under None and each agent used as a tool under its id.

    `sandbox` is the spec (JSON text) of the workspace that the session has, None when no agent has one: the
    agents of a session share it. `flows` are the workflows among an agent's tools, by id; for a workflow
    `document` is all of it.
    """

    hash: str
    text: str
    id: str
    agents: Mapping[str | None, AgentTools]
    sandbox: str | None = None
    remote: frozenset[tuple[str | None, str, str]] = frozenset()
    """Its MCP servers behind a gate: agent id or None, capability id, server name."""
    engine: Engine = "agent"
    flows: Mapping[str, Any] = field(default_factory=dict)
    document: Any = None
    _embedded: dict[tuple[str, ...], Checked] = field(default_factory=dict)

    def embedded(self, flow: Sequence[str], agent_id: str) -> Checked | None:
        """The agent of that id in a workflow of version 2, or in a flow agent nested in it; None without one.

        `flow` are the ids of the flow agents around it, outermost first.
        """
        key = (*flow, agent_id)
        if key not in self._embedded:
            found = self.document
            for name in key:
                found = found.get("agents", {}).get(name) if isinstance(found, dict) else None
            if found is None:
                return None
            self._embedded[key] = _checked(found)
        return self._embedded[key]

    def delegate(self, agent_id: str) -> Checked | None:
        """The workflow that is the agent's tool of that name, or None."""
        found = self.flows.get(agent_id)
        return None if found is None else _checked(found)

    @property
    def chars(self) -> int:
        """About how much memory it takes: a document that is kept is larger than its text."""
        return len(self.text) * (1 if self.document is None and not self.flows else 8)


@dataclass(frozen=True, slots=True)
class McpTools:
    """One MCP snapshot. `tools` are (agent id or None, capability id, tool name), each with its server's name."""

    tools: Mapping[tuple[str | None, str, str], str] = field(default_factory=dict)
    session_tools: str = "[]"


NO_MCP_TOOLS: Final = McpTools()


def check_manifest(value: object) -> Checked:
    """A manifest that agents may have: of an agent, or of a workflow. Raises ManifestRefused."""
    try:
        if is_workflow(value):
            validate_workflow(value)
        else:
            validate_agent_manifest(value)
            assert isinstance(value, dict)
            for workflow in _flows(value).values():
                validate_workflow(workflow)
    except ManifestInvalid as error:
        raise ManifestRefused(f"The manifest is not valid: {error}") from None
    return _checked(value)


def _checked(manifest: Any) -> Checked:
    return Checked(manifest_hash(manifest), jsjson.dumps(manifest), engine_of(manifest))


def engine_of(manifest: Mapping[str, Any]) -> Engine:
    """What runs a valid manifest."""
    if not is_workflow(manifest):
        return "agent"
    return "flow-1" if manifest["workflowSchemaVersion"] == 1 else "flow-2"


def facts_of(hash_: str, text: str) -> ManifestFacts:
    """The facts of a manifest that was checked before, under its hash."""
    manifest: Any = jsjson.loads(text)
    engine = engine_of(manifest)
    if engine != "agent":
        return ManifestFacts(hash_, text, manifest["id"], {}, engine=engine, document=manifest)
    agents: dict[str | None, AgentTools] = {}
    sandbox: str | None = None
    for agent_id, agent in _agents(manifest):
        declared: dict[str, frozenset[str]] = {}
        sandboxed: set[str] = set()
        for capability in agent["capabilities"]:
            declared[capability["id"]] = frozenset(tool["name"] for tool in capability.get("tools", ()))
            if capability.get("sandbox") is not None:
                sandboxed.add(capability["id"])
                sandbox = sandbox or jsjson.dumps(capability["sandbox"])
        agents[agent_id] = AgentTools(declared, frozenset(sandboxed))
    remote = frozenset(
        (server.agent_id, server.capability_id, server.server_name)
        for server in servers_of(manifest)
        if not server.is_stdio
    )
    return ManifestFacts(hash_, text, manifest["id"], agents, sandbox, remote, flows=_flows(manifest))


def _flows(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The workflows among an agent's tools, by id."""
    return {
        tool["name"]: tool["agent"]
        for capability in manifest["capabilities"]
        for tool in capability.get("tools", ())
        if is_workflow(tool.get("agent"))
    }


def _agents(manifest: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """The root, then each agent used as a tool (one level, no workflows)."""
    yield None, manifest
    for capability in manifest["capabilities"]:
        for tool in capability.get("tools", ()):
            child = tool.get("agent")
            if child is not None and "kind" not in child:
                yield child["id"], child


def runner_of(
    facts: ManifestFacts, mcp: McpTools, agent_id: str | None, capability_id: str, tool: str
) -> ToolRunner | None:
    """Who carries a tool effect out (harness-api 8.3, sandbox-manager 11.1); None for an unknown tool."""
    server = mcp.tools.get((agent_id, capability_id, tool))
    if server is not None:
        return "remote-mcp" if (agent_id, capability_id, server) in facts.remote else "mcp"
    agent = facts.agents.get(agent_id)
    if agent is None or tool not in agent.declared.get(capability_id, ()):
        return None
    if tool in SANDBOX_TOOLS and capability_id in agent.sandboxed:
        return "sandbox"
    if capability_id == ARTIFACTS and tool == SAVE_ARTIFACT:
        return "artifact"
    return "action"


def mcp_tools_of(snapshot: str) -> McpTools:
    """The facts of a snapshot that was checked when it was recorded."""
    document: Any = jsjson.loads(snapshot)
    tools: dict[tuple[str | None, str, str], str] = {}
    listed: list[dict[str, Any]] = []
    for record in document["mcpTools"]:
        tools.setdefault(
            (record.get("agentId"), record["capabilityId"], record["name"]), record["serverName"]
        )
        listed.append({name: record[name] for name in _SESSION_TOOL if name in record})
    return McpTools(tools, jsjson.dumps(listed))


_SESSION_TOOL: Final = ("agentId", "capabilityId", "name", "description", "inputSchema", "outputSchema")


@dataclass(slots=True)
class FactsCache:
    """Facts by key (a manifest's hash, a snapshot's text), the least recently used out first."""

    max_chars: int = MAX_CACHED_CHARS
    _kept: OrderedDict[str, tuple[int, Any]] = field(default_factory=OrderedDict)
    _chars: int = 0

    def get(self, key: str) -> Any:
        """What is kept under the key, or None."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[1]

    def put(self, key: str, facts: Any, chars: int) -> None:
        """Keeps facts that stand for so much text."""
        old = self._kept.pop(key, None)
        if old is not None:
            self._chars -= old[0]
        self._kept[key] = (chars, facts)
        self._chars += chars
        while self._chars > self.max_chars and len(self._kept) > 1:
            _, (size, _) = self._kept.popitem(last=False)
            self._chars -= size
