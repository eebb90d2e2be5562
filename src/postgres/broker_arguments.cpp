// The arguments of exchanges, queues and bindings: jsonb from the session to the drainer, and there
// an AMQP table.
#include "postgres/broker_arguments.hpp"

#include "core/header_table.hpp"
#include "postgres/arena.hpp"
#include "postgres/json_tokens.hpp"

extern "C" {
#include "mb/pg_wchar.h"
}

namespace outbox::postgres {

namespace {

// The strings of a jsonb value that outlives the tokens, in UTF-8.
struct Utf8Text {
    std::string_view of(const JsonbValue& value) const {
        const int length = value.val.string.len;
        const char* text = pg_server_to_any(value.val.string.val, length, PG_UTF8);
        return text == value.val.string.val
                   ? std::string_view(text, static_cast<std::size_t>(length))
                   : std::string_view(text);
    }
};

Json tokens_of(const void* arguments) {
    return json_tokens(static_cast<Jsonb*>(const_cast<void*>(arguments)), Utf8Text{});
}

/// Why core refuses the arguments, in UTF-8; empty: it does not.
void judge(Json tokens, char (&refusal)[512]) {
    entry_point([&] {
        Table table;
        const std::optional<Rejection> rejection = build_arguments(tokens, table);
        if (rejection) {
            strlcpy(refusal, rejection->detail.c_str(), sizeof(refusal));
        } else if (encoded_size(table) > MOST_ARGUMENT_BYTES) {
            snprintf(refusal, sizeof(refusal),
                     "parameter arguments takes %zu bytes, the limit is %zu", encoded_size(table),
                     MOST_ARGUMENT_BYTES);
        }
    });
}

[[noreturn]] void refuse(const char* why) {
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s", why),
                    errdetail("Arguments are a JSON object whose members become AMQP fields of the "
                              "same type.")));
    pg_unreachable();
}

}  // namespace

void put_arguments(const Jsonb* arguments, BrokerQuestion& question) {
    const std::size_t size = VARSIZE(arguments);
    if (size > MOST_ARGUMENT_BYTES) {
        refuse(psprintf("parameter arguments takes %zu bytes, the limit is %zu", size,
                        MOST_ARGUMENT_BYTES));
    }
    char refusal[512] = "";
    judge(tokens_of(arguments), refusal);
    if (refusal[0] != '\0') {
        refuse(pg_any_to_server(refusal, static_cast<int>(strlen(refusal)), PG_UTF8));
    }
    question.has_arguments = true;
    memcpy(question.arguments, arguments, size);
}

bool read_arguments(const BrokerQuestion& question, Table& table) {
    table.clear();
    if (!question.has_arguments) {
        return true;
    }
    Arena memory;
    if (!memory.create()) {
        return false;
    }
    Json tokens;
    PgError error;
    const bool ok = pg_try(error, [&] {
        MemoryContext previous = MemoryContextSwitchTo(memory.context());
        tokens = tokens_of(question.arguments);
        MemoryContextSwitchTo(previous);
    });
    return ok && !build_arguments(tokens, table).has_value();
}

}  // namespace outbox::postgres
