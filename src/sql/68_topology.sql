-- What is asked of the broker, or declared there: always by a drainer, which has a connection, and never by the
-- session. A session waits for the answer without holding anything.
CREATE FUNCTION outbox.ask_broker(
    action text,
    exchange text,
    queue text,
    routing_key text,
    type text,
    durable boolean,
    auto_delete boolean,
    internal boolean,
    arguments jsonb,
    deadline timestamptz,
    OUT outcome text,
    OUT ok boolean,
    OUT code integer,
    OUT reason text,
    OUT messages bigint,
    OUT consumers bigint
) RETURNS record
    LANGUAGE C VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'outbox_drainer_ask_broker';
COMMENT ON FUNCTION outbox.ask_broker(text, text, text, text, text, boolean, boolean, boolean, jsonb, timestamptz) IS
    'Internal: has a drainer ask the broker; outcome is answered, or why there is no answer: nobody, crowded, timed_out, connection_lost, drainer_ended';
REVOKE ALL ON FUNCTION outbox.ask_broker(text, text, text, text, text, boolean, boolean, boolean, jsonb, timestamptz) FROM PUBLIC;

-- Where no drainer will come, nobody is waited for.
CREATE FUNCTION outbox.answer_until(timeout interval) RETURNS timestamptz
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    deadline CONSTANT timestamptz := outbox.wait_until(timeout);
BEGIN
    RETURN CASE WHEN outbox.why_no_drainer_comes() IS NULL THEN deadline ELSE clock_timestamp() END;
END
$$;
COMMENT ON FUNCTION outbox.answer_until(interval) IS 'Internal: when a question that is asked now has to be answered';
REVOKE ALL ON FUNCTION outbox.answer_until(interval) FROM PUBLIC;

-- Only an action may have been carried out when its answer is lost.
CREATE FUNCTION outbox.refuse_unanswered(outcome text, reason text, timeout interval, acting boolean) RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    why CONSTANT text := outbox.why_nothing_is_drained();
    again CONSTANT text := CASE WHEN acting THEN 'It may have been done all the same; it can be repeated.' ELSE 'Try again.' END;
BEGIN
    CASE outcome
        WHEN 'nobody' THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = 'no drainer of this database is connected to a broker',
                DETAIL = coalesce(format('At present %s.', why), format('None was within %s.', timeout)),
                HINT = 'The broker is asked by a drainer; outbox.stat_drainer shows how the drainers stand.';
        WHEN 'crowded' THEN
            RAISE configuration_limit_exceeded USING
                MESSAGE = format('the broker could not be asked within %s', timeout),
                DETAIL = 'As many sessions as can ask at once are waiting for their answers.',
                HINT = 'Try again.';
        WHEN 'timed_out' THEN
            RAISE external_routine_exception USING
                MESSAGE = format('the broker has not answered within %s', timeout),
                DETAIL = coalesce(format('At present %s.', why), 'The drainer is connected and waits for the answer.'),
                HINT = again;
        WHEN 'connection_lost' THEN
            RAISE external_routine_exception USING
                MESSAGE = 'the connection to the broker ended before the answer came',
                DETAIL = coalesce(format('The drainer says: %s.', reason), 'No reason is known.'),
                HINT = again;
        ELSE
            RAISE external_routine_exception USING
                MESSAGE = 'the drainer ended before the answer of the broker came',
                HINT = again;
    END CASE;
END
$$;
COMMENT ON FUNCTION outbox.refuse_unanswered(text, text, interval, boolean) IS
    'Internal: the error for a question that the broker has not answered';
REVOKE ALL ON FUNCTION outbox.refuse_unanswered(text, text, interval, boolean) FROM PUBLIC;

