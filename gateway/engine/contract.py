"""What an engine is given, what it asks for, and how a segment ends.

An engine is a plain object without I/O, clock or randomness. The run loop makes one per segment, calls
`start`, executes the effects it returns, feeds each answer to `resolve`, and stops when a step carries a
result. An engine may hand out several effects at once; their answers may come in any order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from protocol.jsjson import JsonValue
from protocol.transcript import Entry

EffectKind = Literal["model", "tool", "hook", "delegation", "agent", "fn", "verify"]
Status = Literal["completed", "paused", "yielded", "waiting", "uncertain", "failed", "cancelled"]


class Absent(enum.Enum):
    """A member that is not there; `None` is JSON's null, which is a value."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class AbortKind(enum.StrEnum):
    """Why a run is aborted (harness-api 5.4)."""

    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"
    OWNERSHIP_LOST = "ownership.lost"


@dataclass(frozen=True, slots=True)
class Abort:
    """The first abort of a run; later ones are ignored."""

    kind: AbortKind
    message: str


class EngineRefused(Exception):
    """The segment can't start: raised by `start` before any effect (agent-engine 4.2).

    `code` is the dotted engine code, or None where the specification gives none.
    """

    def __init__(self, code: str | None, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call's document as pieces of UTF-8 JSON text, joined only when it is sent.

    Members keep their insertion order (tool arguments reach providers as the model wrote them). The pieces
    never change, whatever the engine does later.
    """

    parts: Sequence[bytes]

    def text(self) -> bytes:
        """The whole document."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class EffectRequest:
    """One effect the engine asks for (agent-engine 8).

    `document` is what crosses in `effect.intent`: every member for all kinds but `model`, whose `input`
    never crosses and stands in `model_call`. `request_hash` covers the whole effect, prompt included.
    """

    effect_id: str
    kind: EffectKind
    document: Mapping[str, JsonValue]
    request_hash: str
    model_call: ModelCall | None = None
    plain: bool = False
    """`document` is plain (`protocol.jsjson.Parsed`), so its intent is written the fast way."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The effect has an outcome {value, statePatch?}, as core answered it.

    `plain` may be True when the frame that brought it was parsed as plain (`protocol.jsjson.Parsed`): then
    everything made of the outcome is written the fast way.
    """

    outcome: Mapping[str, JsonValue]
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """Core will complete the effect later."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The effect may have run; nobody knows its outcome."""


@dataclass(frozen=True, slots=True)
class HostError:
    """Core refused, or the host failed. `code` is a Harness API code, not an engine code."""

    code: str | None
    message: str


@dataclass(frozen=True, slots=True)
class AbortedEffect:
    """The effect failed because the run was aborted; `abort` was called before."""

    abort: Abort


Answer = Completed | Pending | Uncertain | HostError | AbortedEffect


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """An outcome that came with the run: resolved without asking, drift when the hash differs."""

    effect_id: str
    request_hash: str
    outcome: Mapping[str, JsonValue]
    plain: bool = False
    """As in `Completed`."""


@dataclass(frozen=True, slots=True)
class YieldAfter:
    """When a segment rolls over (agent-engine 18.2); None means no limit of that kind."""

    steps: float | None = None
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class SegmentInput:
    """Everything a segment starts from.

    `checkpoint` is the checkpoint document with an empty `state.transcript`; the transcript stands in
    `transcript`. `observe` is told every effect in the order it is asked for, with True when a
    recorded outcome resolves it.
    """

    manifest: Mapping[str, JsonValue]
    checkpoint: Mapping[str, JsonValue]
    transcript: Sequence[Entry] = ()
    session_tools: Sequence[JsonValue] = ()
    outcomes: Mapping[str, RecordedOutcome] = field(default_factory=dict)
    yield_after: YieldAfter | None = None
    flow_limits: JsonValue = None
    plain: bool = False
    """Manifest and checkpoint are plain (`protocol.jsjson.Parsed`)."""
    observe: Callable[[EffectRequest, bool], None] | None = None


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """How a segment ended (agent-engine 4.3).

    `state` is the state without its transcript, and `transcript` its entries; both None when the result
    has no state (waiting, uncertain). `output`, `pending` and `error` are ABSENT when not defined.
    """

    status: Status
    state: Mapping[str, JsonValue] | None = None
    transcript: Sequence[Entry] | None = None
    output: JsonValue | Absent = ABSENT
    pending: JsonValue | Absent = ABSENT
    error: JsonValue | Absent = ABSENT
    effect_ids: Sequence[str] = ()
    cancel_effect_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next: new effects in order, or the result. Both empty: wait for more answers."""

    effects: tuple[EffectRequest, ...] = ()
    result: SegmentResult | None = None


class AgentPhase(enum.StrEnum):
    """What an agent is in the middle of."""

    HOOKS = "asks its hooks"
    SUMMARY = "has its conversation summed up"
    MODEL = "asks the model"
    CALLS = "runs the calls of its plan"
    OVER = "has ended its segment"


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """One agent in the middle of its segment: the root, or an agent that runs as its tool.

    `path` names the agents from the root on ("boss/scout"), `delegation_id` the call of its parent that it
    runs for. `turn_id`, `step_id` and `step_number` are None before its first step. `state` is its state
    document as it stands, without the transcript. `turn_patch` is what the turn's first hook changed,
    `counters` the ids taken so far by prefix (agent-engine 7), `steps` those that the segment has behind it.
    """

    path: str
    delegation_id: str | None
    phase: AgentPhase
    turn_id: str | None
    step_id: str | None
    step_number: int | None
    state: Mapping[str, JsonValue]
    transcript: Sequence[Entry]
    turn_patch: Mapping[str, JsonValue]
    counters: Mapping[str, int]
    steps: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a segment stands between two of its steps, for people who look into it.

    `waiting` are the effects in flight, in the order in which they were asked for, `suspended` those that
    were answered without an outcome. `agents` has the root first; a flow has none.
    """

    waiting: Sequence[str]
    suspended: Mapping[str, Literal["pending", "uncertain"]]
    abort: Abort | None
    agents: Sequence[AgentSnapshot]


class Engine(Protocol):
    """One segment.

    A flow whose leaves share a name may ask for one effect id again while it is in flight. Every ask gets an
    answer of its own, and the answers of one id come in the order of its asks.
    """

    def start(self, now_ms: float) -> Step:
        """Checks the input and runs to the first effects. Raises EngineRefused."""
        ...

    def resolve(self, effect_id: str, answer: Answer, now_ms: float) -> Step:
        """Takes the answer to one effect."""
        ...

    def abort(self, abort: Abort) -> Step:
        """The run is aborted. Effects in flight still get an answer each."""
        ...
