"""`whippletree run`: one turn of an agent or a workflow at a running development core."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.core_client import TURN_ENDS, CoreClient, CoreError, Document, core_token
from cli.event_lines import said
from cli.input_files import InputError, agent_body, message
from cli.plain_text import as_text
from cli.screen import Screen
from cli.timeline import timeline

COMPLETED, ENDED_OTHERWISE, REFUSED, INTERRUPTED = 0, 1, 2, 130


def run_turn(
    agent: str,
    text: str | None,
    *,
    file: Path | None,
    data: Path | None,
    put: Path | None,
    session: str | None,
    core: str,
    effects: bool,
    as_json: bool,
    environ: Mapping[str, str],
) -> int:
    """The exit code: 0 when the turn completed, 1 when it ended otherwise, 2 when it could not begin, 130
    after Ctrl-C, which cancels the turn."""
    try:
        given = message(text, file, data)
        body = None if put is None else agent_body(put)
        token = core_token(environ)
        return asyncio.run(
            _turn(agent, given, body, session, CoreClient(core, token=token), effects, as_json)
        )
    except (InputError, CoreError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


async def _turn(
    agent: str,
    given: Document,
    put: Document | None,
    session: str | None,
    client: CoreClient,
    effects: bool,
    as_json: bool,
) -> int:
    async with client as core:
        if put is not None:
            await core.put(agent, put)
        seen = 0
        if session is None:
            session = await core.create_session(agent)
        else:
            view = await core.session(session)
            if view["agentId"] != agent:
                raise InputError(f"Session {session} is one of the agent {view['agentId']}, not of {agent}.")
            seen = int(view["lastSeq"])
        print(f"session {session}", file=sys.stderr, flush=True)
        turn = await core.send(session, given)
        try:
            end = await _followed(core, session, seen, turn, as_json)
        except asyncio.CancelledError:
            await core.cancel(session)
            print("The turn was cancelled.", file=sys.stderr)
            raise
        if effects:
            print("\n".join(timeline(await core.effects(session, turn))), file=sys.stderr)
        view = await core.session(session)
    if end == "turn.completed":
        if not as_json:
            output = view["lastTurn"]["result"].get("output")
            print(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2))
        return COMPLETED
    print(_otherwise(end, view), file=sys.stderr)
    return ENDED_OTHERWISE


async def _followed(core: CoreClient, session: str, seen: int, turn: str, as_json: bool) -> str:
    """Says what happens, as JSON lines on stdout or, at a terminal, in words on stderr; the name of the end."""
    screen = Screen(sys.stderr) if sys.stderr.isatty() and not as_json else None
    waiting = None if screen is None else asyncio.create_task(screen.waiting("working (Ctrl-C cancels)"))
    try:
        async for name, event in core.events(session, seen):
            if as_json:
                print(json.dumps(event, ensure_ascii=False, separators=(",", ":")), flush=True)
            elif screen is not None:
                for one in said(name, event.get("payload") or {}):
                    if one.kind != "answer":
                        screen.show(one)
            if name in TURN_ENDS and event.get("turnId") == turn:
                return name
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    raise CoreError("The development core ended the stream of events.")


def _otherwise(end: str, view: Document) -> str:
    """Why there is no output, and what to do."""
    asked = view.get("interactions") or ()
    if asked:
        names = "; ".join(f"{one.get('id')}: {as_text(one.get('prompt'))}" for one in asked)
        return f"The turn waits for a person ({names}). {view.get('hint', '')}"
    if end == "turn.failed":
        error = view["lastTurn"]["result"].get("error") or {}
        return f"The turn failed: {error.get('code', '')} {error.get('message', '')}".rstrip()
    return f"The turn is {view['status']}. {view.get('hint', '')}".rstrip()
