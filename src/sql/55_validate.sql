-- For everybody: it reads nothing but its argument. STABLE, because a limit is a setting.
CREATE FUNCTION outbox.validate(event outbox.event, OUT error_code text, OUT detail text) RETURNS record
    LANGUAGE C STABLE STRICT PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_validate';
COMMENT ON FUNCTION outbox.validate(outbox.event) IS
    'Why a producer would be refused this event, as a stable code and in words; both NULL when it can be sent. For rows that came with a number of their own (a restored dump, a replica), which are not checked when they are inserted';
