-- The queries of the SQLite driver on who takes part in conversations; see sqlite.sql.

-- name: add_run
INSERT INTO runs (tenant, conversation_id, run_id, agent_id, user_id)
VALUES (:tenant, :conversation_id, :run_id, :agent_id, :user_id)
ON CONFLICT (tenant, conversation_id, run_id) DO UPDATE
SET agent_id = excluded.agent_id, user_id = excluded.user_id
WHERE runs.agent_id = '';

-- name: copy_runs
INSERT INTO runs (tenant, conversation_id, run_id, agent_id, user_id)
SELECT tenant, :to_conversation_id, run_id, agent_id, user_id
FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id AND agent_id <> '';

-- name: delete_runs
DELETE FROM runs WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: delete_runs_of_owner
DELETE FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id
    AND agent_id = :agent_id AND user_id = :user_id;

-- name: runs_of_owner
SELECT run_id
FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id
    AND agent_id = :agent_id AND user_id = :user_id;

-- name: messages_of_owner
SELECT DISTINCT entries.message_id
FROM runs
JOIN entries USING (tenant, conversation_id, run_id)
WHERE runs.tenant = :tenant AND agent_id = :agent_id AND user_id = :user_id;

-- name: other_owner
SELECT 1
FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id AND agent_id <> ''
    AND NOT (agent_id = :agent_id AND user_id = :user_id)
LIMIT 1;

-- name: conversations_of_owner
SELECT session_id
FROM conversations
WHERE tenant = :tenant AND conversation_id IN (
    SELECT conversation_id FROM runs
    WHERE tenant = :tenant AND agent_id = :agent_id AND user_id = :user_id
)
ORDER BY session_id;

-- name: forget_postings
DELETE FROM memory_postings WHERE tenant = :tenant AND owner = :owner;

-- name: forget_vectors
DELETE FROM memory_vectors WHERE tenant = :tenant AND owner = :owner;

-- name: forget_versions
DELETE FROM memory_versions WHERE tenant = :tenant AND owner = :owner;

-- name: forget_memories
DELETE FROM memories WHERE tenant = :tenant AND owner = :owner;

-- name: forget_owner
DELETE FROM memory_owners WHERE tenant = :tenant AND owner = :owner;
