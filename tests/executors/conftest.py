"""gRPC's environment must be set before any test module imports grpc."""

import services.common.grpc_env  # noqa: F401
