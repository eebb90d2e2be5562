-- Parallel workers have generators of their own: only in the leader are a session's ids in order.
CREATE FUNCTION outbox.uuid_v7() RETURNS uuid
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
    AS 'MODULE_PATHNAME', 'outbox_drainer_uuid_v7';
COMMENT ON FUNCTION outbox.uuid_v7() IS
    'A new UUID of version 7 (RFC 9562); within one session each is greater than the one before';

CREATE FUNCTION outbox.typeid(prefix text) RETURNS text
    LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
    AS 'MODULE_PATHNAME', 'outbox_drainer_typeid_new';
COMMENT ON FUNCTION outbox.typeid(text) IS
    'A new TypeID with this prefix of 1 to 63 lower-case letters';

CREATE FUNCTION outbox.typeid(prefix text, id uuid) RETURNS text
    LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_typeid';
COMMENT ON FUNCTION outbox.typeid(text, uuid) IS
    'The TypeID of an id with this prefix of 1 to 63 lower-case letters';

