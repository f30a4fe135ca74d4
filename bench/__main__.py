"""Runs benchmarks: `python -m bench` all as a table, `python -m bench NAME [--json] [flags]` one."""

from __future__ import annotations

import argparse
import importlib
import sys

from bench.result import BenchResult

NAMES = ("effect_overhead", "run_throughput", "long_session", "held_runs", "replay")


def main(argv: list[str]) -> int:
    """The exit code. With --json nothing but the result's line is printed on stdout."""
    if not argv:
        for name in NAMES:
            print(_run(name, []).to_table(), flush=True)
        return 0
    name, *rest = argv
    if name not in NAMES:
        print(f"There is no benchmark '{name}'; there are {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    as_json = "--json" in rest
    result = _run(name, [word for word in rest if word != "--json"])
    print(result.to_json() if as_json else result.to_table())
    return 0


def _run(name: str, argv: list[str]) -> BenchResult:
    module = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.__doc__)
    module.add_flags(parser)
    result = module.run(parser.parse_args(argv))
    assert isinstance(result, BenchResult)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
