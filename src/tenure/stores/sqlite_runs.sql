-- The queries of the SQLite driver on runs, checkpoints and tool calls; see sqlite.sql.

-- name: find_run_branch
SELECT branch, parent_seq, logged
FROM branches INDEXED BY branches_by_run
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id;

-- name: set_logged
UPDATE branches SET logged = :logged
WHERE tenant = :tenant AND conversation_id = :conversation_id AND branch = :branch;

-- name: count_logged
UPDATE branches
SET logged = (
    SELECT count(*)
    FROM entries
    WHERE entries.tenant = :tenant AND entries.conversation_id = :conversation_id
        AND entries.branch = branches.branch
)
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id IS NOT NULL;

-- name: next_run
INSERT INTO counters (tenant, name, value) VALUES (:tenant, 'run', 1)
ON CONFLICT (tenant, name) DO UPDATE SET value = value + 1
RETURNING value;

-- name: begin_run
UPDATE runs
SET ordinal = :ordinal, input = :input, revision = :revision, started_at = :now
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id;

-- name: find_run
SELECT run_id, agent_id, user_id, ordinal, input, revision, started_at, ended_at
FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id;

-- name: list_runs
SELECT run_id, agent_id, user_id, ordinal, input, revision, started_at, ended_at
FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id AND ordinal IS NOT NULL
ORDER BY ordinal;

-- name: list_unfinished_runs
SELECT run_id, agent_id, user_id, ordinal, input, revision, started_at, ended_at
FROM runs
WHERE tenant = :tenant AND conversation_id = :conversation_id AND input IS NOT NULL
ORDER BY ordinal;

-- name: end_run
UPDATE runs SET input = NULL, ended_at = :now
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND ordinal IS NOT NULL AND ended_at IS NULL;

-- name: drop_inputs
UPDATE runs SET input = NULL
WHERE tenant = :tenant AND conversation_id = :conversation_id AND input IS NOT NULL;

-- name: next_version
INSERT INTO runs (tenant, conversation_id, run_id, agent_id, user_id, last_version)
VALUES (:tenant, :conversation_id, :run_id, '', '', 1)
ON CONFLICT (tenant, conversation_id, run_id) DO UPDATE SET last_version = last_version + 1
RETURNING last_version AS number;

-- name: next_call
INSERT INTO runs (tenant, conversation_id, run_id, agent_id, user_id, last_call)
VALUES (:tenant, :conversation_id, :run_id, '', '', 1)
ON CONFLICT (tenant, conversation_id, run_id) DO UPDATE SET last_call = last_call + 1
RETURNING last_call AS number;

-- name: add_checkpoint
INSERT INTO checkpoints (
    tenant, conversation_id, run_id, version, checkpoint_id, node_path, scope, state, logged, created_at
) VALUES (
    :tenant, :conversation_id, :run_id, :version, :checkpoint_id, :node_path, :scope, :state, :logged,
    :now
);

-- name: has_checkpoint
SELECT 1
FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND checkpoint_id = :checkpoint_id;

-- name: has_version
SELECT 1
FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND version = :version;

-- name: highest_version
SELECT max(version) AS version
FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id;

-- name: list_checkpoints
SELECT checkpoint_id, version, node_path, scope, state, logged, created_at
FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
ORDER BY version;

-- name: prune_checkpoints
DELETE FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND version IN (
        SELECT version
        FROM checkpoints AS older INDEXED BY checkpoints_by_scope
        WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
            AND version < (
                SELECT min(version)
                FROM (
                    SELECT version
                    FROM checkpoints
                    WHERE tenant = :tenant AND conversation_id = :conversation_id
                        AND run_id = :run_id
                    ORDER BY version DESC
                    LIMIT :keep_last
                )
            )
            AND EXISTS (
                SELECT 1
                FROM checkpoints AS later
                WHERE later.tenant = :tenant AND later.conversation_id = :conversation_id
                    AND later.run_id = :run_id AND later.scope = older.scope
                    AND later.version > older.version
            )
    );

-- name: delete_later_checkpoints
DELETE FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND version > :version;

-- name: delete_checkpoints_of_run
DELETE FROM checkpoints
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id;

-- name: delete_checkpoints
DELETE FROM checkpoints WHERE tenant = :tenant AND conversation_id = :conversation_id;

-- name: begin_call
INSERT INTO calls (
    tenant, conversation_id, run_id, number, node_path, position, origin, place, tool, args,
    after_version, started_at
) VALUES (
    :tenant, :conversation_id, :run_id, :number, :node_path, :position, :origin, :place, :tool, :args,
    :after_version, :now
);

-- name: end_call
UPDATE calls SET outcome = :outcome, finished_at = :now
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND number = :number;

-- name: roll_back_calls
UPDATE calls SET is_rolled_back = 1
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND after_version >= :version;

-- name: mark_undone
UPDATE calls SET is_undone = 1
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
    AND number = :number AND is_rolled_back = 1;

-- name: list_calls
SELECT number, node_path, position, origin, place, tool, args, after_version, outcome, is_rolled_back,
    is_undone, started_at, finished_at
FROM calls
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id
ORDER BY number;

-- name: delete_calls_of_run
DELETE FROM calls
WHERE tenant = :tenant AND conversation_id = :conversation_id AND run_id = :run_id;

-- name: delete_calls
DELETE FROM calls WHERE tenant = :tenant AND conversation_id = :conversation_id;
