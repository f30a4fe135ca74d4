"""deploy/seccomp-bwrap.json: the engine's default and what bubblewrap needs, nothing else."""

import json
from pathlib import Path

import pytest

from deploy import make_seccomp

ROOT = Path(__file__).parents[2]
DEFAULT = json.loads((Path(__file__).parent / "data" / "moby-seccomp.json").read_text())
COMMITTED = ROOT / "deploy" / "seccomp-bwrap.json"
PROFILE = json.loads(COMMITTED.read_text())


def allowed(profile, rights=()):
    """The calls that a profile allows whatever their arguments are, to a container with these capabilities."""
    return {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        and not rule.get("args")
        and set((rule.get("includes") or {}).get("caps", ())) <= set(rights)
        for name in rule["names"]
    }


def test_the_file_is_what_the_script_makes_of_the_engines_default():
    assert COMMITTED.read_text() == make_seccomp.text(make_seccomp.profile(DEFAULT))


def test_the_filter_of_workspaces_containers_allows_nothing_beyond_the_default():
    made = make_seccomp.profile(DEFAULT, ())
    committed = ROOT / "services" / "sandbox_manager" / "container" / "seccomp.json"
    assert committed.read_text() == make_seccomp.text(made)
    assert allowed(made) <= allowed(DEFAULT)
    assert not {name for rule in made["syscalls"] for name in rule["names"]} & make_seccomp.NOT_ANY_MORE
    (clone,) = [rule for rule in made["syscalls"] if "clone" in rule["names"]]
    assert clone["args"], "namespaces are made by its flags"


def test_what_it_allows_beyond_the_default_is_what_bubblewrap_needs():
    assert allowed(PROFILE) - allowed(DEFAULT) == set(make_seccomp.BWRAP)
    assert set(make_seccomp.BWRAP) <= allowed(DEFAULT, ["CAP_SYS_ADMIN"]) | {"pivot_root"}


def test_what_it_lacks_of_the_default_is_what_newer_engines_refuse_or_other_platforms_have():
    missing = allowed(DEFAULT) - allowed(PROFILE)
    assert missing - {one for one in missing if one.startswith("s390")} == make_seccomp.NOT_ANY_MORE | {
        "socket"
    }


@pytest.mark.parametrize(
    "name",
    ["bpf", "perf_event_open", "keyctl", "add_key", "init_module", "kexec_load", "open_by_handle_at", "reboot",
     "userfaultfd", "chroot", "fsopen", "open_tree", "move_mount", "mount_setattr", "swapon", "process_vm_writev"],
)  # fmt: skip
def test_it_does_not_name(name):
    assert all(name not in rule["names"] for rule in PROFILE["syscalls"])


def test_a_call_whose_flags_can_not_be_seen_is_said_to_be_not_there():
    (rule,) = [rule for rule in PROFILE["syscalls"] if "clone3" in rule["names"]]
    assert (rule["action"], rule["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_runtimes_that_know_no_conditions_read_it_the_same_way():
    known = {"names", "action", "args", "errnoRet"}
    assert set(PROFILE) == {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert all(set(rule) <= known for rule in PROFILE["syscalls"])
