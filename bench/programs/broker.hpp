// What the programs of the benchmark share: a connection by rabbitmq-c as its examples make it,
// arguments, clocks. These are baselines and tools, so an error ends the program with a line that
// names it.
#pragma once

#include <amqp.h>
#include <amqp_tcp_socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace bench {

[[noreturn]] inline void die(const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
    std::exit(1);
}

/// Arguments of the form --name value.
class Arguments {
  public:
    Arguments(int argc, char** argv) {
        for (int i = 1; i + 1 < argc; i += 2) {
            if (std::strncmp(argv[i], "--", 2) != 0) {
                die(std::string("not an option: ") + argv[i]);
            }
            values_[argv[i] + 2] = argv[i + 1];
        }
        if (argc % 2 == 0) {
            die(std::string("no value for ") + argv[argc - 1]);
        }
    }
    std::string text(const std::string& name, const std::string& otherwise) const {
        const auto found = values_.find(name);
        return found == values_.end() ? otherwise : found->second;
    }
    long number(const std::string& name, long otherwise) const {
        const auto found = values_.find(name);
        return found == values_.end() ? otherwise : std::strtol(found->second.c_str(), nullptr, 10);
    }

  private:
    std::map<std::string, std::string> values_;
};

/// Seconds on the machine's monotonic clock, which its processes share.
inline double monotonic_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

inline void check(const amqp_rpc_reply_t& reply, const char* what) {
    if (reply.reply_type == AMQP_RESPONSE_NORMAL) {
        return;
    }
    die(std::string(what) + ": " +
        (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION
             ? amqp_error_string2(reply.library_error)
             : "refused by the broker"));
}

inline amqp_bytes_t bytes(const std::string& text) {
    return {text.size(), const_cast<char*>(text.data())};
}

/// Channel 1 of a new connection to 127.0.0.1 as guest.
inline amqp_connection_state_t connect(long port) {
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t* socket = amqp_tcp_socket_new(connection);
    if (socket == nullptr ||
        amqp_socket_open(socket, "127.0.0.1", static_cast<int>(port)) != AMQP_STATUS_OK) {
        die("could not connect to the broker");
    }
    check(amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"),
          "login");
    amqp_channel_open(connection, 1);
    check(amqp_get_rpc_reply(connection), "channel.open");
    return connection;
}

/// One confirm of the broker; multiple confirms all up to the tag.
struct Confirm {
    std::uint64_t tag = 0;
    bool multiple = false;
};

/// The next confirm; waits for it if `wait`, else returns false when there is none yet.
inline bool next_confirm(amqp_connection_state_t connection, bool wait, Confirm& confirm) {
    for (;;) {
        amqp_frame_t frame;
        timeval none{0, 0};
        const int status =
            amqp_simple_wait_frame_noblock(connection, &frame, wait ? nullptr : &none);
        if (status == AMQP_STATUS_TIMEOUT) {
            return false;
        }
        if (status != AMQP_STATUS_OK) {
            die(std::string("waiting for confirms: ") + amqp_error_string2(status));
        }
        if (frame.frame_type != AMQP_FRAME_METHOD) {
            continue;
        }
        if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD) {
            die(std::string("the broker sent ") + amqp_method_name(frame.payload.method.id));
        }
        const auto* ack = static_cast<amqp_basic_ack_t*>(frame.payload.method.decoded);
        confirm = {ack->delivery_tag, ack->multiple != 0};
        amqp_maybe_release_buffers(connection);
        return true;
    }
}

/// How many messages are unconfirmed, by confirms that come in any order.
class Window {
  public:
    void sent() { open_.push_back(true); }
    void confirmed(const Confirm& confirm) {
        const std::size_t last = confirm.tag - 1;
        for (std::size_t i = confirm.multiple ? lowest_ : last; i <= last; i++) {
            closed_ += open_[i] ? 1 : 0;
            open_[i] = false;
        }
        while (lowest_ < open_.size() && !open_[lowest_]) {
            lowest_++;
        }
    }
    std::size_t unconfirmed() const { return open_.size() - closed_; }

  private:
    std::vector<bool> open_;
    std::size_t closed_ = 0;
    std::size_t lowest_ = 0;
};

/// The properties of the messages that a drainer sends for an event with defaults in its columns.
inline amqp_basic_properties_t event_properties(const std::string& message_id) {
    amqp_basic_properties_t properties{};
    properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG |
                        AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_TIMESTAMP_FLAG |
                        AMQP_BASIC_TYPE_FLAG | AMQP_BASIC_APP_ID_FLAG;
    properties.content_type = amqp_cstring_bytes("application/json");
    properties.delivery_mode = AMQP_DELIVERY_PERSISTENT;
    properties.message_id = bytes(message_id);
    properties.timestamp = static_cast<std::uint64_t>(std::time(nullptr));
    properties.type = amqp_cstring_bytes("order.placed");
    properties.app_id = amqp_cstring_bytes("postgres");
    return properties;
}

inline double percentile(std::vector<double>& sorted, double share) {
    return sorted.empty()
               ? 0
               : sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

}  // namespace bench
