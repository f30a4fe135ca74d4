"""Why a piece of engine work ends without a value.

Our own failures carry a dotted code and reach results and prompts with it. What the host reports does not:
a Harness API code is lost on the way into a result, only its message is kept (agent-engine 14).

    WorkFailed
      EngineFailure   the engine itself says no: code, message, scope
      HostFailure     core or the harness failed an effect: a Harness API code, a message
      RunStopped      the run was aborted
      Suspended       an effect has no outcome yet, or nobody knows it
      NoVerdict       a schema can't judge a value (agent/validation.py)
"""

from __future__ import annotations

from typing import Literal

from gateway.engine.contract import Abort


class WorkFailed(Exception):
    """Base of everything that may end engine work. `message` is what a result shows."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class EngineFailure(WorkFailed):
    """A failure with an engine code. `scope` appears in the result's error only where it is given."""

    def __init__(self, code: str, message: str, scope: Literal["step", "execution"] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.scope = scope


class HostFailure(WorkFailed):
    """The host could not get an outcome. `api_code` is a Harness API code, for logs only."""

    def __init__(self, api_code: str | None, message: str) -> None:
        super().__init__(message)
        self.api_code = api_code


class RunStopped(WorkFailed):
    """The run was aborted before the effect was asked for, or while it was in flight."""

    def __init__(self, abort: Abort) -> None:
        super().__init__(abort.message)
        self.abort = abort


class Suspended(WorkFailed):
    """The effect is pending or uncertain: the segment ends here and is run again later (agent-engine 18.1)."""

    def __init__(self, effect_id: str) -> None:
        super().__init__(f"effect {effect_id} has no outcome")
        self.effect_id = effect_id


def failure_code(failure: WorkFailed, otherwise: str) -> str:
    """The failure's engine code, or `otherwise` for one that is not the engine's own."""
    return failure.code if isinstance(failure, EngineFailure) else otherwise
