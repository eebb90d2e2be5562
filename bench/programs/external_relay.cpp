// A relay outside the server, by libpq and rabbitmq-c, as the baselines of a drainer inside it. Its
// outbox is a table of its own, bench_outbox.
//
//   external_relay --mode fill --count N --size BYTES
//     makes the table anew, with N events of so many bytes of JSON
//   external_relay --mode batch --port P [--exchange X] [--batch 100] [--depth 100]
//     a lease: claim a batch, publish it outside of any transaction in chunks of `depth` messages,
//     each of which waits for all its confirms, on a channel for each batch; mark what was
//     confirmed if the claim is still its own
//   external_relay --mode row --port P [--exchange X] [--batch 100]
//     each event is published, confirmed and marked with a commit of its own before the next one
//
// Both go on until nothing is unpublished, or --limit N events have been relayed. Prints count=N
// seconds=S rate=R, from the first claim to the last mark. The envelope is not taken apart and put
// together again, as a service would do: that is in this one's favour.
#include "postgres.hpp"

#include <limits>

namespace {

using namespace bench;

constexpr const char* kEventType = "order.placed";

struct Event {
    std::string id;
    std::string payload;
};

void fill(Database& database, long count, long size) {
    database.run("DROP TABLE IF EXISTS bench_outbox");
    database.run(
        "CREATE TABLE bench_outbox ("
        " id uuid PRIMARY KEY,"
        " payload jsonb NOT NULL,"
        " attempts integer NOT NULL DEFAULT 0,"
        " last_error text,"
        " enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),"
        " published_at timestamptz,"
        " claimed_at timestamptz,"
        " claimed_by text)");
    database.run(
        "CREATE INDEX bench_outbox_lease_idx ON bench_outbox (claimed_at NULLS FIRST, enqueued_at)"
        " WHERE published_at IS NULL");
    database.prepare("fill",
                     "INSERT INTO bench_outbox (id, payload) SELECT gen_random_uuid(),"
                     " jsonb_build_object('data', rpad('', $2::integer - 12, 'x'))"
                     " FROM generate_series(1, $1::bigint)");
    database.run("fill", {std::to_string(count), std::to_string(size)});
    // What autovacuum would have done by then: without it the plan of the claim is a guess.
    database.run("VACUUM ANALYZE bench_outbox");
}

std::vector<Event> events_of(const Rows& rows) {
    std::vector<Event> events;
    for (int i = 0; i < rows.count(); i++) {
        events.push_back({rows.field(i, 0), {rows.field(i, 1), rows.length(i, 1)}});
    }
    return events;
}

std::string array_of_ids(const std::vector<Event>& events) {
    std::string array = "{";
    for (const Event& event : events) {
        array += (array.size() > 1 ? "," : "") + event.id;
    }
    return array + "}";
}

class Publisher {
  public:
    explicit Publisher(const Arguments& arguments)
        : connection_(connect(arguments.number("port", 5672))),
          exchange_(arguments.text("exchange", "events")) {}
    ~Publisher() {
        amqp_connection_close(connection_, AMQP_REPLY_SUCCESS);
        amqp_destroy_connection(connection_);
    }
    Publisher(const Publisher&) = delete;
    Publisher& operator=(const Publisher&) = delete;

    /// Makes a new channel the current one, in confirm mode.
    void open_channel() {
        close_channel();
        channel_ = static_cast<amqp_channel_t>(channel_ % 1000 + 2);
        amqp_channel_open(connection_, channel_);
        check(amqp_get_rpc_reply(connection_), "channel.open");
        amqp_confirm_select(connection_, channel_);
        check(amqp_get_rpc_reply(connection_), "confirm.select");
        unconfirmed_ = Window();
    }
    void close_channel() {
        if (channel_ != 0) {
            check(amqp_channel_close(connection_, channel_, AMQP_REPLY_SUCCESS), "channel.close");
        }
    }
    void publish(const Event& event) {
        amqp_basic_properties_t properties{};
        properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG;
        properties.content_type = amqp_cstring_bytes("application/json");
        properties.delivery_mode = AMQP_DELIVERY_PERSISTENT;
        const int status = amqp_basic_publish(connection_, channel_, bytes(exchange_),
                                              amqp_cstring_bytes(kEventType), 0, 0, &properties,
                                              bytes(event.payload));
        if (status != AMQP_STATUS_OK) {
            die(std::string("publish: ") + amqp_error_string2(status));
        }
        unconfirmed_.sent();
    }
    /// Waits until the broker has confirmed all that was published; a nack ends the program.
    void wait_for_confirms() {
        Confirm confirm;
        while (unconfirmed_.unconfirmed() > 0 && next_confirm(connection_, true, confirm)) {
            unconfirmed_.confirmed(confirm);
        }
    }

