// What rows hold becomes an AMQP header table: whatever the JSON columns and the columns beside
// them hold, the message is refused, or it is encoded in exactly the bytes that were counted,
// within the limits, and reads back as what was meant.
//
// An input is lines, each a letter and a text; see LineReader. That way a corpus file can be read
// and written by hand, and most mutations of one are inputs too.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "amqp/encode.hpp"
#include "core/header_table.hpp"
#include "core/message.hpp"
#include "core/text_limits.hpp"

namespace {

using namespace outbox;

/// The process ends here if the code under test did not keep its word.
void require(bool kept) {
    if (!kept) {
        std::abort();
    }
}

/// Reads an event from lines: { } [ ] k s n t f 0 are tokens of attributes, after a line "|" of
/// schema_reference; other letters are columns, and L is the connection's limit for properties.
class LineReader {
  public:
    explicit LineReader(std::string_view text) {
        event_.event_type = "fuzz";
        event_.payload = "body";
        while (!text.empty()) {
            const std::size_t end = text.find('\n');
            const std::string_view line = text.substr(0, end);
            text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
            if (!line.empty() && !read_token(line[0], line.substr(1))) {
                read_column(line[0], line.substr(1));
            }
        }
        event_.attributes = attributes_;
        event_.schema_reference = schema_reference_;
    }
    LineReader(const LineReader&) = delete;
    LineReader& operator=(const LineReader&) = delete;

    const Event& event() const { return event_; }
    std::size_t limit() const { return limit_; }

  private:
    using Kind = JsonToken::Kind;

    bool read_token(char letter, std::string_view text) {
        constexpr std::string_view letters = "{}[]ksntf0";
        constexpr Kind kinds[] = {Kind::begin_object, Kind::end_object,   Kind::begin_array,
                                  Kind::end_array,    Kind::key,          Kind::string,
                                  Kind::number,       Kind::boolean_true, Kind::boolean_false,
                                  Kind::null};
        const std::size_t which = letters.find(letter);
        if (which == std::string_view::npos) {
            return false;
        }
        (is_reference_ ? schema_reference_ : attributes_).push_back({kinds[which], text});
        return true;
    }

    void read_column(char letter, std::string_view text) {
        switch (letter) {
            case '|':
                is_reference_ = true;
                break;
            case 'L':
                limit_ = text.size() * 16;
                break;
            case 'K':
                event_.key = text;
                break;
            case 'T':
                event_.traceparent = text;
                break;
            case 'S':
                event_.tracestate = text;
                break;
            case 'M':
                event_.message_id = text;
                break;
            case 'R':
                event_.reply_to = text;
                break;
            case 'A':
                event_.source = text;
                break;
            case 'C':
                event_.causation_id = text;
                break;
            case 'P':
                event_.priority = static_cast<std::int16_t>(text.size());
                event_.expiration_ms = static_cast<std::int64_t>(text.size()) << 30;
                event_.occurred_at_us = static_cast<std::int64_t>(text.size()) << 40;
                break;
            default:
                break;
        }
    }

    Event event_;
    std::vector<JsonToken> attributes_;
    std::vector<JsonToken> schema_reference_;
    std::size_t limit_ = USUAL_PROPERTIES_BYTES;
    bool is_reference_ = false;
};

bool same(const amqp_bytes_t& bytes, std::string_view text) {
    return bytes.len == text.size() &&
           (text.empty() || std::memcmp(bytes.bytes, text.data(), text.size()) == 0);
}

void compare(const Table& meant, const amqp_table_t& read, int depth);

struct Compare {
    const amqp_field_value_t& read;
    int depth;

