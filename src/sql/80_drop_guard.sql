CREATE FUNCTION outbox.guard_drop() RETURNS event_trigger
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_guard_drop';
COMMENT ON FUNCTION outbox.guard_drop() IS
    'Event trigger: refuses to drop the extension while there are unsent events, unless outbox_drainer.allow_drop is on';
REVOKE ALL ON FUNCTION outbox.guard_drop() FROM PUBLIC;

-- DROP OWNED, because it drops the extensions of a role too.
CREATE EVENT TRIGGER outbox_drainer_guard ON ddl_command_start
    WHEN TAG IN ('DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox.guard_drop();
COMMENT ON EVENT TRIGGER outbox_drainer_guard IS
    'Refuses to drop outbox_drainer while there are unsent events, unless outbox_drainer.allow_drop is on';
ALTER EVENT TRIGGER outbox_drainer_guard ENABLE ALWAYS;

