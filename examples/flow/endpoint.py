"""The functions of the digest workflow: the development core posts each call here.

Start it with `python examples/flow/endpoint.py` (aiohttp comes with Whippletree). A function has no memory: it is
called again with the same key when its answer was lost.
"""

from __future__ import annotations

import argparse
from typing import Any

from aiohttp import web

MOST_WORDS = 60
"""What a brief may have."""


def split(call: dict[str, Any]) -> list[str]:
    """The sections of a Markdown document, each with its heading."""
    sections: list[str] = []
    for line in str(call["input"]).splitlines():
        if line.startswith("## ") or not sections:
            sections.append("")
        sections[-1] += line + "\n"
    return [section.strip() for section in sections if section.startswith("## ")]


def compose(call: dict[str, Any]) -> str:
    """What the editor is asked, from the summaries of all sections."""
    notes = "\n".join(f"- {summary}" for summary in call["results"]["parts"])
    return f"Write a brief of at most {MOST_WORDS} words from these notes:\n\n{notes}"


def check(call: dict[str, Any]) -> dict[str, Any]:
    """Whether the brief is short enough; the editor is told when it is not."""
    words = len(str(call["output"]).split())
    if words <= MOST_WORDS:
        return {"pass": True, "words": words}
    return {"pass": False, "feedback": f"That has {words} words; {MOST_WORDS} are allowed. Shorten it."}


FUNCTIONS = {"parts:input": split, "brief:input": compose, "brief:verify": check}
"""By key: the stage's name and the function's role."""


async def call_function(request: web.Request) -> web.Response:
    """One call; its value is the function's."""
    effect = await request.json()
    function = FUNCTIONS.get(effect["key"])
    if function is None:
        return web.json_response({"message": f"There is no function {effect['key']}."}, status=404)
    return web.json_response({"value": function(effect["input"])})


def application() -> web.Application:
    """The endpoint, at `/actions`."""
    app = web.Application()
    app.router.add_post("/actions", call_function)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=5000)
    web.run_app(application(), host="127.0.0.1", port=parser.parse_args().port)
