"""The command `awk` of the emulated shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from just_bash.types import CommandContext, ExecResult

from services.sandbox_manager.emulated.awk.lexer import AwkError, unescape
from services.sandbox_manager.emulated.awk.machine import Machine
from services.sandbox_manager.emulated.awk.parser import Program, parse
from services.sandbox_manager.emulated.awk.streams import Streams
from services.sandbox_manager.emulated.awk.values import Given
from services.sandbox_manager.text import quote

_FAILED: Final = 2
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)


class Awk:
    """Runs a program over files or its input. It starts no commands but those that it prints to."""

    name = "awk"

    async def execute(self, args: list[str], ctx: CommandContext) -> ExecResult:
        """Runs the command."""
        streams = Streams(lambda path: _read(ctx, path))
        try:
            program, variables, files = _arguments(args, ctx)
            machine = Machine(program, streams, variables)
            machine.run(_inputs(machine, files, ctx))
            code = machine.exit_code
        except AwkError as error:
            streams.stderr.append(f"awk: {error}\n")
            code = _FAILED
        except OSError as error:
            streams.stderr.append(f"awk: {error}\n")
            code = _FAILED
        return await _end(streams, code, ctx)


def _arguments(args: list[str], ctx: CommandContext) -> tuple[Program, dict[str, Any], list[str]]:
    rest, sources = list(args), list[str]()
    variables: dict[str, Any] = {}
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word[:2] not in {"-F", "-v", "-f"}:
            raise AwkError(f"unknown option {word}")
        if len(word) == 2 and not rest:
            raise AwkError(f"option {word} needs a value")
        value = word[2:] or rest.pop(0)
        if word[1] == "F":
            variables["FS"] = unescape(value)
        elif word[1] == "f":
            sources.append(_read(ctx, value))
        elif assignment := _ASSIGNMENT.fullmatch(value):
            variables[assignment[1]] = Given(unescape(assignment[2]))
        else:
            raise AwkError(f"-v needs NAME=VALUE, not {value}")
    if not sources:
        if not rest:
            raise AwkError("no program given")
        sources.append(rest.pop(0))
    words = ["awk", *rest]
    variables["ARGC"] = float(len(words))
    variables["ARGV"] = {str(place): Given(word) for place, word in enumerate(words)}
    variables["ENVIRON"] = {name: Given(value) for name, value in dict(ctx.env).items()}
    return parse("\n".join(sources)), variables, rest


def _inputs(machine: Machine, files: list[str], ctx: CommandContext) -> Iterator[tuple[str, str]]:
    seen = False
    for file in files:
        if assignment := _ASSIGNMENT.fullmatch(file):
            machine.assign(assignment[1], unescape(assignment[2]))
            continue
        seen = True
        yield file, ctx.stdin if file == "-" else _read(ctx, file)
    if not seen:
        yield "", ctx.stdin


def _read(ctx: CommandContext, path: str) -> str:
    """A file's content. Raises OSError."""
    if path in {"-", "/dev/stdin"}:
        return ctx.stdin
    reading = ctx.fs.read_file(ctx.fs.resolve_path(ctx.cwd, path))
    try:
        # The file system never waits: its methods are only written as if they did.
        reading.send(None)
    except StopIteration as ended:
        return str(ended.value)
    except OSError as error:
        raise OSError(f"can't open file {path}: {error}") from error
    raise AwkError(f"can't read {path}")


async def _end(streams: Streams, code: int, ctx: CommandContext) -> ExecResult:
    """Writes files and runs the commands that were printed to; their output comes after the program's own."""
    begun: set[str] = set()
    for sign, name, text in streams.written():
        if sign == "|":
            if ctx.exec is None:
                streams.stderr.append("awk: no command can be run here\n")
                continue
            ran = await ctx.exec(f"printf %s {quote(text)} | {name}", {"cwd": ctx.cwd})
            streams.stdout.append(ran.stdout)
            streams.stderr.append(ran.stderr)
            continue
        path = ctx.fs.resolve_path(ctx.cwd, name)
        try:
            if sign == ">" and name not in begun:
                await ctx.fs.write_file(path, text)
            else:
                await ctx.fs.append_file(path, text)
            begun.add(name)
        except OSError as error:
            streams.stderr.append(f"awk: can't write {name}: {error}\n")
            code = _FAILED
    return ExecResult("".join(streams.stdout), "".join(streams.stderr), code)
