"""`whippletree status`: gateways, their runs, and the replicas of the services, as a table."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from cli.core_client import CoreClient, CoreError, Document, core_token
from cli.plain_text import one_line, table

ALL_WELL, NOT_WELL, REFUSED = 0, 1, 2
ASK_S: Final = 5.0
CALLS: Final = frozenset({"model", "mcp", "sandbox"})
"""Kinds of work whose times are shown: those that a turn waits for."""


class GatewayAway(Exception):
    """The gateway's loopback port did not answer; the text says why."""


def run_status(core: str, gateway: str | None, *, as_json: bool, environ: Mapping[str, str]) -> int:
    """Prints the fleet as the core's gateways, or one gateway, know it.

    0: every gateway answers and every service serves; 1: not so; 2: nobody could be asked.
    """
    try:
        document = asyncio.run(_core_fleet(core, environ) if gateway is None else _gateway_fleet(gateway))
    except (CoreError, GatewayAway) as error:
        print(error, file=sys.stderr)
        return REFUSED
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
    else:
        print("\n".join(lines(document)))
    return ALL_WELL if is_well(document) else NOT_WELL


async def _core_fleet(url: str, environ: Mapping[str, str]) -> Document:
    async with CoreClient(url, token=core_token(environ)) as core:
        return await core.fleet()


async def _gateway_fleet(url: str) -> Document:
    base = url.rstrip("/")
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{base}/fleet") as answer:
            if answer.status != 200:
                raise GatewayAway(f"The gateway at {base} answered {answer.status} to /fleet.")
            return {"gateways": [{"url": base, "reachable": True, "fleet": await answer.json()}]}
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        reason = str(error) or "no answer in time"
        raise GatewayAway(
            f"No gateway answers at {base} ({reason}). Its port is NYLORUN_HARNESS_HEALTH_PORT, and only its own "
            "machine reaches it."
        ) from None


def is_well(document: Document) -> bool:
    """Whether there are gateways, all answer, and all their services serve."""
    gateways: Sequence[Document] = document["gateways"]
    return bool(gateways) and all(
        one["reachable"] and all(service["serving"] for service in one["fleet"]["services"].values())
        for one in gateways
    )


def lines(document: Document) -> list[str]:
    """The tables of all gateways."""
    gateways: Sequence[Document] = document["gateways"]
    if not gateways:
        return ["This core knows no gateways: set WHIPPLETREE_FLEET_URLS, or ask one with --gateway."]
    shown: list[str] = []
    for one in gateways:
        shown += [""] * bool(shown)
        if not one["reachable"]:
            shown.append(f"gateway {one['url']}: away. {one_line(str(one['reason']), 200)}")
            continue
        fleet = one["fleet"]
        shown.append(f"gateway {one['url']}: {_runs(fleet['runs'])}")
        rows = [
            _replica(name, service, replica)
            for name, service in fleet["services"].items()
            for replica in service["replicas"] or [{}]
        ]
        if rows:
            titles = (
                "service",
                "replica",
                "state",
                "version",
                "running",
                "calls",
                "p50 ms",
                "p95 ms",
                "since",
            )
            shown += table(titles, rows)
    return shown


def _runs(runs: Sequence[Document]) -> str:
    return {0: "no run", 1: "1 run"}.get(len(runs), f"{len(runs)} runs")


def _replica(name: str, service: Document, replica: Document) -> tuple[str, ...]:
    if not replica:
        return (name, "-", "away", "", "", "", "", "", "")
    state = "draining" if replica.get("draining") else "serving" if replica.get("serving") else "away"
    counts: Document = replica.get("counts") or {}
    histograms: Sequence[Document] = replica.get("latencies") or ()
    return (
        name,
        one_line(str(replica.get("target", "-")), 60),
        state,
        str(replica.get("version", "")),
        str(replica.get("running", replica.get("inFlight", ""))),
        ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())),
        _quantile(histograms, 0.5),
        _quantile(histograms, 0.95),
        str(replica.get("since", ""))[:19].replace("T", " "),
    )


def _quantile(histograms: Sequence[Document], share: float) -> str:
    """The upper bound of the bucket in which that share of all calls was done."""
    sums: dict[float, int] = {}
    for histogram in (one for one in histograms if one["kind"] in CALLS):
        bounds: list[Any] = [*histogram["boundsMs"], float("inf")]
        for bound, count in zip(bounds, histogram["counts"], strict=False):
            sums[float(bound)] = sums.get(float(bound), 0) + int(count)
    total = sum(sums.values())
    if not total:
        return ""
    reached = 0
    for bound in sorted(sums):
        reached += sums[bound]
        if reached >= share * total:
            break
    last = max((one for one in sums if one != float("inf")), default=0.0)
    return f"> {last:g}" if bound == float("inf") else f"<= {bound:g}"
