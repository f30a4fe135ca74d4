"""How many runs a stack of real processes gets through.

Sessions talk to the development core (in memory) at once, each one turn after the other. A turn is one run:
the model (scripted) asks for its tools, all in one step, and answers when it has their results. The tools are
calls of a stdio MCP server that gives its input back (`--via mcp`, the default: one server process for each
session) or `write` in the session's sandbox (`--via sandbox`, whose events are claimed at the core as well).

Without flags four rows are measured, which the reference implementation was measured with too, on two cores
of this kind and with no process between (baseline). With `--sessions`, `--turns` or `--tools` it is one row.

Figures for each row (sessions x turns x tools): runs and effects per second, CPU seconds of the five
processes (without the MCP servers), the sum of their memory peaks, and their CPU by name. `cpu_s_client` is
what this process took for the people's side; it runs on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from bench import mcp_route, sandbox_route
from bench.environment import run_on_uvloop, stack_plan
from bench.process_costs import costs_of
from bench.result import BenchResult
from bench.throughput_client import play
from cli.core_client import CoreClient
from cli.running_stack import running_stack
from cli.stack import StackPlan, process_specs

AGENT: Final = "bench"
VIA: Final = ("mcp", "sandbox")
BOUND_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `reference` is in runs per second, 0 where it is not known."""

    sessions: int
    turns: int
    tools: int
    answer_bytes: int = 64
    reference: float = 0.0

    @property
    def name(self) -> str:
        """How figures call it."""
        return f"{self.sessions}x{self.turns}x{self.tools}"


ROWS: Final = (
    Row(100, 4, 3, reference=84),
    Row(10, 40, 3, reference=25),
    Row(10, 100, 1, answer_bytes=2048, reference=17),
    Row(1, 400, 1, reference=6.4),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--sessions", type=int, help="sessions that talk at once")
    parser.add_argument("--turns", type=int, help="turns of each session")
    parser.add_argument("--tools", type=int, help="executed tool calls of each turn")
    parser.add_argument("--answer-bytes", type=int, help="length of the model's answer to the person")
    parser.add_argument("--via", choices=VIA, default=VIA[0], help="what the tools are (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    figures: dict[str, float] = {}
    rows = _rows(flags)
    for row in rows:
        figures |= {f"{name}_{row.name}": value for name, value in _measure(row, flags.via).items()}
    known = [row for row in rows if row.reference]
    baseline = {f"reference_runs_per_s_{row.name}": row.reference for row in known}
    ratio = {
        f"runs_over_reference_{row.name}": figures[f"runs_per_s_{row.name}"] / row.reference for row in known
    }
    return BenchResult("run_throughput", figures, baseline, ratio)


def _rows(flags: argparse.Namespace) -> tuple[Row, ...]:
    chosen = (flags.sessions, flags.turns, flags.tools, flags.answer_bytes)
    if all(value is None for value in chosen):
        return ROWS
    usual = Row(10, 10, 1)
    return (
        Row(
            sessions=flags.sessions or usual.sessions,
            turns=flags.turns or usual.turns,
            tools=usual.tools if flags.tools is None else flags.tools,
            answer_bytes=flags.answer_bytes or usual.answer_bytes,
        ),
    )


def _measure(row: Row, via: str) -> dict[str, float]:
    with stack_plan(_answers(row, via), environ={"WHIPPLETREE_CORE_DB": ":memory:"}) as plan:
        return run_on_uvloop(lambda: _play(plan, row, via))


async def _play(plan: StackPlan, row: Row, via: str) -> dict[str, float]:
    async with running_stack(plan, lambda name, line: None) as stack:
        await stack.ready()
        pids = {spec.name: stack.supervisor.pid(spec.name) or 0 for spec in process_specs(plan)}
        async with CoreClient(plan.core_url()) as core:
            await core.put_agent(AGENT, _manifest(via))
        await play(plan.core_url(), AGENT, 1, 1)
        before, own = costs_of(pids), time.process_time()
        began = time.perf_counter()
        async with asyncio.timeout(BOUND_S):
            await play(plan.core_url(), AGENT, row.sessions, row.turns)
        seconds = time.perf_counter() - began
        own, after = time.process_time() - own, costs_of(pids)
    runs = row.sessions * row.turns
    used = {name: after[name].cpu_s - before[name].cpu_s for name in pids}
    return {
        "runs_per_s": runs / seconds,
        "effects_per_s": runs * _effects_per_run(row) / seconds,
        "seconds": seconds,
        "cpu_s": sum(used.values()),
        "cpu_ms_per_run": sum(used.values()) / runs * 1000,
        "peak_mib": sum(cost.peak_mib for cost in after.values()),
        **{f"cpu_s_{name}": value for name, value in used.items()},
        "cpu_s_client": own,
    }


def _effects_per_run(row: Row) -> int:
    return row.tools + (2 if row.tools else 1)


def _manifest(via: str) -> dict[str, Any]:
    return {**(mcp_route.manifest() if via == "mcp" else sandbox_route.manifest()), "id": AGENT}


def _answers(row: Row, via: str) -> list[dict[str, Any]]:
    """Step 0 asks for the tools, the next one answers; a person's message is always `message ...`."""
    final = {"answer": "a" * row.answer_bytes}
    if not row.tools:
        return [final]
    blocks = [_tool_call(number, via) for number in range(row.tools)]
    return [{"step": 0, "answer": {"output": blocks, "finishReason": "tool-calls"}}, final]


def _tool_call(number: int, via: str) -> dict[str, Any]:
    if via == "mcp":
        args, name = {"text": "x" * 64}, mcp_route.TOOL
    else:
        args, name = {"path": f"note-{number}.txt", "content": "x" * 64}, "write"
    return {"type": "tool-call", "id": f"call-{number}", "name": name, "args": args}
