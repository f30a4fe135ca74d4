"""`whippletree ask`: one turn of an agent or a workflow at a running development core."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.core_client import CoreClient, CoreError, Document, core_token
from cli.timeline import timeline

COMPLETED, ENDED_OTHERWISE, REFUSED = 0, 1, 2


class AskError(Exception):
    """What was typed can't be used."""


def run_ask(
    agent: str,
    text: str | None,
    *,
    file: Path | None,
    data: Path | None,
    put: Path | None,
    core: str,
    effects: bool,
    environ: Mapping[str, str],
) -> int:
    """The exit code: 0 when the turn completed, 1 when it ended otherwise, 2 when it could not begin."""
    try:
        message = _message(text, file, data)
        body = None if put is None else _document(put)
        return asyncio.run(_ask(agent, message, body, core, core_token(environ), effects))
    except (AskError, CoreError) as error:
        print(error, file=sys.stderr)
        return REFUSED


def _message(text: str | None, file: Path | None, data: Path | None) -> Document:
    if sum(given is not None for given in (text, file, data)) != 1:
        raise AskError("Give a text, or --file with one, or --data with JSON.")
    if data is not None:
        return {"data": _json(data)}
    return {"text": text if file is None else _read(file)}


def _document(path: Path) -> Document:
    found = _json(path)
    if not isinstance(found, dict):
        raise AskError(f"{path} holds no object.")
    # A manifest alone will do as well as the body that puts it.
    return found if "manifest" in found else {"manifest": found}


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise AskError(f"{path} is not JSON: {error}.") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AskError(f"{path} can't be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise AskError(f"{path} is not UTF-8.") from None


async def _ask(
    agent: str, message: Document, put: Document | None, url: str, token: str | None, effects: bool
) -> int:
    async with CoreClient(url, token=token) as core:
        if put is not None:
            await core.put(agent, put)
        session = await core.create_session(agent)
        print(f"session {session}", file=sys.stderr, flush=True)
        turn = await core.send(session, message)
        end = await core.turn_end(session, turn)
        if effects:
            print("\n".join(timeline(await core.effects(session, turn))), file=sys.stderr)
        view = await core.session(session)
    if end == "turn.completed":
        output = view["lastTurn"]["result"].get("output")
        print(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2))
        return COMPLETED
    print(_otherwise(end, view), file=sys.stderr)
    return ENDED_OTHERWISE


def _otherwise(end: str, view: Document) -> str:
    """Why there is no output, and what to do."""
    asked = view.get("interactions") or ()
    if asked:
        names = "; ".join(f"{one.get('id')}: {one.get('prompt')}" for one in asked)
        return f"The turn waits for a person ({names}). {view.get('hint', '')}"
    if end == "turn.failed":
        error = view["lastTurn"]["result"].get("error") or {}
        return f"The turn failed: {error.get('code', '')} {error.get('message', '')}".rstrip()
    return f"The turn is {view['status']}. {view.get('hint', '')}".rstrip()
