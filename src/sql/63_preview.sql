CREATE FUNCTION outbox.preview_message(id uuid) RETURNS jsonb
    LANGUAGE C STABLE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_preview_message';
COMMENT ON FUNCTION outbox.preview_message(uuid) IS 'What outbox.preview shows, with the body as text';
REVOKE ALL ON FUNCTION outbox.preview_message(uuid) FROM PUBLIC;

CREATE FUNCTION outbox.preview(id uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $function$
#variable_conflict use_variable
DECLARE
    message pg_catalog.jsonb := outbox.preview_message(id);
BEGIN
    IF (message OPERATOR(pg_catalog.#>>) '{properties,content_type}')
            OPERATOR(pg_catalog.~*) '^\s*[a-z]+/([^\s;]+\+)?json\s*(;|$)'
        AND message OPERATOR(pg_catalog.->>) 'body' IS NOT NULL
    THEN
        -- Not all that claims to be JSON is, and not all JSON is jsonb (\u0000, huge numbers).
        BEGIN
            RETURN pg_catalog.jsonb_set(message, '{body}',
                (message OPERATOR(pg_catalog.->>) 'body')::pg_catalog.jsonb, false);
        EXCEPTION
            WHEN data_exception OR program_limit_exceeded THEN
                RETURN message;
        END;
    END IF;
    RETURN message;
END
$function$;
COMMENT ON FUNCTION outbox.preview(uuid) IS
    'The message that is sent for an event: exchange, routing_key, mandatory, properties, headers, body_size and body (parsed where it is JSON, as body_base64 where it is no text); or refused, with the error_code and detail under which it is rejected';
REVOKE ALL ON FUNCTION outbox.preview(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.preview(uuid) TO pg_monitor;
