"""What the gateways know of the fleet, for people: asked of their loopback ports, never of the services."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import aiohttp

from protocol import jsjson
from protocol.jsjson import JsonError

ASK_S: Final = 2.0
"""Of one gateway's answer."""
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024


class FleetView:
    """The gateways of WHIPPLETREE_FLEET_URLS."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)

    async def document(self) -> dict[str, Any]:
        """`{gateways: [{url, reachable, fleet | reason}]}`. Never raises for a gateway that is away."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ASK_S), cookie_jar=aiohttp.DummyCookieJar()
        ) as http:
            found = await asyncio.gather(*(_ask(http, url) for url in self._urls))
        return {"gateways": found}


async def _ask(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    try:
        async with http.get(f"{url}/fleet", allow_redirects=False) as answer:
            if answer.status != 200:
                return _away(url, f"It answered {answer.status}.")
            data = await answer.content.read(MAX_ANSWER_BYTES + 1)
            while len(data) <= MAX_ANSWER_BYTES and (more := await answer.content.read(MAX_ANSWER_BYTES)):
                data += more
        if len(data) > MAX_ANSWER_BYTES:
            return _away(url, f"Its answer is larger than {MAX_ANSWER_BYTES} bytes.")
        return {"url": url, "reachable": True, "fleet": jsjson.loads(data)}
    except TimeoutError:
        return _away(url, f"It did not answer within {ASK_S:.0f} s.")
    except (aiohttp.ClientError, OSError):
        return _away(url, "It can't be reached.")
    except JsonError:
        return _away(url, "It did not answer in JSON.")


def _away(url: str, reason: str) -> dict[str, Any]:
    return {"url": url, "reachable": False, "reason": reason}
