"""The `whippletree` command.

What is asked often (a container's health check, every few seconds) or starts a process goes straight to its
work: the command line's library takes longer to load than they take.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

READER_GONE: Final = 141
"""As a shell reports a program that was ended by SIGPIPE."""
_PROCESSES: Final = ("model-executor", "mcp-pool", "sandbox-manager", "dev-core", "tool-gate")


def run(argv: Sequence[str]) -> int:
    """Runs the command line; the exit code. Configuration errors are one line on stderr and exit code 1."""
    match list(argv):
        case ["healthcheck"]:
            return _check(None)
        case ["healthcheck", "--service", service] if not service.startswith("-"):
            return _check(service)
        case ["healthcheck", "--service", "harness", "--alive"]:
            return _check("harness", alive=True)
        case ["--version"]:
            from services.common.version import version

            print(version())
            return 0
        case ["gateway"]:
            from cli.services import run_gateway

            return run_gateway()
        case ["all-in-one"]:
            from cli.services import run_all_in_one

            return run_all_in_one()
        case [name] if name in _PROCESSES:
            from cli.services import run_service

            return run_service(name)
        case words if is_service_form(words):
            return _run_service_form(words)
        case words:
            from cli.commands import run_command

            return run_command(words)


def is_service_form(argv: Sequence[str]) -> bool:
    """True when the first argument belongs to the `--service` form (operations 1)."""
    return bool(argv) and argv[0].split("=", 1)[0] in ("--service", "--role")


def _check(service: str | None, *, alive: bool = False) -> int:
    from cli.healthcheck import run_healthcheck

    return run_healthcheck(service, alive=alive)


def _run_service_form(argv: Sequence[str]) -> int:
    from cli.service_argv import ArgvError, parse_service
    from cli.services import run_harness, run_service

    try:
        choice = parse_service(argv)
    except ArgvError as error:
        print(error, file=sys.stderr)
        return 1
    return run_harness() if choice.service == "harness" else run_service(choice.service)


def main() -> None:
    """The console script."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has enough of it (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = READER_GONE
    sys.exit(code)


if __name__ == "__main__":
    main()
