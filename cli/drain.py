"""`whippletree drain`: asks a gateway to drain itself, or replicas of a service, and tells what still runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp

from cli.core_client import Document
from cli.plain_text import one_line

DONE, NOT_DONE, REFUSED = 0, 1, 2
ANSWER_S: Final = 10.0
"""The gateway says at once what runs, and once a second after that; so long a silence means it is gone."""
DEFAULT_PORT: Final = "4300"


class DrainFailed(Exception):
    """The gateway did not answer, or refused; the text says why."""


def run_drain(
    service: str,
    target: str | None,
    gateway: str | None,
    *,
    wait: bool,
    within_s: float | None,
    as_json: bool,
    environ: Mapping[str, str],
) -> int:
    """0: it drains, and with `wait` nothing runs any more; 1: something still runs after `within_s`, or a
    replica could not be asked; 2: the gateway refused or is away."""
    port = environ.get("NYLORUN_HARNESS_HEALTH_PORT", "").strip() or DEFAULT_PORT
    url = (gateway or f"http://127.0.0.1:{port}").rstrip("/")
    show = _as_json if as_json else Lines(datetime.now(UTC)).show
    try:
        return asyncio.run(_drain(url, service, target, show, wait=wait, within_s=within_s))
    except DrainFailed as error:
        print(error, file=sys.stderr)
        return REFUSED


async def _drain(
    url: str,
    service: str,
    target: str | None,
    show: Callable[[Document], None],
    *,
    wait: bool,
    within_s: float | None,
) -> int:
    told: dict[str, Document] = {}
    try:
        async with asyncio.timeout(within_s if wait else None):
            async for step in _steps(url, service, target):
                show(step)
                told[str(step.get("target", service))] = step
                if not wait:
                    break
    except TimeoutError:
        left = sum(len(running_of(step)) for step in told.values())
        print(f"After {within_s:g} s {left} still run; draining goes on.", file=sys.stderr)
        return NOT_DONE
    return NOT_DONE if any("error" in step for step in told.values()) else DONE


async def _steps(url: str, service: str, target: str | None) -> AsyncIterator[Document]:
    body = {"service": service} | ({} if target is None else {"target": target})
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(f"{url}/drain", json=body) as answer,
        ):
            if answer.status != 200:
                raise DrainFailed(await _refusal(answer, url))
            async for line in answer.content:
                if line.strip():
                    yield json.loads(line)
    except aiohttp.ServerTimeoutError:
        raise DrainFailed(f"The gateway at {url} said nothing for {ANSWER_S:g} s.") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise DrainFailed(
            f"No gateway answers at {url} ({type(error).__name__}). Its port is NYLORUN_HARNESS_HEALTH_PORT, and "
            "only its own machine reaches it."
        ) from None


async def _refusal(answer: aiohttp.ClientResponse, url: str) -> str:
    try:
        return str((await answer.json())["error"]["message"])
    except (aiohttp.ContentTypeError, KeyError, TypeError, ValueError):
        return f"The gateway at {url} answered {answer.status} to /drain."


def _as_json(step: Document) -> None:
    print(json.dumps(step, ensure_ascii=False), flush=True)


def running_of(step: Document) -> list[Document]:
    """What a step says still runs: runs of a gateway, or calls of a replica."""
    return list(step.get("running") or step.get("inFlight") or ())


class Lines:
    """Prints each piece of work once when it is first seen, and how much is left whenever that changes."""

    def __init__(self, now: datetime, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, flush=True))
        self._fixed = None if write is None else now
        self._seen: set[tuple[str, str]] = set()
        self._left: dict[str, int] = {}

    def show(self, step: Document) -> None:
        """One step of the stream."""
        name = one_line(str(step.get("target") or step.get("service") or ""), 80)
        if "error" in step:
            self._write(f"{name}: {one_line(str(step['error']), 200)}")
            return
        running = running_of(step)
        for one in running:
            key = (name, str(one.get("effectId") or one.get("runId") or one.get("sessionId")))
            if key not in self._seen:
                self._seen.add(key)
                self._write(f"{name}: {self._line(one)}")
        if self._left.get(name) != len(running):
            self._left[name] = len(running)
            self._write(f"{name}: {len(running)} left" if running else f"{name}: nothing runs any more")

    def _line(self, one: Mapping[str, Any]) -> str:
        since = (self._fixed or datetime.now(UTC)) - timedelta(milliseconds=float(one.get("ageMs", 0)))
        what = one_line(str(one.get("kind", "run")), 20)
        name = one_line(str(one.get("effectId") or one.get("runId") or ""), 100)
        return (
            f"{what} {name} of session {one_line(str(one.get('sessionId', '')), 100)}, "
            f"{one_line(str(one.get('phase', '')), 20)} since {since:%Y-%m-%d %H:%M:%S} UTC"
        )