CREATE FUNCTION outbox.refuse_by_broker(what text, code integer, reason text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    differs CONSTANT boolean := coalesce(code = 406 AND reason LIKE '%inequivalent arg%', false);
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = CASE code
            WHEN 403 THEN 'insufficient_privilege'
            WHEN 404 THEN 'undefined_object'
            WHEN 405 THEN 'object_in_use'
            WHEN 503 THEN 'invalid_parameter_value'
            WHEN 406 THEN CASE WHEN differs THEN 'duplicate_object' ELSE 'invalid_parameter_value' END
            ELSE 'external_routine_exception'
        END,
        MESSAGE = format('the broker refused to %s: %s', what, coalesce(reason, 'no reason was given')),
        DETAIL = format('Its reply code is %s.', code),
        HINT = CASE
            WHEN differs THEN 'What exists has to be declared as it is, or deleted first.'
            WHEN code = 403 THEN 'The drainer''s user of the broker needs the permission, or somebody who has it declares this. Names that begin with "amq." are the broker''s own.'
            WHEN code = 404 THEN 'What is bound has to be declared first.'
            WHEN code >= 500 THEN 'The broker has closed the drainer''s connection over it. The drainer connects again, and sends again what was unconfirmed.'
            WHEN code = 405 THEN 'Another connection has it for itself.'
            ELSE 'The log of the broker may say more.'
        END;
END
$$;
COMMENT ON FUNCTION outbox.refuse_by_broker(text, integer, text) IS 'Internal: the error for what the broker refused';
REVOKE ALL ON FUNCTION outbox.refuse_by_broker(text, integer, text) FROM PUBLIC;

-- What acts at the broker, which no ROLLBACK undoes.
CREATE FUNCTION outbox.act_at_broker(
    action text,
    what text,
    timeout interval,
    deadline timestamptz,
    exchange text DEFAULT NULL,
    queue text DEFAULT NULL,
    routing_key text DEFAULT NULL,
    type text DEFAULT NULL,
    durable boolean DEFAULT NULL,
    auto_delete boolean DEFAULT NULL,
    internal boolean DEFAULT NULL,
    arguments jsonb DEFAULT NULL
) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    answer record;
BEGIN
    answer := outbox.ask_broker(action, exchange, queue, routing_key, type, durable, auto_delete, internal, arguments, deadline);
    IF answer.outcome <> 'answered' THEN
        PERFORM outbox.refuse_unanswered(answer.outcome, answer.reason, timeout, true);
    ELSIF NOT answer.ok THEN
        PERFORM outbox.refuse_by_broker(what, answer.code, answer.reason);
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.act_at_broker(
    text, text, interval, timestamptz, text, text, text, text, boolean, boolean, boolean, jsonb
) IS 'Internal: has a drainer act at the broker, or raises an error';
REVOKE ALL ON FUNCTION outbox.act_at_broker(
    text, text, interval, timestamptz, text, text, text, text, boolean, boolean, boolean, jsonb
) FROM PUBLIC;

CREATE FUNCTION outbox.refuse_unrecordable(function text) RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE read_only_sql_transaction USING
            MESSAGE = format('cannot execute outbox.%s() in a read-only transaction', function),
            DETAIL = 'What it does is recorded in outbox.operation.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox.refuse_unrecordable(text) IS
    'Internal: raises an error before anything is done at the broker that could not be recorded';
REVOKE ALL ON FUNCTION outbox.refuse_unrecordable(text) FROM PUBLIC;

-- RabbitMQ answers a type that it does not know by closing the connection, under all that is unconfirmed.
CREATE FUNCTION outbox.declare_exchange(
    exchange text,
    type text DEFAULT 'topic',
    durable boolean DEFAULT true,
    auto_delete boolean DEFAULT false,
    internal boolean DEFAULT false,
    arguments jsonb DEFAULT NULL,
    timeout interval DEFAULT '10 s'
) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := outbox.answer_until(timeout);
BEGIN
    IF coalesce(exchange, '') = '' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'an exchange to be declared needs a name',
            DETAIL = 'The exchange without a name is the default exchange, which every broker has.';
    END IF;
    IF type IS NULL OR type NOT IN ('direct', 'fanout', 'topic', 'headers') AND type NOT LIKE 'x-_%' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('invalid value for "type": %s', quote_nullable(type)),
            DETAIL = 'Accepted is direct, fanout, topic or headers, or the type of a plugin, which begins with x-.';
    END IF;
    PERFORM outbox.refuse_unrecordable('declare_exchange');
    PERFORM outbox.act_at_broker('declare_exchange', format('declare exchange "%s"', exchange), timeout, deadline,
        exchange => exchange, type => type, durable => coalesce(durable, true), auto_delete => auto_delete,
        internal => internal, arguments => arguments);
    PERFORM outbox.record_operation('declare_exchange', 'default', NULL, jsonb_strip_nulls(jsonb_build_object(
        'exchange', exchange, 'type', type, 'durable', coalesce(durable, true), 'auto_delete', nullif(auto_delete, false),
        'internal', nullif(internal, false), 'arguments', arguments)));
END
$$;
COMMENT ON FUNCTION outbox.declare_exchange(text, text, boolean, boolean, boolean, jsonb, interval) IS
    'Declares an exchange at the broker, with the rights of the drainer''s user there; nothing happens when it exists as it is declared. No ROLLBACK undoes it. Waits for the answer at most for timeout. The type of a plugin that the broker does not have makes it close the drainer''s connection, and what is unconfirmed is sent again. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.declare_exchange(text, text, boolean, boolean, boolean, jsonb, interval) FROM PUBLIC;

CREATE FUNCTION outbox.declare_queue(
    queue text,
    durable boolean DEFAULT true,
    auto_delete boolean DEFAULT false,
    arguments jsonb DEFAULT NULL,
    exchange text DEFAULT NULL,
    routing_key text DEFAULT '#',
    binding_arguments jsonb DEFAULT NULL,
    timeout interval DEFAULT '10 s'
) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    deadline timestamptz := outbox.answer_until(timeout);
BEGIN
    IF coalesce(queue, '') = '' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a queue to be declared needs a name',
            DETAIL = 'A broker makes up the name of a queue without one, and nobody here would learn it.';
    END IF;
    IF exchange = '' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'a queue cannot be bound to the default exchange',
            DETAIL = 'The default exchange delivers to every queue by its name, without a binding.',
            HINT = 'Leave the exchange out.';
    END IF;
    PERFORM outbox.refuse_unrecordable('declare_queue');
    PERFORM outbox.act_at_broker('declare_queue', format('declare queue "%s"', queue), timeout, deadline,
        queue => queue, durable => coalesce(durable, true), auto_delete => auto_delete, arguments => arguments);
    IF exchange IS NOT NULL THEN
        PERFORM outbox.act_at_broker('bind_queue', format('bind queue "%s", which is declared, to exchange "%s"', queue, exchange),
            timeout, deadline, queue => queue, exchange => exchange, routing_key => routing_key, arguments => binding_arguments);
    END IF;
    PERFORM outbox.record_operation('declare_queue', 'default', NULL, jsonb_strip_nulls(jsonb_build_object(
        'queue', queue, 'durable', coalesce(durable, true), 'auto_delete', nullif(auto_delete, false), 'arguments', arguments,
        'exchange', exchange, 'routing_key', CASE WHEN exchange IS NOT NULL THEN routing_key END,
        'binding_arguments', CASE WHEN exchange IS NOT NULL THEN binding_arguments END)));
END
$$;
COMMENT ON FUNCTION outbox.declare_queue(text, boolean, boolean, jsonb, text, text, jsonb, interval) IS
    'Declares a queue at the broker, with the rights of the drainer''s user there, and where an exchange is given binds it to that one by routing_key; nothing happens where all that exists as it is declared. No ROLLBACK undoes it. Waits for the answers at most for timeout. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.declare_queue(text, boolean, boolean, jsonb, text, text, jsonb, interval) FROM PUBLIC;

-- A bounded part of the table from each end, since nobody knows the destinations but the events.
CREATE FUNCTION outbox.destinations_in_use(
    relay text,
    OUT destination text,
    OUT routing_key text,
    OUT waiting bigint
) RETURNS SETOF record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
#variable_conflict use_column
DECLARE
    default_exchange CONSTANT text := coalesce(
        (SELECT r.exchange FROM outbox.relay AS r WHERE r.name = destinations_in_use.relay), outbox.server_setting('exchange'));
    floor CONSTANT bigint := coalesce(
        (SELECT s.floor FROM outbox.relay_state AS s WHERE s.relay = destinations_in_use.relay), 0);
BEGIN
    RETURN QUERY
    WITH looked_at AS (
        (SELECT e.seq, e.destination, e.routing_key, e.event_type, e.published_at, e.dead_at
         FROM outbox.event AS e WHERE e.seq > floor ORDER BY e.seq LIMIT 10000)
        UNION
        (SELECT e.seq, e.destination, e.routing_key, e.event_type, e.published_at, e.dead_at
         FROM outbox.event AS e ORDER BY e.seq DESC LIMIT 10000)
        UNION
        (SELECT e.seq, e.destination, e.routing_key, e.event_type, e.published_at, e.dead_at
         FROM outbox.event AS e WHERE e.next_attempt_at IS NOT NULL ORDER BY e.next_attempt_at, e.seq LIMIT 10000)
    ),
    used AS (
        SELECT coalesce(l.destination, default_exchange) AS destination,
            coalesce(l.routing_key, l.event_type) AS routing_key,
            l.published_at IS NULL AS waits
        FROM looked_at AS l
        WHERE l.dead_at IS NULL
        UNION ALL
        SELECT default_exchange, NULL, false WHERE default_exchange <> ''
    )
    -- The routing key names a queue where it is the default exchange.
    SELECT u.destination, CASE WHEN u.destination = '' THEN u.routing_key END, count(*) FILTER (WHERE u.waits)
    FROM used AS u
    GROUP BY 1, 2
    ORDER BY 3 DESC, 1, 2
    LIMIT 1000;
END
$$;
COMMENT ON FUNCTION outbox.destinations_in_use(text) IS
    'Internal: the exchange of a relay, and where its events go; those of which most are waiting first';
REVOKE ALL ON FUNCTION outbox.destinations_in_use(text) FROM PUBLIC;

CREATE FUNCTION outbox.check_topology(
    relay text DEFAULT 'default',
    timeout interval DEFAULT '10 s',
    OUT destination text,
    OUT routing_key text,
    OUT waiting bigint,
    OUT "exists" boolean,
    OUT bound boolean,
    OUT detail text
) RETURNS SETOF record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_variable
DECLARE
    target outbox.relay := outbox.find_relay(relay);
    deadline timestamptz := outbox.answer_until(timeout);
    used record;
    answer record;
BEGIN
    FOR used IN SELECT u.* FROM outbox.destinations_in_use(relay) AS u ORDER BY u.destination, u.routing_key LOOP
        destination := used.destination;
        routing_key := used.routing_key;
        waiting := used.waiting;
        answer := outbox.ask_broker(
            CASE destination WHEN '' THEN 'queue_exists' ELSE 'exchange_exists' END,
            destination, routing_key, NULL, NULL, NULL, NULL, NULL, NULL, deadline);
        IF answer.outcome <> 'answered' THEN
            PERFORM outbox.refuse_unanswered(answer.outcome, answer.reason, timeout, false);
        END IF;
        "exists" := CASE WHEN destination = '' OR answer.ok THEN true WHEN answer.code = 404 THEN false END;
        -- A queue that another connection has for itself is there.
        bound := CASE
            WHEN destination = '' AND (answer.ok OR answer.code = 405) THEN true
            WHEN destination = '' AND answer.code = 404 THEN false
            WHEN answer.code = 404 THEN false
        END;
        detail := CASE
            WHEN NOT answer.ok AND answer.code <> 404 THEN format('the broker says: %s', answer.reason)
            WHEN destination = '' AND answer.ok THEN format('messages in the queue: %s, consumers: %s', answer.messages, answer.consumers)
            WHEN destination = '' THEN 'no queue has this name, and the broker drops the messages; with the setting mandatory the events fail'
            WHEN NOT answer.ok THEN 'the exchange does not exist; what becomes of its events is said by the setting missing_exchange'
            ELSE 'a broker does not tell what is bound to an exchange; with the setting mandatory events fail that reach no queue'
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.check_topology(text, interval) IS
    'Where the events of a relay go, and whether that is there, as the broker says: for each exchange (and where it is the default exchange, for each routing key, which names a queue) how many of the events looked at wait to be published, whether the exchange exists, and whether a queue is bound to it (NULL: the broker does not tell). Looks at the exchange of the relay and at the destinations of the first 10,000 events that are not done, of 10,000 that are deferred and of the 10,000 written last, and asks for 1,000 of them at most. Waits for the answers at most for timeout. For roles that were granted EXECUTE';
REVOKE ALL ON FUNCTION outbox.check_topology(text, interval) FROM PUBLIC;
