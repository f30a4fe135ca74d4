"""Attempts to get out of a sandbox, and what their failing proves. Any driver with real commands can be tried.

An attempt is a shell command that prints ESCAPED or shows a secret of the host when it gets what it wants. The
secrets and places of the host stand in the command as `@NAME@` (see `Host`). It needs nothing in the sandbox
but bash, coreutils and perl.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

ESCAPED: Final = "ESCAPED"
_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    # x86_64, aarch64
    "ptrace": (101, 117), "syslog": (103, 116), "acct": (163, 89), "mount": (165, 40), "umount2": (166, 39),
    "swapon": (167, 224), "reboot": (169, 142), "settimeofday": (164, 170), "init_module": (175, 105),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "pivot_root": (155, 41),
    "perf_event_open": (298, 241), "fanotify_init": (300, 262), "open_by_handle_at": (304, 265),
    "setns": (308, 268), "process_vm_readv": (310, 270), "kcmp": (312, 272), "bpf": (321, 280),
    "userfaultfd": (323, 282), "kexec_load": (246, 104), "unshare": (272, 97), "clone3": (435, 435),
    "io_uring_setup": (425, 425), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "mount_setattr": (442, 442), "setuid": (105, 146),
    "capset": (126, 91), "clock_settime": (227, 112), "sethostname": (170, 161), "chroot": (161, 51),
    "fallocate": (285, 47), "quotactl": (179, 60), "name_to_handle_at": (303, 264),
}  # fmt: skip
_ARCH: Final = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)


@dataclass(frozen=True, slots=True)
class Host:
    """What is outside, and must stay there.

    `secret` is the text that no attempt may show. `places` are what `@NAME@` in commands stands for.
    `unchanged` says what has been changed outside, or nothing.
    """

    secret: str
    places: Mapping[str, str]
    unchanged: Callable[[], str | None] = lambda: None

    def fill(self, command: str) -> str:
        """The command with the host's places in it."""
        for name, value in self.places.items():
            command = command.replace(f"@{name}@", value)
        return command


class Cell(Protocol):
    """One workspace, tried by attempts: however its driver is reached."""

    @property
    def host(self) -> Host:
        """What is outside of it."""
        ...

    async def tool(self, name: str, **input_: Any) -> dict[str, Any]:
        """The outcome of a tool: `{kind: "raised", message}` when there was none."""
        ...

    async def read_bytes(self, path: str) -> bytes | None:
        """A file's bytes; None when there is none or it was refused."""
        ...

    async def list_files(self, folder: str) -> list[str] | None:
        """Paths below a folder."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """What an attempt could see."""

    exit_code: int
    stdout: str
    stderr: str


Verdict = Callable[[Shown], str | None]
"""What is wrong with what was shown, or nothing."""
Attack = Callable[[Cell], Awaitable[str | None]]
"""An attempt that is more than a command: what it got, or nothing."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `verdict` is asked beside the rule that nothing secret may be shown.

    `outside` tells that the same command prints ESCAPED or the secret when root runs it outside of any sandbox:
    it is able to find what it looks for. `hosts` are what the workspace may reach. `without` names drivers of
    which it is no attempt: what it tries is allowed there, or isn't there at all.
    """

    name: str
    proves: str
    command: str = ""
    attack: Attack | None = None
    verdict: Verdict = lambda shown: None
    outside: bool = False
    hosts: Sequence[str] = ()
    preset: str = "none"
    timeout: int = 20
    afterwards: str = ""
    without: frozenset[str] = field(default_factory=frozenset)


async def try_out(cell: Cell, attempt: Attempt) -> str | None:
    """Makes an attempt; what it got, or nothing."""
    if attempt.attack is not None:
        return await attempt.attack(cell) or cell.host.unchanged()
    try:
        return await _try_command(cell, attempt)
    finally:
        if attempt.afterwards:
            await cell.tool("bash", command=attempt.afterwards)


async def _try_command(cell: Cell, attempt: Attempt) -> str | None:
    outcome = await cell.tool("bash", command=cell.host.fill(attempt.command), timeout=attempt.timeout)
    if outcome["kind"] != "completed":
        return f"the command had no outcome: {outcome}"
    output = outcome["output"]
    shown = Shown(output["exitCode"], output["stdout"], output["stderr"])
    return judge(cell.host, shown) or attempt.verdict(shown) or cell.host.unchanged()


def judge(host: Host, shown: Shown) -> str | None:
    """Whether a command got what it wanted."""
    text = shown.stdout + shown.stderr
    if ESCAPED in text:
        return f"it succeeded: {text[:500]}"
    if host.secret in text:
        return "it shows the host's secret"
    return None


# Verdicts


def _fails(shown: Shown) -> str | None:
    return None if shown.exit_code != 0 else f"it ended with 0: {shown.stdout[:300]}"


def _prints(expected: str) -> Verdict:
    def verdict(shown: Shown) -> str | None:
        return None if shown.stdout.strip() == expected else f"it printed {shown.stdout[:300]!r}"

    return verdict


def _refused(*numbers: int) -> Verdict:
    """The system call itself is refused, with one of these errors."""
    wanted = numbers or (1, 38)  # EPERM, ENOSYS

    def verdict(shown: Shown) -> str | None:
        given = shown.stdout.strip()
        return (
            None
            if given in {f"errno {number}" for number in wanted}
            else f"it said {given!r} {shown.stderr!r}"
        )

    return verdict


def _bounded(shown: Shown) -> str | None:
    return None if len(shown.stdout) <= 31_000 else f"{len(shown.stdout)} characters came back"


# Commands


def _call(name: str, *arguments: str) -> str:
    """A system call by its number; prints ESCAPED, or the error's number."""
    number, given = _NUMBERS[name][_ARCH], ", ".join(arguments)
    said = f"""print $r == -1 ? "errno " . ($! + 0) : "{ESCAPED} $r", "\\n\""""
    return f"perl -e '@a = ({given}); $r = syscall({number}, @a); {said}'"


