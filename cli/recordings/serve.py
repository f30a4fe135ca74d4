"""`whippletree replay --serve`: runs agents on recordings for another program, over stdin and stdout.

One JSON object a line, both ways. First comes

    {"type":"ready","protocol":1,"whippletree":"0.1.0","agentId":…,"input":…}

with the recorded agent and message. A request is

    {"id":1,"method":"run","manifest":{…},"input":…}

where `manifest` and `input` may be left out: then the recorded ones are used. Its answers are

    {"id":1,"type":"effect","n":1,"effectId":…,"kind":…,"document":{…}}     each effect that fits, then one of
    {"id":1,"type":"end","method":"turn.completed","params":{…}}            the output (harness-api 3)
    {"id":1,"type":"miss","effectId":…,"kind":…,"text":…,
     "difference":{"path":…,"before":…,"after":…}}                          an effect that doesn't fit
    {"id":1,"type":"error","message":…}                                     it can't be run at all

`difference` may be null, and so `before` and `after` when a side has nothing there. Requests are answered one
after another, each from the start of the recording. A line that is no request is answered with an error whose
`id` is null. The end of stdin ends the program with exit code 0. Nothing else is written to stdout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from cli.recordings.cassette import Cassette, Miss
from cli.recordings.driven import Asked
from cli.recordings.exit_codes import SAME
from cli.recordings.find import UsageError, is_recording, read_one
from cli.recordings.replaying import NotReplayable
from gateway.engine.contract import ABSENT
from protocol.jsjson import JsonError, dumps_bytes, loads
from services.common.version import version

PROTOCOL: Final = 1
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024

_MEMBERS: Final = frozenset({"id", "method", "manifest", "input"})


def serve_recordings(files: Sequence[tuple[Path, bool]], requests: IO[bytes], answers: IO[bytes]) -> int:
    """Serves until the requests end; the exit code. Raises UsageError, RecordingUnreadable, NotReplayable."""
    recordings = [read_one(path) for path, named in files if named or is_recording(path)]
    if not recordings:
        raise UsageError("There is no recording to serve.")
    server = _Server(Cassette(recordings), answers)
    server.ready()
    while line := requests.readline(MAX_REQUEST_BYTES + 1):
        if len(line) > MAX_REQUEST_BYTES:
            raise UsageError(f"A request is longer than {MAX_REQUEST_BYTES} bytes.")
        if line.strip():
            server.request(line)
    return SAME


class _Server:
    def __init__(self, cassette: Cassette, answers: IO[bytes]) -> None:
        self._cassette = cassette
        self._answers = answers

    def ready(self) -> None:
        """The greeting."""
        self._send(
            {
                "type": "ready",
                "protocol": PROTOCOL,
                "whippletree": version(),
                "agentId": self._cassette.agent_id,
                "input": self._cassette.message,
            }
        )

    def request(self, line: bytes) -> None:
        """Answers one request."""
        request_id = None
        try:
            request: Any = loads(line)
            request_id = request.get("id") if isinstance(request, dict) else None
            problem = _problem(request)
        except JsonError as error:
            problem = f"not JSON: {error}"
        if problem is not None:
            self._send({"id": request_id, "type": "error", "message": problem})
            return
        try:
            self._run(request)
        except NotReplayable as error:
            self._send({"id": request_id, "type": "error", "message": str(error)})

    def _run(self, request: Mapping[str, Any]) -> None:
        number = request["id"]

        def seen(n: int, asked: Asked) -> None:
            self._send(
                {"id": number, "type": "effect", "n": n, **_named(asked), "document": asked.document()}
            )

        changes = {name: request[name] for name in ("manifest", "input") if name in request}
        end = self._cassette.run(changes, seen)
        if isinstance(end, Miss):
            self._send({"id": number, "type": "miss", **_named(end.asked), **_missed(end)})
        else:
            self._send({"id": number, "type": "end", "method": end.method, "params": dict(end.params)})

    def _send(self, document: dict[str, Any]) -> None:
        self._answers.write(dumps_bytes(document) + b"\n")
        self._answers.flush()


def _problem(request: Any) -> str | None:
    """What is wrong with a request."""
    if not isinstance(request, dict):
        return "a request is an object"
    if isinstance(request.get("id"), bool) or not isinstance(request.get("id"), int):
        return "a request has a whole number as its id"
    if request.get("method") != "run":
        return "the only method is run"
    unknown = sorted(set(request) - _MEMBERS)
    if unknown:
        return f"a request has no {unknown[0]}"
    if not isinstance(request.get("manifest", {}), dict):
        return "manifest is an object"
    return None


def _named(asked: Asked) -> dict[str, Any]:
    return {"effectId": asked.effect_id, "kind": asked.effect.kind}


def _missed(miss: Miss) -> dict[str, Any]:
    found = miss.difference
    difference = None
    if found is not None:
        sides = {"before": found.before, "after": found.after}
        present = {name: None if side is ABSENT else side for name, side in sides.items()}
        difference = {"path": found.path, **present}
    return {"text": miss.text(), "difference": difference}
