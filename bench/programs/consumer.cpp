// Consumes a queue.
//
//   consumer --port P --queue Q [--count N] [--idle-s S] [--first-s S] [--prefetch 1000] [--stamped
//   1] [--out FILE]
//            [--ready FILE]
//
// Ends after N messages, or when none has come for S seconds (10): for the first one it waits
// first-s (60). It acknowledges half a prefetch at a time, and what is left when nothing is there
// to be read. --ready FILE is made when the broker has answered basic.consume. With --stamped 1 a
// body begins with the monotonic time at which it was sent.
// --out FILE gets a line for each message: the beginning of its body, up to a space, a NUL or the
// 40th byte, and the monotonic time of its arrival. Prints received=N seconds=S rate=R, from the
// first to the last message, and with
// --stamped p50_ms= p90_ms= p99_ms= max_ms=.
#include "broker.hpp"

namespace {

using namespace bench;

/// The part of a body that says which message this is.
std::string beginning(const amqp_bytes_t& body) {
    const char* text = static_cast<const char*>(body.bytes);
    std::size_t length = 0;
    while (length < std::min<std::size_t>(body.len, 40) && text[length] != '\0' &&
           text[length] != ' ') {
        length++;
    }
    return {text, length};
}

class Consumer {
  public:
    Consumer(const Arguments& arguments)
        : connection_(connect(arguments.number("port", 5672))),
          half_(std::max<std::uint64_t>(
              1, static_cast<std::uint64_t>(arguments.number("prefetch", 1000)) / 2)) {
        amqp_basic_qos(connection_, 1, 0,
                       static_cast<std::uint16_t>(arguments.number("prefetch", 1000)), 0);
        check(amqp_get_rpc_reply(connection_), "basic.qos");
        amqp_basic_consume(connection_, 1, bytes(arguments.text("queue", "q")), amqp_empty_bytes, 0,
                           0, 0, amqp_empty_table);
        check(amqp_get_rpc_reply(connection_), "basic.consume");
    }
    ~Consumer() {
        acknowledge();
        amqp_connection_close(connection_, AMQP_REPLY_SUCCESS);
        amqp_destroy_connection(connection_);
    }
    Consumer(const Consumer&) = delete;
    Consumer& operator=(const Consumer&) = delete;

    /// The next message within so many seconds, and when it had been read; false when there was
    /// none.
    bool next(double seconds, std::string& start, double& arrived) {
        amqp_envelope_t envelope;
        amqp_maybe_release_buffers(connection_);
        timeval none{0, 0};
        amqp_rpc_reply_t reply = amqp_consume_message(connection_, &envelope, &none, 0);
        if (timed_out(reply)) {
            acknowledge();
            timeval some{static_cast<time_t>(seconds), 0};
            reply = amqp_consume_message(connection_, &envelope, &some, 0);
            if (timed_out(reply)) {
                return false;
            }
        }
        arrived = monotonic_seconds();
        check(reply, "consume");
        start = beginning(envelope.message.body);
        unacknowledged_ = envelope.delivery_tag;
        amqp_destroy_envelope(&envelope);
        if (unacknowledged_ - acknowledged_ >= half_) {
            acknowledge();
        }
        return true;
    }

  private:
    static bool timed_out(const amqp_rpc_reply_t& reply) {
        return reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
               reply.library_error == AMQP_STATUS_TIMEOUT;
    }
    void acknowledge() {
        if (unacknowledged_ == acknowledged_) {
            return;
        }
        const int status = amqp_basic_ack(connection_, 1, unacknowledged_, 1);
        if (status != AMQP_STATUS_OK) {
            die(std::string("ack: ") + amqp_error_string2(status));
        }
        acknowledged_ = unacknowledged_;
    }

    amqp_connection_state_t connection_;
    std::uint64_t half_;
    std::uint64_t unacknowledged_ = 0;
    std::uint64_t acknowledged_ = 0;
};

std::FILE* made(const std::string& path) {
    if (path.empty()) {
        return nullptr;
    }
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) {
        die("could not make " + path);
    }
    return file;
}

void closed(std::FILE* file) {
    if (file != nullptr && std::fclose(file) != 0) {
        die("could not write a file");
    }
}

}  // namespace

int main(int argc, char** argv) {
    const Arguments arguments(argc, argv);
    const long count = arguments.number("count", 0);
    const auto idle = static_cast<double>(arguments.number("idle-s", 10));
    const bool stamped = arguments.number("stamped", 0) != 0;
    std::FILE* out = made(arguments.text("out", ""));
    Consumer consumer(arguments);
    closed(made(arguments.text("ready", "")));

    long received = 0;
    double first = 0;
    double last = 0;
    std::vector<double> latencies;
    std::string start;
    double arrived = 0;
    double patience = static_cast<double>(arguments.number("first-s", 60));
    while ((count == 0 || received < count) && consumer.next(patience, start, arrived)) {
        patience = idle;
        received++;
        last = arrived;
        first = received == 1 ? arrived : first;
        if (stamped) {
            latencies.push_back((arrived - std::strtod(start.c_str(), nullptr)) * 1e3);
        }
        if (out != nullptr) {
            std::fprintf(out, "%s %.7f\n", start.c_str(), arrived);
        }
    }
    closed(out);
    std::printf("received=%ld seconds=%.4f rate=%.1f\n", received, last - first,
                last > first ? static_cast<double>(received) / (last - first) : 0);
    if (stamped) {
        std::sort(latencies.begin(), latencies.end());
        std::printf("p50_ms=%.4f p90_ms=%.4f p99_ms=%.4f max_ms=%.4f\n", percentile(latencies, 0.5),
                    percentile(latencies, 0.9), percentile(latencies, 0.99),
                    percentile(latencies, 1));
    }
    return 0;
}
