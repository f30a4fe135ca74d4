#!/usr/bin/env python3
"""Makes the system call filters of containers: of the one in which bubblewrap runs, and of workspaces.

    python3 deploy/make_seccomp.py DEFAULT bwrap >deploy/seccomp-bwrap.json
    python3 deploy/make_seccomp.py DEFAULT workspace >services/sandbox_manager/container/seccomp.json

DEFAULT is the engine's own profile, `profiles/seccomp/default.json` of Moby (a copy is in tests/deploy/data).
What comes out is that profile as it is for a container without capabilities, without what newer engines refuse
and, for bubblewrap, with what that needs. It has no conditions on capabilities, architectures and kernels:
container runtimes of Kubernetes read no such conditions and would allow what stands under them.
"""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

ARCHITECTURES: Final = (
    "SCMP_ARCH_X86_64",
    "SCMP_ARCH_X86",
    "SCMP_ARCH_X32",
    "SCMP_ARCH_AARCH64",
    "SCMP_ARCH_ARM",
)
PLATFORMS: Final = frozenset({"amd64", "x86", "x32", "arm", "arm64"})
ALLOW: Final = "SCMP_ACT_ALLOW"

BWRAP: Final[Mapping[str, str]] = {
    "clone": "makes the namespaces of a sandbox",
    "unshare": "makes the second user namespace, in which no further ones can be made",
    "mount": "builds the sandbox's root; only a namespace of one's own can be changed",
    "umount2": "lets go of the old root",
    "pivot_root": "changes to the new root",
    "sethostname": "names the sandbox in its own namespace",
    "setns": "enters the network of a sandbox, in which the proxy listens",
}
"""What is allowed beyond the default. `clone3` stays refused as not there: its flags can't be looked at, and
programs take `clone` instead."""

NOT_ANY_MORE: Final = frozenset({"io_uring_setup", "io_uring_enter", "io_uring_register", "socketcall"})
"""Newer engines refuse io_uring. `socketcall`, of 32-bit programs alone, would lead around the rule below."""
VSOCK: Final = 40
"""Newer engines refuse sockets of this family: they lead to the host of a virtual machine."""


def profile(default: Mapping[str, Any], beyond: Collection[str] = BWRAP) -> dict[str, Any]:
    """The profile for a container without capabilities, made from the engine's default and calls beyond it."""
    named: set[str] = set()
    other: list[dict[str, Any]] = []
    for rule in default["syscalls"]:
        if not _applies(rule):
            continue
        names = set(rule["names"]) - NOT_ANY_MORE
        if rule["action"] == ALLOW and not rule.get("args"):
            named |= names
        elif names and not names <= set(beyond):
            other.append(_plain(rule, sorted(names)))
    named -= {"socket"}
    other.append(_rule(["socket"], [{"index": 0, "value": VSOCK, "op": "SCMP_CMP_NE"}]))
    return {
        "defaultAction": default["defaultAction"],
        "defaultErrnoRet": 1,
        "architectures": list(ARCHITECTURES),
        "syscalls": [_rule(sorted(named)), *other, *([_rule(sorted(beyond))] if beyond else [])],
    }


def _applies(rule: Mapping[str, Any]) -> bool:
    """Whether a rule is one for a container without capabilities, on a kernel that is not older than 4.8."""
    only, never = rule.get("includes") or {}, rule.get("excludes") or {}
    if only.get("caps"):
        return False
    if only.get("arches") and not PLATFORMS & set(only["arches"]):
        return False
    return not PLATFORMS & set(never.get("arches") or ())


def _plain(rule: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    made = _rule(names, rule.get("args") or [])
    made["action"] = rule["action"]
    if "errnoRet" in rule:
        made["errnoRet"] = rule["errnoRet"]
    return made


def _rule(names: list[str], args: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"names": names, "action": ALLOW}
    if args:
        made["args"] = args
    return made


def text(made: Mapping[str, Any]) -> str:
    """A profile as the file holds it."""
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in {"bwrap", "workspace"}:
        sys.exit("usage: make_seccomp.py DEFAULT bwrap|workspace")
    made = profile(json.loads(Path(sys.argv[1]).read_text()), BWRAP if sys.argv[2] == "bwrap" else ())
    sys.stdout.write(text(made))
