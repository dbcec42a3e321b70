-- The conversation log. A conversation points at one branch and at that branch's last committed entry;
-- a branch continues its parent from `parent_seq` on. Order is by seq, which goes on counting from the
-- parent, so that a place in a history is one number whichever branches it runs through. Times are
-- ISO 8601 in UTC with microseconds; bodies are canonical JSON in pure ASCII.

CREATE TABLE conversations (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,              -- the user's name for it
    conversation_id TEXT NOT NULL,         -- ours; stays when the name changes
    branch INTEGER NOT NULL,               -- the branch that is the history now
    last_seq INTEGER NOT NULL,             -- the last committed entry of it
    message_count INTEGER NOT NULL,
    revision INTEGER NOT NULL,             -- raised by one by every commit
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    metadata TEXT NOT NULL DEFAULT '{}',
    extra TEXT,
    PRIMARY KEY (tenant, session_id)
) WITHOUT ROWID;

CREATE INDEX conversations_by_update ON conversations (tenant, updated_at, session_id);

CREATE TABLE branches (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    branch INTEGER NOT NULL,
    parent_conversation_id TEXT,           -- another conversation's, when this one is a fork of it
    parent_branch INTEGER,                 -- NULL: this branch starts from nothing
    parent_seq INTEGER NOT NULL DEFAULT 0, -- the last entry that the two share
    run_id TEXT,                           -- set while a run writes here and no conversation points here
    created_at TEXT NOT NULL,
    extra TEXT,
    PRIMARY KEY (tenant, conversation_id, branch)
) WITHOUT ROWID;

CREATE TABLE entries (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    branch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    run_id TEXT,
    kind TEXT NOT NULL,                    -- 'message'; later versions add others
    created_at TEXT NOT NULL,
    body TEXT NOT NULL,
    extra TEXT,
    PRIMARY KEY (tenant, conversation_id, branch, seq),
    UNIQUE (tenant, conversation_id, branch, message_id)
) WITHOUT ROWID;
