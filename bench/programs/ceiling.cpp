// The most that this broker takes from rabbitmq-c: one connection publishes messages like those of
// a drainer, with confirms, a window of them unconfirmed.
//
//   ceiling --port P --exchange X --count N --size BYTES --window W [--interval-us T]
//
// With --interval-us one message goes every T microseconds and its body begins with the time at
// which it was published, for `consumer --stamped 1`. Prints seconds=S rate=R, from the first
// publish to the last confirm.
#include "broker.hpp"

#include <unistd.h>

int main(int argc, char** argv) {
    using namespace bench;
    const Arguments arguments(argc, argv);
    const std::string exchange = arguments.text("exchange", "events");
    const long count = arguments.number("count", 1000);
    const auto window = static_cast<std::size_t>(arguments.number("window", 500));
    const double interval = static_cast<double>(arguments.number("interval-us", 0)) / 1e6;
    std::string body(static_cast<std::size_t>(arguments.number("size", 512)), 'x');

    amqp_connection_state_t connection = connect(arguments.number("port", 5672));
    amqp_confirm_select(connection, 1);
    check(amqp_get_rpc_reply(connection), "confirm.select");

    Window unconfirmed;
    Confirm confirm;
    const double start = monotonic_seconds();
    for (long i = 0; i < count; i++) {
        if (interval > 0) {
            const double due = start + static_cast<double>(i) * interval;
            const double ahead = due - monotonic_seconds();
            if (ahead > 0) {
                usleep(static_cast<useconds_t>(ahead * 1e6));
            }
            char stamp[32];
            std::snprintf(stamp, sizeof(stamp), "%.7f", monotonic_seconds());
            body.replace(0, std::strlen(stamp) + 1, stamp, std::strlen(stamp) + 1);
        }
        char id[40];
        std::snprintf(id, sizeof(id), "msg_%026ld", i);
        const std::string message_id = id;
        const amqp_basic_properties_t properties = event_properties(message_id);
        const int status =
            amqp_basic_publish(connection, 1, bytes(exchange), amqp_cstring_bytes("order.placed"),
                               0, 0, &properties, bytes(body));
        if (status != AMQP_STATUS_OK) {
            die(std::string("publish: ") + amqp_error_string2(status));
        }
        unconfirmed.sent();
        // Confirms are looked for only when the window is full: a look is a system call, and this
        // is to be the ceiling.
        if (unconfirmed.unconfirmed() >= window) {
            bool wait = true;
            while (unconfirmed.unconfirmed() > 0 && next_confirm(connection, wait, confirm)) {
                unconfirmed.confirmed(confirm);
                wait = unconfirmed.unconfirmed() >= window;
            }
        }
    }
    while (unconfirmed.unconfirmed() > 0 && next_confirm(connection, true, confirm)) {
        unconfirmed.confirmed(confirm);
    }
    const double seconds = monotonic_seconds() - start;
    std::printf("seconds=%.4f rate=%.1f\n", seconds, static_cast<double>(count) / seconds);
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
    return 0;
}
