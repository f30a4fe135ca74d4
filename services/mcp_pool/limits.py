"""The limits of the pool, each with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from services.common.children import StopGrace
from services.common.gate_http import SILENCE_MS

LINE_BYTES: Final = 10 * 1024 * 1024
"""A longer line of a server ends its connection (mcp-pool 3)."""

LIST_PAGES: Final = 100
"""Pages of `tools/list` that are read; the rest is left out (mcp-pool 5.2)."""

PARSE_OFF_LOOP_BYTES: Final = 256 * 1024
"""Longer lines are parsed in a thread: a parse of this size takes some 2 ms, in which no other session's
call moves."""

TURN_BYTES: Final = 256 * 1024
"""Output of one server that is handled before the others have their turn."""

SKIPPED_BYTES: Final = 32 * 1024
"""After so much that meant nothing, come at once, a server waits for its turn."""

TURN_LINES: Final = 1000
"""The same in lines."""

TURN_SECONDS: Final = 0.001
"""How long one server's output is handled before the others have their turn."""

PAUSE_SECONDS: Final = 0.001
"""How long the others have their turn: a call of theirs takes several rounds of the loop."""

REPLY_BACKLOG_BYTES: Final = 1024 * 1024
"""Answers to a server's own requests are dropped while it has this much left to read."""

BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Further requests wait while a server has this much left to read."""

BACKLOG_LOOK_SECONDS: Final = 0.01
"""How often such a server is looked at."""

DIAGNOSTIC_UNITS: Final = 500
"""UTF-16 units of a diagnostic's message (mcp-pool 5.5)."""

ERROR_UNITS: Final = 2000
"""UTF-16 units of the text that an uncertain effect is reported with."""

NAMING_OFF_LOOP_TOOLS: Final = 50
"""More tools than these have their schemas checked in a thread: a large one takes a millisecond."""

GATE_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A longer answer of the gates service fails its request: it would not fit into a message of ours either."""

GRANTS: Final = 10_000
"""Sessions whose run token is kept; the least recently granted goes first (mcp-pool 9.2)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds; tests scale them down.

    `request`: one request to a server, from sending. `server`: opening a server and, in discovery, listing
    its tools; also what a call waits for its connection. `slot`: how long one opening may keep the others
    waiting: starting a process is heavy, waiting for a silent one is not. `gate_silence`: how long the gates
    service may say nothing while a tool of a remote server is called. `drain`: what an exited server's
    last output may take to arrive. `idle` and `sweep`: mcp-pool 7.1. `connections` and `per_session`: those
    that are open, being opened or being closed. `calls`: calls of one connection that run at a time.
    `look_pause`: between two looks whether a server's tools have changed.
    """

    request: float = 60.0
    server: float = 120.0
    slot: float = 10.0
    gate_silence: float = SILENCE_MS / 1000
    drain: float = 0.5
    idle: float = 15 * 60.0
    sweep: float = 60.0
    opening: int = 8
    connections: int = 512
    per_session: int = 32
    calls: int = 64
    look_pause: float = 10.0
    grace: StopGrace = field(default_factory=StopGrace)

    def call_ms(self) -> int:
        """The longest a call takes from its start, in milliseconds: opening, the request, and a margin."""
        return int((self.server + self.request + CALL_MARGIN_SECONDS) * 1000)

    def remote_call_ms(self) -> int:
        """The same for a tool of a remote server: the gate answers once, when the call is over."""
        return int((self.server + self.gate_silence + GATE_ANSWER_SECONDS + CALL_MARGIN_SECONDS) * 1000)


GATE_ANSWER_SECONDS: Final = 60.0
"""What the bytes of the gate's answer may take to arrive, all together."""

CALL_MARGIN_SECONDS: Final = 5.0
"""What a call may take beyond its two waits, before it is given up as a whole."""
