"""Pictures of the docs come from runs, and say what ran where."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from tests.docs.pages import DOCS
from tools.pictures import turn_picture

SVG = "{http://www.w3.org/2000/svg}"


def effect(runner: str, at_ms: int, length_ms: float, **request: Any) -> dict[str, Any]:
    return {
        "kind": "tool" if request else "model",
        "runner": runner,
        "startedAt": f"2026-12-01T05:00:00.{at_ms:03}Z",
        "durationMs": length_ms,
        "request": request,
    }


def bars(picture: str) -> list[tuple[str | None, float, float]]:
    """What each bar is called, where it begins, and how high it stands."""
    return [
        (found.text, float(rect.get("x", "")), float(rect.get("y", "")))
        for rect in ElementTree.fromstring(picture).iter(f"{SVG}rect")
        if (found := rect.find(f"{SVG}title")) is not None
    ]


def test_effects_at_the_same_time_stand_one_below_the_other() -> None:
    one, two, later = bars(
        turn_picture(
            [
                effect("mcp", 10, 30, toolName="a"),
                effect("mcp", 11, 40, toolName="<b>"),
                effect("mcp", 90, 10, toolName="c"),
            ]
        )
    )
    assert one[0] == "a: 30 ms"
    assert two[0] == "<b>: 40 ms"
    assert one[1] < two[1] < later[1]
    assert one[2] == later[2] < two[2]


def test_each_process_has_a_lane() -> None:
    model, tool, command = bars(
        turn_picture(
            [effect("model", 0, 5), effect("mcp", 5, 5, toolName="a"), effect("sandbox", 10, 5, toolName="b")]
        )
    )
    assert model[0] == "model call: 5 ms"
    assert model[2] < tool[2] < command[2]


def test_the_pictures_are_there() -> None:
    assert len(bars((DOCS / "pictures" / "turn.svg").read_text("utf-8"))) == 10
    assert (DOCS / "pictures" / "timeline.png").read_bytes().startswith(b"\x89PNG")
