#include "amqp/link.hpp"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace outbox::amqp {

namespace {

constexpr Duration no_heartbeat_wait{3'600'000};

// Half the interval, as the broker expects one at least every interval.
Clock::duration send_interval(Duration heartbeat) {
    return Clock::duration{heartbeat} / 2;
}

// The protocol's rule: a peer that was silent for two intervals is dead.
Clock::duration silence_limit(Duration heartbeat) {
    return Clock::duration{heartbeat} * 2;
}

}  // namespace

bool Link::attach(int fd) {
    drop();
    state_ = amqp_new_connection();
    amqp_socket_t* socket = state_ == nullptr ? nullptr : amqp_tcp_socket_new(state_);
    if (socket == nullptr) {
        ::close(fd);
        drop();
        return succeeded(AMQP_STATUS_NO_MEMORY);
    }
    amqp_tcp_socket_set_sockfd(socket, fd);
    fd_ = fd;
    last_sent_ = last_received_ = Clock::now();
    return true;
}

void Link::drop() {
    if (state_ != nullptr) {
        // Only frees memory and closes the socket: nothing is sent or awaited.
        (void)amqp_destroy_connection(state_);
    }
    state_ = nullptr;
    fd_ = -1;
    heartbeat_ = Duration{0};
}

Link::Read Link::read(amqp_frame_t& frame) {
    if (!amqp_frames_enqueued(state_) && !amqp_data_in_buffer(state_) && !is_readable(fd_)) {
        return Read::nothing;
    }
    // Any byte counts as a sign of life, so that a long frame on a slow link does not look like
    // silence.
    last_received_ = Clock::now();
    const timeval at_once{0, 0};
    errno = 0;
    const int status = amqp_simple_wait_frame_noblock(state_, &frame, &at_once);
    if (status == AMQP_STATUS_TIMEOUT) {
        return Read::nothing;
    }
    return succeeded(status) ? Read::frame : Read::failed;
}

// The maybe_ variant on purpose: amqp_release_buffers aborts the process in the middle of a frame.
void Link::recycle(amqp_channel_t channel) {
    amqp_maybe_release_buffers_on_channel(state_, channel);
}

bool Link::send_protocol_header() {
    errno = 0;
    last_sent_ = Clock::now();
    return succeeded(amqp_send_header(state_));
}

bool Link::send_method(amqp_channel_t channel, amqp_method_number_t id, void* method) {
    errno = 0;
    last_sent_ = Clock::now();
    return succeeded(amqp_send_method(state_, channel, id, method));
}

bool Link::publish(amqp_channel_t channel, amqp_bytes_t exchange, amqp_bytes_t routing_key,
                   bool mandatory, const amqp_basic_properties_t& properties, amqp_bytes_t body) {
    constexpr amqp_boolean_t immediate = 0;
    errno = 0;
    last_sent_ = Clock::now();
    const int status = amqp_basic_publish(state_, channel, exchange, routing_key, mandatory ? 1 : 0,
                                          immediate, &properties, body);
    return succeeded(status);
}

void Link::send_if_possible(amqp_channel_t channel, amqp_method_number_t id, void* method) {
    if (state_ != nullptr && is_writable(fd_)) {
        (void)amqp_send_method(state_, channel, id, method);
    }
}

bool Link::tune(int channel_max, int frame_max, Duration heartbeat) {
    // amqp_tune_connection aborts the process when a frame is half read. It never is, just after a
    // frame was returned, but a check is cheaper than an outage.
    if (!amqp_release_buffers_ok(state_)) {
        return succeeded(AMQP_STATUS_UNEXPECTED_STATE);
    }
    heartbeat_ = heartbeat;
    return succeeded(amqp_tune_connection(state_, channel_max, frame_max, 0));
}

bool Link::beat() {
    if (heartbeat_.count() <= 0) {
        return true;
    }
    const Clock::time_point now = Clock::now();
    if (now >= last_received_ + silence_limit(heartbeat_)) {
        status_ = AMQP_STATUS_HEARTBEAT_TIMEOUT;
        error_ =
            "heartbeat timeout: nothing came from the broker for " +
            std::to_string(std::chrono::duration_cast<Duration>(now - last_received_).count()) +
            " ms";
        return false;
    }
    if (now < last_sent_ + send_interval(heartbeat_)) {
        return true;
    }
    last_sent_ = now;
    if (!is_writable(fd_)) {
        return true;  // what fills the socket tells the peer that we live, as soon as it reads
    }
    amqp_frame_t frame{};
    frame.frame_type = AMQP_FRAME_HEARTBEAT;
    frame.channel = 0;
    errno = 0;
    return succeeded(amqp_send_frame(state_, &frame));
}

Duration Link::max_wait() const {
    if (state_ == nullptr || heartbeat_.count() <= 0) {
        return no_heartbeat_wait;
    }
    return time_until(std::min(last_sent_ + send_interval(heartbeat_),
                               last_received_ + silence_limit(heartbeat_)),
                      Clock::now());
}

// errno is what the failed send or recv left: rabbitmq-c keeps its own copy to itself.
bool Link::succeeded(int status) {
    const int error_number = errno;
    status_ = status;
    if (status >= 0) {
        return true;
    }
    if (status == AMQP_STATUS_CONNECTION_CLOSED || status == AMQP_STATUS_SOCKET_CLOSED) {
        error_ = "broker closed the connection";
    } else if (status == AMQP_STATUS_SOCKET_ERROR && error_number != 0) {
        error_ = std::string("connection lost: ") + std::strerror(error_number);
    } else {
        error_ = amqp_error_string2(status);
    }
    return false;
}

}  // namespace outbox::amqp
