"""What an effect costs on its way to a service and back.

Each kind of effect (a model call, a stdio MCP tool, `read` in a sandbox) is called in three ways that take
turns call by call: its executor in this process, the same executor in a process of its own through the
gateway's own gRPC client, and a bare exchange of the same messages and metadata that has no executor behind
it. A fourth pair sends a model call through the development core with its journal, beside the floor that
such a way has. Sizes are those of the call and of its answer alike.

Figures, in milliseconds, for each size:
  [mcp_|sandbox_]call_ms_*        the whole effect over gRPC
  [mcp_|sandbox_]in_process_ms_*  the same executor without a wire
  [mcp_|sandbox_]added_ms_*       the difference
Ratios at the median (`_p99_` in the name: at the 99th percentile); the budget of each is 1.25:
  hop_over_echo_*                 a whole model call to the bare echo: the script that answers does no work of
                                  its own, so all of the call is the way there and back
  mcp_over_stream_*, sandbox_over_stream_*
                                  the added time to the bare stream. Behind these effects something works (a
                                  server in Python that answers, a file that is read and numbered), which takes
                                  its time wherever it is called from: what is left is the hop
Beside them, the other reading of each:
  added_over_echo_*               a model call's added time to the bare echo
  mcp_call_over_stream_*, sandbox_call_over_stream_*
                                  the whole effect, with that work, to the bare stream
And:
  journal_over_floor              a model call through the development core, to its floor; the budget is 1.5
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench.effect_stage import set_stage
from bench.environment import run_on_uvloop, stack_plan
from bench.model_route import answers
from bench.result import BenchResult
from bench.turns import Samples, p50, p99, take_turns
from cli.stack import StackPlan

KINDS = ("model", "mcp", "sandbox", "journal")
SIZES = {"1KiB": 1024, "64KiB": 64 * 1024, "1MiB": 1024 * 1024}
_SHARE = {"1KiB": 1.0, "64KiB": 0.5, "1MiB": 0.1}
"""Of the calls of 1 KiB, how many are made of each size."""
_MOST_WARM_UP = 50
BOUND_S = 600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--calls", type=int, default=600, help="calls of 1 KiB per way (default %(default)s)")
    parser.add_argument("--sizes", default=",".join(SIZES), help="sizes to measure (default %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of effect (default %(default)s)")
    parser.add_argument(
        "--own-loops",
        action="store_true",
        help="mcp-pool and sandbox-manager on asyncio's loop, as their own processes run",
    )


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    sizes = {name: SIZES[name] for name in flags.sizes.split(",")}
    kinds = [kind for kind in KINDS if kind in flags.kinds.split(",")]
    with stack_plan(answers(list(sizes.values()))) as plan:
        return run_on_uvloop(lambda: _measure(plan, sizes, kinds, flags.calls, not flags.own_loops))


async def _measure(
    plan: StackPlan, sizes: Mapping[str, int], kinds: list[str], calls: int, uvloop_everywhere: bool
) -> BenchResult:
    found = _Found()
    async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S):
        stage = await set_stage(stack, plan, uvloop_everywhere=uvloop_everywhere)
        for kind in kinds:
            ways = await stage.ways(kind, list(sizes.values()))
            for name, size in sizes.items():
                count = max(5, round(calls * _SHARE[name]))
                samples = await take_turns(await ways(size), count, min(_MOST_WARM_UP, count // 4 + 1))
                found.add(kind, name, samples)
    return BenchResult("effect_overhead", found.figures, found.baseline, found.ratio)


@dataclass(slots=True)
class _Found:
    """The result as it comes together."""

    figures: dict[str, float] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    ratio: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, size: str, samples: Samples) -> None:
        """One kind and size."""
        for name, of in (("p50", p50), ("p99", p99)):
            values = {way: of(samples[way]) for way in samples}
            mark = size if name == "p50" else f"{name}_{size}"
            if kind == "journal":
                self._add_journal(name, size, values)
            else:
                self._add_hop(kind, f"{name}_{size}", mark, values)

    def _add_hop(self, kind: str, at: str, mark: str, values: Mapping[str, float]) -> None:
        call, here, bare = values["call"], values["in_process"], values["bare"]
        added = call - here
        prefix = "" if kind == "model" else f"{kind}_"
        self.figures[f"{prefix}call_ms_{at}"] = call
        self.figures[f"{prefix}in_process_ms_{at}"] = here
        self.figures[f"{prefix}added_ms_{at}"] = added
        if kind == "model":
            self.figures[f"hop_over_echo_{mark}"] = call / bare
            self.baseline[f"echo_ms_{at}"] = bare
            self.ratio[f"hop_over_echo_{mark}"] = call / bare
            self.ratio[f"added_over_echo_{mark}"] = added / bare
        else:
            self.baseline[f"{kind}_stream_ms_{at}"] = bare
            self.ratio[f"{kind}_over_stream_{mark}"] = added / bare
            self.ratio[f"{kind}_call_over_stream_{mark}"] = call / bare

    def _add_journal(self, name: str, size: str, values: Mapping[str, float]) -> None:
        call, floor = values["call"], values["floor"]
        self.figures[f"journal_ms_{name}_{size}"] = call
        self.baseline[f"journal_floor_ms_{name}_{size}"] = floor
        self.ratio[f"journal_over_floor_{name}_{size}"] = call / floor
        if name == "p50" and "journal_over_floor" not in self.ratio:
            self.figures["journal_over_floor"] = self.ratio["journal_over_floor"] = call / floor
