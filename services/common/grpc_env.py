"""gRPC's own environment, set before `grpc` is imported: import this module first, import `grpc` after it.

gRPC core otherwise writes lines of its own to stderr, and its fork handlers cost time in processes that
start children (operations 12.10).
"""

from __future__ import annotations

import os

os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
