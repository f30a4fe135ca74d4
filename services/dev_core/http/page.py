"""Plain pages for browsers without scripts: agents, sessions and one session's log.

No script at all: everything is escaped HTML made here, under a Content-Security-Policy that allows nothing
but the page's own style sheet.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Final

from aiohttp import web

from protocol import jsjson
from services.dev_core.clock import iso_time
from services.dev_core.core import Core
from services.dev_core.http import params

PAGE_EVENTS: Final = 200
PAGE_CHARS: Final = 2 * 1024 * 1024
MAX_SHOWN_CHARS: Final = 4000
_LISTED: Final = 100

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: .85rem; }
@media (max-width: 40rem) {
  thead { display: none; }
  tr, td:last-child { display: block; }
  tr { border-bottom: 1px solid #8884; padding: .3rem 0; }
  td { display: inline-block; border: 0; padding: .1rem .3rem; }
}
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class Page:
    """Handlers of the page."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def add_to(self, app: web.Application) -> None:
        """Registers the page's addresses."""
        app.add_routes([web.get("/plain", self.overview), web.get("/plain/sessions/{session}", self.session)])

    async def overview(self, request: web.Request) -> web.Response:
        """Agents and sessions."""
        del request
        agents = await self._core.agents("", _LISTED)
        sessions = await self._core.sessions(_LISTED, None, None)
        agent_rows = [(agent.id, agent.manifest_hash[:12], agent.actions_url or "") for agent in agents]
        session_rows = [
            (_link(session.id), session.agent_id, session.status, iso_time(session.updated_ms))
            for _, session in sessions
        ]
        counts = ", ".join(f"{name}: {count}" for name, count in self._core.scheduler.counts().items())
        return _page(
            "Whippletree development core",
            f"<p>{escape(counts)}. <a href='/openapi.json'>openapi.json</a></p>"
            f"<h2>Agents</h2>{_table(('Agent', 'Manifest', 'Actions'), agent_rows)}"
            f"<h2>Sessions</h2>{_table(('Session', 'Agent', 'Status', 'Updated'), session_rows)}",
        )

    async def session(self, request: web.Request) -> web.Response:
        """One session's log."""
        view = await self._core.session(request.match_info["session"])
        session = view.session
        after = params.number(request, "after", 0)
        page = await self._core.events(session.id, after, limit=PAGE_EVENTS, max_chars=PAGE_CHARS)
        rows = [
            (str(event.seq), iso_time(event.time_ms), event.type, _Text(_shorten(event.payload)))
            for event in page
        ]
        more = ""
        if page and page[-1].seq < view.last_seq:
            more = (
                f"<p><a href='/plain/sessions/{escape(session.id)}?after={page[-1].seq}'>Later events</a></p>"
            )
        above = "" if session.parent_id is None else f"<p>Linked to {_link(session.parent_id)}.</p>"
        return _page(
            f"Session {session.id}",
            f"<p><a href='/plain'>All sessions</a></p><p>Agent {escape(session.agent_id)}, "
            f"status {escape(session.status)}.</p>{above}{await self._linked(session.id)}"
            f"{_table(('Seq', 'Time', 'Event', 'Payload'), rows)}{more}",
        )

    async def _linked(self, session_id: str) -> str:
        linked = await self._core.sessions(_LISTED, None, None, session_id)
        if not linked:
            return ""
        rows = [(_link(session.id), session.agent_id, session.status) for _, session in linked]
        return f"<h2>Linked sessions</h2>{_table(('Session', 'Agent', 'Status'), rows)}<h2>Log</h2>"


def _link(session_id: str) -> _Link:
    return _Link(f"/plain/sessions/{session_id}", session_id)


class _Link(str):
    """A link of ours, both parts escaped."""

    __slots__ = ()

    def __new__(cls, address: str, text: str) -> _Link:
        return super().__new__(cls, f"<a href='{escape(address)}'>{escape(text)}</a>")


class _Text(str):
    """Text that keeps its line breaks, escaped."""

    __slots__ = ()

    def __new__(cls, text: str) -> _Text:
        return super().__new__(cls, f"<pre>{escape(text)}</pre>")


def _shorten(payload: str) -> str:
    text = jsjson.dumps(jsjson.loads(payload)) if len(payload) <= MAX_SHOWN_CHARS else payload
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in heads)
    lines = "".join(
        "<tr>"
        + "".join(f"<td>{cell if isinstance(cell, _Link | _Text) else escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _page(title: str, body: str) -> web.Response:
    text = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
    return web.Response(
        text=text,
        content_type="text/html",
        headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"},
    )
