-- The queries of the SQLite driver on long-term memories; see sqlite.sql.

-- name: memory_owner
SELECT owner, uid, user_id, generation, told_since, terms_version
FROM memory_owners
WHERE tenant = :tenant AND agent_id = :agent_id AND user_id = :user_id;

-- name: memory_owners_of_agent
SELECT owner, uid, user_id, generation, told_since, terms_version
FROM memory_owners
WHERE tenant = :tenant AND agent_id = :agent_id
ORDER BY user_id;

-- name: add_memory_owner
INSERT INTO memory_owners (tenant, agent_id, user_id, owner, uid, terms_version)
SELECT :tenant, :agent_id, :user_id, coalesce(max(owner), 0) + 1, :uid, :terms_version
FROM memory_owners
WHERE tenant = :tenant;

-- name: set_generation
UPDATE memory_owners SET generation = :generation
WHERE tenant = :tenant AND owner = :owner;

-- name: set_told_since
UPDATE memory_owners SET told_since = :rev
WHERE tenant = :tenant AND owner = :owner;

-- name: set_terms_version
UPDATE memory_owners SET terms_version = :terms_version
WHERE tenant = :tenant AND owner = :owner;

-- name: last_memory_rev
SELECT value FROM counters WHERE tenant = :tenant AND name = 'memory';

-- name: next_memory_rev
INSERT INTO counters (tenant, name, value) VALUES (:tenant, 'memory', :count)
ON CONFLICT (tenant, name) DO UPDATE SET value = value + :count
RETURNING value;

-- name: add_memory
INSERT INTO memories (
    tenant, owner, number, id, rev, graph_id, task_id, session_id, speaker, created_at, updated_at,
    valid_from, valid_to, content_hash, sameness, record, terms, length, asks
) VALUES (
    :tenant, :owner, :number, :id, :rev, :graph_id, :task_id, :session_id, :speaker, :created_at,
    :updated_at, :valid_from, :valid_to, :content_hash, :sameness, :record, :terms,
    :length, :asks
);

-- name: change_memory
UPDATE memories
SET rev = :rev, updated_at = :updated_at, valid_from = :valid_from, valid_to = :valid_to,
    content_hash = :content_hash, sameness = :sameness, record = :record, terms = :terms,
    length = :length, asks = :asks
WHERE tenant = :tenant AND number = :number;

-- name: find_memory
SELECT owner, number, record, terms
FROM memories
WHERE tenant = :tenant AND owner = :owner AND id = :id;

-- name: find_memory_by_number
SELECT owner, number, record
FROM memories
WHERE tenant = :tenant AND number = :number;

-- name: find_same_memory
SELECT owner, number, record
FROM memories
WHERE tenant = :tenant AND owner = :owner AND sameness = :sameness
ORDER BY number
LIMIT 1;

-- name: changed_memories
SELECT number, record, terms, length, asks
FROM memories
WHERE tenant = :tenant AND owner = :owner AND rev > :rev
ORDER BY rev;

-- name: list_memories_created_at_asc
SELECT owner, number, id, created_at, updated_at, terms, record
FROM memories
WHERE tenant = :tenant AND owner = :owner
    AND (:graph_id IS NULL OR graph_id = :graph_id)
    AND (:task_id IS NULL OR task_id = :task_id)
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:speaker IS NULL OR speaker = :speaker)
    AND (:start_date IS NULL OR created_at >= :start_date)
    AND (:end_date IS NULL OR created_at <= :end_date)
    AND (:as_of IS NULL OR valid_from IS NULL OR valid_from <= :as_of)
    AND (:as_of IS NULL OR valid_to IS NULL OR valid_to > :as_of)
ORDER BY created_at, id;

-- name: list_memories_created_at_desc
SELECT owner, number, id, created_at, updated_at, terms, record
FROM memories
WHERE tenant = :tenant AND owner = :owner
    AND (:graph_id IS NULL OR graph_id = :graph_id)
    AND (:task_id IS NULL OR task_id = :task_id)
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:speaker IS NULL OR speaker = :speaker)
    AND (:start_date IS NULL OR created_at >= :start_date)
    AND (:end_date IS NULL OR created_at <= :end_date)
    AND (:as_of IS NULL OR valid_from IS NULL OR valid_from <= :as_of)
    AND (:as_of IS NULL OR valid_to IS NULL OR valid_to > :as_of)
ORDER BY created_at DESC, id DESC;

-- name: list_memories_updated_at_asc
SELECT owner, number, id, created_at, updated_at, terms, record
FROM memories
WHERE tenant = :tenant AND owner = :owner
    AND (:graph_id IS NULL OR graph_id = :graph_id)
    AND (:task_id IS NULL OR task_id = :task_id)
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:speaker IS NULL OR speaker = :speaker)
    AND (:start_date IS NULL OR created_at >= :start_date)
    AND (:end_date IS NULL OR created_at <= :end_date)
    AND (:as_of IS NULL OR valid_from IS NULL OR valid_from <= :as_of)
    AND (:as_of IS NULL OR valid_to IS NULL OR valid_to > :as_of)
ORDER BY updated_at, id;

