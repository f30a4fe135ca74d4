"""`whippletree sessions` and `whippletree show`: what a development core keeps of conversations."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from cli.core_client import CoreClient, CoreError, Document, core_token
from cli.event_lines import Kind, Said, said
from cli.plain_text import as_text, one_line, plain, table
from cli.screen import Screen
from cli.timeline import timeline

OK, REFUSED = 0, 2
LAST: Final = "last"
"""In place of a session's id: the newest one."""
_STARTS: Final = frozenset({"turn.started", "turn.resumed"})
_ENDS: Final = frozenset({"turn.completed", "turn.failed", "turn.cancelled", "turn.paused", "turn.uncertain"})


def run_sessions(
    core: str, *, agent: str | None, limit: int, as_json: bool, environ: Mapping[str, str]
) -> int:
    """Prints the newest sessions; 0, or 2 when the core can't be asked."""

    async def work(client: CoreClient) -> None:
        found = await client.sessions(limit, agent)
        if as_json:
            print(json.dumps(found, ensure_ascii=False))
            return
        if not found:
            print("No sessions yet. Begin one: whippletree chat")
            return
        rows = [
            (
                str(one["id"]),
                one_line(str(one["agentId"]), 40),
                str(one["status"]),
                str(one["updatedAt"])[:19].replace("T", " "),
            )
            for one in found
        ]
        print("\n".join(table(("session", "agent", "status", "last change (UTC)"), rows)))

    return asked(core, environ, work)


def run_show(core: str, session: str, *, as_json: bool, environ: Mapping[str, str]) -> int:
    """Prints a session turn by turn, each with its timeline; 0, or 2 when the core can't be asked."""

    async def work(client: CoreClient) -> None:
        session_id = session if session != LAST else await _newest(client)
        view = await client.session(session_id)
        log = await client.log(session_id)
        if as_json:
            turns = {str(one["turnId"]): None for one in log if one.get("turnId")}
            effects = {turn: await client.effects(session_id, turn) for turn in turns}
            print(json.dumps({"session": view, "events": log, "effects": effects}, ensure_ascii=False))
            return
        screen = Screen()
        screen.line(
            f"Session {session_id} of the agent {one_line(str(view['agentId']), 80)}: {view['status']}"
        )
        for event in log:
            await _event(client, screen, session_id, event)
        if view.get("hint"):
            screen.line(plain(str(view["hint"])))

    return asked(core, environ, work)


async def _event(client: CoreClient, screen: Screen, session_id: str, event: Document) -> None:
    name, payload = str(event["type"]), event.get("payload") or {}
    if name in _STARTS:
        screen.line(f"\n{str(event['time'])[11:19]}  You: {plain(_input(payload.get('input')))}")
    for one in said(name, payload):
        screen.show(one)
    if name in _ENDS:
        error = payload.get("error") if isinstance(payload.get("error"), dict) else {}
        reason = f": {error.get('code', '')} {error.get('message', '')}".rstrip() if error else ""
        kind: Kind = "note" if name in ("turn.completed", "turn.paused") else "problem"
        screen.show(Said(kind, plain(f"{name.partition('.')[2]}{reason}")))
        if name != "turn.paused":
            for line in timeline(await client.effects(session_id, str(event["turnId"]))):
                screen.line(f"    {line}")


def _input(given: Any) -> str:
    if isinstance(given, dict) and given.get("kind") == "approve":
        return "approves" if given.get("approved") else "denies"
    if isinstance(given, dict) and given.get("kind") == "respond":
        return as_text(given.get("value"))
    if isinstance(given, dict) and isinstance(given.get("text"), str):
        return str(given["text"])
    return as_text(given)


async def _newest(client: CoreClient) -> str:
    found = await client.sessions(1)
    if not found:
        raise CoreError("There is no session yet. Begin one: whippletree chat")
    return str(found[0]["id"])


def asked(url: str, environ: Mapping[str, str], work: Callable[[CoreClient], Awaitable[None]]) -> int:
    """Does something at the core; 0, or 2 with one line on stderr when that fails."""

    async def connected() -> None:
        async with CoreClient(url, token=core_token(environ)) as client:
            await work(client)

    try:
        asyncio.run(connected())
    except CoreError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return OK