def _socket(family: int, kind: int = 1, protocol: int = 0) -> str:
    return f"""perl -e 'print socket(S, {family}, {kind}, {protocol}) ? "{ESCAPED}" : "errno " . ($! + 0), "\\n"'"""


def _unix(address: str) -> str:
    """Connects to a Unix socket, whose path or abstract name is given as perl reads it."""
    return (
        f"""perl -e 'socket(S, 1, 1, 0) or die; $a = pack("Sa*", 1, "{address}"); """
        f"""connect(S, $a) ? print "{ESCAPED}\\n" : print "errno ", $! + 0, "\\n"'"""
    )


_TCP: Final = "(exec 3<>/dev/tcp/{0}/{1} && cat <&3) 2>/dev/null"
_PROXIED: Final = "(exec 3<>/dev/tcp/127.0.0.1/3128 && printf '{0}' >&3 && timeout 8 cat <&3) 2>/dev/null"


def _proxied(request: str) -> str:
    return _PROXIED.format(request.replace("%", "%%").replace("\r\n", "\\r\\n"))


def _succeeds(command: str) -> str:
    return f"{{ {command}; }} 2>/dev/null && echo {ESCAPED}"


# More than commands


async def _through_links(cell: Cell) -> str | None:
    secret = cell.host.places["SECRET_FILE"]
    await cell.tool(
        "bash",
        command=f"ln -sf {secret} l; ln -sfn / d; ln -sf ../../../../../..{secret} r; "
        f"ln -sf /proc/self/root{secret} p; ln -sf /proc/1/root{secret} q; mkdir -p m; ln -sf {secret} m/l",
    )
    for path in ("l", f"d{secret}", "r", "p", "q", "m/l", secret, f"/workspace/../..{secret}"):
        for tool in ("read", "grep"):
            more = {"pattern": "."} if tool == "grep" else {}
            outcome = await cell.tool(tool, path=path, **more)
            if cell.host.secret in str(outcome):
                return f"{tool} {path} shows the secret"
        data = await cell.read_bytes(path)
        if data is not None and cell.host.secret.encode() in data:
            return f"bytes of {path} show the secret"
    return None


async def _lists_through_links(cell: Cell) -> str | None:
    folder = cell.host.places["SECRET_FOLDER"]
    await cell.tool("bash", command=f"ln -sfn {folder} d; mkdir -p m; ln -sfn {folder} m/d; echo x > own")
    for path in ("d", "m", folder, "/", "/proc/self/root", "."):
        found = await cell.list_files(path)
        if found is not None and any("secret" in name for name in found):
            return f"listing {path} shows the host's files"
        outcome = await cell.tool("glob", pattern="**/secret*", path=path)
        if "secret" in str(outcome.get("output")):
            return f"glob in {path} shows the host's files"
    return None


