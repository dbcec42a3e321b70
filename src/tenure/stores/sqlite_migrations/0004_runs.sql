-- Whose runs wrote to a conversation, so that an owner can be forgotten.

CREATE TABLE runs (
    tenant TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    user_id TEXT NOT NULL,                 -- '': the owner without a user
    PRIMARY KEY (tenant, conversation_id, run_id)
) WITHOUT ROWID;

CREATE INDEX runs_by_owner ON runs (tenant, agent_id, user_id, conversation_id);
