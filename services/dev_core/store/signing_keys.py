"""The key that run tokens are signed with: made once, kept with everything else (model-executor 7).

Its table is made when the key is first asked for, so a database of before has it after the next start, and
an older program, which never looks at it, still reads the file.
"""

from __future__ import annotations

from services.dev_core.store.transaction import Tx

_TABLE = """
CREATE TABLE IF NOT EXISTS signing_keys (
  kid TEXT PRIMARY KEY,
  pem TEXT NOT NULL,
  created_ms INTEGER NOT NULL
) WITHOUT ROWID
"""


def newest(tx: Tx) -> tuple[str, str] | None:
    """Id and private key (PEM) of the key in use."""
    tx.run(_TABLE)
    row = tx.one("SELECT kid, pem FROM signing_keys ORDER BY created_ms DESC, kid LIMIT 1")
    return None if row is None else (row[0], row[1])


def keep(tx: Tx, kid: str, pem: str, now_ms: int) -> tuple[str, str]:
    """Keeps a key; the one in use from now on, which is an older one when there is one."""
    found = newest(tx)
    if found is not None:
        return found
    tx.run("INSERT INTO signing_keys VALUES (?, ?, ?)", (kid, pem, now_ms))
    return kid, pem
