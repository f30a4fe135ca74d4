from __future__ import annotations

import gc
from typing import Any

import pytest

from gateway.runs.manifests import ManifestPool, SharedManifest
from protocol.canonical import manifest_hash


def manifest(name: str = "a", **members: Any) -> dict[str, Any]:
    return {"id": name, "capabilities": [], **members}


def test_equal_texts_share_one_object_and_others_do_not():
    pool = ManifestPool()
    first = pool.share(manifest(), plain=True)
    assert pool.share(manifest(), plain=True) is first
    assert pool.share({"capabilities": [], "id": "a"}, plain=True) is not first
    assert pool.share(manifest(flag=True), plain=True) is not pool.share(manifest(flag=1), plain=True)


def test_what_runs_use_is_shared_whatever_its_size_and_dropped_with_the_last_run():
    pool = ManifestPool(kept_bytes=10)
    held = pool.share(manifest(), plain=True)
    assert pool.share(manifest(), plain=True) is held
    document = held.document
    del held
    gc.collect()
    assert pool.share(manifest(), plain=True).document is not document


def test_recent_manifests_are_kept_up_to_a_number_of_bytes():
    pool = ManifestPool(kept_bytes=100)
    kept = [id(pool.share(manifest(name), plain=True).document) for name in "abc"]
    gc.collect()
    assert pool._held <= 100
    assert id(pool.share(manifest("c"), plain=True).document) == kept[2]


def test_a_manifest_that_is_not_plain_is_shared_too():
    pool = ManifestPool()
    odd = manifest(note="\ud800", number=0.5)
    assert pool.share(odd, plain=False) is pool.share(dict(odd), plain=False)


def test_the_hash_is_the_manifests():
    assert SharedManifest(manifest(), 0).hash == manifest_hash(manifest())


SERVERS = {"docs": {"type": "stdio", "command": "x"}}


@pytest.mark.parametrize(
    ("document", "declares"),
    [
        (manifest(), False),
        (manifest(capabilities=[{"id": "c", "mcpServers": SERVERS}]), True),
        (manifest(capabilities=[{"id": "c", "mcpServers": {}}]), False),
        (
            manifest(
                capabilities=[
                    {"tools": [{"agent": {"id": "a", "capabilities": [{"id": "d", "mcpServers": SERVERS}]}}]}
                ]
            ),
            True,
        ),
        (
            manifest(
                capabilities=[
                    {"tools": [{"agent": {"kind": "workflow", "capabilities": [{"mcpServers": SERVERS}]}}]}
                ]
            ),
            False,
        ),
        ({"id": "flow", "root": {}}, False),
        (manifest(capabilities="none"), False),
        (manifest(capabilities=[None, 1, {"tools": {"a": 1}, "mcpServers": []}]), False),
    ],
)
def test_servers_are_looked_for_at_the_root_and_one_level_deep(document, declares):
    assert SharedManifest(document, 0).declares_mcp_servers is declares
