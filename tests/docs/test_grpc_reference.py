"""docs/grpc-reference.md is what the protos say."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FileDescriptor
from whippletree.v1 import admin_pb2, common_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2

from tools.grpc_reference import FILES, PAGE, PROTOS, Item, NotUnderstood, page, read

MODULES = {
    "admin": admin_pb2,
    "common": common_pb2,
    "mcp_pool": mcp_pool_pb2,
    "model_executor": model_executor_pb2,
    "sandbox_manager": sandbox_manager_pb2,
}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make pages`"


def test_every_proto_is_on_the_page() -> None:
    assert sorted(FILES) == sorted(path.stem for path in PROTOS.glob("*.proto")) == sorted(MODULES)


@pytest.mark.parametrize("name", FILES)
def test_nothing_that_the_stubs_have_is_missing(name: str) -> None:
    file: FileDescriptor = MODULES[name].DESCRIPTOR
    tree = read(PROTOS / f"{name}.proto")
    assert {item.name for item in tree.items if item.kind == "message"} == set(file.message_types_by_name)
    for item in tree.items:
        if item.kind == "message":
            assert fields(item) == wanted(file.message_types_by_name[item.name])
        elif item.kind == "service":
            calls = [one.name for one in file.services_by_name[item.name].methods]
            assert [one.name for one in item.items] == calls


@pytest.mark.parametrize("name", FILES)
def test_everything_has_a_comment(name: str) -> None:
    def look(item: Item, place: str) -> None:
        for one in item.items:
            assert one.comment or one.kind == "oneof", f"{place}.{one.name}"
            look(one, f"{place}.{one.name}")

    look(read(PROTOS / f"{name}.proto"), name)


def fields(item: Item) -> set[str]:
    return {one.name for one in item.items if one.kind == "field"} | {
        inner.name for one in item.items if one.kind == "oneof" for inner in one.items
    }


def wanted(message: Descriptor) -> set[str]:
    return {field.name for field in message.fields}


def test_a_line_that_is_not_understood_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.proto").write_text('syntax = "proto3";\nextend Foo {\n}\n')
    with pytest.raises(NotUnderstood, match=r"odd\.proto:2: extend Foo"):
        read(tmp_path / "odd.proto")
