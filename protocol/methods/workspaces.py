"""Requests from core to harness: workspaces (harness-api 4)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from protocol.methods.shared import Closed, Id, Name, Number, Positive, WorkspaceRecord, check_finite


class WorkspaceSession(Closed, frozen=True, kw_only=True):
    """The session a workspace request is about."""

    owner_id: Id
    sandbox_id: Id | UnsetType = UNSET
    active_turn_id: Id | None


class WorkspaceCall(Closed, frozen=True, kw_only=True):
    """A sandbox tool call; which tools a method takes is checked by its handler."""

    session: WorkspaceSession
    spec: Any
    tool: Literal["bash", "read", "grep", "glob", "write", "edit"]
    input: Any


class FileRange(Closed, frozen=True, kw_only=True):
    """A file to read as bytes."""

    path: Name
    max_bytes: Positive


class FolderRange(Closed, frozen=True, kw_only=True):
    """A folder to list."""

    dir: Name
    max_entries: Positive


class WorkspaceBytes(Closed, frozen=True, kw_only=True):
    """Reads a file as bytes."""

    session: WorkspaceSession
    spec: Any
    bytes: FileRange


class WorkspaceList(Closed, frozen=True, kw_only=True):
    """Lists the regular files below a folder."""

    session: WorkspaceSession
    spec: Any
    list: FolderRange


class WorkspaceSweepParams(Closed, frozen=True, kw_only=True):
    """Stops idle workspaces as of `now` (epoch milliseconds)."""

    now: Number | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_finite(self.now)


class WorkspaceSweepResult(Closed, frozen=True, kw_only=True):
    """The workspaces there are."""

    workspaces: list[WorkspaceRecord]


class WorkspaceRemoveParams(Closed, frozen=True, kw_only=True):
    """Deletes workspaces with their files."""

    keys: list[Name] | UnsetType = UNSET
    sandbox_ids: list[Id] | UnsetType = UNSET
    all: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.all is False:
            raise ValueError("all is true or absent")