async def _writes_through_links(cell: Cell) -> str | None:
    """What is changed outside is found by the host itself."""
    places = cell.host.places
    victim, folder = places["VICTIM_FILE"], places["VICTIM_FOLDER"]
    await cell.tool("bash", command=f"ln -sf {victim} w; ln -sfn {folder} wd; ln -sf {folder}/made dangling")
    for path in ("w", "wd/made", "dangling", victim, f"{folder}/made", f"/proc/self/root{victim}"):
        await cell.tool("write", path=path, content="CHANGED")
    await cell.tool("edit", path="w", old_string="whole", new_string="CHANGED")
    return None


async def _races(cell: Cell) -> str | None:
    """A command changes a link as fast as it can while tools of the same workspace are asked for."""
    secret, victim = cell.host.places["SECRET_FILE"], cell.host.places["VICTIM_FILE"]
    flip = (
        f"echo mine > real; n=0; while [ $n -lt 50 ]; do ln -sfn {secret} r; ln -sfn {victim} w; "
        "ln -f real r; ln -f real w; n=$((n+1)); done"
    )
    flipping = asyncio.create_task(cell.tool("bash", command=flip))
    try:
        for _ in range(2):
            shown = await asyncio.gather(
                cell.tool("read", path="r"),
                cell.tool("grep", pattern=".", path="r"),
                cell.tool("write", path="w", content="CHANGED"),
                cell.read_bytes("r"),
            )
            if cell.host.secret in str(shown):
                return "a tool shows the secret"
    finally:
        await flipping
    return None


async def _fifo(cell: Cell) -> str | None:
    await cell.tool("bash", command="rm -f p; mkfifo p")
    for tool, more in (
        ("read", {}),
        ("write", {"content": "x"}),
        ("edit", {"old_string": "a", "new_string": "b"}),
    ):
        outcome = await cell.tool(tool, path="p", **more)
        if outcome["kind"] == "completed":
            return f"{tool} took a FIFO for a file"
    return None


async def _daemons(cell: Cell) -> str | None:
    marker = cell.host.places["MARKER"]
    await cell.tool(
        "bash",
        command=f"(setsid nohup sleep {marker} >/dev/null 2>&1 &) ; "
        "perl -e 'fork and exit; setpgrp; fork and exit; $SIG{HUP} = $SIG{TERM} = q(IGNORE); "
        f"exec qw(sleep {marker})' &"
        f" disown -a; sleep {marker} & echo done",
    )
    return None


async def _daemons_at_the_limit(cell: Cell) -> str | None:
    marker = cell.host.places["MARKER"]
    outcome = await cell.tool(
        "bash", command=f"trap '' TERM INT HUP; (setsid sleep {marker} &); sleep {marker}", timeout=1
    )
    return None if outcome["output"]["exitCode"] == 124 else f"it was not ended: {outcome}"


async def _names(cell: Cell) -> str | None:
    """Names with escapes stay one name in structured answers and nothing in the manager's log."""
    await cell.tool("bash", command="mkdir -p n; touch n/$'\\e]0;own\\a' n/$'a\\nb' n/$'\\e[2Jx' n/$'\\xff'")
    listed = await cell.list_files("n")
    if listed is None or len(listed) != 4 or "a\nb" not in listed:
        return f"names were not kept apart: {listed!r}"
    return None


