"""What the sandbox-manager's pod asks of Kubernetes, given to the program that runs containers there, too (runc).

No cluster is needed for that: a pod's user namespace, its uncovered /proc and the committed filter, in the form in
which runtimes of Kubernetes read it, are put into a container by hand.
"""

import json
import os
import re
import shutil
import subprocess

import pytest

from deploy.make_seccomp import BWRAP
from tests.deploy.image import IMAGE, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(420)]

NAMESPACES = ("pid", "network", "ipc", "uts", "mount", "user")
EVERYBODY = [{"containerID": 0, "hostID": 0, "size": 65536}]
COVERED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi"]
FILTER = json.loads((ROOT / "deploy" / "seccomp-bwrap.json").read_text())
USABLE = re.compile(r"^ok +bubblewrap and namespaces", re.MULTILINE)


@pytest.fixture
def layers(machine):
    """The folders of the image's layers on this machine, the uppermost first."""
    if shutil.which("runc") is None or os.geteuid() != 0:
        pytest.skip("needs runc, and root to run it")
    told = json.loads(machine.docker("image", "inspect", "--format", "{{json .GraphDriver.Data}}", IMAGE))
    folders = [told["UpperDir"], *told.get("LowerDir", "").split(":")]
    if not all(os.path.isdir(folder) for folder in folders):
        pytest.skip("the engine's images are not on this machine")
    return folders


def doctor(layers, folder, **linux):
    """What `whippletree doctor` says in a container with such options, as user 1000 without capabilities."""
    for name in ("rootfs", "harness"):
        (folder / name).mkdir()
    os.chown(folder / "harness", 1000, 1000)
    subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)
    made = json.loads((folder / "config.json").read_text())
    made["process"] |= {
        "terminal": False,
        "user": {"uid": 1000, "gid": 1000},
        "args": ["tini", "-g", "--", "whippletree", "doctor"],
        "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "NYLORUN_HARNESS_ROOT=/harness", "HOME=/harness"],
        "cwd": "/harness",
        "noNewPrivileges": True,
        "capabilities": {},
    }
    made["root"] = {"path": "rootfs", "readonly": True}
    made["mounts"] = [mount for mount in made["mounts"] if not mount["type"].startswith("cgroup")]
    made["mounts"] += [
        {
            "destination": "/harness",
            "type": "bind",
            "source": str(folder / "harness"),
            "options": ["bind", "rw"],
        },
        {
            "destination": "/tmp",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777"],
        },
    ]
    made["linux"] = {
        "namespaces": [{"type": name} for name in NAMESPACES],
        "uidMappings": EVERYBODY,
        "gidMappings": EVERYBODY,
        **linux,
    }
    (folder / "config.json").write_text(json.dumps(made))
    # In a mount namespace of its own, which takes the mount of the image with it.
    script = 'mount -t overlay -o "lowerdir=$1" image rootfs && exec runc --root "$2" run "$3"'
    name = f"whippletree-pod-{os.getpid()}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", ":".join(layers), str(folder / "runc"), name],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Python" in done.stdout, done.stderr
    return done.stdout


def test_bubblewrap_works_in_a_pod_with_what_the_sandbox_manager_asks_for(layers, tmp_path):
    assert USABLE.search(doctor(layers, tmp_path, seccomp=FILTER))


def test_it_does_not_where_proc_is_covered(layers, tmp_path):
    assert not USABLE.search(doctor(layers, tmp_path, seccomp=FILTER, maskedPaths=COVERED))


def test_it_does_not_where_the_filter_lacks_what_was_added(layers, tmp_path):
    no_namespaces = {"index": 0, "value": 0x7E020000, "op": "SCMP_CMP_MASKED_EQ"}
    usual = {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_namespaces]}
    assert set(FILTER["syscalls"][-1]["names"]) == set(BWRAP)
    without = {**FILTER, "syscalls": [*FILTER["syscalls"][:-1], usual]}
    assert not USABLE.search(doctor(layers, tmp_path, seccomp=without))
