"""The commands that the emulated shell knows: the library's, with some put right."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import just_bash.commands.sqlite3.sqlite3_cmd as library_sqlite
from just_bash.commands import create_command_registry
from just_bash.commands.cat.cat import CatCommand
from just_bash.commands.env.env import EnvCommand
from just_bash.commands.printf.printf import PrintfCommand
from just_bash.commands.rm.rm import RmCommand
from just_bash.commands.xargs.xargs import XargsCommand
from just_bash.interpreter.errors import InterpreterError
from just_bash.interpreter.types import VariableStore
from just_bash.types import Command, CommandContext, ExecResult

from services.sandbox_manager.emulated.awk.command import Awk
from services.sandbox_manager.emulated.filesystem import EntryFileSystem

_FILE_ACTIONS: Final = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_NOT_COMMANDS: Final = ("argv.py", "printenv.py")
"""Helpers of the library's own tests."""


def known_commands() -> dict[str, Command]:
    """All of them, by name; none reaches a network."""
    commands = dict(create_command_registry())
    for name in _NOT_COMMANDS:
        commands.pop(name, None)
    commands |= {
        "awk": Awk(),
        "env": _Env(),
        "cat": _Cat(),
        "printf": _Printf(),
        "rm": _Rm(),
        "xargs": _Xargs(),
    }
    return {name: _Guarded(name, command) for name, command in commands.items()}


class _Guarded:
    """A command whose faults are its own: the script goes on, as after any failed command."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self._command = command

    async def execute(self, args: list[str], ctx: CommandContext) -> ExecResult:
        """Runs the command."""
        try:
            return await self._command.execute(args, ctx)
        except (InterpreterError, RecursionError, MemoryError):
            raise
        except UnicodeError:
            return ExecResult(
                "", f"{self.name}: the emulated command can't handle bytes that are no text\n", 1
            )
        except Exception as error:  # noqa: BLE001  (the edge of the library's commands)
            return ExecResult("", f"{self.name}: the emulated command failed ({type(error).__name__})\n", 1)


class _Rm(RmCommand):
    """`rm` that sees links themselves: the library's own never finds a dangling one."""

    async def execute(self, args: list[str], ctx: CommandContext) -> ExecResult:
        """Runs the command."""
        if isinstance(ctx.fs, EntryFileSystem):
            ctx = replace(ctx, fs=ctx.fs.unfollowing())
        result: ExecResult = await super().execute(args, ctx)
        return result


class _Cat(CatCommand):
    """`cat` that adds no line end; the library's own is used for numbers and marks."""

    async def execute(self, args: list[str], ctx: CommandContext) -> ExecResult:
        """Runs the command."""
        files = [arg for arg in args if arg not in {"--", "-u"}] or ["-"]
        if any(arg.startswith("-") and arg != "-" for arg in files):
            result: ExecResult = await super().execute(args, ctx)
            return result
        parts: list[str] = []
        complaints: list[str] = []
        for file in files:
            try:
                if file in {"-", "/dev/stdin"}:
                    parts.append(ctx.stdin)
                else:
                    parts.append(await ctx.fs.read_file(ctx.fs.resolve_path(ctx.cwd, file)))
            except OSError as error:
                complaints.append(f"cat: {file}: {error}\n")
        return ExecResult("".join(parts), "".join(complaints), 1 if complaints else 0)


class _Printf(PrintfCommand):
    """`printf` whose escapes stand for bytes; the library's own makes a character of each."""

    def _process_escape(self, s: str, i: int) -> tuple[str, int]:
        found = _BYTES.match(s, i)
        if found is None:
            result: tuple[str, int] = super()._process_escape(s, i)
            return result
        data = bytes(
            int(escape[1:], 16) if escape.startswith("x") else int(escape, 8) & 0xFF
            for escape in found.group().split("\\")[1:]
        )
        return data.decode("utf-8", "surrogateescape"), found.end() - i


_BYTES: Final = re.compile(r"(?:\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}))+")


class _Xargs(XargsCommand):
    """`xargs` that takes an option with its value in one word; the library's own ignores those."""

    async def execute(self, args: list[str], ctx: CommandContext) -> ExecResult:
        """Runs the command."""
        given: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-"):
            word = rest.pop(0)
            if word[:2] in _XARGS_VALUES and len(word) > 2:
                given += [word[:2], word[2:]]
            elif word in _XARGS_VALUES:
                given += [word, *rest[:1]]
                del rest[:1]
            elif set(word[1:]) <= _XARGS_FLAGS:
                given += [f"-{flag}" for flag in word[1:]]
            elif word in _XARGS_LONG:
                given.append(_XARGS_LONG[word])
            else:
                return ExecResult("", f"xargs: the emulated command does not know {word}\n", 1)
        result: ExecResult = await super().execute([*given, *rest], ctx)
        return result


_XARGS_VALUES: Final = frozenset({"-I", "-d", "-n", "-P"})
_XARGS_FLAGS: Final = frozenset("0rt")
_XARGS_LONG: Final = {"--null": "-0", "--no-run-if-empty": "-r", "--verbose": "-t"}


class _Env(EnvCommand):
    """`env` as a process sees it: exported variables only."""

    async def execute(self, args: list[str], ctx: CommandContext) -> ExecResult:
        """Runs the command."""
        variables = ctx.env
        if isinstance(variables, VariableStore):
            exported = {
                name: value for name, value in variables.items() if "x" in variables.get_attributes(name)
            }
            ctx = replace(ctx, env=exported)
        result: ExecResult = await super().execute(args, ctx)
        return result


def _connect(database: str) -> sqlite3.Connection:
    """A database in memory that can't attach files: those would be the host's, not the workspace's."""
    if database != ":memory:":
        raise sqlite3.OperationalError("only :memory: databases are supported")
    connection = sqlite3.connect(database)
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_DENY if action in _FILE_ACTIONS else sqlite3.SQLITE_OK


vars(library_sqlite)["sqlite3"] = SimpleNamespace(
    connect=_connect, Error=sqlite3.Error, sqlite_version=sqlite3.sqlite_version
)
