"""The sandbox-manager process: settings in, manager and server built, served until it is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from services.common import metrics
from services.common.logs import error_text, get_logger
from services.common.process import StartFailed, run_process
from services.common.server import serve
from services.common.start import prepare_process
from services.common.telemetry import Telemetry
from services.sandbox_manager.contract import Backend
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.drivers import make_backend, workspaces_identity
from services.sandbox_manager.local.driver import LocalBackend, ProxyVariables, no_proxies
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.open_files import raise_open_files
from services.sandbox_manager.records import FILE_NAME, RecordStore, RecordsUnreadable, load_records
from services.sandbox_manager.root import Root, RootUnusable
from services.sandbox_manager.selection import Probes
from services.sandbox_manager.service import SandboxManagerService
from services.sandbox_manager.settings import SECRETS, Settings, SettingsError, read_settings


def now_text() -> str:
    """The time as records have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def backend_of(settings: Settings, proxies: ProxyVariables = no_proxies) -> Backend:
    """The backend that the settings describe; `proxies` are those of commands in a pod."""
    if settings.driver == "local":
        return LocalBackend(settings.baseline, proxies=proxies)
    disk = WorkspaceDisk(settings.workspaces, workspaces_identity(settings.uid), settings.disk)
    return make_backend(settings.driver, disk, settings.containers)


def make_service(
    settings: Settings,
    root: Root,
    records: RecordStore,
    probes: Probes,
    close_unused: Callable[[], Awaitable[None]],
) -> SandboxManagerService:
    """The service that the settings describe."""
    return SandboxManagerService(
        root,
        lambda tenant_id, preference: Manager(tenant_id, preference, probes, records),
        driver=settings.driver,
        close_unused=close_unused,
    )


async def say_driver(asked_for: str, probes: Probes) -> None:
    """Logs which driver commands will run in, and why that one; or that there is none."""
    logger = get_logger()
    try:
        for found in await probes.all():
            say = logger.info if found.available else logger.error
            name = "sandbox_driver_chosen" if found.available else "sandbox_driver_missing"
            say(name, askedFor=asked_for, driver=found.version, reason=found.reason)
    except OSError as error:
        # The first request probes again and says it to whoever asks.
        logger.error("sandbox_driver_missing", askedFor=asked_for, error=error_text(error))


async def run(
    settings: Settings,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    telemetry: Telemetry | None = None,
    proxies: ProxyVariables = no_proxies,
) -> None:
    """Serves until `stop` is set; `proxies` gives the proxy variables of a pod's commands, one by one.

    Raises StartFailed when it can't listen or its root can't be used.
    """
    raise_open_files()
    root = Root(settings.workspaces)
    try:
        root.take()
        records = await load_records(
            settings.workspaces / FILE_NAME, now_text, lambda: now_text().replace(":", "-")
        )
    except (RootUnusable, RecordsUnreadable) as error:
        root.release()
        raise StartFailed(f"NYLORUN_HARNESS_ROOT: {error}") from None
    except OSError as error:
        root.release()
        raise StartFailed(f"NYLORUN_HARNESS_ROOT: {root.path} can't be used: {error.strerror}.") from None
    probes = Probes([backend_of(settings, proxies)])
    saying = asyncio.create_task(say_driver(settings.driver, probes))

    async def close_unused() -> None:
        await _end(saying)
        await probes.close()

    service = make_service(settings, root, records, probes, close_unused)
    metrics.current.observe("nylorun.sandbox.workspaces", lambda: _states(records))
    try:
        await serve(service, settings.server, stop, on_ready, telemetry)
    finally:
        await _end(saying)
        root.release()


def _states(records: RecordStore) -> list[tuple[float, dict[str, str]]]:
    states = Counter(str(record.state) for record in records.all())
    return [(count, {"nylorun.state": state}) for state, count in states.items()]


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def main(environ: Mapping[str, str]) -> int:
    """Runs the process and returns its exit code."""
    try:
        settings = read_settings(environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    telemetry = prepare_process(
        "sandbox-manager",
        environ,
        log_level=settings.server.log_level,
        secrets=SECRETS,
        traced_as="harness-sandbox",
    )
    return run_process(lambda stop: run(settings, stop, None, telemetry), uvloop=False)


if __name__ == "__main__":
    sys.exit(main(os.environ))
