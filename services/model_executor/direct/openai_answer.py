"""Gathers the stream of an OpenAI-compatible server (model-executor 13.4). Events are plain objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.jsjson import dumps
from services.model_executor.direct.answer import Gathered, Usage, count, signed, tool_block
from services.model_executor.direct.failures import CallRefused, ProviderFailed
from services.model_executor.direct.prompt import REASONING_FIELDS, Call

_NEAR_FULL = 0.99


class OpenAiStream:
    """One answer in the making."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._parts: dict[str, list[str]] = {}
        """Texts of the blocks `text` and of reasoning, by the field they came in, in order of appearance."""
        self._refusal: list[str] = []
        self._tools: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}
        self._finish: str | None = None
        self._model = ""

    @property
    def complete(self) -> bool:
        """All of the answer is there: only the end of the stream says so, usage may follow the rest."""
        return False

    @property
    def usable(self) -> bool:
        """The answer can be given though its stream broke off: its finish reason has come."""
        return self._finish is not None

    def take(self, event: Any) -> None:
        """Takes one chunk; what has an unknown shape is passed over."""
        if not isinstance(event, dict):
            return
        if isinstance(event.get("model"), str):
            self._model = event["model"] or self._model
        self._take_usage(event.get("usage"))
        choices = event.get("choices")
        for choice in choices[:1] if isinstance(choices, list) else []:
            if not isinstance(choice, dict):
                continue
            self._take_usage(choice.get("usage"))
            if isinstance(choice.get("finish_reason"), str):
                self._finish = choice["finish_reason"]
            if isinstance(choice.get("delta"), dict):
                self._delta(choice["delta"])

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _delta(self, delta: Mapping[str, Any]) -> None:
        for name in REASONING_FIELDS:
            if isinstance(delta.get(name), str) and delta[name]:
                self._parts.setdefault(name, []).append(delta[name])
                break
        if isinstance(delta.get("content"), str) and delta["content"]:
            self._parts.setdefault("content", []).append(delta["content"])
        if isinstance(delta.get("refusal"), str):
            self._refusal.append(delta["refusal"])
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else []:
            if isinstance(piece, dict):
                self._tool(piece)

    def _tool(self, piece: Mapping[str, Any]) -> None:
        given = piece.get("id") if isinstance(piece.get("id"), str) else ""
        index = piece.get("index")
        if isinstance(index, bool) or not isinstance(index, int):
            known = [at for at, tool in self._tools.items() if given and tool["id"] == given]
            last = max(self._tools, default=0)
            index = known[0] if known else (max(self._tools, default=-1) + 1 if given else last)
        tool = self._tools.setdefault(index, {"id": "", "name": "", "arguments": []})
        tool["id"] = tool["id"] or given
        function = piece.get("function")
        if isinstance(function, dict):
            if isinstance(function.get("name"), str):
                tool["name"] = tool["name"] or function["name"]
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                tool["arguments"].append(arguments)
            elif isinstance(arguments, dict):
                # Some servers give the object itself.
                tool["arguments"].append(dumps(arguments))

    def finish(self, request_id: str) -> Gathered:
        """The answer. Raises CallRefused, ProviderFailed for an answer that is none."""
        blocks = self._blocks()
        try:
            finish = self._reason(blocks)
        except CallRefused as refused:
            refused.spent = self._counted()
            raise
        return Gathered(
            finish=finish,
            blocks=blocks,
            usage=self._counted(),
            request_id=request_id,
            model=self._model,
        )

    def _blocks(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        for name, texts in self._parts.items():
            text = "".join(texts)
            if name == "content":
                blocks.append({"type": "text", "text": text})
            else:
                metadata = {**signed(self._call, name), "replay": "turn"}
                blocks.append({"type": "reasoning", "text": text, "providerMetadata": metadata})
        used: set[str] = set()
        for index in sorted(self._tools):
            tool = self._tools[index]
            arguments = "".join(tool["arguments"])
            blocks.append(tool_block(self._call, index, tool["id"], tool["name"], arguments, used))
        return blocks

    def _reason(self, blocks: list[dict[str, Any]]) -> str:
        has_tool = bool(self._tools)
        if self._refusal and not blocks:
            raise CallRefused("content_policy", "".join(self._refusal) or "The model refused.")
        finish = self._finish
        if finish is None and not self._call.selected.provider.compat.get("finish_reason", True) and blocks:
            finish = "stop"
        match finish:
            case "stop" | "end":
                return "tool-calls" if has_tool else "stop"
            case "tool_calls" | "function_call":
                return "tool-calls"
            case "length":
                usage, window = self._counted(), self._call.selected.info.context_window
                prompt = 0 if usage is None else usage.input + usage.cached + usage.cache_write
                if not blocks and prompt >= _NEAR_FULL * window:
                    raise CallRefused("context_overflow", "The prompt fills the model's context window.")
                return "length"
            case "content_filter":
                raise CallRefused("content_policy", "The provider's content filter stopped the answer.")
            case "network_error":
                raise ProviderFailed("lost", "The provider's answer broke off: network_error.")
            case None:
                raise ProviderFailed("lost", "The provider's stream ended without a finish reason.")
            case _ if blocks:
                return "other"
            case _:
                raise ProviderFailed("lost", f"The provider's answer is empty: {finish[:100]}.")

    def _counted(self) -> Usage | None:
        raw = self._usage
        if not raw:
            return None
        prompt, completion = raw.get("prompt_tokens_details"), raw.get("completion_tokens_details")
        prompt = prompt if isinstance(prompt, dict) else {}
        completion = completion if isinstance(completion, dict) else {}
        cached = _first(
            prompt.get("cached_tokens"), raw.get("prompt_cache_hit_tokens"), raw.get("cached_tokens")
        )
        written = count(prompt.get("cache_write_tokens")) or 0
        return Usage(
            input=max(0, (count(raw.get("prompt_tokens")) or 0) - cached - written),
            output=count(raw.get("completion_tokens")) or 0,
            cached=cached,
            cache_write=written,
            reasoning=count(completion.get("reasoning_tokens")) or 0,
        )


def _first(*values: Any) -> int:
    return next((found for found in map(count, values) if found is not None), 0)
