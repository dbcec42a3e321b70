-- What runs need until they end: that they have begun, their checkpoints, and their tool calls. Texts that
-- mean nothing to the store are bytes, in UTF-8 where half a surrogate pair is encoded like any character.

-- Finds the branch of a run.
CREATE INDEX branches_by_run ON branches (tenant, conversation_id, run_id)
WHERE run_id IS NOT NULL;

-- Of a run's branch: how many messages are on it.
ALTER TABLE branches ADD COLUMN logged INTEGER NOT NULL DEFAULT 0;

UPDATE branches
SET logged = (
    SELECT count(*)
    FROM entries
    WHERE entries.tenant = branches.tenant AND entries.conversation_id = branches.conversation_id
        AND entries.branch = branches.branch
)
WHERE run_id IS NOT NULL;

-- A row whose agent_id is '' says of nobody that they took part; it has only numbers.
ALTER TABLE runs ADD COLUMN ordinal INTEGER;                         -- NULL: not begun by `begin_run`
ALTER TABLE runs ADD COLUMN input BLOB;                              -- NULL: ended or redacted
ALTER TABLE runs ADD COLUMN revision INTEGER;
ALTER TABLE runs ADD COLUMN started_at TEXT;
ALTER TABLE runs ADD COLUMN ended_at TEXT;
ALTER TABLE runs ADD COLUMN last_version INTEGER NOT NULL DEFAULT 0; -- of all checkpoints there ever were
ALTER TABLE runs ADD COLUMN last_call INTEGER NOT NULL DEFAULT 0;

-- Finds the runs that can be resumed.
CREATE INDEX runs_unfinished ON runs (tenant, conversation_id, ordinal)
WHERE input IS NOT NULL;

CREATE TABLE checkpoints (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    node_path BLOB NOT NULL,
    scope BLOB NOT NULL,
    state BLOB NOT NULL,
    logged INTEGER NOT NULL,               -- how many messages the run's branch had then
    created_at TEXT NOT NULL,
    PRIMARY KEY (tenant, conversation_id, run_id, version),
    UNIQUE (tenant, conversation_id, run_id, checkpoint_id)
) WITHOUT ROWID;

-- Finds the checkpoints that are the last one of their scope, without reading the states.
CREATE INDEX checkpoints_by_scope ON checkpoints (tenant, conversation_id, run_id, scope, version);

CREATE TABLE calls (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    node_path BLOB NOT NULL,
    position INTEGER NOT NULL,
    origin BLOB NOT NULL,
    place INTEGER NOT NULL,
    tool BLOB NOT NULL,
    args BLOB NOT NULL,
    after_version INTEGER NOT NULL,
    outcome BLOB,                          -- NULL: not known
    is_rolled_back INTEGER NOT NULL DEFAULT 0,
    is_undone INTEGER NOT NULL DEFAULT 0,
    started_at TEXT NOT NULL,
    finished_at TEXT,
    PRIMARY KEY (tenant, conversation_id, run_id, number)
) WITHOUT ROWID;
