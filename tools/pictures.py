"""Makes the pictures of docs/pictures from a real run (`python -m tools.pictures`; needs Debian's chromium and
chromium-driver for the screenshot).

`turn.svg` shows the demo's turn as lanes of processes; `timeline.png` is the console's page of that turn.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from cli.core_client import CoreClient
from cli.demo import AGENT, demo_environment
from cli.demo_agent import QUESTION, manifest
from cli.model_script import write_default_script
from cli.ports import free_ports
from cli.running_stack import running_stack
from cli.stack import StackPlan
from cli.state import open_state
from cli.timeline import what, where

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
LEFT: Final = 150
WIDTH: Final = 760
LANE: Final = 44
TOP: Final = 34
LANES: Final = ("gateway", "model-executor", "mcp-pool", "sandbox-manager")
COLOURS: Final = {"model-executor": "#7c5cd6", "mcp-pool": "#c07f12", "sandbox-manager": "#2c8a57"}
SHORTEST: Final = 3.0

Document = dict[str, Any]


def turn_picture(effects: Sequence[Document]) -> str:
    """The turn as an SVG picture: one lane for each process, one bar for each effect."""
    spans = [_span(effect) for effect in effects]
    first = min(start for start, _ in spans)
    whole = max(start + length for start, length in spans) - first
    scale = (WIDTH - LEFT - 20) / whole
    height = TOP + LANE * len(LANES) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        "<title>One turn of the demo: which process worked when</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, lane in enumerate(LANES):
        y = TOP + index * LANE
        parts.append(f'<line x1="{LEFT}" y1="{y + 30}" x2="{WIDTH - 20}" y2="{y + 30}" stroke="#d7d7de"/>')
        parts.append(f'<text x="{LEFT - 12}" y="{y + 24}" text-anchor="end" fill="#333">{lane}</text>')
    own_y = TOP + 14
    parts.append(
        f'<rect x="{LEFT}" y="{own_y}" width="{whole * scale:.1f}" height="14" rx="3" fill="#c9d4ee"/>'
    )
    for effect, (start, length) in zip(effects, spans, strict=True):
        lane = where(effect)
        y = TOP + LANES.index(lane) * LANE + 10
        same = [one for one in effects if where(one) == lane and _span(one)[0] < start + length]
        offset = 0 if effect is same[0] or len(same) < 2 or _apart(same, effect) else 9
        x, width = LEFT + (start - first) * scale, max(SHORTEST, length * scale)
        title = escape(f"{what(effect)}: {length:.0f} ms")
        parts.append(
            f'<rect x="{x:.1f}" y="{y + offset}" width="{width:.1f}" height="9" rx="2" fill="{COLOURS[lane]}">'
            f"<title>{title}</title></rect>"
        )
    parts.append(f'<text x="{LEFT}" y="{height - 8}" fill="#666">0 ms</text>')
    parts.append(
        f'<text x="{WIDTH - 20}" y="{height - 8}" text-anchor="end" fill="#666">{whole:.0f} ms</text>'
    )
    return "\n".join((*parts, "</svg>", ""))


def _apart(same: Sequence[Document], effect: Document) -> bool:
    """Whether the effect began after the end of the one before it in its lane."""
    before = same[same.index(effect) - 1]
    start, length = _span(before)
    return _span(effect)[0] >= start + length


def _span(effect: Document) -> tuple[float, float]:
    start = datetime.fromisoformat(effect["startedAt"]).timestamp() * 1000.0
    return start, float(effect.get("durationMs", 0.0))


async def _run() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        state = open_state(Path(folder))
        plan = StackPlan(
            state=state,
            ports=free_ports(),
            environ=demo_environment(os.environ),
            model_script=write_default_script(state.path),
        )
        async with running_stack(plan, lambda name, line: None) as stack:
            await stack.ready()
            async with CoreClient(plan.core_url()) as core:
                await core.put_agent(AGENT, manifest(sys.executable))
                session = await core.create_session(AGENT)
                turn = await core.send_message(session, QUESTION)
                await core.turn_end(session, turn)
                effects = await core.effects(session, turn)
            (FOLDER / "turn.svg").write_text(turn_picture(effects), encoding="utf-8")
            await asyncio.to_thread(_screenshot, f"{plan.core_url()}/sessions/{session}")


def _screenshot(url: str) -> None:
    from tests.browser.support import start_browser, why_none

    missing = why_none()
    if missing is not None:
        print(f"No screenshot: it {missing}.", file=sys.stderr)
        return
    browser = start_browser(width=1000, height=1900)
    try:
        browser.get(url)
        browser.implicitly_wait(10)
        browser.find_element("css selector", ".timeline .bar")
        browser.find_element("css selector", ".turn").screenshot(str(FOLDER / "timeline.png"))
    finally:
        browser.quit()


if __name__ == "__main__":
    asyncio.run(_run())
