"""The commands that the emulated shell knows: the library's, with some put right."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import just_bash.commands.sqlite3.sqlite3_cmd as library_sqlite
from just_bash.commands import create_command_registry
from just_bash.commands.env.env import EnvCommand
from just_bash.interpreter.types import VariableStore
from just_bash.types import Command, CommandContext, ExecResult

_FILE_ACTIONS: Final = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_NOT_COMMANDS: Final = ("argv.py", "printenv.py")
"""Helpers of the library's own tests."""


def known_commands() -> dict[str, Command]:
    """All of them, by name; none reaches a network."""
    commands = dict(create_command_registry())
    for name in _NOT_COMMANDS:
        commands.pop(name, None)
    commands["env"] = _Env()
    return commands


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
