-- The queries of the SQLite driver, one named section each. Loaded by stores/migrations.py. Every one of
-- them is limited to one tenant.

-- name: find_conversation
SELECT session_id, conversation_id, branch, last_seq, message_count, revision, created_at, updated_at,
    input_tokens, output_tokens, requests, metadata
FROM conversations
WHERE tenant = :tenant AND session_id = :session_id;

-- name: list_conversations
SELECT session_id, conversation_id, branch, last_seq, message_count, revision, created_at, updated_at,
    input_tokens, output_tokens, requests, metadata
FROM conversations
WHERE tenant = :tenant
    AND (:agent_id IS NULL OR conversation_id IN (
        SELECT conversation_id FROM runs
        WHERE tenant = :tenant AND agent_id = :agent_id AND (:user_id IS NULL OR user_id = :user_id)
    ))
ORDER BY updated_at DESC, session_id
LIMIT :limit;

-- name: list_conversations_after
SELECT session_id, conversation_id, branch, last_seq, message_count, revision, created_at, updated_at,
    input_tokens, output_tokens, requests, metadata
FROM conversations
WHERE tenant = :tenant AND updated_at <= :updated_at
    AND (updated_at < :updated_at OR session_id > :session_id)
    AND (:agent_id IS NULL OR conversation_id IN (
        SELECT conversation_id FROM runs
        WHERE tenant = :tenant AND agent_id = :agent_id AND (:user_id IS NULL OR user_id = :user_id)
    ))
ORDER BY updated_at DESC, session_id
LIMIT :limit;

-- name: create_conversation
INSERT INTO conversations (
    tenant, session_id, conversation_id, branch, last_seq, message_count, revision,
    created_at, updated_at
) VALUES (
    :tenant, :session_id, :conversation_id, 1, :last_seq, :message_count, 0, :now, :now
);

-- name: update_conversation
UPDATE conversations
SET branch = :branch, last_seq = :last_seq, message_count = :message_count, revision = :revision,
    updated_at = :now, input_tokens = input_tokens + :input_tokens,
    output_tokens = output_tokens + :output_tokens, requests = requests + :requests
WHERE tenant = :tenant AND session_id = :session_id;

-- name: rename_conversation
UPDATE conversations SET session_id = :new_session_id
WHERE tenant = :tenant AND session_id = :session_id;

-- name: set_metadata
UPDATE conversations SET metadata = :metadata
WHERE tenant = :tenant AND session_id = :session_id;

-- name: add_commit
INSERT INTO commits (tenant, conversation_id, revision, branch, last_seq)
VALUES (:tenant, :conversation_id, :revision, :branch, :last_seq);

-- name: find_commit
SELECT branch, last_seq
FROM commits
WHERE tenant = :tenant AND conversation_id = :conversation_id AND revision = :revision;

-- name: create_branch
INSERT INTO branches (
    tenant, conversation_id, branch, parent_conversation_id, parent_branch, parent_seq, run_id,
    created_at
) VALUES (
    :tenant, :conversation_id, :branch, :parent_conversation_id, :parent_branch, :parent_seq, :run_id,
    :now
);

-- name: find_branch
SELECT parent_conversation_id, parent_branch, parent_seq
FROM branches
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: list_branches
SELECT branch, parent_conversation_id, parent_branch, parent_seq, run_id
FROM branches
WHERE tenant = :tenant AND conversation_id = :conversation_id
ORDER BY branch;

-- name: highest_branch
SELECT max(branch) AS branch
FROM branches
WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: list_forks
SELECT conversation_id, branch
FROM branches
WHERE tenant = :tenant AND parent_conversation_id = :conversation_id;

-- name: detach_branch
UPDATE branches SET parent_conversation_id = NULL, parent_branch = NULL, parent_seq = 0
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: delete_branch
DELETE FROM branches
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: has_message
SELECT 1
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND message_id = :message_id AND seq <= :high;

-- name: add_entry
INSERT INTO entries (
    tenant, conversation_id, branch, seq, message_id, run_id, kind, created_at, body
) VALUES (
    :tenant, :conversation_id, :branch, :seq, :message_id, :run_id, :kind, :created_at, :body
);

-- name: read_forward
SELECT seq, run_id, kind, body
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq > :low AND seq <= :high
ORDER BY seq
LIMIT :limit;

-- name: read_backward
SELECT body
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq > :low AND seq <= :high
ORDER BY seq DESC
LIMIT :limit;

-- name: count_entries
SELECT count(*) AS count
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq > :low AND seq <= :high;

-- name: highest_seq
SELECT max(seq) AS seq
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: first_logged
SELECT run_id, kind
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq > :low AND seq <= :high AND message_id = :message_id;

-- name: list_entries
SELECT branch, seq, message_id, run_id, body
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id
ORDER BY branch, seq;

