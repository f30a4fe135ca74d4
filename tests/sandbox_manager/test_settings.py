from pathlib import Path

import pytest

from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.disk.watch import DiskLimits
from services.sandbox_manager.drivers import FirstUsable
from services.sandbox_manager.main import backend_of
from services.sandbox_manager.settings import SettingsError, read_settings
from tests.sandbox_manager.support import FakeBackend, spec

TOKEN = "ab" * 32
BASE = {"NYLORUN_GRPC_TOKEN": TOKEN}


def test_the_defaults_are_those_of_an_image() -> None:
    settings = read_settings(BASE)
    assert settings.server.listen == "0.0.0.0:4430"
    assert settings.workspaces == Path("/harness/sandboxes")
    assert (settings.driver, settings.uid) == ("auto", 65_431)


def test_limits_of_the_disk_are_sizes() -> None:
    assert read_settings(BASE).disk == DiskLimits(None, 5 * 2**30)
    given = {**BASE, "WHIPPLETREE_SANDBOX_DISK_FREE": "64MiB", "WHIPPLETREE_SANDBOX_DISK_BYTES": "2000000"}
    assert read_settings(given).disk == DiskLimits(64 * 2**20, 2_000_000)
    assert read_settings({**BASE, "WHIPPLETREE_SANDBOX_DISK_FREE": "0"}).disk.free_bytes == 0


@pytest.mark.parametrize("driver", ["auto", "bwrap", "emulated"])
def test_drivers_are_chosen_by_name(driver: str) -> None:
    assert read_settings({**BASE, "WHIPPLETREE_SANDBOX_DRIVER": driver}).driver == driver


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WHIPPLETREE_SANDBOX_HOST_ROOT", "relative", "absolute"),
        ("WHIPPLETREE_SANDBOX_PULL", "always", "never"),
        ("WHIPPLETREE_SANDBOX_DRIVER", "docker", "must be one of auto, bwrap, emulated"),
        ("WHIPPLETREE_SANDBOX_UID", "0", "WHIPPLETREE_SANDBOX_UID"),
        ("WHIPPLETREE_SANDBOX_DISK_FREE", "1 GB", "must be a size such as 1GiB"),
        ("WHIPPLETREE_SANDBOX_DISK_BYTES", "1KiB", "at least 1048576"),
        ("NYLORUN_HARNESS_ROOT", "relative", "NYLORUN_HARNESS_ROOT"),
        ("NYLORUN_HARNESS_TOKEN", TOKEN, "NYLORUN_HARNESS_TOKEN"),
        ("NYLORUN_DATABASE_URL", "x", "NYLORUN_DATABASE_URL"),
        ("NYLORUN_GRPC_TOKEN", "short", "NYLORUN_GRPC_TOKEN"),
    ],
)
def test_what_can_t_be_used_is_said_in_one_line(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({**BASE, name: value})
    assert said in str(raised.value).splitlines()[0]


@pytest.mark.parametrize("driver", ["auto", "bwrap", "emulated"])
def test_every_driver_is_the_backend_virtual(driver: str, tmp_path: Path) -> None:
    given = {**BASE, "WHIPPLETREE_SANDBOX_DRIVER": driver, "NYLORUN_HARNESS_ROOT": str(tmp_path)}
    backend = backend_of(read_settings(given))
    assert (backend.name, backend.isolation) == ("virtual", "process")


async def test_the_first_usable_driver_does_the_work_and_the_reason_names_the_others() -> None:
    first, second = FakeBackend(available=False), FakeBackend()
    both = FirstUsable((first, second))
    with pytest.raises(BackendError):
        await both.open(spec())
    probe = await both.probe()
    assert (probe.available, probe.reason, probe.version) == (True, "it is broken", "1.0")
    await both.open(spec())
    await both.remove("k")
    assert await both.list("nylorun") == [spec().key]
    assert both.unmet(spec(network={"allow": ["*.x.y"]})) == "no suffixes"
    assert second.said == [f"open {spec().key}", "remove k"]
    assert first.said == []
    await both.close()
    assert (first.said, second.said[-1]) == (["close"], "close")


async def test_without_a_usable_driver_every_reason_is_told() -> None:
    both = FirstUsable((FakeBackend(available=False), FakeBackend(available=False)))
    probe = await both.probe()
    assert (probe.available, probe.reason) == (False, "it is broken; it is broken")
