"""The container driver on a real engine: the suite that every driver passes, and what only it has."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.sandbox_manager.container.driver import ContainerBackend
from services.sandbox_manager.container.engine import Engine
from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.disk.store import WorkspaceDisk
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import resolve_spec
from tests.deploy.image import BASE
from tests.sandbox_manager.support import IMAGE_NAME, appears, identity

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

KEY = "nylorun-tn_a-00000000000000aa"
IMAGE = os.environ.get("WHIPPLETREE_BASE_IMAGE") or BASE
LONG_MS = 60_000


@contextlib.asynccontextmanager
async def driver_on(based, root, **options):
    root.mkdir(parents=True, exist_ok=True)
    backend = ContainerBackend(
        WorkspaceDisk(root, identity()), engine=Engine(based.environ.get("DOCKER_HOST")), **options
    )
    try:
        probe = await backend.probe()
        assert probe.available, probe
        yield backend
    finally:
        await backend.close()


@pytest.fixture
def root(tmp_path, based):
    """A root whose containers are removed at the end."""
    yield tmp_path / "sandboxes"
    for container in containers(based, tmp_path / "sandboxes"):
        based.docker("rm", "-f", container["Id"])


def spec(key=KEY, **members):
    return resolve_spec({"image": IMAGE, **members}, key)


def containers(based, root):
    """The containers of a root as the engine knows them."""
    file = root / "container-root"
    if not file.exists():
        return []
    label = f"label=whippletree.root={file.read_text().strip()}"
    ids = based.docker("ps", "-aq", "--no-trunc", "--filter", label).split()
    return json.loads(based.docker("inspect", *ids)) if ids else []


async def sh(handle, command, timeout_ms=LONG_MS, signal=None):
    return await handle.exec(command, timeout_ms, signal or Signal())


def test_the_suite_of_all_drivers_passes(based):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        (
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/sandbox_manager/test_conformance.py",
        ),
        cwd=root,
        env={**based.environ, IMAGE_NAME: IMAGE},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "skipped" not in done.stdout


async def test_a_container_has_no_rights_and_no_way_out(based, root):
    async with driver_on(based, root) as backend:
        handle = await backend.open(spec())
        status = (await sh(handle, "cat /proc/self/status")).stdout
        assert "CapEff:\t0000000000000000" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert (await sh(handle, "id -u")).stdout != "0\n"
        assert (await sh(handle, "touch /usr/x")).exit_code != 0
        links = (await sh(handle, "ls /sys/class/net")).stdout.split()
        assert links == ["lo"]
        handle.release()


async def test_what_a_command_leaves_running_dies_with_it(based, root):
    async with driver_on(based, root) as backend:
        handle = await backend.open(spec())
        await sh(
            handle, "setsid sh -c 'while :; do date >> /workspace/alive; sleep 0.05; done' >/dev/null 2>&1 &"
        )
        size = len(await handle.read_bytes("/workspace/alive", 10**7) or b"")
        assert (await sh(handle, "sleep 0.5; cat alive | wc -c")).stdout.strip() == str(size)
        assert (
            "sleep"
            not in (
                await sh(handle, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'date' || true")
            ).stdout
        )
        handle.release()


async def test_a_command_that_is_given_up_is_killed(based, root):
    async with driver_on(based, root) as backend:
        handle = await backend.open(spec())
        running = asyncio.create_task(sh(handle, "touch began; while :; do sleep 0.1; date > last; done"))
        await appears(handle, "began")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [each["State"]["Running"] for each in containers(based, root)] == [False]
        handle.release()


async def test_a_later_process_ends_what_runs_and_adopts_the_container(based, root):
    async with driver_on(based, root) as backend:
        handle = await backend.open(spec())
        await sh(handle, "echo kept > f")
        orphan = asyncio.create_task(sh(handle, "touch began; sleep 600"))
        await appears(handle, "began")
        before = containers(based, root)
        async with driver_on(based, root) as again:
            async with asyncio.timeout(30):
                assert (await orphan).exit_code == 137
            reopened = await again.open(spec())
            assert (await sh(reopened, "cat f")).stdout == "kept\n"
            assert [each["Id"] for each in containers(based, root)] == [each["Id"] for each in before]
            reopened.release()
        handle.release()


async def test_another_spec_gets_another_container_and_the_same_files(based, root):
    async with driver_on(based, root) as backend:
        handle = await backend.open(spec())
        await sh(handle, "echo kept > f")
        handle.release()
        reopened = await backend.open(spec(resources={"memory": "200MiB"}))
        assert (await sh(reopened, "cat f")).stdout == "kept\n"
        assert [each["HostConfig"]["Memory"] for each in containers(based, root)] == [200 * 2**20]
        reopened.release()


async def test_removal_takes_the_container_along_and_leaves_those_of_other_roots(based, root, tmp_path):
    other = tmp_path / "other"
    async with driver_on(based, root) as backend, driver_on(based, other) as foreign:
        handle, stays = await backend.open(spec()), await foreign.open(spec())
        handle.release()
        await backend.remove(KEY)
        assert containers(based, root) == []
        assert not (root / KEY).exists()
        assert (await sh(stays, "echo still")).stdout == "still\n"
        await stays.stop()
        stays.release()
        assert containers(based, other) == []


async def test_a_missing_image_is_named_with_the_command_that_brings_it(based, root):
    async with driver_on(based, root) as backend:
        with pytest.raises(BackendError, match=r"docker pull nowhere\.invalid/none:1"):
            await backend.open(spec(image="nowhere.invalid/none:1"))


async def test_a_host_root_that_is_another_folder_is_noticed(based, root, tmp_path):
    wrong = tmp_path / "wrong"
    for name in ("workspace", "tmp"):
        (wrong / KEY / name).mkdir(parents=True)
    async with driver_on(based, root, host_root=wrong) as backend:
        with pytest.raises(BackendError, match="WHIPPLETREE_SANDBOX_HOST_ROOT"):
            await backend.open(spec())


async def test_allowed_hosts_are_reached_through_the_proxy_and_no_other(based, root):
    """The host is a server of this test; the container has no way to it but the proxy's socket."""

    class Near(Dialer):
        async def dial(self, host, port):
            client = socket.socket()
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", served))
            return client

    async def hello(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    fetch = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())' {}"
    async with await asyncio.start_server(hello, "127.0.0.1", 0) as server:
        served = server.sockets[0].getsockname()[1]
        async with driver_on(based, root, egress_image=IMAGE, dialer=Near()) as backend:
            assert backend.traits.network_rules
            handle = await backend.open(spec(network={"preset": "none", "allow": ["good.example"]}))
            good = await sh(handle, fetch.format("http://good.example/"))
            assert good.stdout == "hello\n", good.stderr
            assert "403" in (await sh(handle, fetch.format("http://bad.example/"))).stderr
            direct = (
                f"env -i python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {served}), 3)'"
            )
            assert (await sh(handle, direct)).exit_code != 0
            # After a kill both containers serve again.
            assert (await sh(handle, "sleep 30", timeout_ms=300)).exit_code == 124
            assert (await sh(handle, fetch.format("http://good.example/"))).stdout == "hello\n"
            closed = await backend.open(spec(KEY[:-1] + "b", network={"preset": "none"}))
            assert "proxy" not in (await sh(closed, "env")).stdout.lower()
            await handle.stop()
            await closed.stop()
            assert containers(based, root) == []
            handle.release()
            closed.release()