-- name: list_memories_updated_at_desc
SELECT owner, number, id, created_at, updated_at, terms, record
FROM memories
WHERE tenant = :tenant AND owner = :owner
    AND (:graph_id IS NULL OR graph_id = :graph_id)
    AND (:task_id IS NULL OR task_id = :task_id)
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:speaker IS NULL OR speaker = :speaker)
    AND (:start_date IS NULL OR created_at >= :start_date)
    AND (:end_date IS NULL OR created_at <= :end_date)
    AND (:as_of IS NULL OR valid_from IS NULL OR valid_from <= :as_of)
    AND (:as_of IS NULL OR valid_to IS NULL OR valid_to > :as_of)
ORDER BY updated_at DESC, id DESC;

-- name: count_memories
SELECT count(*) AS count
FROM memories
WHERE tenant = :tenant AND owner = :owner
    AND (:graph_id IS NULL OR graph_id = :graph_id)
    AND (:task_id IS NULL OR task_id = :task_id)
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:speaker IS NULL OR speaker = :speaker)
    AND (:start_date IS NULL OR created_at >= :start_date)
    AND (:end_date IS NULL OR created_at <= :end_date)
    AND (:as_of IS NULL OR valid_from IS NULL OR valid_from <= :as_of)
    AND (:as_of IS NULL OR valid_to IS NULL OR valid_to > :as_of);

-- name: delete_memory
DELETE FROM memories WHERE tenant = :tenant AND number = :number;

-- name: add_memory_version
INSERT INTO memory_versions (tenant, owner, number, version, record)
VALUES (:tenant, :owner, :number, :version, :record);

-- name: memory_versions
SELECT record
FROM memory_versions
WHERE tenant = :tenant AND owner = :owner AND number = :number
ORDER BY version;

-- name: delete_memory_versions
DELETE FROM memory_versions
WHERE tenant = :tenant AND owner = :owner AND number = :number;

-- name: add_posting
INSERT INTO memory_postings (tenant, owner, term, number, tf)
VALUES (:tenant, :owner, :term, :number, :tf);

-- name: postings
SELECT number, tf
FROM memory_postings
WHERE tenant = :tenant AND owner = :owner AND term = :term;

-- name: delete_posting
DELETE FROM memory_postings
WHERE tenant = :tenant AND owner = :owner AND term = :term AND number = :number;

-- name: find_embedder
SELECT generation, identity, name, dimensions
FROM memory_embedders
WHERE tenant = :tenant AND identity = :identity;

-- name: find_generation
SELECT generation, identity, name, dimensions
FROM memory_embedders
WHERE tenant = :tenant AND generation = :generation;

-- name: add_embedder
INSERT INTO memory_embedders (tenant, generation, identity, name, dimensions)
SELECT :tenant, coalesce(max(generation), 0) + 1, :identity, :name, :dimensions
FROM memory_embedders
WHERE tenant = :tenant;

-- name: unembedded_memories
SELECT id, record
FROM memories
WHERE tenant = :tenant AND owner = :owner AND id > :after AND NOT EXISTS (
    SELECT 1
    FROM memory_vectors
    WHERE memory_vectors.tenant = :tenant AND memory_vectors.owner = :owner
        AND generation = :generation AND memory_vectors.number = memories.number
)
ORDER BY id
LIMIT :limit;

-- name: count_unembedded
SELECT count(*) AS count
FROM memories
WHERE tenant = :tenant AND owner = :owner AND NOT EXISTS (
    SELECT 1
    FROM memory_vectors
    WHERE memory_vectors.tenant = :tenant AND memory_vectors.owner = :owner
        AND generation = :generation AND memory_vectors.number = memories.number
);

-- name: set_vector
INSERT INTO memory_vectors (tenant, owner, generation, number, rev, vector)
SELECT tenant, owner, :generation, number, :rev, :vector
FROM memories
WHERE tenant = :tenant AND owner = :owner AND id = :id AND content_hash = :content_hash
ON CONFLICT (tenant, owner, generation, number) DO UPDATE
SET rev = excluded.rev, vector = excluded.vector;

-- name: touch_vectors
UPDATE memory_vectors SET rev = :rev
WHERE tenant = :tenant AND owner = :owner AND number = :number AND generation IN (
    SELECT generation FROM memory_embedders WHERE tenant = :tenant
);

-- name: find_vector
SELECT vector
FROM memory_vectors
WHERE tenant = :tenant AND owner = :owner AND generation = :generation AND number = :number;

-- name: changed_vectors
SELECT number, vector
FROM memory_vectors
WHERE tenant = :tenant AND owner = :owner AND generation = :generation AND rev > :rev
ORDER BY rev;

-- name: delete_vectors
DELETE FROM memory_vectors
WHERE tenant = :tenant AND owner = :owner AND number = :number AND generation IN (
    SELECT generation FROM memory_embedders WHERE tenant = :tenant
);

-- name: delete_other_generations
DELETE FROM memory_vectors
WHERE tenant = :tenant AND owner = :owner AND generation <> :generation;

-- name: add_removal
INSERT INTO memory_removals (tenant, owner, rev, number)
VALUES (:tenant, :owner, :rev, :number);

-- name: removals
SELECT number
FROM memory_removals
WHERE tenant = :tenant AND owner = :owner AND rev > :rev
ORDER BY rev;

-- name: count_removals
SELECT count(*) AS count, max(rev) AS rev
FROM memory_removals
WHERE tenant = :tenant AND owner = :owner;

-- name: forget_removals
DELETE FROM memory_removals
WHERE tenant = :tenant AND owner = :owner;
