"""What the container of a workspace is like, and what is said where no engine answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.sandbox_manager.bwrap.flags import ENVIRONMENT, PROXY_VARIABLES
from services.sandbox_manager.container.driver import ContainerBackend
from services.sandbox_manager.container.engine import Engine
from services.sandbox_manager.container.plan import (
    HostFolders,
    create_document,
    forwarder_document,
    starter_words,
    tenant_of,
)
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.specs import resolve_spec

KEY = "nylorun-tn_a-0000000000000000"


def document(**members: Any) -> dict[str, Any]:
    folders = HostFolders("/vol/sandboxes/k/workspace", "/vol/sandboxes/k/tmp")
    made: dict[str, Any] = create_document(
        resolve_spec(members, KEY), folders, root_id="r" * 32, identity=Identity(1000, 1000)
    )
    return made


def test_a_container_has_nothing_but_its_image_and_two_folders() -> None:
    host = document()["HostConfig"]
    assert host["Binds"] == ["/vol/sandboxes/k/workspace:/workspace", "/vol/sandboxes/k/tmp:/tmp"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    rights, calls = host["SecurityOpt"]
    assert rights == "no-new-privileges"
    named = {
        name for rule in json.loads(calls.removeprefix("seccomp="))["syscalls"] for name in rule["names"]
    }
    assert {"read", "execve", "clone"} <= named
    assert not {"io_uring_setup", "mount", "unshare", "setns", "bpf", "keyctl"} & named
    assert host["ReadonlyRootfs"] is True
    assert host["PidsLimit"] == 512
    assert "Privileged" not in host
    assert document()["User"] == "1000:1000"


def test_the_spec_gives_image_memory_and_processors() -> None:
    made = document(image="x:1", resources={"cpus": 3, "memory": "300MiB"})
    assert made["Image"] == "x:1"
    assert made["HostConfig"]["NanoCpus"] == 3 * 10**9
    assert made["HostConfig"]["Memory"] == made["HostConfig"]["MemorySwap"] == 300 * 2**20


def test_another_spec_is_another_plan_and_the_same_is_the_same() -> None:
    assert document()["Labels"] == document()["Labels"]
    assert document()["Labels"]["whippletree.plan"] != document(image="x:1")["Labels"]["whippletree.plan"]


@pytest.mark.parametrize(
    ("key", "tenant"),
    [
        ("nylorun-tn_a-0000000000000000", "tn_a"),
        ("nylorun-tn-a-b-sbx-0000000000000000", "tn-a-b"),
    ],
)
def test_labels_name_the_tenant_of_a_key(key: str, tenant: str) -> None:
    assert tenant_of(key) == tenant


def test_a_command_gets_the_four_variables_and_no_other() -> None:
    words = starter_words("/bin/sh", way_out=False)
    assert words[:2] == ["/usr/bin/env", "-i"]
    assert dict(word.split("=", 1) for word in words[2:-5]) == dict(ENVIRONMENT)
    assert words[-5:-3] == ["/bin/sh", "-c"]
    assert words[-1] == "/bin/sh"


def test_with_a_way_out_a_command_also_gets_the_proxys_variables() -> None:
    words = starter_words("/bin/sh", way_out=True)
    seen = dict(word.split("=", 1) for word in words[2:-5])
    assert seen == {**ENVIRONMENT, **PROXY_VARIABLES}


def test_a_way_out_is_the_network_of_another_container_that_has_none_itself() -> None:
    folders = HostFolders("/w", "/t")
    made = create_document(
        resolve_spec({}, KEY), folders, root_id="r", identity=Identity(1, 1), forwarder_id="abc"
    )
    assert made["HostConfig"]["NetworkMode"] == "container:abc"
    beside = forwarder_document(KEY, "img", "/e", "pass", root_id="r", identity=Identity(1, 1))
    assert beside["HostConfig"]["NetworkMode"] == "none"
    assert beside["HostConfig"]["Binds"] == ["/e:/run/egress:ro"]
    assert beside["HostConfig"]["CapDrop"] == ["ALL"]


async def test_without_an_engine_the_probe_says_so(tmp_path: Path) -> None:
    backend = ContainerBackend(WorkspaceDisk(tmp_path, None), engine=Engine(f"unix://{tmp_path}/none.sock"))
    probe = await backend.probe()
    assert not probe.available
    assert "the engine does not answer" in (probe.reason or "")
    await backend.close()
