#include "amqp/link.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "amqp/replies.hpp"

namespace outbox::amqp {

namespace {

constexpr Duration no_heartbeat_wait{3'600'000};

// What a frame may have before the peers have agreed on that: what rabbitmq-c takes then.
constexpr std::size_t first_frame_max = 65536;

constexpr char frame_end = static_cast<char>(AMQP_FRAME_END);
constexpr std::size_t method_id_size = 4;
constexpr std::size_t content_head_size = 12;  // class, weight, body size

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
    stream_.attach(fd);
    codec_ = amqp_new_connection();
    frame_max_ = first_frame_max;
    make_scratch();
    if (codec_ == nullptr) {
        (void)fail("out of memory");
        return false;
    }
    return true;
}

void Link::drop() {
    stream_.drop();
    if (codec_ != nullptr) {
        (void)amqp_destroy_connection(codec_);
    }
    codec_ = nullptr;
    scratch_.reset();
    set_secret(false);
    greeted_ = foreign_ = false;
    heartbeat_ = Duration{0};
}

// Large enough for the method frame and the header frame of one message.
void Link::make_scratch() {
    scratch_ = std::make_unique_for_overwrite<char[]>(2 * frame_max_);
}

Link::Read Link::fail(std::string text) {
    failure_ = {FailureClass::infrastructure, std::move(text)};
    return Read::failed;
}

Link::Read Link::read(amqp_frame_t& frame, int& reads) {
    for (;; --reads) {
        const Read taken = take_frame(frame);
        if (taken != Read::nothing || reads <= 0) {
            return taken;
        }
        switch (stream_.receive()) {
            case Stream::Read::some:
                break;
            case Stream::Read::nothing:
                return Read::nothing;
            case Stream::Read::failed:
                failure_ = stream_.failure();
                failure_.text += stream_.received().empty() ? "" : " in the middle of a frame";
                return Read::failed;
        }
    }
}

Link::Read Link::take_frame(amqp_frame_t& frame) {
    for (;;) {
        const std::string_view bytes = stream_.received();
        if (!greeted_) {
            const Read greeting = take_greeting();
            if (greeting != Read::frame) {
                return greeting;
            }
        }
        if (bytes.size() < frame_head_size) {
            return Read::nothing;
        }
        const FrameHead head = read_head(bytes);
        if (std::optional<std::string> problem = problem_of_head(head, frame_max_)) {
            return fail(std::move(*problem));
        }
        const std::size_t size = head.size + frame_overhead;
        if (bytes.size() < size) {
            return Read::nothing;
        }
        if (bytes[size - 1] != frame_end) {
            return fail("frame without its end mark from the broker on channel " +
                        std::to_string(head.channel));
        }
        if (head.type != AMQP_FRAME_HEARTBEAT) {
            return decode(bytes.substr(0, size), frame);
        }
        stream_.consume(size);
    }
}

// `frame`: the peer has begun as a server of our protocol does.
Link::Read Link::take_greeting() {
    const std::string_view bytes = stream_.received();
    if (std::optional<std::string> problem = problem_of_greeting(bytes)) {
        foreign_ = true;
        return fail(std::move(*problem));
    }
    greeted_ = !bytes.empty() && bytes[0] == static_cast<char>(AMQP_FRAME_METHOD);
    return greeted_ ? Read::frame : Read::nothing;
}

Link::Read Link::decode(std::string_view bytes, amqp_frame_t& frame) {
    const FrameHead head = read_head(bytes);
    const std::string_view payload = bytes.substr(frame_head_size, head.size);
    if (std::optional<std::string> problem = problem_of_payload(head, payload)) {
        return fail(std::move(*problem));
    }
    const int used = amqp_handle_input(codec_, to_bytes(bytes), &frame);
    if (used < 0 || static_cast<std::size_t>(used) != bytes.size() || frame.frame_type == 0) {
        std::string text = "malformed frame of type " + std::to_string(head.type) +
                           " from the broker on channel " + std::to_string(head.channel);
        if (used < 0) {
            text += std::string(": ") + amqp_error_string2(used);
        }
        return fail(std::move(text));
    }
    stream_.consume(bytes.size());
    return Read::frame;
}

// The maybe_ variant on purpose: amqp_release_buffers aborts the process in the middle of a frame.
void Link::recycle(amqp_channel_t channel) {
    if (codec_ != nullptr) {
        amqp_maybe_release_buffers_on_channel(codec_, channel);
    }
}

void Link::send_protocol_header() {
    constexpr char header[] = {'A',
                               'M',
                               'Q',
                               'P',
                               0,
                               AMQP_PROTOCOL_VERSION_MAJOR,
                               AMQP_PROTOCOL_VERSION_MINOR,
                               AMQP_PROTOCOL_VERSION_REVISION};
    stream_.out().append({header, sizeof(header)});
}

bool Link::send_method(amqp_channel_t channel, amqp_method_number_t id, void* method) {
    const std::size_t size = encode_method(0, channel, id, method);
    append_scratch(size);
    return size > 0;
}

bool Link::send_message(amqp_channel_t channel, amqp_basic_publish_t& method,
                        const amqp_basic_properties_t& properties, std::string_view body) {
    const std::size_t method_size = encode_method(0, channel, AMQP_BASIC_PUBLISH_METHOD, &method);
    if (method_size == 0) {
        return false;
    }
    const std::size_t header_size = encode_header(method_size, channel, properties, body.size());
    if (header_size == 0) {
        return false;
    }
    const std::size_t part_size = frame_max_ - frame_overhead;
    const std::size_t parts = (body.size() + part_size - 1) / part_size;
    OutBuffer& out = stream_.out();
    out.reserve(method_size + header_size + body.size() + parts * frame_overhead);
    append_scratch(method_size + header_size);
    while (!body.empty()) {
        const std::string_view part = body.substr(0, part_size);
        char head[frame_head_size];
        write_head({AMQP_FRAME_BODY, channel, static_cast<std::uint32_t>(part.size())}, head);
        out.append({head, sizeof(head)});
        out.append(part);
        out.append({&frame_end, 1});
        body.remove_prefix(part.size());
    }
    return true;
}

void Link::append_scratch(std::size_t size) {
    stream_.out().append({scratch_.get(), size});
    if (secret_) {
        ::explicit_bzero(scratch_.get(), size);
    }
}

void Link::set_secret(bool secret) {
    secret_ = secret;
    stream_.out().set_secret(secret);
}

// Zero: it does not fit. rabbitmq-c only reads what it is given to encode.
std::size_t Link::encode_method(std::size_t at, amqp_channel_t channel, amqp_method_number_t id,
                                void* method) {
    char* frame = scratch_.get() + at;
    char* payload = frame + frame_head_size;
    amqp_bytes_t room;
    room.bytes = payload + method_id_size;
    room.len = frame_max_ - frame_overhead - method_id_size;
    const int encoded = amqp_encode_method(id, method, room);
    if (encoded < 0) {
        return 0;
    }
    const std::size_t size = method_id_size + static_cast<std::size_t>(encoded);
    write_head({AMQP_FRAME_METHOD, channel, static_cast<std::uint32_t>(size)}, frame);
    write_u32(id, payload);
    payload[size] = frame_end;
    return size + frame_overhead;
}

std::size_t Link::encode_header(std::size_t at, amqp_channel_t channel,
                                const amqp_basic_properties_t& properties, std::size_t body_size) {
    char* frame = scratch_.get() + at;
    char* payload = frame + frame_head_size;
    amqp_bytes_t room;
    room.bytes = payload + content_head_size;
    room.len = frame_max_ - frame_overhead - content_head_size;
    const int encoded = amqp_encode_properties(
        AMQP_BASIC_CLASS, const_cast<amqp_basic_properties_t*>(&properties), room);
    if (encoded < 0) {
        return 0;
    }
    const std::size_t size = content_head_size + static_cast<std::size_t>(encoded);
    write_head({AMQP_FRAME_HEADER, channel, static_cast<std::uint32_t>(size)}, frame);
    write_u16(AMQP_BASIC_CLASS, payload);
    write_u16(0, payload + 2);
    write_u64(body_size, payload + 4);
    payload[size] = frame_end;
    return size + frame_overhead;
}

bool Link::tune(std::size_t frame_max, Duration heartbeat) {
    // amqp_tune_connection aborts the process when a frame is half read. It never is, as whole
    // frames are what it gets, but a check is cheaper than an outage.
    if (!amqp_release_buffers_ok(codec_) ||
        amqp_tune_connection(codec_, 0, static_cast<int>(frame_max), 0) < 0) {
        (void)fail("out of memory");
        return false;
    }
    frame_max_ = frame_max;
    make_scratch();
    heartbeat_ = heartbeat;
    return true;
}

bool Link::beat() {
    if (heartbeat_.count() <= 0) {
        return true;
    }
    const Clock::time_point now = Clock::now();
    if (now >= stream_.last_received() + silence_limit(heartbeat_)) {
        const auto silence = std::chrono::duration_cast<Duration>(now - stream_.last_received());
        (void)fail("heartbeat timeout: nothing came from the broker for " +
                   std::to_string(silence.count()) + " ms");
        return false;
    }
    // What is on its way tells the peer that we live, as soon as it reads.
    if (now >= stream_.last_sent() + send_interval(heartbeat_) && stream_.unsent() == 0) {
        char heartbeat[frame_overhead];
        write_head({AMQP_FRAME_HEARTBEAT, 0, 0}, heartbeat);
        heartbeat[frame_head_size] = frame_end;
        stream_.out().append({heartbeat, sizeof(heartbeat)});
    }
    return true;
}

Duration Link::max_wait() const {
    if (codec_ == nullptr || heartbeat_.count() <= 0) {
        return no_heartbeat_wait;
    }
    Clock::time_point next = stream_.last_received() + silence_limit(heartbeat_);
    if (stream_.unsent() == 0) {
        next = std::min(next, stream_.last_sent() + send_interval(heartbeat_));
    }
    return time_until(next, Clock::now());
}

}  // namespace outbox::amqp
