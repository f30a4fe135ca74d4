import os
import socket
from pathlib import Path

import pytest

from services.sandbox_manager.root import OtherTenant, Root, RootUnusable


def test_a_second_manager_is_told_who_holds_the_root(tmp_path: Path) -> None:
    first, second = Root(tmp_path), Root(tmp_path)
    first.take()
    with pytest.raises(RootUnusable, match=f"process {os.getpid()} on host {socket.gethostname()}"):
        second.take()
    first.release()
    second.take()
    second.release()


async def test_the_tenant_is_fixed_for_good(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.take()
    assert root.tenant is None
    await root.fix_tenant("tn_a")
    await root.fix_tenant("tn_a")
    with pytest.raises(OtherTenant, match="tn_b"):
        await root.fix_tenant("tn_b")
    root.release()
    again = Root(tmp_path)
    again.take()
    assert again.tenant == "tn_a"
    with pytest.raises(OtherTenant, match="tn_a"):
        await again.fix_tenant("tn_b")
    again.release()


@pytest.mark.parametrize("content", ["{", "[]", '{"tenantId":3}', '{"tenantId":""}'])
def test_a_tenant_file_that_can_t_be_understood_stops_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "tenant.json").write_text(content)
    root = Root(tmp_path)
    with pytest.raises(RootUnusable, match=r"tenant\.json"):
        root.take()
    (tmp_path / "tenant.json").unlink()
    root.take()
    root.release()


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RootUnusable):
        Root(tmp_path / "file" / "sandboxes").take()