  private:
    amqp_connection_state_t connection_;
    std::string exchange_;
    amqp_channel_t channel_ = 0;
    Window unconfirmed_;
};

long relay_batches(Database& database, Publisher& publisher, const Arguments& arguments) {
    const std::string relay = "external_relay";
    const std::string lease_seconds = "30";
    const std::string batch = std::to_string(arguments.number("batch", 100));
    const auto depth = static_cast<std::size_t>(arguments.number("depth", 100));
    const long limit = arguments.number("limit", std::numeric_limits<long>::max());
    database.prepare(
        "claim",
        "WITH locked AS ("
        " SELECT id FROM bench_outbox WHERE published_at IS NULL"
        " AND (claimed_at IS NULL OR claimed_at < now() - ($2::bigint * interval '1 second'))"
        " ORDER BY enqueued_at FOR UPDATE SKIP LOCKED LIMIT $3)"
        " UPDATE bench_outbox SET claimed_at = now(), claimed_by = $1 FROM locked"
        " WHERE bench_outbox.id = locked.id"
        " RETURNING bench_outbox.id, bench_outbox.payload, bench_outbox.attempts");
    database.prepare(
        "mark",
        "UPDATE bench_outbox SET published_at = now(), claimed_at = NULL, claimed_by = NULL"
        " WHERE id = ANY($1::uuid[]) AND claimed_by = $2");
    long relayed = 0;
    while (relayed < limit) {
        const std::vector<Event> events =
            events_of(database.run("claim", {relay, lease_seconds, batch}));
        if (events.empty()) {
            return relayed;
        }
        publisher.open_channel();
        for (std::size_t i = 0; i < events.size(); i++) {
            publisher.publish(events[i]);
            if ((i + 1) % depth == 0 || i + 1 == events.size()) {
                publisher.wait_for_confirms();
            }
        }
        const long marked = database.run("mark", {array_of_ids(events), relay}).changed();
        if (marked != static_cast<long>(events.size())) {
            die("a lease was lost");
        }
        relayed += marked;
    }
    return relayed;
}

long relay_rows(Database& database, Publisher& publisher, const Arguments& arguments) {
    database.prepare("read",
                     "SELECT id, payload FROM bench_outbox WHERE published_at IS NULL"
                     " ORDER BY enqueued_at LIMIT $1");
    database.prepare("mark", "UPDATE bench_outbox SET published_at = now() WHERE id = $1");
    const std::string batch = std::to_string(arguments.number("batch", 100));
    const long limit = arguments.number("limit", std::numeric_limits<long>::max());
    publisher.open_channel();
    long relayed = 0;
    while (relayed < limit) {
        const std::vector<Event> events = events_of(database.run("read", {batch}));
        if (events.empty()) {
            return relayed;
        }
        for (const Event& event : events) {
            publisher.publish(event);
            publisher.wait_for_confirms();
            relayed += database.run("mark", {event.id}).changed();
        }
    }
    return relayed;
}

}  // namespace

int main(int argc, char** argv) {
    const Arguments arguments(argc, argv);
    const std::string mode = arguments.text("mode", "batch");
    Database database;
    if (mode == "fill") {
        fill(database, arguments.number("count", 1000), arguments.number("size", 512));
        return 0;
    }
    if (mode != "batch" && mode != "row") {
        die("unknown mode " + mode);
    }
    Publisher publisher(arguments);
    const double start = monotonic_seconds();
    const long count = mode == "batch" ? relay_batches(database, publisher, arguments)
                                       : relay_rows(database, publisher, arguments);
    const double seconds = monotonic_seconds() - start;
    publisher.close_channel();
    std::printf("count=%ld seconds=%.4f rate=%.1f\n", count, seconds,
                static_cast<double>(count) / seconds);
    return 0;
}
