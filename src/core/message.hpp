#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/event.hpp"

namespace outbox {

struct FieldValue;

/// An AMQP 0-9-1 field table, in the order in which its fields are sent.
using Table = std::vector<std::pair<std::string, FieldValue>>;
using Array = std::vector<FieldValue>;

/// An AMQP field: the types that JSON values and the envelope need. Its constructors are declared
/// because clang cannot form the pair in Table of an aggregate that contains a Table.
struct FieldValue {
    using Value =
        std::variant<std::monostate, bool, std::int64_t, double, std::string, Table, Array>;

    FieldValue() = default;
    FieldValue(Value v) : value(std::move(v)) {}

    Value value;
};

/// A message ready to be sent. Views point into the Event it was built from.
struct Message {
    std::string_view exchange;
    std::string_view routing_key;
    std::string message_id;
    std::optional<std::string_view> correlation_id;
    std::optional<std::string_view> reply_to;
    std::optional<std::string_view> type;
    std::optional<std::string_view> app_id;
    std::optional<std::string_view> content_type;
    std::optional<std::string_view> content_encoding;
    std::optional<std::uint64_t> timestamp;  ///< seconds since the Unix epoch
    std::optional<std::uint8_t> priority;
    std::string expiration;  ///< milliseconds in digits; empty when the message does not expire
    bool persistent = true;
    Table headers;
    std::string_view body;
};

/// Why an event can never be sent as it is. `code` is stable and short (for error_code), `detail`
/// names the column, the limit and the actual value.
struct Rejection {
    std::string code;
    std::string detail;
};

/// The longest ordering key: what an index entry has room for.
inline constexpr std::size_t MAX_KEY_BYTES = 1024;

/// Bytes of properties that a connection takes unless the broker allows less: the largest frame
/// that is asked for, less its envelope.
inline constexpr std::size_t USUAL_PROPERTIES_BYTES = 131072 - 8;

/// What the mapping needs beside the event.
struct MessageRules {
    std::string_view default_exchange;  ///< for rows whose destination is NULL
    std::size_t max_message_bytes = 0;  ///< largest body
    bool limit_is_the_brokers = false;  ///< not the setting's
    std::size_t max_properties_bytes =
        0;  ///< largest content header frame payload (frame_max less 8)
};

/// Maps an event to the message that is sent for it, or says why it cannot be sent. All limits of
/// the protocol are checked here, before the first byte: a refusal halfway through a message would
/// leave the stream corrupt.
std::optional<Rejection> build_message(const Event& event, const MessageRules& rules, Message& out);

/// How large columns are in the database, whose encoding need not be UTF-8.
struct StoredBytes {
    std::size_t payload = 0;
    std::size_t key = 0;
};

/// What a producer is told of an event: all that build_message would refuse, a key that the table
/// does not take, and a traceparent that every receiver would ignore. The event's payload is not
/// read, only its size in `stored`. Cheap for events without JSON columns.
std::optional<Rejection> check_event(const Event& event, const StoredBytes& stored,
                                     const MessageRules& rules);

/// Bytes that the table takes on the wire, its length prefix included.
std::size_t encoded_size(const Table& table);

}  // namespace outbox
