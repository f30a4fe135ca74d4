"""`effect.intent` and `effect.outcome`: most of what a harness sends, answered from the commit itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import UNSET

from protocol import jsjson
from protocol.errors import HarnessApiError
from protocol.jsjson import RawJson
from services.dev_core.artifacts.saving import ArtifactSaver
from services.dev_core.clock import now_ms
from services.dev_core.effects import intent, outcome
from services.dev_core.effects.held import storable
from services.dev_core.effects.intent import Asked, Decision, Recovery
from services.dev_core.effects.poster import ActionPoster
from services.dev_core.harness.channel import Serving
from services.dev_core.harness.connection import Connection
from services.dev_core.harness.run import held_run
from services.dev_core.store.database import Store


class EffectRequests:
    """Serves requests about effects."""

    def __init__(self, store: Store, poster: ActionPoster, saver: ArtifactSaver, recovery: Recovery) -> None:
        self._store = store
        self._poster = poster
        self._saver = saver
        self._recovery = recovery

    def intent(self, connection: Connection, serving: Serving) -> None:
        """Decides who carries an effect out."""
        params = serving.params
        run = held_run(connection, params.run_id)
        asked = Asked(params.effect, serving.raw["effect"], params.request_hash, serving.plain)
        intent.check_asked(run.held, asked)
        effect_id = params.effect.effect_id
        # Two leaves of a flow may share a name, and then an effect.
        if effect_id in run.asked and run.held.engine == "agent":
            raise HarnessApiError("invalid", f"The run asked about the effect {effect_id} before")
        run.asked[effect_id] = None

        def decided(decision: Decision | None, error: BaseException | None) -> None:
            if decision is None:
                assert error is not None
                serving.refuse(error)
                return
            if decision.status == "save":
                serving.go_on(self._saver.save(run, effect_id, asked.document.get("input")))
                return
            run.asked[effect_id] = decision.handed_out
            if decision.action:
                self._poster.post(run.session_id, effect_id)
            serving.answer(decision.answer())

        self._store.run(
            partial(
                intent.decide,
                run=run.held,
                asked=asked,
                facts=run.facts,
                mcp=run.mcp,
                recovery=self._recovery,
                abort_message=None if run.abort is None else run.abort.message,
                now_ms=now_ms(),
            ),
            decided,
        )

    def outcome(self, connection: Connection, serving: Serving) -> None:
        """Records what carrying an effect out came to."""
        params = serving.params
        run = held_run(connection, params.run_id)
        effect_id = storable(params.effect_id)
        work: Any
        if params.error is not UNSET:
            work = partial(
                outcome.record_error,
                run=run.held,
                effect_id=effect_id,
                error=params.error,
                now_ms=now_ms(),
            )
        else:
            work = partial(
                outcome.record_value,
                run=run.held,
                effect_id=effect_id,
                value=jsjson.dumps(params.value, plain=serving.plain),
                failed=outcome.is_failure(params.value),
                cancelled=run.abort is not None and run.abort.kind == "cancel",
                now_ms=now_ms(),
                handed_out=run.asked.get(effect_id),
            )

        def recorded(text: str | None, error: BaseException | None) -> None:
            if error is not None:
                serving.refuse(error)
            elif text is None:
                serving.answer({"status": "uncertain"})
            else:
                serving.answer({"status": "completed", "outcome": RawJson(text)})

        self._store.run(work, recorded)
