-- The queries of the SQLite driver, one named section each. Loaded by stores/migrations.py.

-- name: find_conversation
SELECT conversation_id, branch, last_seq, message_count, revision, created_at, updated_at
FROM conversations
WHERE tenant = :tenant AND session_id = :session_id;

-- name: list_conversations
SELECT session_id, message_count, revision, created_at, updated_at
FROM conversations
WHERE tenant = :tenant
ORDER BY updated_at DESC, session_id
LIMIT :limit;

-- name: create_conversation
INSERT INTO conversations (
    tenant, session_id, conversation_id, branch, last_seq, message_count, revision,
    created_at, updated_at
) VALUES (:tenant, :session_id, :conversation_id, 1, 0, 0, 0, :now, :now);

-- name: create_branch
INSERT INTO branches (tenant, conversation_id, branch, created_at)
VALUES (:tenant, :conversation_id, 1, :now);

-- name: has_message
SELECT 1
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND message_id = :message_id;

-- name: append_entry
INSERT INTO entries (
    tenant, conversation_id, branch, seq, message_id, run_id, kind, created_at, body
) VALUES (
    :tenant, :conversation_id, :branch, :seq, :message_id, :run_id, 'message', :created_at, :body
);

-- name: advance_conversation
UPDATE conversations
SET last_seq = :last_seq, message_count = :message_count, revision = revision + 1, updated_at = :now
WHERE tenant = :tenant AND session_id = :session_id;

-- name: read_last
SELECT body
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq <= :last_seq
ORDER BY seq DESC
LIMIT :limit;
