-- Long-term memories. An owner is an agent and perhaps a user; the other tables know it by number. What can
-- be filtered, ordered or looked up stands in columns, all of it and the rest in `record`, canonical JSON
-- in pure ASCII. A memory's number and every revision are drawn from one counter of the tenant, so that
-- "what has changed since" is one range.

CREATE TABLE memory_owners (
    tenant TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    user_id TEXT NOT NULL,                 -- '': the owner without a user
    owner INTEGER NOT NULL,
    uid TEXT NOT NULL,                     -- tells it from an owner of the same number in another file
    generation INTEGER,                    -- the embedder whose vectors answer
    told_since INTEGER NOT NULL DEFAULT 0, -- removals up to this revision are forgotten
    terms_version INTEGER NOT NULL,        -- of the function that made the terms
    extra TEXT,
    PRIMARY KEY (tenant, agent_id, user_id),
    UNIQUE (tenant, owner)
) WITHOUT ROWID;

CREATE TABLE memories (
    tenant TEXT NOT NULL,
    owner INTEGER NOT NULL,
    number INTEGER NOT NULL,
    id TEXT NOT NULL,
    rev INTEGER NOT NULL,                  -- of its last change
    graph_id TEXT,
    task_id TEXT,
    session_id TEXT,
    speaker TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    valid_from TEXT,
    valid_to TEXT,
    content_hash TEXT NOT NULL,
    sameness TEXT NOT NULL,                -- equal for two that say the same in the same place
    record TEXT NOT NULL,
    terms TEXT NOT NULL,                   -- JSON: how often each term is in it
    length INTEGER NOT NULL,               -- the sum of these
    asks INTEGER NOT NULL,                 -- 1: it has a question
    extra TEXT,
    PRIMARY KEY (tenant, number),
    UNIQUE (tenant, owner, id)
);

CREATE INDEX memories_by_rev ON memories (tenant, owner, rev);
CREATE INDEX memories_by_sameness ON memories (tenant, owner, sameness, number);
CREATE INDEX memories_by_creation ON memories (tenant, owner, created_at, id);
CREATE INDEX memories_by_update ON memories (tenant, owner, updated_at, id);

-- Earlier versions of a memory.
CREATE TABLE memory_versions (
    tenant TEXT NOT NULL,
    owner INTEGER NOT NULL,
    number INTEGER NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (tenant, owner, number, version)
) WITHOUT ROWID;

-- Which memories have a term, and how often.
CREATE TABLE memory_postings (
    tenant TEXT NOT NULL,
    owner INTEGER NOT NULL,
    term TEXT NOT NULL,
    number INTEGER NOT NULL,
    tf INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner, term, number)
) WITHOUT ROWID;

-- Embedders, by what tells their vectors apart.
CREATE TABLE memory_embedders (
    tenant TEXT NOT NULL,
    generation INTEGER NOT NULL,
    identity TEXT NOT NULL,
    name TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    PRIMARY KEY (tenant, generation),
    UNIQUE (tenant, identity)
) WITHOUT ROWID;

-- Vectors: float32, little-endian, unit norm. In a table of their own, since a memory has two while it
-- is being embedded anew.
CREATE TABLE memory_vectors (
    tenant TEXT NOT NULL,
    owner INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    number INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (tenant, owner, generation, number)
);

CREATE INDEX memory_vectors_by_rev ON memory_vectors (tenant, owner, generation, rev);

-- Which memories were removed when, so that others forget them too.
CREATE TABLE memory_removals (
    tenant TEXT NOT NULL,
    owner INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner, rev, number)
) WITHOUT ROWID;
