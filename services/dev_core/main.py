"""The development core's process: settings in, store, scheduler and listeners built, served until stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from services.common.hosts import HostCheck
from services.common.logs import configure_logging, get_logger
from services.common.process import StartFailed, run_process
from services.common.secrets import forget_secrets, set_not_dumpable
from services.common.settings import SettingsError
from services.dev_core.artifacts.blobs import Blobs
from services.dev_core.core import Core
from services.dev_core.effects.intent import Recovery
from services.dev_core.effects.poster import ActionPoster
from services.dev_core.event_bus import EventBus
from services.dev_core.flows.linker import Linker
from services.dev_core.harness.listener import PATH, HarnessListener
from services.dev_core.harness.requests import HarnessRequests
from services.dev_core.harness.scheduler import LeaseTimes, Scheduler
from services.dev_core.http.server import HttpServer
from services.dev_core.run_tokens import RunTokens, open_run_tokens
from services.dev_core.settings import SECRETS, Address, Settings, read_settings
from services.dev_core.store.database import Store
from services.dev_core.sweeper import Sweeper
from services.dev_core.transcripts import Transcripts
from services.dev_core.turns.start import RunOptions

_STOP_S: Final = 4.0
"""How long held runs may take to give themselves back at a stop."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a core that serves is reached, with the ports that were bound; `core` is for callers in process."""

    http: str
    harness: str
    core: Core


async def run(
    settings: Settings, stop: asyncio.Event, on_ready: Callable[[Ready], None] | None = None
) -> None:
    """Serves until `stop` is set. Raises StartFailed when it can't listen or open its database."""
    async with AsyncExitStack() as stack:
        store = await Store.open(settings.database, full_sync=settings.full_sync)
        stack.push_async_callback(store.close)
        tokens = await open_run_tokens(store, settings.run_token_ms)
        blobs = await Blobs.open(settings.database)
        stack.push_async_callback(blobs.close)
        core, requests, poster = _build(settings, store, tokens, blobs)
        stack.push_async_callback(poster.stop)
        http = HttpServer(core, HostCheck(settings.http_hosts), settings.core_token, tokens.public_keys())
        listener = HarnessListener(
            requests,
            core.scheduler,
            tokens=(settings.harness_token,),
            hosts=HostCheck(settings.harness_hosts),
            ping_ms=settings.ping_ms,
            silence_ms=settings.silence_ms,
        )
        stack.push_async_callback(core.linker.stop)
        await core.scheduler.start()
        await core.linker.start()
        await poster.start()
        sweeper = Sweeper(store, core.workspaces, settings.sweep_ms)
        sweeper.start()
        stack.push_async_callback(sweeper.stop)
        stack.push_async_callback(http.stop)
        http_port = await _listen(http.start, settings.http, "WHIPPLETREE_CORE_HTTP_LISTEN")
        stack.push_async_callback(listener.stop)
        port = await _listen(listener.start, settings.harness, "WHIPPLETREE_CORE_HARNESS_LISTEN")
        ready = Ready(
            f"http://{Address(settings.http.host, http_port).authority}",
            f"ws://{Address(settings.harness.host, port).authority}{PATH}",
            core,
        )
        get_logger().info("dev_core_ready", http=ready.http, harness=ready.harness, db=settings.database)
        if on_ready is not None:
            on_ready(ready)
        await stop.wait()
        listener.close_door()
        await core.scheduler.stop(_STOP_S)


def _build(
    settings: Settings, store: Store, tokens: RunTokens, blobs: Blobs
) -> tuple[Core, HarnessRequests, ActionPoster]:
    requests = HarnessRequests(
        store,
        Transcripts(store),
        blobs,
        RunOptions(settings.fixture_model, settings.hold_ms, settings.flow_limits()),
        Recovery(models=settings.model_recovers),
        tokens,
    )
    scheduler = Scheduler(
        store,
        LeaseTimes(settings.lease_ms, settings.deadline_ms, settings.abort_grace_ms),
        model_recovers=settings.model_recovers,
        make_run=requests.make_run,
    )
    bus = EventBus()
    store.on_events = bus.announce
    linker = Linker(store, settings.flow_concurrency)
    core = Core(store, scheduler, bus, blobs, linker, settings.fleet_urls)
    store.on_moved = core.after_moved
    poster = ActionPoster(
        store,
        settings.action_timeout_ms,
        core.after_resolved,
        repeat_pauses_s=settings.repeat_pauses_s,
    )
    requests.attach(scheduler, poster)
    return core, requests, poster


async def _listen(start: Callable[[str, int], object], address: Address, setting: str) -> int:
    try:
        return await start(address.host, address.port)  # type: ignore[misc,no-any-return]
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartFailed(
            f"{address.authority} can't be listened on ({reason}): set {setting} to another address."
        ) from error


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    configure_logging("dev-core", settings.log_level)
    set_not_dumpable()
    forget_secrets(SECRETS)
    return run_process(lambda stop: run(settings, stop), uvloop=True)


if __name__ == "__main__":
    sys.exit(main(os.environ))
