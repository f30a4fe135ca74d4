"""The gRPC contract as text: one line per service, rpc, message, field and enum value, nothing else.

`python -m tests.common.contract_text` writes protos/contract.txt anew. Do it for additions only: a line
that goes or changes breaks every client that was built before.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from whippletree.v1 import admin_pb2, common_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2

ROOT = Path(__file__).parents[2]
PATH = ROOT / "protos" / "contract.txt"
FILES = (admin_pb2, common_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2)
_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def contract_lines() -> list[str]:
    """The contract of the generated code, in a fixed order."""
    lines: list[str] = []
    for module in FILES:
        lines += _file(module.DESCRIPTOR)
    return lines


def _file(file: FileDescriptor) -> list[str]:
    lines: list[str] = []
    for service in file.services_by_name.values():
        lines.append(f"service {service.full_name}")
        for method in service.methods:
            asks = "stream " * method.client_streaming + method.input_type.full_name
            gives = "stream " * method.server_streaming + method.output_type.full_name
            lines.append(f"rpc {method.full_name}({asks}) returns ({gives})")
    for message in file.message_types_by_name.values():
        lines += _message(message)
    for enum in file.enum_types_by_name.values():
        lines += _enum(enum)
    return lines


def _message(message: Descriptor) -> list[str]:
    lines = [f"message {message.full_name}"]
    for field in sorted(message.fields, key=lambda field: field.number):
        lines.append(f"field {message.full_name} {field.number} {field.name} {_type(field)}")
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            lines += _message(nested)
    for enum in message.enum_types:
        lines += _enum(enum)
    return lines


def _enum(enum: EnumDescriptor) -> list[str]:
    return [f"enum {enum.full_name}"] + [
        f"value {enum.full_name} {value.number} {value.name}" for value in enum.values
    ]


def _type(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_type(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return f"map<{key}, {value}>"
    name = kind.full_name if kind is not None else _TYPES[field.type]
    oneof = field.containing_oneof
    if field.is_repeated:
        return f"repeated {name}"
    if oneof is not None and not oneof.name.startswith("_"):
        return f"{name} in {oneof.name}"
    return f"optional {name}" if field.has_presence and field.message_type is None else name


if __name__ == "__main__":
    PATH.write_text("\n".join(contract_lines()) + "\n")