-- name: list_branch_entries
SELECT seq, message_id, body
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
ORDER BY seq;

-- name: move_entry
UPDATE entries SET branch = :new_branch, seq = :new_seq, kind = :kind
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch AND seq = :seq;

-- name: move_media_use
UPDATE media_uses SET branch = :new_branch, seq = :new_seq
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch AND seq = :seq;

-- name: move_entries
UPDATE entries SET branch = :new_branch, seq = seq + :shift, kind = :kind
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: move_media_uses
UPDATE media_uses SET branch = :new_branch, seq = seq + :shift
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: copy_entries
INSERT INTO entries (
    tenant, conversation_id, branch, seq, message_id, run_id, kind, created_at, body, extra
)
SELECT tenant, :to_conversation_id, :to_branch, seq, message_id, run_id, kind, created_at, body, extra
FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq > :low AND seq <= :high;

-- name: copy_media_uses
INSERT INTO media_uses (tenant, conversation_id, branch, seq, digest)
SELECT tenant, :to_conversation_id, :to_branch, seq, digest
FROM media_uses
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch
    AND seq > :low AND seq <= :high;

-- name: change_entry
UPDATE entries SET body = :body
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch AND seq = :seq;

-- name: remove_entry
DELETE FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch AND seq = :seq;

-- name: remove_branch_entries
DELETE FROM entries
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: delete_entries
DELETE FROM entries WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: delete_branches
DELETE FROM branches WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: delete_commits
DELETE FROM commits WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: delete_conversation
DELETE FROM conversations WHERE tenant = :tenant AND session_id = :session_id;

-- name: add_media
INSERT INTO media (tenant, digest, data) VALUES (:tenant, :digest, :data)
ON CONFLICT DO NOTHING;

-- name: add_media_use
INSERT INTO media_uses (tenant, conversation_id, branch, seq, digest)
VALUES (:tenant, :conversation_id, :branch, :seq, :digest)
ON CONFLICT DO NOTHING;

-- name: find_media
SELECT data FROM media WHERE tenant = :tenant AND digest = :digest;

-- name: media_of_entry
SELECT digest
FROM media_uses
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch AND seq = :seq;

-- name: media_of_branch
SELECT DISTINCT digest
FROM media_uses
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: media_of_conversation
SELECT DISTINCT digest
FROM media_uses
WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: remove_media_use
DELETE FROM media_uses
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch AND seq = :seq;

-- name: remove_branch_media_uses
DELETE FROM media_uses
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: delete_media_uses
DELETE FROM media_uses WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: delete_unused_media
DELETE FROM media
WHERE tenant = :tenant AND digest = :digest AND NOT EXISTS (
    SELECT 1 FROM media_uses WHERE tenant = :tenant AND digest = :digest
);

-- name: find_lease
SELECT token, holder, expires_at
FROM leases
WHERE tenant = :tenant AND session_id = :session_id;

-- name: take_lease
INSERT INTO leases (tenant, session_id, token, holder, expires_at)
VALUES (:tenant, :session_id, :token, :holder, :expires_at)
ON CONFLICT (tenant, session_id) DO UPDATE
SET token = excluded.token, holder = excluded.holder, expires_at = excluded.expires_at;

-- name: renew_lease
UPDATE leases SET expires_at = :expires_at
WHERE tenant = :tenant AND session_id = :session_id AND holder = :holder AND token = :token;

-- name: release_lease
UPDATE leases SET holder = NULL
WHERE tenant = :tenant AND session_id = :session_id AND holder = :holder;

-- name: delete_lease
DELETE FROM leases WHERE tenant = :tenant AND session_id = :session_id;

-- name: next_token
INSERT INTO counters (tenant, name, value) VALUES (:tenant, 'lease', 1)
ON CONFLICT (tenant, name) DO UPDATE SET value = value + 1
RETURNING value;

-- name: drop_expired_tickets
DELETE FROM tickets
WHERE tenant = :tenant AND session_id = :session_id AND expires_at <= :now;

-- name: renew_ticket
UPDATE tickets SET expires_at = :expires_at
WHERE tenant = :tenant AND session_id = :session_id AND holder = :holder;

-- name: add_ticket
INSERT INTO tickets (tenant, session_id, ticket, holder, expires_at)
SELECT :tenant, :session_id, coalesce(max(ticket), 0) + 1, :holder, :expires_at
FROM tickets
WHERE tenant = :tenant AND session_id = :session_id;

-- name: first_ticket
SELECT holder
FROM tickets
WHERE tenant = :tenant AND session_id = :session_id
ORDER BY ticket
LIMIT 1;

-- name: drop_ticket
DELETE FROM tickets
WHERE tenant = :tenant AND session_id = :session_id AND holder = :holder;

-- name: delete_tickets
DELETE FROM tickets WHERE tenant = :tenant AND session_id = :session_id;
