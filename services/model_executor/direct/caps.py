"""Spend caps of the direct route (model-executor 13.1): what is counted, and when a call is refused.

A call is refused when what its scope has settled and what its calls in flight will probably cost reach the cap.
A call in flight counts as the average of the scope's last 20 settled ones, so calls that start together just
below a cap pass, and may overshoot it by what is in flight.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from services.model_executor.direct.host_clock import Moment

Scope = Literal["turn", "session", "day"]
Unit = Literal["usd", "tokens"]
SCOPES: Final[tuple[Scope, ...]] = ("turn", "session", "day")
UNITS: Final[tuple[Unit, ...]] = ("usd", "tokens")
RECENT: Final = 20
"""Settled calls of a scope that make its average."""
KEEP_SPENT_MS: Final = 366 * 24 * 3600 * 1000
"""What a scope has spent is forgotten when nothing was added to it for so long."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS reservations (
  tenant TEXT NOT NULL, session TEXT NOT NULL, effect TEXT NOT NULL, turn TEXT NOT NULL,
  instance TEXT NOT NULL, usd REAL NOT NULL, tokens REAL NOT NULL, PRIMARY KEY (tenant, session, effect)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (
  scope TEXT NOT NULL, key TEXT NOT NULL, usd REAL NOT NULL, tokens REAL NOT NULL, recent TEXT NOT NULL,
  touched_ms INTEGER NOT NULL, PRIMARY KEY (scope, key)
) WITHOUT ROWID;
"""
_PERIOD: Final = {"turn": "this turn", "session": "this session", "day": "this UTC day"}
_NAMES: Final = {"usd": "USD", "tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class Cap:
    """One cap: at most `limit` US dollars or tokens in a scope."""

    scope: Scope
    unit: Unit
    limit: float

    @property
    def name(self) -> str:
        """Its name in the configuration file."""
        return f"caps.{self.scope}_{self.unit}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call costs, or will probably cost."""

    usd: float
    tokens: float

    def of(self, unit: Unit) -> float:
        """The amount in a unit."""
        return self.usd if unit == "usd" else self.tokens


NOTHING: Final = Cost(0, 0)


@dataclass(frozen=True, slots=True)
class Spender:
    """Whose spending a call is: tenant, session, effect and turn."""

    tenant: str
    session: str
    effect: str
    turn: str

    def keys(self, day: str) -> dict[Scope, str]:
        """What names each scope. A day is everybody's; JSON keeps ids with odd characters apart."""
        return {
            "turn": json.dumps([self.tenant, self.session, self.turn]),
            "session": json.dumps([self.tenant, self.session]),
            "day": day,
        }


def refusal(
    db: sqlite3.Connection,
    caps: Sequence[Cap],
    spender: Spender,
    now: Moment,
    lives: Callable[[str], bool],
) -> str | None:
    """Why a call may not start; None when it may. `lives` says whether an instance is still there."""
    keys = spender.keys(now.day)
    for cap in caps:
        settled, average = _settled(db, cap, keys[cap.scope])
        count, estimated = _in_flight(db, cap, spender, lives)
        reserved = estimated if average is None else count * average
        if settled + reserved >= cap.limit:
            calls = "1 call" if count == 1 else f"{count} calls"
            return (
                f"The cap {cap.name} is reached: {cap.limit:.10g} {_NAMES[cap.unit]} for {_PERIOD[cap.scope]} "
                f"({_shown(cap.scope, spender, now)}), {settled:.6g} spent and {reserved:.6g} reserved for "
                f"{calls} in flight. Raise {cap.name} in the model configuration to go on."
            )
    return None


def _shown(scope: Scope, spender: Spender, now: Moment) -> str:
    return {"turn": spender.turn, "session": spender.session, "day": now.day}[scope]


def _settled(db: sqlite3.Connection, cap: Cap, key: str) -> tuple[float, float | None]:
    """What a scope has spent, and the average of its last calls; None before its first."""
    row = db.execute(
        "SELECT usd, tokens, recent FROM spent WHERE scope = ? AND key = ?", (cap.scope, key)
    ).fetchone()
    if row is None:
        return 0.0, None
    at = UNITS.index(cap.unit)
    recent = [pair[at] for pair in json.loads(row[2])]
    return row[at], sum(recent) / len(recent) if recent else None


def _in_flight(
    db: sqlite3.Connection, cap: Cap, spender: Spender, lives: Callable[[str], bool]
) -> tuple[int, float]:
    """How many calls of a scope are in flight, and the sum of what their prompts cost."""
    where = {"turn": "tenant = ? AND session = ? AND turn = ?", "session": "tenant = ? AND session = ?"}
    parameters = {
        "turn": (spender.tenant, spender.session, spender.turn),
        "session": (spender.tenant, spender.session),
    }
    rows = db.execute(
        f"SELECT instance, count(*), sum({cap.unit}) FROM reservations "
        f"WHERE {where.get(cap.scope, '1')} GROUP BY instance",
        parameters.get(cap.scope, ()),
    ).fetchall()
    count, estimated = 0, 0.0
    for instance, calls, amount in rows:
        if lives(instance):
            count += calls
            estimated += amount
        else:
            # Its process is gone, and what it spent on these nobody will tell.
            db.execute("DELETE FROM reservations WHERE instance = ?", (instance,))
    return count, estimated


def reserve(db: sqlite3.Connection, spender: Spender, instance: str, estimate: Cost) -> None:
    """A call starts."""
    db.execute(
        "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            spender.tenant,
            spender.session,
            spender.effect,
            spender.turn,
            instance,
            estimate.usd,
            estimate.tokens,
        ),
    )


def settle(
    db: sqlite3.Connection, key: tuple[str, str, str], instance: str, cost: Cost | None, now: Moment
) -> None:
    """A call of an instance has ended; `cost` None: nothing is known to have been spent. Counted once."""
    where = "WHERE tenant = ? AND session = ? AND effect = ? AND instance = ?"
    row = db.execute(f"SELECT turn FROM reservations {where}", (*key, instance)).fetchone()
    if row is None:
        return
    db.execute(f"DELETE FROM reservations {where}", (*key, instance))
    if cost is None:
        return
    keys: Mapping[Scope, str] = Spender(*key, row[0]).keys(now.day)
    for scope in SCOPES:
        found = db.execute(
            "SELECT usd, tokens, recent FROM spent WHERE scope = ? AND key = ?", (scope, keys[scope])
        ).fetchone()
        usd, tokens, recent = found or (0.0, 0.0, "[]")
        last = [*json.loads(recent), [cost.usd, cost.tokens]][-RECENT:]
        db.execute(
            "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?, ?)",
            (scope, keys[scope], usd + cost.usd, tokens + cost.tokens, json.dumps(last), now.wall_ms),
        )


def sweep(db: sqlite3.Connection, now: Moment) -> None:
    """Forgets scopes that nobody spends in any more."""
    db.execute("DELETE FROM spent WHERE touched_ms < ?", (now.wall_ms - KEEP_SPENT_MS,))
