"""One command of the emulated shell: a fresh interpreter, output handed out as it comes.

The library gives output only at the end of a script. Here it is handed out at the end of each pipeline that
writes to the command's own streams, so that a kill keeps what was written before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import just_bash.interpreter.interpreter as library
from just_bash.interpreter import ExitError, Interpreter, InterpreterState
from just_bash.interpreter.errors import InterpreterError
from just_bash.interpreter.types import VariableStore
from just_bash.parser import parse
from just_bash.parser.parser import ParseException
from just_bash.types import Command, ExecResult, ExecutionLimits

from services.sandbox_manager.emulated.filesystem import EntryFileSystem
from services.sandbox_manager.paths import WORKSPACE

ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
"""All that a command finds in its environment."""

CALL_DEPTH: Final = 200
"""Calls of shell functions inside each other; more would use up the interpreter's own stack."""
ENDLESS: Final = 2**62
"""Loops are ended by the command's time limit, not by a count."""

_LIMITS: Final = ExecutionLimits(
    max_call_depth=CALL_DEPTH,
    max_command_count=ENDLESS,
    max_loop_iterations=ENDLESS,
    max_awk_iterations=ENDLESS,
    max_sed_iterations=ENDLESS,
)

Emit = Callable[[str, str], None]
"""Gets what was written to stdout and to stderr."""


_REDIRECTED: Final = frozenset({"SimpleCommand", "Group", "Subshell"})
"""Commands whose redirections the library follows."""


class _OfFunction(ExecResult):
    """What a call of a shell function gave."""


class _Streaming(Interpreter):
    """An interpreter that hands its output out unless something else reads it.

    `captured` counts what stands between a pipeline and the command's own streams: pipes, redirections,
    substitutions.
    """

    emit: Emit
    captured = 0

    async def execute_pipeline(self, node: Any) -> ExecResult:
        if len(node.commands) > 1:
            return _hand_out(await self._capture(super().execute_pipeline(node)))
        return _hand_out(await super().execute_pipeline(node))

    async def execute_command(self, node: Any, stdin: str) -> ExecResult:
        redirections = getattr(node, "redirections", None)
        if not redirections:
            return await super().execute_command(node, stdin)
        redirections = [_to_streams(redirection) for redirection in redirections]
        node = replace(node, redirections=tuple(redirections))
        result = await self._capture(super().execute_command(node, stdin))
        if node.type not in _REDIRECTED or isinstance(result, _OfFunction):
            # The library forgets the redirections of loops, conditions and calls of functions.
            result = await self._process_output_redirections(redirections, result)
        return result

    async def _call_function(self, *args: Any, **more: Any) -> ExecResult:
        result = await super()._call_function(*args, **more)
        return _OfFunction(result.stdout, result.stderr, result.exit_code)

    async def execute_script(self, node: Any) -> ExecResult:
        return await self._capture(super().execute_script(node))

    async def run(self, node: Any) -> ExecResult:
        """Executes the command's own script."""
        return await super().execute_script(node)

    @staticmethod
    async def _capture(work: Any) -> ExecResult:
        _Streaming.captured += 1
        try:
            result: ExecResult = await work
        finally:
            _Streaming.captured -= 1
        return result


_STREAMS: Final = {
    path: parse(f"x >&{number}").statements[0].pipelines[0].commands[0].redirections[0].target
    for path, number in (("/dev/stdout", 1), ("/dev/stderr", 2))
}


def _to_streams(redirection: Any) -> Any:
    """`> /dev/stderr` as `>&2`: the library takes the file for nothing."""
    parts: tuple[Any, ...] = getattr(redirection.target, "parts", ())
    if redirection.operator not in {">", ">>", ">|"} or len(parts) != 1:
        return redirection
    target = _STREAMS.get(getattr(parts[0], "value", ""))
    return redirection if target is None else replace(redirection, operator=">&", target=target)


def _hand_out(result: ExecResult) -> ExecResult:
    if _Streaming.captured or not (result.stdout or result.stderr):
        return result
    _Streaming.emit(result.stdout, result.stderr)
    return ExecResult(exit_code=result.exit_code)


# Subshells are made by the library itself, which looks for the name in its module.
library.Interpreter = _Streaming  # type: ignore[misc]


async def run_command(command: str, files: EntryFileSystem, known: dict[str, Command], emit: Emit) -> int:
    """Runs a command in /workspace and returns its exit code."""
    _Streaming.emit = staticmethod(emit)
    _Streaming.captured = 0
    try:
        script = parse(command)
    except ParseException as error:
        emit("", f"bash: {error}\n")
        return 2
    interpreter = _Streaming(files, known, _LIMITS, _fresh_state())
    try:
        result = await interpreter.run(script)
    except ExitError as error:
        result = ExecResult(error.stdout, error.stderr, error.exit_code)
    except InterpreterError as error:
        stderr = getattr(error, "stderr", "") or f"bash: {error}\n"
        result = ExecResult(getattr(error, "stdout", ""), stderr, 1)
    except RecursionError:
        result = ExecResult("", "bash: the command is nested too deeply\n", 1)
    except MemoryError:
        result = ExecResult("", "bash: out of memory\n", 1)
    emit(result.stdout, result.stderr)
    return result.exit_code & 0xFF


def _fresh_state() -> InterpreterState:
    variables = VariableStore(  # type: ignore[no-untyped-call]
        {**ENVIRONMENT, "PWD": WORKSPACE, "?": "0", "#": "0", "0": "bash", "SHLVL": "1", "OPTIND": "1"}
    )
    for name in ENVIRONMENT:
        variables.set_attribute(name, "x")
    return InterpreterState(env=variables, cwd=WORKSPACE, previous_dir="", start_time=time.time())
