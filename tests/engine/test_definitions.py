from __future__ import annotations

import pytest

from gateway.engine.contract import EngineRefused
from gateway.engine.definitions import DefinitionCache
from protocol.canonical import manifest_hash
from tests.engine.support import HELPER, PLAIN, agent, json_of, tool

EXTRA = {"capabilityId": "desk", "name": "extra", "inputSchema": {"type": "object"}}


def test_equal_manifests_share_one_definition() -> None:
    cache = DefinitionCache()
    first = cache.manifest(HELPER)
    second = cache.manifest(json_of(HELPER))
    assert second is first
    assert first.hash == manifest_hash(HELPER)
    assert cache.agent(first, []) is cache.agent(second, [])
    assert cache.agent(first, [EXTRA]) is cache.agent(first, [dict(EXTRA)])
    assert cache.agent(first, [EXTRA]) is not cache.agent(first, [])


def test_members_in_another_order_are_another_document_of_the_same_hash() -> None:
    cache = DefinitionCache()
    turned = dict(reversed(HELPER.items()))
    assert cache.manifest(turned) is not cache.manifest(HELPER)
    assert cache.manifest(turned).hash == cache.manifest(HELPER).hash


def test_the_least_recently_used_goes_when_the_cache_is_full() -> None:
    sizes = DefinitionCache()
    for manifest in (HELPER, PLAIN):
        sizes.manifest(manifest)
    cache = DefinitionCache(max_bytes=sizes.bytes_held)
    helper, plain = cache.manifest(HELPER), cache.manifest(PLAIN)
    assert cache.manifest(HELPER) is helper
    assert cache.manifest(PLAIN) is plain
    cache.manifest(agent())
    assert cache.bytes_held <= sizes.bytes_held
    assert cache.manifest(HELPER) is not helper


def test_a_definition_larger_than_the_cache_is_made_and_not_kept() -> None:
    cache = DefinitionCache(max_bytes=100)
    manifest = cache.manifest(HELPER)
    assert cache.agent(manifest, []).agent_id == "helper"
    assert cache.bytes_held == 0


def test_what_is_refused_is_not_kept() -> None:
    cache = DefinitionCache()
    with pytest.raises(EngineRefused) as refused:
        cache.manifest({**HELPER, "extra": 1})
    assert refused.value.code is None
    assert cache.bytes_held == 0


def test_the_listing_keeps_schemas_as_they_are_written() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}, "additionalProperties": False}
    cache = DefinitionCache()
    manifest = agent(tool("t", description="") | {"inputSchema": schema}, tool("u", description="D"))
    listing = cache.agent(cache.manifest(manifest), []).tools.listing
    assert listing.wire == (
        b'[{"inputSchema":{"type":"object","properties":{"z":{},"a":{}},"additionalProperties":false},'
        b'"name":"t"},{"description":"D","inputSchema":{"type":"object"},"name":"u"}]'
    )
    assert listing.canonical == (
        b'[{"inputSchema":{"additionalProperties":false,"properties":{"a":{},"z":{}},"type":"object"},'
        b'"name":"t"},{"description":"D","inputSchema":{"type":"object"},"name":"u"}]'
    )


def test_ten_thousand_tools_are_served() -> None:
    manifest = agent(*(tool(f"t{number}") for number in range(10_000)))
    cache = DefinitionCache()
    definition = cache.agent(cache.manifest(manifest), [])
    assert len(definition.tools.tools) == 10_000
    assert definition.tools.duplicates == ()
