"""Gathers the stream of an Anthropic server (model-executor 13.4). Events are plain objects."""

from __future__ import annotations

from typing import Any, Final

from services.model_executor.direct.answer import Gathered, Usage, count, signed, tool_block
from services.model_executor.direct.failures import CallRefused, ProviderFailed
from services.model_executor.direct.prompt import Call

_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "length",
}


class AnthropicStream:
    """One answer in the making."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._blocks: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}
        self._stop: str | None = None
        self._ended = False
        self._model = ""

    @property
    def complete(self) -> bool:
        """All of the answer is there; nothing that matters follows."""
        return self._ended

    @property
    def usable(self) -> bool:
        """The answer can be given though its stream broke off: never, its last event is the proof."""
        return False

    def take(self, event: Any) -> None:
        """Takes one event; what has an unknown shape is passed over."""
        if not isinstance(event, dict):
            return
        index = event.get("index")
        match event.get("type"):
            case "message_start":
                message = event.get("message")
                if isinstance(message, dict):
                    self._model = message["model"] if isinstance(message.get("model"), str) else ""
                    self._take_usage(message.get("usage"))
            case "content_block_start" if isinstance(index, int):
                block = event.get("content_block")
                if isinstance(block, dict):
                    self._blocks[index] = {
                        **block,
                        "pieces": [],
                        "signature": str(block.get("signature") or ""),
                    }
            case "content_block_delta" if isinstance(index, int) and index in self._blocks:
                if isinstance(event.get("delta"), dict):
                    self._delta(self._blocks[index], event["delta"])
            case "message_delta":
                delta = event.get("delta")
                if isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
                    self._stop = delta["stop_reason"]
                self._take_usage(event.get("usage"))
            case "message_stop":
                self._ended = True

    def _delta(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        for name in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(name), str):
                block["pieces"].append(delta[name])
        if isinstance(delta.get("signature"), str):
            block["signature"] += delta["signature"]

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def finish(self, request_id: str) -> Gathered:
        """The answer. Raises CallRefused, ProviderFailed for an answer that is none."""
        blocks: list[dict[str, Any]] = []
        used: set[str] = set()
        for index in sorted(self._blocks):
            block = self._block(index, self._blocks[index], used)
            if block is not None:
                blocks.append(block)
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

    def _block(self, index: int, block: dict[str, Any], used: set[str]) -> dict[str, Any] | None:
        text = "".join(block["pieces"])
        match block.get("type"):
            case "text":
                return {"type": "text", "text": str(block.get("text") or "") + text}
            case "thinking":
                text = str(block.get("thinking") or "") + text
                made: dict[str, Any] = {"type": "reasoning", "text": text}
                if block["signature"]:
                    made["providerMetadata"] = signed(self._call, block["signature"])
                return made
            case "redacted_thinking":
                metadata = signed(self._call, str(block.get("data") or ""), redacted=True)
                return {"type": "reasoning", "text": "", "providerMetadata": metadata}
            case "tool_use":
                given = block.get("id")
                given = given if isinstance(given, str) else ""
                tool = tool_block(self._call, index, given, str(block.get("name") or ""), text, used)
                if not text and isinstance(block.get("input"), dict):
                    tool["args"] = block["input"]
                return tool
        return None

    def _reason(self, blocks: list[dict[str, Any]]) -> str:
        stop = self._stop
        if stop is None or not self._ended:
            raise ProviderFailed("lost", "The provider's stream ended before its message did.")
        if stop in _FINISH:
            return _FINISH[stop]
        if stop == "model_context_window_exceeded":
            if blocks:
                return "length"
            raise CallRefused("context_overflow", "The prompt fills the model's context window.")
        if stop in ("refusal", "sensitive"):
            raise CallRefused("content_policy", "The model refused the request.")
        if blocks:
            return "other"
        raise ProviderFailed("lost", f"The provider's answer is empty: {stop[:100]}.")

    def _counted(self) -> Usage | None:
        raw = self._usage
        if not raw:
            return None
        details = raw.get("output_tokens_details")
        return Usage(
            input=count(raw.get("input_tokens")) or 0,
            output=count(raw.get("output_tokens")) or 0,
            cached=count(raw.get("cache_read_input_tokens")) or 0,
            cache_write=count(raw.get("cache_creation_input_tokens")) or 0,
            reasoning=count(details.get("thinking_tokens")) or 0 if isinstance(details, dict) else 0,
        )
