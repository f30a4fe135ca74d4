"""Faults on request, for tests of whoever calls a gate: cuts, held calls, refusals, a death at a chosen point.

A gate with its faults switched on is also strict: it refuses what the contract does not have, and remembers
what it was sent (mcp-pool 9.1 and 9.2). Never switched on outside of tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.tool_gate.problems import GateProblem, invalid

ROUTES: Final = ("connect", "list", "close", "tool-calls", "cancel")
POINTS: Final = ("received", "written", "answered", "settled")
"""Where a fault may strike: the request is checked and nothing done; a call is in the file and its server not
asked; its server has answered and the file does not say so; the answer is about to be sent. The two in the
middle are a call's own."""
ACTS: Final = ("cut", "half", "hold", "die", "refuse", "uncertain")
REMEMBERED: Final = 1000
HOLD_S: Final = 300.0
"""A test that forgets to release something ends nevertheless."""


class Cut(Exception):
    """The connection is to be cut; with `half` after the first half of the answer."""

    def __init__(self, *, half: bool = False) -> None:
        super().__init__()
        self.half = half


class SayUncertain(Exception):
    """The call is to be answered as uncertain."""


@dataclass(slots=True)
class Fault:
    """One fault. It strikes `times` requests of its route; with `effect_id` only those of that call."""

    route: str
    at: str
    act: str
    times: int = 1
    effect_id: str | None = None
    status: int = 409
    code: str = "run_stale"
    message: str = "A fault of the test."


@dataclass
class Faults:
    """The faults of one gate, in the order in which they were asked for, and what it was sent."""

    on: bool = False
    faults: list[Fault] = field(default_factory=list)
    requests: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    held: int = 0
    _release: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, document: Mapping[str, Any]) -> None:
        """Reads a fault. Raises GateProblem."""
        known = {"route", "at", "act", "times", "effectId", "status", "code", "message"}
        unknown = sorted(set(document) - known)
        if unknown:
            raise invalid(f"A fault has no member {unknown[0]}.")
        fault = Fault(
            route=_one_of(document, "route", ROUTES),
            at=_one_of(document, "at", POINTS),
            act=_one_of(document, "act", ACTS),
            times=document.get("times", 1),
            effect_id=document.get("effectId"),
            status=document.get("status", 409),
            code=document.get("code", "run_stale"),
            message=document.get("message", "A fault of the test."),
        )
        if fault.at in ("written", "answered") and (
            fault.route != "tool-calls" or fault.act not in ("hold", "die")
        ):
            raise invalid(f"At {fault.at} only tool-calls can be held or die.")
        if fault.act == "half" and fault.at != "settled":
            raise invalid("Half an answer needs an answer: at settled.")
        self.faults.append(fault)

    def release(self) -> None:
        """Lets go what is held."""
        self._release.set()
        self._release = asyncio.Event()

    def clear(self) -> None:
        """Forgets all faults and what was sent, and lets go what is held."""
        self.faults.clear()
        self.requests.clear()
        self.release()

    def seen(self, request: dict[str, Any]) -> None:
        """Remembers a request."""
        if self.on:
            self.requests.append(request)

    async def strike(self, route: str, at: str, effect_id: str | None = None) -> None:
        """Does what was asked for at this point. Raises Cut, SayUncertain and GateProblem."""
        if not self.on:
            return
        fault = self._next(route, at, effect_id)
        if fault is None:
            return
        match fault.act:
            case "cut" | "half":
                raise Cut(half=fault.act == "half")
            case "hold":
                await self._hold()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "refuse":
                raise GateProblem(fault.status, fault.code, fault.message)
            case _:
                raise SayUncertain

    def _next(self, route: str, at: str, effect_id: str | None) -> Fault | None:
        for fault in self.faults:
            if (fault.route, fault.at) == (route, at) and fault.effect_id in (None, effect_id):
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    async def _hold(self) -> None:
        release = self._release
        self.held += 1
        try:
            async with asyncio.timeout(HOLD_S):
                await release.wait()
        finally:
            self.held -= 1


def _one_of(document: Mapping[str, Any], name: str, options: tuple[str, ...]) -> str:
    value = document.get(name)
    if value not in options:
        raise invalid(f"{name} of a fault is one of {', '.join(options)}.")
    return str(value)
