// outbox.ask_broker(), on which check_topology() and the functions that declare stand.
#include "postgres/broker_arguments.hpp"
#include "postgres/broker_requests.hpp"
#include "postgres/prelude.hpp"
#include "postgres/storable.hpp"

extern "C" {
#include "access/htup_details.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
}

namespace outbox::postgres {

namespace {

/// The function's arguments, in their order.
enum Argument : int {
    ACTION,
    EXCHANGE,
    QUEUE,
    ROUTING_KEY,
    TYPE,
    DURABLE,
    AUTO_DELETE,
    INTERNAL,
    ARGUMENTS,
    DEADLINE,
};

constexpr std::pair<const char*, BrokerAction> ACTIONS[] = {
    {"exchange_exists", BrokerAction::exchange_exists},
    {"queue_exists", BrokerAction::queue_exists},
    {"declare_exchange", BrokerAction::declare_exchange},
    {"declare_queue", BrokerAction::declare_queue},
    {"bind_queue", BrokerAction::bind_queue},
};

BrokerAction action_of(const char* wanted) {
    for (const auto& [name, action] : ACTIONS) {
        if (strcmp(name, wanted) == 0) {
            return action;
        }
    }
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("a broker cannot be asked for \"%s\"", wanted)));
    pg_unreachable();
}

const char* name_of(BrokerOutcome outcome) {
    switch (outcome) {
        case BrokerOutcome::answered:
            return "answered";
        case BrokerOutcome::connection_lost:
            return "connection_lost";
        case BrokerOutcome::drainer_ended:
            return "drainer_ended";
        case BrokerOutcome::timed_out:
            return "timed_out";
        case BrokerOutcome::crowded:
            return "crowded";
        case BrokerOutcome::nobody:
        case BrokerOutcome::not_asked:
            return "nobody";
    }
    return "nobody";
}

// NULL is the empty name.
void put_name(FunctionCallInfo fcinfo, Argument argument, const char* what,
              char (&target)[MOST_NAME_BYTES + 1]) {
    if (PG_ARGISNULL(argument)) {
        return;
    }
    const text* given = PG_GETARG_TEXT_PP(argument);
    const char* name = text_to_cstring(given);
    const char* utf8 = pg_server_to_any(name, static_cast<int>(strlen(name)), PG_UTF8);
    const std::size_t size = strlen(utf8);
    if (size > MOST_NAME_BYTES) {
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("the %s is %zu bytes long, the limit is %zu", what, size,
                               MOST_NAME_BYTES)));
    }
    memcpy(target, utf8, size + 1);
}

bool flag(FunctionCallInfo fcinfo, Argument argument) {
    return !PG_ARGISNULL(argument) && PG_GETARG_BOOL(argument);
}

void read_question(FunctionCallInfo fcinfo, BrokerQuestion& question) {
    question.action = action_of(text_to_cstring(PG_GETARG_TEXT_PP(ACTION)));
    put_name(fcinfo, EXCHANGE, "name of the exchange", question.exchange);
    put_name(fcinfo, QUEUE, "name of the queue", question.queue);
    put_name(fcinfo, ROUTING_KEY, "routing key", question.routing_key);
    put_name(fcinfo, TYPE, "type of the exchange", question.type);
    question.durable = flag(fcinfo, DURABLE);
    question.auto_delete = flag(fcinfo, AUTO_DELETE);
    question.internal = flag(fcinfo, INTERNAL);
    if (!PG_ARGISNULL(ARGUMENTS)) {
        put_arguments(PG_GETARG_JSONB_P(ARGUMENTS), question);
    }
}

Datum tuple_of(TupleDesc descriptor, const BrokerReply& reply) {
    const bool answered = reply.outcome == BrokerOutcome::answered;
    const bool counted = answered && reply.ok;
    Datum values[] = {
        CStringGetTextDatum(name_of(reply.outcome)),
        BoolGetDatum(reply.ok),
        Int32GetDatum(reply.code),
        CStringGetTextDatum(storable(reply.text)),
        Int64GetDatum(reply.messages),
        Int64GetDatum(reply.consumers),
    };
    bool nulls[] = {
        false, !answered, !answered || reply.code == 0, reply.text[0] == '\0', !counted, !counted,
    };
    static_assert(lengthof(values) == lengthof(nulls));
    return HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls));
}

}  // namespace

}  // namespace outbox::postgres

extern "C" {

PG_FUNCTION_INFO_V1(outbox_drainer_ask_broker);

/// outbox.ask_broker(action text, exchange text, queue text, routing_key text, type text, durable
/// boolean, auto_delete boolean, internal boolean, arguments jsonb, deadline timestamptz) returns
/// record
OBD_EXPORT Datum outbox_drainer_ask_broker(PG_FUNCTION_ARGS) {
    using namespace outbox::postgres;
    TupleDesc descriptor = nullptr;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE) {
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("function returning record called in a context that cannot take it")));
    }
    if (PG_ARGISNULL(ACTION) || PG_ARGISNULL(DEADLINE)) {
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("action and deadline of a question must not be NULL")));
    }
    BrokerQuestion question{};
    BrokerReply reply{};
    read_question(fcinfo, question);
    ask_broker(question, PG_GETARG_TIMESTAMPTZ(DEADLINE), reply);
    PG_RETURN_DATUM(tuple_of(BlessTupleDesc(descriptor), reply));
}

}  // extern "C"
