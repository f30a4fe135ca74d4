"""The scripted route: answers from a JSON file, for demos, tests and benchmarks. No model is called.

The file (`WHIPPLETREE_MODEL_SCRIPT`) is one object with one list. The first entry that fits a call wins:

    {"answers": [
      {"agent": "greeter", "step": 0, "text": "weather",
       "answer": {"output": [{"type": "tool-call", "id": "c1", "name": "look_up", "args": {"city": "Oslo"}}]}},
      {"step": 1, "delayMs": 200, "answer": "It rains in Oslo."},
      {"text": "too much", "failure": {"code": "rate_limited", "message": "Slow down.", "retryable": true}},
      {"answer": "Anything else gets this."}
    ]}

What an entry asks for; what it leaves out fits everything:

* `agent`: the id of the session's root agent.
* `step`: how many groups follow the last user message; a group is an assistant message together with
  the tool results after it. The first call after a user message is step 0, the one after its tools 1.
* `text`: the text of the last prompt item contains it (text parts, one line each; letter case counts). For
  a call that follows tools this is the last tool's result, as JSON.

What it gives, after `delayMs` milliseconds (0 to 600,000, default 0), is one of:

* `answer`: a text, or a candidate {output, finishReason?, usage?, evidence?} as model-executor 3.2 has it.
* `failure`: {code, message, retryable?, retryAfterMs?}, one of the failure codes of model-executor 3.3;
  `retryable` is false when it is left out.

There is no memory: the same call always gets the same answer, so a call that was lost may be sent again.
A call that no entry fits gets the failure `invalid_request`, which quotes what was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from protocol.jsjson import JsonError, dumps, parse
from protocol.model_answers import FAILURE_CODES
from services.model_executor.call_view import CallView
from services.model_executor.outcomes import (
    CandidateInvalid,
    check_candidate,
    failure,
    invalid_request,
)

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
MAX_DELAY_MS: Final = 600_000
_MAX_QUOTE: Final = 200
_ENTRY: Final = frozenset({"agent", "step", "text", "delayMs", "answer", "failure"})
_FAILURE: Final = frozenset({"code", "message", "retryable", "retryAfterMs"})


class ScriptInvalid(ValueError):
    """The file can't be used; the text names the place."""


class _Asked:
    """What entries look at, found when the first one does."""

    def __init__(self, call: CallView) -> None:
        self._call = call

    @cached_property
    def step(self) -> int:
        """How many groups follow the last user message."""
        return step_of(self._call)

    @cached_property
    def text(self) -> str:
        """The text of the last prompt item."""
        return last_text(self._call)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `outcome` is the JSON text of what it gives."""

    agent: str | None
    step: int | None
    text: str | None
    delay_ms: int
    outcome: str

    def fits(self, agent: str, asked: _Asked) -> bool:
        """Whether it answers a call. Raises CallInvalid for odd content."""
        return (
            (self.agent is None or self.agent == agent)
            and (self.step is None or self.step == asked.step)
            and (self.text is None or self.text in asked.text)
        )


@dataclass(frozen=True, slots=True)
class Script:
    """A file of answers."""

    entries: tuple[Entry, ...]

    @property
    def longest_delay_ms(self) -> int:
        """The longest delay of all entries."""
        return max((entry.delay_ms for entry in self.entries), default=0)

    def answer(self, agent: str, call: CallView) -> tuple[int, str]:
        """Delay in milliseconds and outcome. Raises CallInvalid for odd content."""
        asked = _Asked(call)
        for entry in self.entries:
            if entry.fits(agent, asked):
                return entry.delay_ms, entry.outcome
        text = asked.text
        kind = call.prompt[-1].kind if call.prompt else "none"
        quoted = text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + "…"
        return 0, invalid_request(
            f"No entry of the model script fits: agent {dumps(agent)}, step {asked.step}, "
            f"last prompt item {kind} with the text {dumps(quoted)}."
        )


def step_of(call: CallView) -> int:
    """How many groups follow the last user message."""
    step, in_group = 0, False
    for item in call.prompt:
        if item.kind == "message" and item.role == "user":
            step, in_group = 0, False
        elif (item.kind == "message" and item.role == "assistant") or (
            item.kind == "tool-result" and not in_group
        ):
            step, in_group = step + 1, True
    return step


def last_text(call: CallView) -> str:
    """The text parts of the last prompt item, one a line."""
    if not call.prompt:
        return ""
    return "\n".join(text for text in call.prompt[-1].texts() if text is not None)


def load_script(path: str) -> Script:
    """Reads a file. Raises ScriptInvalid."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScriptInvalid(f"{path} can't be read: {error.strerror or type(error).__name__}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ScriptInvalid(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ScriptInvalid(f"{path} is not UTF-8") from None
    return read_script(text)


def read_script(text: str) -> Script:
    """Reads a script's text. Raises ScriptInvalid."""
    try:
        document: Any = parse(text).value
    except JsonError as error:
        raise ScriptInvalid(f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != {"answers"}:
        raise ScriptInvalid('it must be an object with the one member "answers"')
    if not isinstance(document["answers"], list):
        raise ScriptInvalid("answers must be a list")
    return Script(tuple(_entry(entry, f"answers[{i}]") for i, entry in enumerate(document["answers"])))


def _entry(entry: Any, path: str) -> Entry:
    if not isinstance(entry, dict):
        raise ScriptInvalid(f"{path} must be an object")
    for name in entry:
        if name not in _ENTRY:
            raise ScriptInvalid(f"{path}.{name} is not known; known are {', '.join(sorted(_ENTRY))}")
    for name in ("agent", "text"):
        if name in entry and not isinstance(entry[name], str):
            raise ScriptInvalid(f"{path}.{name} must be a text")
    if ("answer" in entry) == ("failure" in entry):
        raise ScriptInvalid(f"{path} must have either answer or failure")
    return Entry(
        agent=entry.get("agent"),
        step=_whole(entry.get("step"), f"{path}.step", 10**9),
        text=entry.get("text"),
        delay_ms=_whole(entry.get("delayMs"), f"{path}.delayMs", MAX_DELAY_MS) or 0,
        outcome=_failure(entry["failure"], path) if "failure" in entry else _answer(entry["answer"], path),
    )


def _answer(answer: Any, path: str) -> str:
    try:
        check_candidate(answer)
    except CandidateInvalid as error:
        raise ScriptInvalid(f"{path}.answer: {error}") from None
    return dumps(answer)


def _failure(value: Any, path: str) -> str:
    if not isinstance(value, dict) or not {"code", "message"} <= set(value) or not set(value) <= _FAILURE:
        raise ScriptInvalid(
            f"{path}.failure must have code and message, and may have retryable, retryAfterMs"
        )
    if value["code"] not in FAILURE_CODES:
        raise ScriptInvalid(f"{path}.failure.code must be one of {', '.join(FAILURE_CODES)}")
    if not isinstance(value["message"], str):
        raise ScriptInvalid(f"{path}.failure.message must be a text")
    retryable = value.get("retryable", False)
    if not isinstance(retryable, bool):
        raise ScriptInvalid(f"{path}.failure.retryable must be true or false")
    after = _whole(value.get("retryAfterMs"), f"{path}.failure.retryAfterMs", 10**12)
    return failure(value["code"], value["message"], retryable=retryable, retry_after_ms=after)


def _whole(value: Any, path: str, high: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise ScriptInvalid(f"{path} must be a whole number from 0 to {high}")
    return value
