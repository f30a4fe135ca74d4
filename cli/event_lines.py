"""What an event of a session's log says to a person at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cli.plain_text import as_text, one_line, plain

Document = dict[str, Any]
Kind = Literal["answer", "thought", "call", "result", "problem", "note"]
ARGUMENTS_WIDTH: Final = 100
RESULT_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Said:
    """One thing to show: its kind, which decides the colour, and its text."""

    kind: Kind
    text: str


def said(name: str, payload: Document) -> list[Said]:
    """What to show of one event; empty for events that people need not see."""
    if "compaction" in payload:
        return (
            [Said("note", "summed the conversation up, to make room")] if name == "message.assistant" else []
        )
    match name:
        case "message.assistant":
            return _assistant((payload.get("outcome") or {}).get("value"))
        case "tool.completed":
            return [_tool(payload)]
        case "model.failed":
            return [Said("problem", f"The model call failed: {_failure(payload.get('outcome'))}")]
        case "delegation.started":
            return [Said("note", f"asks the agent {_name(payload)}")]
        case "delegation.completed":
            return [_answered(payload)]
        case "agent.started":
            return [Said("note", f"stage {_name(payload)} began")]
        case "agent.completed" | "function.completed" | "verify.completed":
            return [Said("note", f"stage {_name(payload)} is done")]
        case "run.lapsed":
            return [Said("problem", "A harness went silent; another one goes on with the turn.")]
        case "effect.uncertain":
            return [Said("problem", plain(str(payload.get("message") or "A step may or may not have run.")))]
        case "artifact.saved":
            return [Said("note", f"kept the file {one_line(str(payload.get('name')), ARGUMENTS_WIDTH)}")]
        case "artifacts.incomplete":
            return [Said("problem", f"{payload.get('count')} files could not be kept.")]
        case "mcp.discovered":
            return [
                Said(
                    "problem", f"MCP server {one_line(str(server.get('serverName')), 60)}: {_reason(server)}"
                )
                for server in _documents(payload.get("servers"))
                if server.get("outcome") != "connected"
            ]
        case _:
            return []


def _assistant(value: Any) -> list[Said]:
    if isinstance(value, str):
        return [Said("answer", plain(value))]
    blocks = _documents(value.get("output")) if isinstance(value, dict) else []
    if isinstance(value, dict) and isinstance(value.get("output"), str):
        return [Said("answer", plain(value["output"]))]
    shown = []
    for block in blocks:
        match block.get("type"):
            case "text":
                shown.append(Said("answer", plain(str(block.get("text", "")))))
            case "reasoning":
                shown.append(Said("thought", plain(str(block.get("text", "")))))
            case "tool-call":
                arguments = one_line(as_text(block.get("args")), ARGUMENTS_WIDTH)
                shown.append(Said("call", f"{one_line(str(block.get('name')), 80)} {arguments}"))
    return [one for one in shown if one.text.strip()]


def _tool(payload: Document) -> Said:
    name = one_line(str(payload.get("toolName")), 80)
    value = (payload.get("outcome") or {}).get("value")
    if not isinstance(value, dict):
        return Said("result", f"{name}: {_result(value)}")
    kind = value.get("kind")
    match kind:
        case "failed" | "denied":
            return Said("problem", f"{name} {kind}: {_reason(value)}")
        case "interaction-required":
            return Said("note", f"{name} asks a person")
        case "completed":
            return Said("result", f"{name}: {_result(value.get('output'))}")
        case _:
            return Said("result", f"{name}: {_result(value)}")


def _answered(payload: Document) -> Said:
    """The answer of an agent that was used as a tool."""
    given = payload.get("input")
    outcome = given.get("outcome") if isinstance(given, dict) else None
    value = {"kind": "completed", "output": outcome} if not isinstance(outcome, dict) else outcome
    return _tool({"toolName": _name(payload), "outcome": {"value": value}})


def _result(output: Any) -> str:
    if isinstance(output, dict) and {"exitCode", "stdout"} <= output.keys():
        printed = str(output["stdout"]).strip() or str(output.get("stderr", "")).strip()
        return one_line(f"exit {output['exitCode']}: {printed}", RESULT_WIDTH)
    return one_line(as_text(output), RESULT_WIDTH)


def _failure(outcome: Any) -> str:
    value = outcome.get("value") if isinstance(outcome, dict) else None
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"]
    return _reason(value) if isinstance(value, dict) else one_line(as_text(value), RESULT_WIDTH)


def _reason(document: Document) -> str:
    code, message = document.get("code"), document.get("message") or document.get("reason")
    return one_line(" ".join(str(part) for part in (code, message) if part), 400)


def _name(payload: Document) -> str:
    agent = payload.get("agent")
    agent_id = agent.get("id") if isinstance(agent, dict) else None
    found = agent_id or payload.get("path") or payload.get("toolName") or payload.get("effectId")
    return one_line(str(found), 80)


def _documents(value: Any) -> Sequence[Document]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
