#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace outbox {

/// A UUID in network byte order (RFC 9562).
using Uuid = std::array<std::uint8_t, 16>;

/// One step of a walk over a JSON value in document order. An object is `begin_object`, then `key`
/// followed by a value for each member, then `end_object`; an array likewise without keys. `text`
/// is set for keys and strings (UTF-8, unescaped) and for numbers (as PostgreSQL's numeric prints
/// them).
struct JsonToken {
    enum class Kind : std::uint8_t {
        begin_object,
        end_object,
        begin_array,
        end_array,
        key,
        string,
        number,
        boolean_true,
        boolean_false,
        null,
    };
    Kind kind = Kind::null;
    std::string_view text;
};

/// A whole JSON value; empty when the column is NULL.
using Json = std::span<const JsonToken>;

/// One claimed row of an outbox table. Text is UTF-8. All memory belongs to the batch that the row
/// was claimed in and lives as long as that batch. Columns that are NULL are nullopt.
struct Event {
    std::int64_t seq = 0;
    Uuid id{};
    std::string_view source;
    std::optional<std::string_view> message_id;
    std::optional<std::string_view> destination;
    std::optional<std::string_view> event_type;
    std::optional<std::string_view> routing_key;
    std::optional<std::string_view> key;
    std::string_view payload;
    /// Memory of the payload alone, which can be given back before the batch's; nullptr: it lies in
    /// the batch's. Only the database makes something of it.
    void* payload_memory = nullptr;
    std::optional<std::string_view> content_type;
    std::optional<std::string_view> content_encoding;
    std::optional<std::int32_t> schema_version;
    Json schema_reference;
    Json attributes;
    std::optional<std::string_view> source_event_id;
    std::optional<std::int64_t> source_position;
    std::optional<std::int64_t> occurred_at_us;  ///< microseconds since the Unix epoch
    std::optional<std::string_view> causation_id;
    std::optional<std::string_view> correlation_id;
    std::optional<std::string_view> reply_to;
    std::optional<std::string_view> traceparent;
    std::optional<std::string_view> tracestate;
    std::optional<std::int16_t> priority;
    std::optional<std::int64_t> expiration_ms;
    std::int32_t attempts = 0;  ///< charged failures so far
    /// The column whose text has no form in UTF-8, so that the event cannot be sent; empty: none.
    std::string_view unencodable;
    std::int64_t replay_job = 0;  ///< the replay that sends this event again; 0: none does
    bool deferred = false;        ///< came from the deferred lane (next_attempt_at is set)
    /// Hash of the group whose order it keeps; nullopt: it belongs to none. Two groups with one
    /// hash wait for each other; they do not lose their order.
    std::optional<std::uint64_t> group;
    bool poisoned = false;  ///< a former attempt made the broker close the channel
    /// Where the row lies in its table, for whoever marks it; 0: unknown. Only the database makes
    /// something of it.
    std::uint64_t place = 0;
    bool leads = false;  ///< events of its group may wait behind it in the deferred lane
};

// Rows are built below the guard that catches ereport, where no destructor may be skipped.
static_assert(std::is_trivially_destructible_v<Event>);

}  // namespace outbox
