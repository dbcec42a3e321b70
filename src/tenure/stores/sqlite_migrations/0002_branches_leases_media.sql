-- What forks, conflicts, runs and big media need beside the log itself.

ALTER TABLE conversations ADD COLUMN input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN output_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN requests INTEGER NOT NULL DEFAULT 0;

-- What the history was at each revision: a branch, and where it ended.
CREATE TABLE commits (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    branch INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, conversation_id, revision)
) WITHOUT ROWID;

INSERT INTO commits
SELECT tenant, conversation_id, revision, branch, last_seq FROM conversations;

-- Finds the forks of a conversation, and the branch of a run.
CREATE INDEX branches_by_parent ON branches (tenant, parent_conversation_id)
WHERE parent_conversation_id IS NOT NULL;

-- Numbers that only ever rise: the tokens of leases.
CREATE TABLE counters (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- Who may run on a conversation.
CREATE TABLE leases (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    holder TEXT,                           -- NULL: nobody
    expires_at TEXT NOT NULL,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;

-- Who stands in line for a lease, in order of the tickets.
CREATE TABLE tickets (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    ticket INTEGER NOT NULL,
    holder TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    PRIMARY KEY (tenant, session_id, ticket),
    UNIQUE (tenant, session_id, holder)
) WITHOUT ROWID;

-- Media too big for a body live once a tenant, under the hash of their bytes, while an entry uses them.
CREATE TABLE media (
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (tenant, digest)
);

CREATE TABLE media_uses (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    branch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (tenant, conversation_id, branch, seq, digest)
) WITHOUT ROWID;

CREATE INDEX media_uses_by_digest ON media_uses (tenant, digest);