    void operator()(std::monostate) const { require(read.kind == AMQP_FIELD_KIND_VOID); }
    void operator()(bool meant) const {
        require(read.kind == AMQP_FIELD_KIND_BOOLEAN && (read.value.boolean != 0) == meant);
    }
    void operator()(std::int64_t meant) const {
        require(read.kind == AMQP_FIELD_KIND_I64 && read.value.i64 == meant);
    }
    void operator()(double meant) const {
        // A broker that meets one of the others closes the connection.
        require(std::isfinite(meant));
        require(read.kind == AMQP_FIELD_KIND_F64 && read.value.f64 == meant);
    }
    void operator()(const std::string& meant) const {
        require(read.kind == AMQP_FIELD_KIND_UTF8 && same(read.value.bytes, meant));
    }
    void operator()(const Table& meant) const {
        require(read.kind == AMQP_FIELD_KIND_TABLE);
        compare(meant, read.value.table, depth + 1);
    }
    void operator()(const Array& meant) const {
        require(read.kind == AMQP_FIELD_KIND_ARRAY && depth < MAX_HEADER_DEPTH);
        require(static_cast<std::size_t>(read.value.array.num_entries) == meant.size());
        for (std::size_t i = 0; i < meant.size(); ++i) {
            std::visit(Compare{read.value.array.entries[i], depth + 1}, meant[i].value);
        }
    }
};

void compare(const Table& meant, const amqp_table_t& read, int depth) {
    require(depth <= MAX_HEADER_DEPTH);
    require(static_cast<std::size_t>(read.num_entries) == meant.size());
    for (std::size_t i = 0; i < meant.size(); ++i) {
        require(meant[i].first.size() <= MAX_SHORT_STRING);
        require(same(read.entries[i].key, meant[i].first));
        // Attributes are the table itself, a schema reference is a value in it.
        const bool is_reference = meant[i].first == "outbox-schema-reference" && depth == 1;
        std::visit(Compare{read.entries[i].value, is_reference ? 0 : depth}, meant[i].second.value);
    }
}

void check_table(const Table& headers, const amqp_table_t& encoded) {
    std::vector<char> buffer(encoded_size(headers));
    const amqp_bytes_t bytes{buffer.size(), buffer.data()};
    std::size_t written = 0;
    amqp_table_t table = encoded;
    require(amqp_encode_table(bytes, &table, &written) == AMQP_STATUS_OK);
    require(written == buffer.size());

    amqp_pool_t pool;
    init_amqp_pool(&pool, 4096);
    amqp_table_t read{};
    std::size_t taken = 0;
    require(amqp_decode_table(bytes, &pool, &read, &taken) == AMQP_STATUS_OK);
    require(taken == buffer.size());
    compare(headers, read, 1);
    empty_amqp_pool(&pool);
}

void check_message(const Message& message, std::size_t limit) {
    amqp::PropertiesEncoder encoder;
    amqp_basic_properties_t properties = encoder.encode(message);
    std::vector<char> buffer(limit);
    // Behind class, weight and body size.
    constexpr std::size_t before = 2 + 2 + 8;
    require(limit > before);
    const int size = amqp_encode_properties(AMQP_BASIC_CLASS, &properties,
                                            {buffer.size() - before, buffer.data() + before});
    require(size > 0);
    for (const auto& [name, field] : message.headers) {
        require((name != "CC" && name != "BCC") || std::holds_alternative<Array>(field.value));
    }
    if (!message.headers.empty()) {
        check_table(message.headers, properties.headers);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const LineReader reader({reinterpret_cast<const char*>(data), size});
    const MessageRules rules{.default_exchange = "events",
                             .max_message_bytes = 1000,
                             .max_properties_bytes = reader.limit()};
    Message message;
    const std::optional<Rejection> rejection = build_message(reader.event(), rules, message);
    if (rejection) {
        require(!rejection->code.empty() && !rejection->detail.empty());
    } else {
        check_message(message, rules.max_properties_bytes);
    }
    // What producers are told is the same, but for what serves nobody.
    const StoredBytes stored{reader.event().payload.size(), 0};
    if (const std::optional<Rejection> told = check_event(reader.event(), stored, rules)) {
        require(rejection ? told->code == rejection->code || told->code == "invalid_traceparent"
                          : told->code == "invalid_traceparent");
    } else {
        require(!rejection);
    }
    return 0;
}
