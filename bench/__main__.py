"""Runs benchmarks: `python -m bench` all as a table, `python -m bench NAME [--json] [flags]` one.

`python -m bench NAME --help` says what a benchmark measures and shows its flags.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from bench.processes import NotReady
from bench.result import BenchResult
from bench.throughput_client import TurnFailed
from cli.core_client import CoreError
from services.common.process import StartFailed

NAMES = (
    "effect_overhead",
    "run_throughput",
    "long_session",
    "held_runs",
    "replay",
    "engine_segment",
    "engine_growth",
    "flow_map",
    "mcp_flood",
    "mcp_many",
    "mcp_overhead",
    "model_overhead",
    "model_throughput",
    "model_held",
    "startup",
    "sandbox_exec",
    "sandbox_many",
    "grep",
    "glob",
    "read",
    # Last: it needs a browser, and the first failure ends all.
    "console",
)


def main(argv: list[str]) -> int:
    """The exit code. With --json nothing but the result's line is printed on stdout."""
    if argv[:1] in (["-h"], ["--help"]):
        print(f"{__doc__}\nBenchmarks: {', '.join(NAMES)}.")
        return 0
    as_json = "--json" in argv
    words = [word for word in argv if word != "--json"]
    name = words[0] if words else None
    if name is not None and name not in NAMES:
        print(f"There is no benchmark '{name}'; there are {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    try:
        for chosen in NAMES if name is None else (name,):
            result = _run(chosen, words[1:])
            print(result.to_json() if as_json else result.to_table(), flush=True)
    except (NotReady, StartFailed, CoreError, TurnFailed, TimeoutError) as error:
        print(f"The benchmark failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(name: str, argv: list[str]) -> BenchResult:
    module = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_flags(parser)
    result = module.run(parser.parse_args(argv))
    assert isinstance(result, BenchResult)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
