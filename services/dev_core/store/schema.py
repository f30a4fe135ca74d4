"""The tables of the development core, their version, and how a database is opened.

What is hot (leases, statuses, positions) stands apart from what is large (states, inputs, snapshots), so
that a renewal never rewrites a document. Documents are compact JSON text.
"""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION_ID: Final = 0x57484C54  # "WHLT"
_VERSION_1: Final = """
CREATE TABLE manifests (
  hash TEXT PRIMARY KEY,
  text TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE agents (
  id TEXT PRIMARY KEY,
  manifest_hash TEXT NOT NULL REFERENCES manifests(hash),
  actions_url TEXT,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- `cursor` and `length` say where the kept transcript stands; `turn_cursor` and `turn_length` where the
-- segments of the turn that is under way have brought it, NULL before the first of them ended.
CREATE TABLE sessions (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  agent_id TEXT NOT NULL,
  manifest_hash TEXT NOT NULL REFERENCES manifests(hash),
  status TEXT NOT NULL,
  epoch INTEGER NOT NULL DEFAULT 0,
  lease_owner TEXT,
  lease_until_ms INTEGER,
  turn_id TEXT,
  segment INTEGER NOT NULL DEFAULT 0,
  cursor INTEGER NOT NULL DEFAULT -1,
  length INTEGER NOT NULL DEFAULT 0,
  turn_cursor INTEGER,
  turn_length INTEGER,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL
);
CREATE INDEX sessions_to_resume ON sessions(id) WHERE status = 'runnable' OR lease_owner IS NOT NULL;

-- Names: info, input, state, turn_state, waits, pending, mcp_snapshot, mcp_diagnostics.
CREATE TABLE documents (
  session_id TEXT NOT NULL,
  name TEXT NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (session_id, name)
);

CREATE TABLE turns (
  session_id TEXT NOT NULL,
  turn_id TEXT NOT NULL,
  status TEXT NOT NULL,
  started_ms INTEGER NOT NULL,
  ended_ms INTEGER,
  result TEXT,
  PRIMARY KEY (session_id, turn_id)
);

-- An event with an effect shows that effect's outcome, which stands in its row alone. `base` is the
-- position that a transcript edit applies to.
CREATE TABLE events (
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  turn_id TEXT,
  effect_id TEXT,
  base INTEGER,
  time_ms INTEGER NOT NULL,
  payload TEXT NOT NULL,
  PRIMARY KEY (session_id, seq)
) WITHOUT ROWID;

CREATE TABLE effects (
  number INTEGER PRIMARY KEY,
  session_id TEXT NOT NULL,
  effect_id TEXT NOT NULL,
  turn_id TEXT NOT NULL,
  segment INTEGER NOT NULL,
  kind TEXT NOT NULL,
  call_id TEXT,
  runner TEXT NOT NULL,
  status TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  started_ms INTEGER NOT NULL,
  ended_ms INTEGER,
  attempts INTEGER NOT NULL DEFAULT 1,
  error TEXT,
  label TEXT NOT NULL,
  request TEXT NOT NULL,
  outcome TEXT,
  UNIQUE (session_id, effect_id)
);

CREATE TABLE actions (
  session_id TEXT NOT NULL,
  effect_id TEXT NOT NULL,
  url TEXT NOT NULL,
  state TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  sent_ms INTEGER,
  PRIMARY KEY (session_id, effect_id)
) WITHOUT ROWID;
CREATE INDEX actions_open ON actions(state) WHERE state IN ('new', 'sent');

CREATE TABLE workspaces (
  key TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  record TEXT NOT NULL,
  updated_ms INTEGER NOT NULL
) WITHOUT ROWID;
"""

# `path` is where in the workspace the end of a turn found it; removals are workspaces of sessions that are gone.
_VERSION_2: Final = """
CREATE TABLE artifacts (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  session_id TEXT NOT NULL,
  path TEXT,
  created_ms INTEGER NOT NULL
);
CREATE INDEX artifacts_of_session ON artifacts(session_id);
CREATE UNIQUE INDEX artifacts_at_path ON artifacts(session_id, path) WHERE path IS NOT NULL;

CREATE TABLE artifact_versions (
  artifact_id TEXT NOT NULL,
  version INTEGER NOT NULL,
  name TEXT NOT NULL,
  content_type TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  PRIMARY KEY (artifact_id, version)
) WITHOUT ROWID;
CREATE INDEX versions_of_blob ON artifact_versions(sha256);

CREATE TABLE removals (
  key TEXT PRIMARY KEY,
  created_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX workspaces_of_session ON workspaces(session_id);
"""

_VERSION_3: Final = """
CREATE INDEX turns_of_session ON turns(session_id);
"""

# What flows need. `engine` is agent, flow-1 or flow-2. A linked session runs an agent for an effect of its
# parent's turn, `nesting` levels below a person's session; its Actions go where those of `endpoint_agent_id`
# go (NULL: of its own agent). `turn_manifest_hash` is the manifest of the turn that is under way, NULL when
# it is the session's.
#
# A link is an agent effect and the linked turn that carries it out: queued (no turn yet), running, settled,
# or withdrawn, when the parent's turn ended first.
_VERSION_4: Final = """
ALTER TABLE agents ADD COLUMN engine TEXT NOT NULL DEFAULT 'agent';
ALTER TABLE sessions ADD COLUMN engine TEXT NOT NULL DEFAULT 'agent';
ALTER TABLE sessions ADD COLUMN parent_id TEXT;
ALTER TABLE sessions ADD COLUMN nesting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN endpoint_agent_id TEXT;
ALTER TABLE sessions ADD COLUMN turn_manifest_hash TEXT;
CREATE INDEX sessions_of_parent ON sessions(parent_id) WHERE parent_id IS NOT NULL;
ALTER TABLE actions ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;

CREATE TABLE links (
  number INTEGER PRIMARY KEY,
  session_id TEXT NOT NULL,
  effect_id TEXT NOT NULL,
  turn_id TEXT NOT NULL,
  linked_id TEXT NOT NULL,
  linked_turn_id TEXT,
  state TEXT NOT NULL,
  UNIQUE (session_id, effect_id)
);
CREATE INDEX links_open ON links(session_id, state) WHERE state IN ('queued', 'running');
CREATE INDEX links_of_linked ON links(linked_id, state);
"""

STEPS: Final = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
"""What leads from each version to the next; the version is the number of steps taken."""
SCHEMA_VERSION: Final = len(STEPS)


class SchemaUnusable(Exception):
    """The file is no database of this program, or one that a newer version wrote."""


def prepare(connection: sqlite3.Connection, name: str) -> None:
    """Creates the tables of a new database, brings an old one up to date, refuses a newer one.

    `name` is how messages call the database. Raises SchemaUnusable.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == APPLICATION_ID and version == SCHEMA_VERSION:
        return
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise SchemaUnusable(
            f"{name} has schema version {version}, this program knows {SCHEMA_VERSION}: "
            "start the newer version, or name another file in WHIPPLETREE_CORE_DB."
        )
    if application not in (0, APPLICATION_ID) or (tables and application == 0):
        raise SchemaUnusable(
            f"{name} is not a database of the development core: name another file in WHIPPLETREE_CORE_DB."
        )
    steps = "".join(STEPS[version:] if application == APPLICATION_ID else STEPS)
    connection.executescript(
        f"BEGIN IMMEDIATE; {steps} PRAGMA application_id = {APPLICATION_ID}; "
        f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )
