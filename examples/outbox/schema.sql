CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    article text NOT NULL CHECK (article <> '')
);

-- What is to be published. A row whose message Throng will never accept keeps the reason.
CREATE TABLE IF NOT EXISTS outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key uuid NOT NULL DEFAULT gen_random_uuid(),
    channel text NOT NULL,
    data jsonb NOT NULL,
    refused text
);

-- Wakes the relay when a transaction with new rows is committed.
CREATE OR REPLACE FUNCTION notify_outbox() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NOTIFY outbox; RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER outbox AFTER INSERT ON outbox
    FOR EACH STATEMENT EXECUTE FUNCTION notify_outbox();
