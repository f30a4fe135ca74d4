"""Watches the whole run for keys and tokens: a stage in which one was said anywhere fails (tests/leaks)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.leaks.hooks import install, look_at_files
from tests.leaks.watch import WATCH

_STASH = pytest.StashKey[Any]()
_FOLDER = pytest.StashKey[Any]()
_WORKER = "keys and tokens"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STASH] = install(WATCH)


def pytest_unconfigure(config: pytest.Config) -> None:
    take_out = config.stash.get(_STASH, None)
    if take_out is not None:
        take_out()


@pytest.fixture(scope="session", autouse=True)
def _folder_of_the_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    request.config.stash[_FOLDER] = tmp_path_factory.getbasetemp()


def pytest_runtest_setup(item: pytest.Item) -> None:
    WATCH.test = item.nodeid
    WATCH.allowed = item.get_closest_marker("shows_secrets") is not None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What the test printed and logged, and its failure if it has one."""
    for title, text in report.sections:
        WATCH.said(title.lower(), text, whole=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    WATCH.allowed = False
    folder = session.config.stash.get(_FOLDER, None)
    if folder is not None:
        look_at_files(WATCH, folder)
    worker_output = getattr(session.config, "workeroutput", None)
    if worker_output is not None:
        worker_output[_WORKER] = (WATCH.looked_at, WATCH.report())
    if WATCH.report() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What the watch of a worker process heard counts for the whole run."""
    looked_at, report = getattr(node, "workeroutput", {}).get(_WORKER, (0, []))
    WATCH.join(looked_at, report)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    mib = WATCH.looked_at / 2**20
    report = WATCH.report()
    if report:
        terminalreporter.section("keys and tokens that were said", red=True)
        for line in report:
            terminalreporter.write_line(line)
    else:
        terminalreporter.write_line(f"No key or token in {mib:.1f} MiB of logs, outputs, errors and spans.")
