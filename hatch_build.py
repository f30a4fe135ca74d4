"""Build hook: generates the gRPC stubs from protos/ (`make protos` runs the same function)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PROTOS = ROOT / "protos"


def generate() -> None:
    """Writes `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py` and `*_pb2_grpc.pyi` beside the protos.

    Raises RuntimeError when protoc refuses a file.
    """
    from grpc_tools import protoc

    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    arguments = [
        "protoc",
        f"-I{PROTOS}",
        f"-I{Path(protoc.__file__).parent / '_proto'}",
        f"--python_out={PROTOS}",
        f"--pyi_out={PROTOS}",
        f"--grpc_python_out={PROTOS}",
    ]
    if plugin.exists():
        arguments += [f"--plugin=protoc-gen-mypy_grpc={plugin}", f"--mypy_grpc_out=quiet:{PROTOS}"]
    arguments += [str(path) for path in sorted(PROTOS.rglob("*.proto"))]
    status = protoc.main(arguments)
    if status != 0:
        raise RuntimeError(f"protoc refused the files under protos/ (exit {status}); its message is above")


class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Generates the stubs before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version, build_data
        generate()


if __name__ == "__main__":
    generate()