ATTEMPTS: Final[tuple[Attempt, ...]] = (
    # Files
    Attempt("accounts", "the host's password hashes are not there",
            f"grep -q '^root:[$*!]' /etc/shadow 2>/dev/null && echo {ESCAPED}", outside=True),
    Attempt("absolute path", "a file of the host has no path inside", "cat @SECRET_FILE@", outside=True,
            verdict=_fails),
    Attempt("dots", "no number of .. leads out of the root",
            "cat ../../../../../../../../..@SECRET_FILE@", outside=True, verdict=_fails),
    Attempt("root of process 1", "process 1 has the sandbox's root", "cat /proc/1/root@SECRET_FILE@",
            verdict=_fails),
    Attempt("roots of all processes", "no process inside has another root",
            "cat /proc/[0-9]*/root@SECRET_FILE@ /proc/[0-9]*/cwd/../../..@SECRET_FILE@ 2>/dev/null",
            outside=True),
    Attempt("open files of processes", "no descriptor of the service is inherited",
            "for f in /proc/[0-9]*/fd/*; do [ -f $f ] && timeout 1 head -c 4096 $f; done 2>/dev/null </dev/null"),
    Attempt("folders behind descriptors", "no descriptor leads to a folder outside",
            "for f in /proc/[0-9]*/fd/*; do cat $f@SECRET_FILE@ $f/..@SECRET_FILE@ "
            "$f/../../../..@SECRET_FILE@; done 2>/dev/null"),
    Attempt("links and tools", "the file tools follow links inside the sandbox only", attack=_through_links),
    Attempt("links and lists", "nor do listings and globs follow them", attack=_lists_through_links),
    Attempt("links and writes", "nothing outside is written or made through a link",
            attack=_writes_through_links),
    Attempt("links that change", "nor does a link that changes under them lead out", attack=_races),
    Attempt("fifo", "a FIFO can't make a tool of the manager wait", attack=_fifo),
    Attempt("hard link", "no file from outside the workspace can be linked into it",
            _succeeds("ln /usr/bin/env hard || ln /proc/1/exe hard || ln /etc/passwd hard")),
    Attempt("other workspace by path", "the root with all workspaces is not there",
            "cat @OTHER_FILE@; ls @ROOT@", verdict=_fails, outside=True),
    Attempt("other workspace by search", "nor can another workspace be found",
            "grep -rs '@SECRET@' / --include=secret* --exclude-dir=proc --exclude-dir=sys | head -1 | "
            "grep -q . && echo " + ESCAPED, timeout=60),
    Attempt("beside the workspace", "nothing can be made beside /workspace",
            _succeeds("touch /workspace/../made || mkdir /made")),
    Attempt("programs", "programs of the system can't be changed",
            _succeeds("echo x > /usr/bin/made || cp /bin/sh /usr/lib/made || echo x >> /bin/bash"),
            without=frozenset({"container"})),
    Attempt("configuration", "nor what was made for the sandbox",
            _succeeds("echo x >> /etc/passwd || rm /etc/group"), without=frozenset({"container"})),
    Attempt("memory files", "what is in memory is bounded, and gone with the command",
            "head -c 300000000 /dev/zero > /dev/shm/f 2>/dev/null; "
            f"[ $(stat -c %s /dev/shm/f) -gt 200000000 ] && echo {ESCAPED}"),
    Attempt("shared memory of the host", "the host's /dev/shm is another one", "cat /dev/shm/@SHM_NAME@",
            outside=True, verdict=_fails),
    # Mounts and devices
    Attempt("mount", "nothing can be mounted", _succeeds("mount -t tmpfs none /tmp || mount --bind / /tmp")),
    Attempt("unmount", "no mount can be taken away", _succeeds("umount /workspace || umount -l /proc")),
    Attempt("remount", "read-only mounts stay so", _succeeds("mount -o remount,rw / || mount -o remount,rw /usr")),
    *(
        Attempt(f"call {name}", f"the system call {name} is refused", _call(name, *arguments),
                verdict=_refused(), without=without)
        for name, arguments, without in (
            ("mount", ('"none"', '"/tmp"', '"tmpfs"', "0", "0"), frozenset[str]()),
            ("umount2", ('"/workspace"', "2"), frozenset[str]()),
            ("pivot_root", ('"/tmp"', '"/tmp"'), frozenset[str]()),
            ("chroot", ('"/tmp"',), frozenset[str]()),
            ("fsopen", ('"tmpfs"', "0"), frozenset[str]()),
            ("open_tree", ("-100", '"/"', "1"), frozenset[str]()),
            ("move_mount", ("-1", '""', "-100", '"/tmp"', "4"), frozenset[str]()),
            ("mount_setattr", ("-100", '"/"', "0", "0", "0"), frozenset[str]()),
            ("open_by_handle_at", ("0", '"x" x 64', "0"), frozenset[str]()),
            ("setns", ("0", "0"), frozenset[str]()),
            ("swapon", ('"/workspace/f"', "0"), frozenset[str]()),
            ("acct", ('"/workspace/f"',), frozenset[str]()),
            ("quotactl", ("0", '"/"', "0", "0"), frozenset[str]()),
            ("reboot", ("0xfee1dead", "672274793", "0", "0"), frozenset[str]()),
            ("kexec_load", ("0", "0", "0", "0"), frozenset[str]()),
            ("init_module", ('"x"', "1", '""'), frozenset[str]()),
            ("settimeofday", ('"\\0" x 16', "0"), frozenset[str]()),
            ("clock_settime", ("0", '"\\0" x 16'), frozenset[str]()),
            ("sethostname", ('"made"', "4"), frozenset[str]()),
            ("syslog", ("3", '"x" x 4096', "4096"), frozenset[str]()),
            ("bpf", ("0", '"x" x 128', "128"), frozenset[str]()),
            ("perf_event_open", ('"\\0" x 128', "0", "-1", "-1", "0"), frozenset[str]()),
            ("fanotify_init", ("0", "0"), frozenset[str]()),
            ("userfaultfd", ("0",), frozenset[str]()),
            ("io_uring_setup", ("1", '"\\0" x 128'), frozenset[str]()),
            ("keyctl", ("0", "-3", "0"), frozenset[str]()),
            ("add_key", ('"user"', '"made"', '"x"', "1", "-3"), frozenset[str]()),
            ("request_key", ('"user"', '"@KEY_NAME@"', "0", "0"), frozenset[str]()),
            ("kcmp", ("1", "$$", "0", "0", "0"), frozenset({"container"})),
        )
    ),
    Attempt("device nodes", "no device can be made",
            _succeeds("mknod b b 8 0 || mknod c c 1 1 || mknod k c 1 11")),
    Attempt("devices of the host", "no disk, memory or log of the kernel is there",
            "for d in /dev/mem /dev/kmem /dev/port /dev/kmsg /dev/sd* /dev/vd* /dev/nvme* /dev/dm-* /dev/loop* "
            f"/dev/kvm /dev/fuse /dev/net/tun; do [ -r $d ] && [ -e $d ] && echo {ESCAPED} $d; done",
            outside=True),
    Attempt("kernel memory", "the kernel's memory can't be read",
            _succeeds("head -c 64 /proc/kcore | grep -q .") + f"; head -c 4 /dev/kmem && echo {ESCAPED}"),
    Attempt("sys", "the kernel's objects are not there or read-only",
            _succeeds("echo x > /sys/kernel/uevent_helper || echo 0 > /sys/kernel/mm/ksm/run")),
    Attempt("core pattern", "no program of the host can be named for crashes",
            _succeeds("echo '|/workspace/x' > /proc/sys/kernel/core_pattern")),
    Attempt("modprobe path", "nor for modules", _succeeds("echo /workspace/x > /proc/sys/kernel/modprobe")),
    Attempt("kernel settings", "settings of the kernel can't be written",
            _succeeds("for f in kernel/panic vm/overcommit_memory kernel/pid_max fs/file-max net/ipv4/ip_forward;"
                      " do echo 1 > /proc/sys/$f && exit 0; done; exit 1")),
    Attempt("sysrq", "nor can its magic keys be pressed", _succeeds("echo h > /proc/sysrq-trigger")),
    Attempt("binfmt", "no interpreter can be registered",
            _succeeds("echo ':x:M::xx::/bin/sh:' > /proc/sys/fs/binfmt_misc/register")),
    Attempt("release agent", "no control group can be given an agent",
            _succeeds("mkdir -p g && mount -t cgroup -o memory none g || "
                      "echo /workspace/x > /sys/fs/cgroup/memory/release_agent")),
    # Rights
    Attempt("capabilities", "no capability is left, in no set",
            "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -v '0000000000000000$' && echo " + ESCAPED,
            outside=True),
    Attempt("capset", "and none can be taken", _call("capset", '"\\x22\\x05\\x08\\x20\\0\\0\\0\\0"', '"\\xff" x 24'),
            verdict=_refused()),
    Attempt("setuid", "nobody else can be become", _call("setuid", "0"), verdict=_refused(1, 22)),
    Attempt("setuid programs", "programs that would make root don't",
            _succeeds("su -c true </dev/null || sudo -n true || pkexec true"), outside=True),
    Attempt("setuid file", "a program with a set-user bit gives nothing",
            "cp /usr/bin/id me; chmod 6755 me; ./me -u | grep -qx 0 && echo " + ESCAPED),
    Attempt("no new rights", "the kernel has promised it", "grep NoNewPrivs /proc/self/status",
            verdict=_prints("NoNewPrivs:\t1")),
    Attempt("identity", "commands are not root", f"[ $(id -u) = 0 ] && echo {ESCAPED}", outside=True),
    Attempt("user namespace", "no user namespace can be made", _succeeds("unshare -U true || unshare -r true"),
            outside=True),
    Attempt("call unshare", "not by the system call either", _call("unshare", "0x10000000"),
            verdict=_refused(1, 28, 38)),
    Attempt("namespaces", "nor any other namespace",
            _succeeds("unshare -m true || unshare -n true || unshare -p true || unshare -i true || unshare -u true"),
            outside=True),
    Attempt("enter namespaces", "and none can be entered",
            _succeeds("nsenter -t 1 -m true || nsenter -t 1 -U true || nsenter -t 1 -n true")),
    Attempt("limits", "limits can't be raised",
            _succeeds("ulimit -u 100000 || ulimit -f unlimited || ulimit -d unlimited || ulimit -c unlimited"),
            without=frozenset({"container"})),
    Attempt("priority", "nor the priority", _succeeds("nice -n -10 true 2>&1 | grep -q . && exit 1 || chrt -f 1 true")),
    Attempt("swap files", "nor swap be made", _succeeds("truncate -s 1M s && mkswap s && swapon s")),
    # Processes
    Attempt("see processes", "no process of the host is seen",
            f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '@VICTIM_WORD@' && echo {ESCAPED}",
            outside=True),
    Attempt("environment of process 1", "process 1 has nothing of the service's environment",
            "cat /proc/1/environ /proc/self/environ | tr '\\0' '\\n'"),
    Attempt("environments of processes", "nor has any other process",
            "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; env; export -p", outside=True),
    Attempt("arguments of processes", "no argument holds a secret", "cat /proc/[0-9]*/cmdline 2>/dev/null"),
    Attempt("signal one", "a process of the host can't be signalled", _succeeds("kill -9 @VICTIM_PID@")),
    Attempt("signal all", "nor all at once", "kill -9 -1; kill -TERM -1; kill -9 @VICTIM_PID@ @MANAGER_PID@",
            verdict=lambda shown: None),
    Attempt("signal process 1", "process 1 of the sandbox can't be killed from inside",
            "kill -9 1; kill -STOP 1; echo alive", verdict=_prints("alive"), without=frozenset({"container"})),
    Attempt("ptrace", "no process of the host can be traced", _call("ptrace", "16", "@VICTIM_PID@", "0", "0"),
            verdict=_refused(1, 3)),
    Attempt("read memory", "nor its memory be read",
            _call("process_vm_readv", "@VICTIM_PID@", 'pack("PQ", ($b = "x" x 16), 16)', "1",
                  'pack("QQ", 4096, 16)', "1", "0"),
            verdict=_refused(1, 3)),
    Attempt("memory of process 1", "nor that of process 1 be written",
            _succeeds("echo x > /proc/1/mem"), without=frozenset({"container"})),
    Attempt("program of process 1", "the program that starts sandboxes can't be replaced",
            _succeeds("echo x > /proc/1/exe || echo x >> /proc/$PPID/exe")),
    Attempt("pidfd", "no descriptor of a process of the host can be had",
            _call("pidfd_open", "@VICTIM_PID@", "0"), verdict=_refused(3, 22)),
    Attempt("daemons", "what a command leaves behind dies with it", attack=_daemons),
    Attempt("daemons at the limit", "also at the time limit, whatever it ignores", attack=_daemons_at_the_limit),
    Attempt("fork bomb", "a fork bomb ends inside",
            "bomb() { bomb | bomb & }; bomb; sleep 1; echo over", timeout=30),
    Attempt("threads", "so does a bomb of sleeping processes",
            "n=0; while [ $n -lt 2000 ] && sleep 5 & do n=$((n+1)); done 2>/dev/null; "
            f"[ $n -ge 2000 ] && [ $(ls /proc | grep -c '^[0-9]') -gt 1000 ] && echo {ESCAPED}", timeout=20),
    Attempt("memory bomb", "one process that takes 2 GiB is refused or ended",
            "head -c 2147483648 /dev/zero | tail -c 2147483648 | wc -c | grep -qx 2147483648 && echo " + ESCAPED,
            timeout=60),
    Attempt("memory bomb of many", "so are many that take it together",
            "for i in $(seq 12); do (x=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 3; echo got) & done; wait "
            "| cat", timeout=60,
            verdict=lambda shown: "2.4 GB were held" if shown.stdout.count("got") >= 8 else None),
    Attempt("terminal input", "nothing can be typed into a terminal",
            """perl -e '$c = "x"; open(T, "+<", "/dev/tty"); """
            f"""print ioctl(T, 0x5412, $c) || ioctl(STDIN, 0x5412, $c) ? "{ESCAPED}" : "no", "\\n"'""",
            verdict=_prints("no")),
    Attempt("huge output", "output is bounded", "yes | head -c 300000000; yes | head -c 300000000 >&2",
            timeout=60, verdict=_bounded),
    Attempt("huge file", "a file can't be larger than the limit",
            "dd if=/dev/zero of=f bs=1 count=1 seek=6G 2>/dev/null && "
            f"[ $(stat -c %s f) -gt 6000000000 ] && echo {ESCAPED}",
            without=frozenset({"container"})),
    Attempt("space for nothing", "space can't be taken without writing",
            _call("fallocate", "1", "0", "0", "5368709120"), verdict=_refused(95, 9),
            without=frozenset({"container"})),
    Attempt("disk filling", "a command that fills the disk is killed, and told so",
            "while head -c 1000000 /dev/zero >> big; do :; done; sleep 60", timeout=110, afterwards="rm big",
            verdict=lambda shown: None if shown.exit_code == 137 and "the command was killed" in shown.stderr
            else f"it went on: {shown}"),
    Attempt("names", "names with escapes are one name each", attack=_names),
    # Network
    Attempt("loopback of the host", "the host's own ports are not reachable", _TCP.format("127.0.0.1", "@PORT@"),
            outside=True, verdict=_fails),
    Attempt("loopback by IPv6", "nor by IPv6", _TCP.format("::1", "@PORT6@"), outside=True, verdict=_fails),
    Attempt("address of the host", "nor at the machine's address", _TCP.format("@ADDRESS@", "@PORT@"),
            verdict=_fails),
    Attempt("metadata", "the clouds' metadata address is not reachable",
            _TCP.format("169.254.169.254", "80"), verdict=_fails),
    Attempt("private network", "nor a private network", _TCP.format("10.0.0.1", "80"), verdict=_fails),
    Attempt("udp", "nothing goes out by UDP",
            "(echo x > /dev/udp/127.0.0.1/@UDP_PORT@; echo x > /dev/udp/@ADDRESS@/@UDP_PORT@; true) 2>/dev/null"),
    Attempt("routes", "there is no way to any network",
            f"awk 'NR > 1' /proc/net/route | grep -q . && echo {ESCAPED}"),
    Attempt("raw sockets", "packets can't be made by hand", _socket(2, 3, 1), verdict=_refused(1, 93)),
    Attempt("packet sockets", "nor looked at", _socket(17, 3, 0x0300), verdict=_refused(1, 97)),
    Attempt("vsock", "the machine's own host is not reachable", _socket(40), verdict=_refused(97, 1)),
    Attempt("kernel crypto sockets", "families of sockets that nobody needs are closed", _socket(38, 5),
            verdict=_refused(97, 1), without=frozenset({"container"})),
    Attempt("abstract socket", "an abstract Unix socket of the host is not there",
            _unix("\\0@ABSTRACT@"), verdict=_refused(111, 2), outside=True),
    Attempt("socket by path", "nor one with a path", _unix("@SOCKET@"), verdict=_refused(111, 2), outside=True),
    Attempt("sockets of engines", "nor one of an engine or a session",
            "for s in /var/run/docker.sock /run/docker.sock /run/podman/podman.sock /run/containerd/containerd.sock "
            f"/run/dbus/system_bus_socket /run/user/*/bus /tmp/.X11-unix/*; do [ -S $s ] && echo {ESCAPED}; done"),
    Attempt("the manager's socket", "nor the manager's own", f"[ -e @SERVICE_SOCKET@ ] && echo {ESCAPED}",
            outside=True),
    Attempt("no rules, no proxy", "without allowed hosts there is no way out at all",
            "(exec 3<>/dev/tcp/127.0.0.1/3128) 2>/dev/null", verdict=_fails),
    *(
        Attempt(f"proxy: {name}", proves, _proxied(request), hosts=("*.allowed.test", "inside.test"),
                preset=preset,
                verdict=lambda shown: None if " 40" in shown.stdout[:13] or " 502" in shown.stdout[:13]
                else f"it was not refused: {shown.stdout[:200]!r}")
        for name, proves, request, preset in (
            ("address", "addresses are no hosts", "CONNECT @ADDRESS@:443 HTTP/1.1\r\n\r\n", "open"),
            ("loopback", "loopback is refused", "CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n", "open"),
            ("metadata", "so is the metadata address", "GET http://169.254.169.254/ HTTP/1.1\r\n\r\n", "open"),
            ("decimal", "an address as one number is refused", "GET http://2852039166/ HTTP/1.1\r\n\r\n", "open"),
            ("hexadecimal", "and in hexadecimal", "GET http://0xa9fea9fe/ HTTP/1.1\r\n\r\n", "open"),
            ("octal", "and in octal", "GET http://0251.0376.0251.0376/ HTTP/1.1\r\n\r\n", "open"),
            ("short", "and with parts left out", "CONNECT 127.1:443 HTTP/1.1\r\n\r\n", "open"),
            ("IPv6", "IPv6 addresses are refused", "CONNECT [::1]:443 HTTP/1.1\r\n\r\n", "open"),
            ("IPv4 in IPv6", "in all their forms", "GET http://[::ffff:169.254.169.254]/ HTTP/1.1\r\n\r\n", "open"),
            ("NAT64", "also those of translators", "CONNECT [64:ff9b::a9fe:a9fe]:80 HTTP/1.1\r\n\r\n", "open"),
            ("name of loopback", "a name that leads inside is refused",
             "CONNECT inside.test:443 HTTP/1.1\r\n\r\n", "open"),
            ("name of metadata", "also one that leads to metadata",
             "GET http://meta.allowed.test/ HTTP/1.1\r\n\r\n", "none"),
            ("name by IPv6", "also by IPv6", "CONNECT six.allowed.test:443 HTTP/1.1\r\n\r\n", "none"),
            ("localhost", "localhost is no host", "CONNECT localhost:443 HTTP/1.1\r\n\r\n", "open"),
            ("other host", "a host that is not allowed is refused",
             "CONNECT example.com:443 HTTP/1.1\r\n\r\n", "none"),
            ("parent", "the name above a suffix is not allowed", "CONNECT allowed.test:443 HTTP/1.1\r\n\r\n", "none"),
            ("end of a name", "nor a name that only ends alike",
             "CONNECT notallowed.test:443 HTTP/1.1\r\n\r\n", "none"),
            ("port", "other ports are refused", "CONNECT a.allowed.test:22 HTTP/1.1\r\n\r\n", "none"),
            ("user in the name", "a name behind an @ is not taken",
             "CONNECT a.allowed.test:443@127.0.0.1:443 HTTP/1.1\r\n\r\n", "none"),
            ("user in the URL", "nor in a URL",
             "GET http://a.allowed.test@127.0.0.1/ HTTP/1.1\r\n\r\n", "none"),
            ("two lengths", "a body with two lengths is refused",
             "POST http://a.allowed.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "none"),
            ("two codings", "and one with a length and chunks",
             "POST http://a.allowed.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
             "none"),
            ("folded field", "a folded field is refused",
             "GET http://a.allowed.test/ HTTP/1.1\r\nA: b\r\n Host: inside.test\r\n\r\n", "none"),
            ("bare line end", "so is a bare line end", "GET http://a.allowed.test/ HTTP/1.1\nHost: x\r\n\r\n", "none"),
            ("own path", "the proxy serves nothing itself", "GET / HTTP/1.1\r\nHost: a.allowed.test\r\n\r\n", "none"),
            ("socks", "it speaks nothing but HTTP", "\\005\\001\\000\r\n\r\n", "none"),
        )
    ),
)  # fmt: skip
