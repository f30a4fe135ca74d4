"""The image under test: a base, the wheels, and the build without a network."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.deploy.engine import EngineError, call

ROOT = Path(__file__).parents[2]
IMAGE = "whippletree:test"
SLIM = "whippletree:test-slim"
"""The image without Node and uv."""
BASE = "whippletree-base:test"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
DEBIAN = {"3.11": "bookworm", "3.13": "trixie"}
"""The Debian release whose Python the wheels fit: those of the image are made by the Python of these tests."""
PACKAGES = ("python3", "python3-venv", "tini", "ripgrep", "libstdc++6")


def why_no_base():
    """Why a base image can't be made on this machine; None when it can."""
    if os.environ.get("WHIPPLETREE_BASE_IMAGE"):
        return None
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        reason = "a base image is made by root with mmdebstrap (on Debian: mmdebstrap)"
    elif PYTHON not in DEBIAN:
        reason = f"no Debian release has Python {PYTHON} to make a base image of"
    else:
        return None
    return f"{reason}; or name one in WHIPPLETREE_BASE_IMAGE"


def make_base(engine, folder, report):
    """Makes the base image unless one is named; `report(step, seconds)` hears of it. Raises EngineError."""
    _timed(report, "base image", lambda: _base(engine, folder))


def make_wheels(report):
    """Fills the folder of wheels that images are built from. Raises EngineError."""
    command = ("make", "--no-print-directory", "wheels", f"WHEELS_PYTHON={PYTHON}")
    _timed(report, "make wheels", lambda: call(command, cwd=ROOT, timeout=300))


def build(engine, report):
    """Builds IMAGE of the wheels; `report(step, seconds)` hears of it. Raises EngineError."""
    _timed(report, "docker build", lambda: _build(engine, IMAGE))


def build_slim(engine, report):
    """Builds SLIM, after IMAGE and with most of its layers. Raises EngineError."""
    _timed(report, "docker build, slim", lambda: _build(engine, SLIM, "--build-arg", "SLIM=1"))


def _timed(report, step, action):
    began = time.monotonic()
    result = action()
    report(step, time.monotonic() - began)
    return result


def _base(engine, folder):
    if os.environ.get("WHIPPLETREE_BASE_IMAGE"):
        return
    archive = folder / "base.tar"
    include = ",".join(PACKAGES)
    call(
        (
            "mmdebstrap",
            "--quiet",
            "--variant=essential",
            f"--include={include}",
            DEBIAN[PYTHON],
            str(archive),
        ),
        timeout=300,
    )
    engine.docker("import", str(archive), BASE, timeout=120)
    archive.unlink()


def _build(engine, tag, *more):
    base = os.environ.get("WHIPPLETREE_BASE_IMAGE") or BASE
    arguments = (
        "--build-arg",
        f"BASE={base}",
        "--build-arg",
        "WHEELS=dist/wheels",
        *more,
        "--tag",
        tag,
        str(ROOT),
    )
    command = ("docker", "build", "--quiet", "--network", "none", *arguments)
    call(command, environ=engine.environ | _builder(engine), timeout=300)


def _builder(engine):
    """Without the buildx plugin, newer clients build only when they are told to do it the old way."""
    try:
        call(("docker", "buildx", "version"), environ=engine.environ)
    except (EngineError, subprocess.SubprocessError):
        return {"DOCKER_BUILDKIT": "0"}
    return {}
