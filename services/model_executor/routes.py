"""The routes of model calls: what answers a call, and what each promises (model-executor 4 and 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from services.model_executor.call_view import CallInvalid, view_call
from services.model_executor.fixture import fixture_answer
from services.model_executor.outcomes import invalid_request
from services.model_executor.script import Script

ROUTE_SETTING: Final = "WHIPPLETREE_MODEL_ROUTE"
SCRIPT_SETTING: Final = "WHIPPLETREE_MODEL_SCRIPT"
_MARGIN_MS: Final = 5_000
CONFLICT_TEXT: Final = "The call changed under the same effect id."
STALE_TEXT: Final = "stale run: a lease with a higher epoch owns this effect."


class ModelCall(msgspec.Struct, frozen=True):
    """One model call. `text` is the ModelCall document, forwarded as it came.

    `token` is the session's run token at the moment of sending; `rejoin` is core's word that an earlier run
    has sent this call.
    """

    tenant_id: str
    session_id: str
    turn_id: str
    agent_id: str
    effect_id: str
    invocation_id: str
    epoch: int
    text: str
    fixture: bool = False
    rejoin: bool = False
    token: str | None = None

    def __repr__(self) -> str:
        """Neither token nor content."""
        return f"ModelCall({self.session_id!r}, {self.effect_id!r})"


def fingerprint(call: ModelCall) -> bytes:
    """A digest of all that makes a call, to be kept beyond the process: the same id with another is a conflict."""
    identity = (call.turn_id, call.agent_id, call.invocation_id, "f" if call.fixture else "", "")
    digest = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogatepass"))
    digest.update(call.text.encode("utf-8", "surrogatepass"))
    return digest.digest()


class Answer(msgspec.Struct, frozen=True):
    """An outcome's JSON text, to be given after a delay in milliseconds."""

    outcome: str
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Another process that has a call in flight: its instance, and its address where it is known."""

    instance: str
    address: str


@dataclass(frozen=True, slots=True)
class Settled:
    """An outcome's JSON text. With `keep` a re-sent call gets it; without, it is made anew.

    `elsewhere`: the call runs there and its caller should go there; the outcome is for one who can't.
    """

    outcome: str
    keep: bool = True
    elsewhere: Place | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """Work that gives an outcome. `with_callers`: it is stopped when the last who waits for it has gone."""

    work: Callable[[], Coroutine[Any, Any, Settled]]
    with_callers: bool = False


class Route(Protocol):
    """Answers calls. A failure is an outcome; nothing raises."""

    @property
    def name(self) -> str:
        """`fixture`, `scripted`, `gate` or `direct`."""
        ...

    @property
    def recovers(self) -> bool:
        """A call may be sent again under its effect id after a loss of this process."""
        ...

    @property
    def limit_ms(self) -> int:
        """Every call has ended by then."""
        ...

    def answer(self, call: ModelCall) -> Answer | Pending:
        """What a call gets, or the work that finds it out."""
        ...


@runtime_checkable
class RemoteRoute(Protocol):
    """A route whose calls live in another process as well."""

    def renew(self, tenant_id: str, session_id: str, token: str | None) -> bool:
        """Takes a session's newest run token; False when no call of the session is in flight."""
        ...

    async def cancel(self, tenant_id: str, effect_id: str, token: str | None) -> None:
        """Stops a call there. Never fails; at most 2 s."""
        ...


@runtime_checkable
class StoppingRoute(Protocol):
    """A route that must tell the end of the process from a cancel."""

    def closing(self) -> None:
        """The process ends: calls that are cancelled from now on were given up."""
        ...


@runtime_checkable
class PlacedRoute(Protocol):
    """A route whose calls other processes may be sent to."""

    def listens(self, address: str) -> None:
        """Where this process is reached; empty when that isn't known."""
        ...


@runtime_checkable
class ClosingRoute(Protocol):
    """A route that holds connections or files."""

    async def close(self) -> None:
        """Lets go of them; no call is in flight."""
        ...


class FixtureRoute:
    """Runs granted with `fixtureModel`."""

    name = "fixture"
    recovers = True
    limit_ms = _MARGIN_MS

    def answer(self, call: ModelCall) -> Answer:
        """What the fixture says."""
        try:
            return Answer(fixture_answer(view_call(call.text)))
        except CallInvalid as error:
            return Answer(invalid_request(str(error)))


class ScriptedRoute:
    """Answers of a file."""

    name = "scripted"
    recovers = True

    def __init__(self, script: Script) -> None:
        self._script = script
        self.limit_ms = script.longest_delay_ms + _MARGIN_MS

    def answer(self, call: ModelCall) -> Answer:
        """The first entry that fits."""
        try:
            delay_ms, outcome = self._script.answer(call.agent_id, view_call(call.text))
        except CallInvalid as error:
            return Answer(invalid_request(str(error)))
        return Answer(outcome, delay_ms)


class UnusableRoute:
    """A route that is not built, or that lacks its setting: every call fails and says what to set."""

    recovers = True
    limit_ms = _MARGIN_MS

    def __init__(self, name: str) -> None:
        self.name = name
        if name == ScriptedRoute.name:
            self._message = f"The model route scripted needs {SCRIPT_SETTING}: a file of answers."
        else:
            self._message = (
                f"The model route {name} is not built yet; "
                f"set {ROUTE_SETTING}=scripted and {SCRIPT_SETTING} to a file of answers."
            )

    def answer(self, call: ModelCall) -> Answer:
        """The failure `invalid_request`, which names the setting."""
        return Answer(invalid_request(self._message))
