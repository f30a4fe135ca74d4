"""The figures of docs/limits.md are the constants of the code."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from services.common.effect_stream import StreamTimings
from tests.docs.pages import DOCS, Page

PAGE = Page(DOCS / "limits.md")

Unit = Callable[[Any], str]


def unit(name: str, divisor: float = 1) -> Unit:
    """How a number is written: divided, then its unit."""
    return lambda value: f"{value / divisor:.16g} {name}".strip()


KIB, MIB, GIB = unit("KiB", 2**10), unit("MiB", 2**20), unit("GiB", 2**30)
SECONDS, MINUTES, MS = unit("s"), unit("min", 60), unit("ms")
MS_AS_SECONDS, MS_AS_MINUTES = unit("s", 1000), unit("min", 60_000)
PLAIN, UNITS, CHARACTERS, BYTES = unit(""), unit("units"), unit("characters"), unit("bytes")

GATEWAY = {
    "a frame of the Harness API": ("gateway.harness_api.channel:MAX_FRAME_BYTES", MIB),
    "one update of a transcript": ("protocol.transcript:CHUNK_UNITS", UNITS),
    "transcripts kept between runs of a connection": ("gateway.runs.transcript_cache:BUDGET_UNITS", UNITS),
    "manifest text kept without a run": ("gateway.runs.manifests:KEPT_BYTES", MIB),
    "checked manifests and compiled schemas (an estimate)": (
        "gateway.engine.definitions:DEFINITION_CACHE_BYTES",
        MIB,
    ),
    "current runs that the gateway's page shows": ("gateway.view.document:MAX_RUNS", PLAIN),
    "open effects of a run that the gateway's page shows": ("gateway.view.document:MAX_OPEN", PLAIN),
    "ended runs that the gateway's page shows": ("gateway.runs.ended:KEPT_RUNS", PLAIN),
    "an id of an ended run on the gateway's page": ("gateway.runs.ended:MAX_ID_CHARS", CHARACTERS),
    "items of a flow's map, when the core names no limit": (
        "gateway.engine.flow.limits:MAX_MAP_ITEMS",
        PLAIN,
    ),
    "iterations of a flow's loop, when the core names no limit": (
        "gateway.engine.flow.limits:MAX_LOOP_ITERATIONS",
        PLAIN,
    ),
    "outcomes of one run that came before they were asked for": ("gateway.runs.holds:MAX_BUFFERED", PLAIN),
    "sessions whose run token is kept": ("gateway.tokens:MAX_SESSIONS", PLAIN),
    "sessions whose mcp-pool replica is remembered for renewed tokens": (
        "gateway.executors.mcp:MAX_SESSIONS",
        PLAIN,
    ),
    "a file that the core reads from a workspace": ("gateway.executors.workspaces:MAX_FILE_BYTES", BYTES),
    "looking for changed certificate files": (
        "gateway.executors.timings:ExecutorTimings.certificates_every",
        SECONDS,
    ),
    "a call on a channel with older certificates": (
        "gateway.executors.timings:ExecutorTimings.certificates_end",
        SECONDS,
    ),
    "a PEM file of TLS": ("services.common.tls:MAX_FILE_BYTES", MIB),
    "sending what is left of traces and metrics at the end": ("services.common.telemetry:FLUSH_S", SECONDS),
    "the body of `POST /drain`": ("gateway.health:MAX_BODY_BYTES", KIB),
    "the reason of a close": ("protocol.closing:MAX_REASON_BYTES", BYTES),
    "one recording": ("gateway.settings:DEFAULT_RECORD_FILE_BYTES", MIB),
    "all recordings": ("gateway.settings:DEFAULT_RECORD_FOLDER_BYTES", GIB),
    "recordings in a folder": ("gateway.recording.folder:MAX_FILES", PLAIN),
    "lines of recordings that wait for the disk": ("gateway.recording.writer:MAX_WAITING_BYTES", MIB),
    "dialling the core": ("gateway.timing:Timing.open_timeout", SECONDS),
    "silence of the core": ("gateway.timing:Timing.silence", SECONDS),
    "runs' end after a lost connection": ("gateway.timing:Timing.wind_down", SECONDS),
    "close handshake": ("gateway.timing:Timing.close_handshake", SECONDS),
    "a service gone": ("gateway.timing:Timing.services_grace", SECONDS),
    "stop": ("gateway.settings:DEFAULT_STOP_GRACE_MS", MS_AS_SECONDS),
    "sending a call again, after its first failure": (
        "gateway.executors.timings:ExecutorTimings.resend_for",
        SECONDS,
    ),
    "sending a call again after a fault of the service": (
        "gateway.executors.timings:ExecutorTimings.fault_resends",
        unit("times"),
    ),
    "a call neither accepted nor queued": ("gateway.executors.timings:ExecutorTimings.silence", SECONDS),
    "a call after the executor's own limit": ("gateway.executors.timings:ExecutorTimings.give_up", SECONDS),
    "the executor's limit where it names none": (
        "gateway.executors.timings:ExecutorTimings.assumed_limit",
        SECONDS,
    ),
    "the end of a call after an abort was sent": (
        "gateway.executors.timings:ExecutorTimings.abort_answer",
        SECONDS,
    ),
    "`Cancel`": ("gateway.executors.timings:ExecutorTimings.cancel", SECONDS),
    "keeping the cancel of a remote MCP call that no mcp-pool took": (
        "gateway.executors.timings:ExecutorTimings.keep_cancel",
        SECONDS,
    ),
    "such cancels that are kept at a time": ("gateway.executors.kept_cancels:MAX_KEPT", PLAIN),
    "discovery and reconnecting of MCP servers": (
        "gateway.executors.timings:ExecutorTimings.discover",
        SECONDS,
    ),
    "reports, removals and a sweep without a word": (
        "gateway.executors.timings:ExecutorTimings.workspace",
        SECONDS,
    ),
    "a service's answer to `Describe`": ("gateway.executors.timings:ExecutorTimings.describe", SECONDS),
}

DOCUMENTS = {
    "nesting of a JSON document": ("protocol.jsjson:MAX_DEPTH", unit("levels")),
    "whole numbers that stay exact": ("protocol.jsjson:MAX_SAFE", unit("")),
    "an id on the wire of a service": ("services.model_executor.service:_MAX_ID", CHARACTERS),
    "a host name in a sandbox spec": ("protocol.manifests.sandbox:_MAX_HOST", CHARACTERS),
    "CPUs in a sandbox spec": ("protocol.manifests.sandbox:_MAX_CPUS", PLAIN),
    "nodes of a workflow inside each other": ("protocol.manifests.nodes:MAX_NODE_DEPTH", PLAIN),
    "alternatives of a file name pattern (`{1..n}`)": (
        "services.sandbox_manager.glob_pattern:MOST_ALTERNATIVES",
        PLAIN,
    ),
    "calls inside each other while a schema is compiled or used": ("protocol.steps:MAX_NESTING", PLAIN),
    "steps that the issues of one validation may take": ("protocol.json_schema.nodes:MAX_MOVES", PLAIN),
    "states of one pattern": ("protocol.js_regex.automaton:MAX_STATES", PLAIN),
    "states visited anew for one text": ("protocol.js_regex.automaton:MAX_WORK", PLAIN),
    "states in remembered steps of one pattern": ("protocol.js_regex.automaton:MAX_REMEMBERED", PLAIN),
    "estimated steps of a pattern with back references": ("protocol.js_regex.regex:MAX_BACKTRACKING", PLAIN),
    "groups inside each other in a pattern": ("protocol.js_regex.parse:MAX_GROUPS_INSIDE", PLAIN),
    "compiled patterns kept": ("protocol.js_regex.regex:CACHED_PATTERNS", PLAIN),
    "length of a pattern that is kept compiled": ("protocol.js_regex.regex:MAX_CACHED_LENGTH", CHARACTERS),
}

SERVICES = {
    "a gRPC message": ("services.common.server:DEFAULT_MAX_MESSAGE_BYTES", MIB),
    "finished outcomes kept": ("services.common.calls:KEEP_S", MINUTES),
    "finished outcomes kept, in number": ("services.common.calls:MAX_KEPT", PLAIN),
    "finished outcomes kept, in bytes": ("services.common.calls:MAX_KEPT_BYTES", MIB),
    "work listed by `Admin/Stats`": ("services.common.work:MAX_LISTED", unit("entries")),
    "a secret's file": ("services.common.settings:_MAX_SECRET_FILE_BYTES", KIB),
    "sending traces at the end": ("services.common.telemetry:FLUSH_S", SECONDS),
    "a call to the gate, without a byte moving": (
        "services.common.gate_http:SILENCE_MS",
        MS_AS_SECONDS,
    ),
    "a call to the gate, in all": ("services.model_executor.gate.route:LIMIT_MS", MS_AS_SECONDS),
    "cancelling a call at the gate": ("services.common.gate_http:QUICK_S", SECONDS),
    "the file of model providers": ("services.model_executor.direct.config_file:MAX_FILE_BYTES", MIB),
    "a file of a prompt, route `direct`": ("services.model_executor.direct.media:MAX_FILE_BYTES", MIB),
    "all files of a call, route `direct`": ("services.model_executor.direct.media:MAX_FILES_BYTES", MIB),
    "outcomes of direct calls in the store": (
        "services.model_executor.direct.store:KEEP_MS",
        MS_AS_MINUTES,
    ),
    "outcomes of direct calls in the store, in number": (
        "services.model_executor.direct.store:MAX_KEPT",
        PLAIN,
    ),
    "outcomes of direct calls in the store, in characters": (
        "services.model_executor.direct.store:MAX_KEPT_BYTES",
        PLAIN,
    ),
    "ends of direct calls that wait for room on a full disk": (
        "services.model_executor.direct.store:MAX_OWED",
        PLAIN,
    ),
    "the same, in characters": ("services.model_executor.direct.store:MAX_OWED_BYTES", PLAIN),
    "calls of killed processes in the store": (
        "services.model_executor.direct.store:FORGET_MS",
        unit("days", 86_400_000),
    ),
    "what a turn, session or day has spent": (
        "services.model_executor.direct.caps:KEEP_SPENT_MS",
        unit("days", 86_400_000),
    ),
    "a transaction of the store behind those of other processes": (
        "services.model_executor.direct.store:BUSY_S",
        SECONDS,
    ),
    "a provider's answer": ("services.model_executor.direct.vendors:MAX_ANSWER_BYTES", MIB),
    "a provider's error message": ("services.model_executor.direct.failures:MAX_MESSAGE", CHARACTERS),
    "the script file": ("services.model_executor.script:MAX_FILE_BYTES", MIB),
    "delay of a scripted answer": ("services.model_executor.script:MAX_DELAY_MS", MS),
    "what is quoted of a call that no entry fits": ("services.model_executor.script:_MAX_QUOTE", CHARACTERS),
}

MCP = {
    "one line of a server": ("services.mcp_pool.limits:LINE_BYTES", MIB),
    "pages of `tools/list`": ("services.mcp_pool.limits:LIST_PAGES", PLAIN),
    "tools of one server, as text": ("services.mcp_pool.connection:LIST_BYTES", MIB),
    "a session's snapshot": ("services.mcp_pool.discovery:SNAPSHOT_BYTES", MIB),
    "a diagnostic's message": ("services.mcp_pool.limits:DIAGNOSTIC_UNITS", UNITS),
    "the text of an uncertain effect": ("services.mcp_pool.limits:ERROR_UNITS", UNITS),
    "requests that a server has not read yet": ("services.mcp_pool.limits:BACKLOG_BYTES", MIB),
    "answers to a server's own requests that it does not read": (
        "services.mcp_pool.limits:REPLY_BACKLOG_BYTES",
        MIB,
    ),
    "declarations of servers kept as they were read": (
        "services.mcp_pool.service:KEPT_DECLARATIONS",
        PLAIN,
    ),
    "servers that are opening at the same time": ("services.mcp_pool.limits:Limits.opening", PLAIN),
    "connections of all sessions": ("services.mcp_pool.limits:Limits.connections", PLAIN),
    "connections of one session": ("services.mcp_pool.limits:Limits.per_session", PLAIN),
    "calls of one connection at a time": ("services.mcp_pool.limits:Limits.calls", PLAIN),
    "one request to a server": ("services.mcp_pool.limits:Limits.request", SECONDS),
    "opening a server and listing its tools": ("services.mcp_pool.limits:Limits.server", SECONDS),
    "a tool call as a whole": ("services.mcp_pool.limits:Limits.call_ms", MS_AS_SECONDS),
    "a call of a remote server's tool as a whole": (
        "services.mcp_pool.limits:Limits.remote_call_ms",
        MS_AS_SECONDS,
    ),
    "a request to the gates service, without a byte moving": (
        "services.mcp_pool.limits:Limits.gate_silence",
        SECONDS,
    ),
    "closing a server, or cancelling a call, at the gates service": (
        "services.common.gate_http:QUICK_S",
        SECONDS,
    ),
    "an answer of the gates service": ("services.mcp_pool.limits:GATE_ANSWER_BYTES", MIB),
    "a connection without a call": ("services.mcp_pool.limits:Limits.idle", MINUTES),
    "open files of the process": (
        "services.mcp_pool.descriptors:PER_CONNECTION",
        unit("for each connection"),
    ),
    "looks whether a server's tools have changed": (
        "services.mcp_pool.limits:Limits.look_pause",
        unit("s apart"),
    ),
    "log lines of such a look": ("services.mcp_pool.tools_watch:MAX_LINES", PLAIN),
    "end of the group keepers": ("services.common.group_keeper:CLOSE_SECONDS", SECONDS),
    "each step of stopping a server": ("services.common.children:StopGrace.after_stdin", SECONDS),
}

TOOL_GATE = {
    "a body of a request to the gate": ("services.tool_gate.bodies:MAX_BODY_BYTES", MIB),
    "the arrival of that body": ("services.tool_gate.app:BODY_S", SECONDS),
    "an id or a name in it": ("services.tool_gate.bodies:MAX_ID", CHARACTERS),
    "nesting of a call's arguments": ("services.tool_gate.bodies:MAX_DEPTH", unit("levels")),
    "one request to the gate": ("services.tool_gate.main:REQUEST_S", SECONDS),
    "one request to a remote server": ("services.tool_gate.settings:Settings.request_s", SECONDS),
    "an answer of a remote server": ("services.tool_gate.upstream.http:ANSWER_BYTES", MIB),
    "one event of a server of type `sse`": ("mcp.client.streamable_http:DEFAULT_MAX_SSE_EVENT_SIZE", MIB),
    "a server's own requests that are answered at a time": (
        "services.tool_gate.upstream.connection:MOST_REPLIES",
        PLAIN,
    ),
    "addresses of a server's name that are tried": (
        "services.tool_gate.upstream.network:MOST_ADDRESSES",
        PLAIN,
    ),
    "connecting to one of them": ("services.tool_gate.upstream.network:CONNECT_S", SECONDS),
    "resolving a server's name": ("services.tool_gate.upstream.network:RESOLVE_S", SECONDS),
    "a remote connection without a request": ("services.tool_gate.settings:Settings.idle_s", MINUTES),
    "a call's answer in memory": ("services.common.calls:KEEP_S", MINUTES),
    "a call's answer in the file": ("services.tool_gate.rows:KEEP_MS", unit("h", 3_600_000)),
    "answers in the file, together": ("services.tool_gate.rows:MOST_BYTES", GIB),
    "a credential's file": ("services.tool_gate.credentials:MAX_SECRET_BYTES", KIB),
    "the file of servers": ("services.tool_gate.credentials:MAX_FILE_BYTES", MIB),
    "an error's message": ("services.tool_gate.failures:MESSAGE_UNITS", UNITS),
    "an answer of the core": ("services.tool_gate.core:ASK_S", SECONDS),
    "calls in flight at a stop": ("services.tool_gate.settings:Settings.drain_s", SECONDS),
}

SANDBOX = {
    "`bash` without a timeout of its own": ("services.sandbox_manager.tools.bash:DEFAULT_TIMEOUT_S", SECONDS),
    "stdout and stderr as a model sees them": (
        "services.sandbox_manager.text:STREAM_UNITS",
        unit("units each"),
    ),
    "one line that `read` and `grep` show": ("services.sandbox_manager.text:LINE_UNITS", UNITS),
    "lines that `read` shows": ("services.sandbox_manager.tools.read:DEFAULT_LINES", PLAIN),
    "matches that `grep` shows": ("services.sandbox_manager.tools.grep:DEFAULT_RESULTS", PLAIN),
    "files that `glob` shows": ("services.sandbox_manager.tools.glob:FILES_SHOWN", PLAIN),
    "files that `glob` looks at": ("services.sandbox_manager.tools.glob:FILES_SEARCHED", PLAIN),
    "`grep` and `glob`": ("services.sandbox_manager.tools.grep:TIMEOUT_MS", unit("s each", 1000)),
    "a file that `edit` changes": ("services.sandbox_manager.disk.files:TEXT_BYTES", MIB),
    "reading or listing one file or folder": ("services.sandbox_manager.disk.files:FILE_LIMIT_S", SECONDS),
    "the command in an event": ("services.sandbox_manager.events:COMMAND_UNITS", UNITS),
    "opening a workspace": ("services.sandbox_manager.compute:OPENING_LIMIT_S", SECONDS),
    "free space of the volume while commands run": (
        "services.sandbox_manager.disk.watch:DEFAULT_FREE_BYTES",
        GIB,
    ),
    "bytes of a workspace with its `/tmp`": (
        "services.sandbox_manager.disk.watch:DEFAULT_WORKSPACE_BYTES",
        GIB,
    ),
    "between two measurements of a workspace while a command runs": (
        "services.sandbox_manager.disk.watch:MEASURED_EVERY_S",
        SECONDS,
    ),
    "files that must be left on a volume that has a limit on them": (
        "services.sandbox_manager.disk.watch:LEAST_FILES",
        PLAIN,
    ),
    "one event's answer of the core": ("services.sandbox_manager.service:ACK_LIMIT_S", SECONDS),
    "a workspace without a call, where the spec says nothing": (
        "services.sandbox_manager.specs:DEFAULT_IDLE_MS",
        MS_AS_MINUTES,
    ),
    "memory of a command, where the spec says nothing": (
        "services.sandbox_manager.specs:DEFAULT_MEMORY_MIB",
        unit("MiB"),
    ),
    "the least memory of a command": ("services.sandbox_manager.specs:LEAST_MEMORY_MIB", unit("MiB")),
    "output kept of each stream": ("services.sandbox_manager.captured:STREAM_BYTES", MIB),
    "processes and threads of a command": ("services.sandbox_manager.bwrap.limits:PROCESSES", PLAIN),
    "one file that a command writes": ("services.sandbox_manager.bwrap.limits:FILE_BYTES", GIB),
    "`/dev/shm` of a command": ("services.sandbox_manager.bwrap.flags:SHARED_MEMORY_BYTES", MIB),
    "setting a sandbox up": ("services.sandbox_manager.bwrap.process:SETUP_LIMIT_S", SECONDS),
    "pipes after a kill": ("services.sandbox_manager.bwrap.process:PIPES_AFTER_KILL_S", SECONDS),
    "connections of a workspace at the same time": (
        "services.sandbox_manager.egress.proxy:MOST_CONNECTIONS",
        PLAIN,
    ),
    "connections of all workspaces": ("services.sandbox_manager.egress.proxy:MOST_OF_ALL", PLAIN),
    "the head of a request to the proxy": ("services.sandbox_manager.egress.heads:MOST_HEAD_BYTES", KIB),
    "from a connection to the end of its request's head": (
        "services.sandbox_manager.egress.proxy:HEAD_LIMIT_S",
        SECONDS,
    ),
    "a connection on which nothing goes either way": (
        "services.sandbox_manager.egress.proxy:IDLE_LIMIT_S",
        SECONDS,
    ),
    "resolving a host name": ("services.sandbox_manager.egress.dialer:RESOLVE_LIMIT_S", SECONDS),
    "connecting to a host": ("services.sandbox_manager.egress.dialer:CONNECT_LIMIT_S", SECONDS),
    "connecting to one of its addresses": (
        "services.sandbox_manager.egress.dialer:ONE_ADDRESS_LIMIT_S",
        SECONDS,
    ),
    "addresses of a host that are tried": ("services.sandbox_manager.egress.dialer:MOST_ADDRESSES", PLAIN),
    "making a sandbox's way out": ("services.sandbox_manager.bwrap.listening:LISTEN_LIMIT_S", SECONDS),
    "commands at the same time": ("services.sandbox_manager.emulated.pool:MOST_CHILDREN", PLAIN),
    "output kept of each stream, emulated": ("services.sandbox_manager.captured:STREAM_BYTES", MIB),
    "memory (data) of a child": ("services.sandbox_manager.emulated.child:MEMORY_BYTES", GIB),
    "one file that a command writes, emulated": ("services.sandbox_manager.emulated.child:FILE_BYTES", GIB),
    "open files of a child": ("services.sandbox_manager.emulated.child:OPEN_FILES", PLAIN),
    "calls of shell functions inside each other": (
        "services.sandbox_manager.emulated.shell:CALL_DEPTH",
        PLAIN,
    ),
    "memory that an idle child may keep": ("services.sandbox_manager.emulated.pool:RESIDENT_BYTES", MIB),
    "start of a child": ("services.sandbox_manager.emulated.pool:START_LIMIT_S", SECONDS),
}

CONTAINERS = {
    "one call to the engine": ("services.sandbox_manager.container.engine:CALL_S", SECONDS),
    "fetching an image": ("services.sandbox_manager.container.engine:PULL_S", SECONDS),
    "the streams of a killed container": ("services.sandbox_manager.container.driver:AFTER_KILL_S", SECONDS),
}

CORE = {
    "a request's body": ("services.dev_core.http.app:MAX_BODY_BYTES", MIB),
    "an agent's or session's id": ("services.dev_core.core:MAX_ID_CHARS", CHARACTERS),
    "one version of an artifact": ("services.dev_core.artifacts.blobs:MAX_ARTIFACT_BYTES", BYTES),
    "an artifact's name": ("services.dev_core.artifacts.naming:MAX_NAME_CHARS", CHARACTERS),
    "files exported when a turn ends": ("services.dev_core.artifacts.export:MAX_FILES", PLAIN),
    "bytes exported when a turn ends": ("services.dev_core.artifacts.export:MAX_BYTES", GIB),
    "the export when a turn ends": ("services.dev_core.artifacts.export:EXPORT_S", SECONDS),
    "files of a listing": ("services.dev_core.http.files:MAX_LISTED_FILES", PLAIN),
    "one request to a workspace by HTTP": ("services.dev_core.session_files:WORKSPACE_S", SECONDS),
    "one sweep or removal of workspaces": ("services.dev_core.sweeper:REQUEST_S", SECONDS),
    "removing a workspace while its session is deleted": (
        "services.dev_core.session_files:REMOVE_S",
        SECONDS,
    ),
    "entries of a page": ("services.dev_core.http.routes:MAX_PAGE", PLAIN),
    "nesting of what the HTTP API and Action endpoints hand over": (
        "services.dev_core.given:MAX_GIVEN_DEPTH",
        unit("levels"),
    ),
    "an answer of an Action endpoint": ("services.dev_core.effects.poster:MAX_ANSWER_BYTES", MIB),
    "times that a workflow's function is posted again, its answer lost": (
        "services.dev_core.effects.actions:REPEATS",
        PLAIN,
    ),
    "linked turns of one workflow session at the same time": (
        "services.dev_core.settings:Settings.flow_concurrency",
        PLAIN,
    ),
    "linked sessions below a person's session": ("services.dev_core.flows.linking:MAX_NESTING", PLAIN),
    "Actions posted at the same time": ("services.dev_core.effects.poster:MAX_POSTS_AT_ONCE", PLAIN),
    "what is kept of an endpoint's reason": ("services.dev_core.effects.poster:MAX_REASON_CHARS", CHARACTERS),
    "the answer of an Action endpoint": (
        "services.dev_core.settings:Settings.action_timeout_ms",
        MS_AS_SECONDS,
    ),
    "silence between server-sent events": ("services.dev_core.http.stream:HEARTBEAT_S", SECONDS),
    "folded transcripts kept in memory": ("services.dev_core.transcripts:MAX_CACHED_UNITS", UNITS),
    "facts of manifests and snapshots kept": ("services.dev_core.manifests:MAX_CACHED_CHARS", MIB),
    "frames that a harness does not read": ("services.dev_core.harness.connection:MAX_UNSENT_BYTES", MIB),
    "requests of a harness that are being served": (
        "services.dev_core.harness.connection:MAX_IN_FLIGHT",
        PLAIN,
    ),
    "silence of a harness": ("services.dev_core.settings:SILENCE_MS", MS_AS_SECONDS),
    "a lease": ("services.dev_core.settings:Settings.lease_ms", MS_AS_SECONDS),
    "a run": ("services.dev_core.settings:Settings.deadline_ms", MS_AS_MINUTES),
    "a run's end after an abort": ("services.dev_core.settings:ABORT_GRACE_MS", MS_AS_SECONDS),
    "waiting for an Action inside a run": ("services.dev_core.settings:Settings.hold_ms", MS_AS_SECONDS),
    "start of all processes": ("cli.running_stack:READY_BOUND_S", SECONDS),
    "the demo's turn": ("cli.demo:TURN_BOUND_S", SECONDS),
    "stop of the gateway": ("cli.supervisor:GIVE_BACK_S", SECONDS),
    "stop of the other processes": ("cli.supervisor:SERVICE_STOP_S", SECONDS),
}

CONSTANTS: dict[str, tuple[str, Unit]] = {
    **DOCUMENTS,
    **GATEWAY,
    **SERVICES,
    **MCP,
    **TOOL_GATE,
    **SANDBOX,
    **CONTAINERS,
    **CORE,
}
"""Rows of the page, by their first cell, and the constant (or the default of a dataclass) behind each."""

TWICE = {
    ("Mcp-pool", "sessions whose run token is kept"): ("services.mcp_pool.limits:GRANTS", PLAIN),
    ("Every service", "stop"): ("services.common.server:ServerSettings.stop_grace_ms", MS_AS_SECONDS),
    ("Every service", "from an opened stream to its request"): (StreamTimings().request_s, SECONDS),
    ("Every service", "from accepted to `start`"): (StreamTimings().start_s, SECONDS),
    ("Every service", "between two `queued` messages"): (StreamTimings().heartbeat_s, SECONDS),
}
"""Rows whose first cell another section has too, and figures that are attributes of one object."""

WORDS_ALONE = {
    "wait before another dial",
    "memory (data) of each process of a command",
    "addresses of each process",
    "memory of all processes of a command together",
    "CPUs of a command",
    "open files of a process",
    "pause before a dead process is started again",
}
"""Rows with more than one figure, checked below or said in words."""


def value_of(source: Any) -> Any:
    if not isinstance(source, str):
        return source
    module, _, path = source.partition(":")
    owner, _, member = path.partition(".")
    found = getattr(importlib.import_module(module), owner)
    if not member:
        return found
    default = found.__dataclass_fields__.get(member)
    return default.default if default is not None else getattr(found(), member)()


ROWS = [row for row in PAGE.rows() if row.header[0] == "What"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.cells[0])
def test_the_figure_is_the_constant(row: Any) -> None:
    name = row.cells[0]
    if name in WORDS_ALONE:
        return
    source, written = TWICE.get((row.section, name)) or CONSTANTS[name]
    assert row.cells[1] == written(value_of(source))


def test_every_checked_constant_has_its_row() -> None:
    names = {row.cells[0] for row in ROWS}
    assert set(CONSTANTS) | {name for _, name in TWICE} | WORDS_ALONE == names


def test_ranges_are_those_of_the_code() -> None:
    from cli.supervisor import FIRST_PAUSE_S, LONGEST_PAUSE_S
    from gateway.timing import Timing
    from services.sandbox_manager.bwrap.driver import OWN_MEMORY
    from services.sandbox_manager.bwrap.limits import LEAST_ADDRESS_SPACE
    from services.sandbox_manager.open_files import COMMAND_HARD, COMMAND_SOFT

    cells = {row.cells[0]: row.cells[1] for row in ROWS}
    timing = Timing()
    dialling = f"{timing.backoff_min:g} s to {timing.backoff_max:g} s"
    assert cells["wait before another dial"] == dialling
    restart = f"{FIRST_PAUSE_S:g} s to {LONGEST_PAUSE_S:g} s"
    assert cells["pause before a dead process is started again"] == restart
    assert cells["addresses of each process"].startswith(f"{GIB(LEAST_ADDRESS_SPACE)},")
    together = cells["memory of all processes of a command together"]
    assert together == f"the spec's, and {MIB(OWN_MEMORY)} more"
    assert cells["open files of a process"] == f"{COMMAND_SOFT}, up to {COMMAND_HARD} when it asks"
