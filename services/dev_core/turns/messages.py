"""A message: from the body of a request to a turn that can be offered (agent-engine 5, flow-engine 3)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from protocol import jsjson
from services.dev_core.artifacts import records
from services.dev_core.effects.held import storable
from services.dev_core.manifests import Engine
from services.dev_core.problems import Problem, no_session, turn_is_open
from services.dev_core.store import events, sessions
from services.dev_core.store.sessions import OPEN_STATUSES
from services.dev_core.store.transaction import Tx

_FORMS: Final = ("text", "content", "data")


class Message(msgspec.Struct, frozen=True):
    """What a turn is started with: `form` is text, content or data."""

    form: str
    value: Any
    metadata: Any = None

    def input(self, engine: Engine) -> Any:
        """The checkpoint's input. Raises Problem for what a workflow does not take."""
        if engine != "agent":
            if self.form == "content" or self.metadata is not None:
                raise Problem("invalid", "A workflow takes {text} or {data}, and no metadata.")
            return self.value
        if self.form == "data":
            return self.value if isinstance(self.value, str) else jsjson.dumps(self.value)
        if self.metadata is not None:
            return {self.form: self.value, "metadata": self.metadata}
        return self.value if self.form == "text" else {self.form: self.value}


def read_message(body: Any) -> Message:
    """The message of `{text, metadata?}`, `{content, metadata?}` or `{data}`. Raises Problem."""
    if not isinstance(body, dict):
        raise Problem("invalid", "A message is an object with one of text, content and data.")
    forms = [name for name in _FORMS if name in body]
    if len(forms) != 1:
        raise Problem("invalid", "A message has exactly one of text, content and data.")
    form = forms[0]
    allowed = {form} if form == "data" else {form, "metadata"}
    unknown = sorted(set(body) - allowed)
    if unknown:
        raise Problem("invalid", f"A message with {form} has no member {unknown[0]!r}.")
    metadata = body.get("metadata")
    if "metadata" in body and not isinstance(metadata, dict):
        raise Problem("invalid", "metadata is an object.")
    value = body[form]
    if form == "text" and not isinstance(value, str):
        raise Problem("invalid", "text is a string.")
    if form == "content":
        _check_content(value)
        if isinstance(value, str):
            form = "text"
    return Message(form, value, metadata)


def _check_content(content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Problem("invalid", "content is a string or a list of parts.")
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and part.keys() == {"type", "text"} and isinstance(part["text"], str):
            continue
        if (
            kind == "media"
            and part.keys() == {"type", "mediaType", "reference"}
            and isinstance(part["mediaType"], str)
            and part["mediaType"]
        ):
            continue
        raise Problem(
            "invalid",
            f'content[{index}] is neither {{"type": "text", "text"}} nor '
            '{"type": "media", "mediaType", "reference"}.',
        )


def _check_references(tx: Tx, session_id: str, message: Any) -> None:
    """A part that names an artifact names one of the session's, or the model's answer would fail later."""
    content = message.get("content") if isinstance(message, dict) else None
    for index, part in enumerate(content if isinstance(content, list) else ()):
        match part.get("reference"):
            case {"artifactId": str(artifact_id), "version": version}:
                number = version if type(version) is int and 0 < version < 2**53 else 0
                if records.load(tx, storable(artifact_id), number, session_id=session_id) is None:
                    raise Problem(
                        "invalid",
                        f"content[{index}] names version {version} of the artifact {artifact_id!r}, which "
                        f"session {session_id} does not have: POST /v1/sessions/{session_id}/artifacts makes "
                        "one.",
                    )


def start_turn(
    tx: Tx,
    session_id: str,
    turn_id: str,
    message: Message,
    now_ms: int,
    *,
    turn_manifest_hash: str | None = None,
) -> int:
    """Commits a message: the session becomes runnable with a new turn. Returns the event's seq.

    `turn_manifest_hash`: what this turn runs with instead of the session's manifest. Raises Problem when
    there is no such session, a turn is under way, or a workflow can't take the message.
    """
    session = sessions.load(tx, session_id)
    if session is None:
        raise no_session(session_id)
    if session.status in OPEN_STATUSES:
        raise turn_is_open(session_id, session.status)
    given = message.input(session.engine)
    if session.engine == "agent":
        _check_references(tx, session_id, given)
    text = jsjson.dumps(given)
    sessions.put_document(tx, session_id, "input", text)
    sessions.start_turn(tx, session_id, turn_id, now_ms)
    tx.run(
        "UPDATE sessions SET status = 'runnable', turn_id = ?, segment = 0, turn_manifest_hash = ?, "
        "updated_ms = ? WHERE id = ?",
        (turn_id, turn_manifest_hash, now_ms, session_id),
    )
    return events.append(tx, session_id, "turn.started", turn_id, f'{{"input":{text}}}', now_ms)
