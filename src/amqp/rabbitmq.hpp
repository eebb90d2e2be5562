#pragma once

// The one door to rabbitmq-c: its headers moved in 0.12, where the old names only warn.
#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#endif

#include <string_view>

namespace outbox::amqp {

/// The view as rabbitmq-c takes it. The library only reads what it is given to send, although its
/// type says otherwise; the bytes must outlive the call.
inline amqp_bytes_t to_bytes(std::string_view text) {
    amqp_bytes_t bytes;
    bytes.len = text.size();
    bytes.bytes = const_cast<char*>(text.data());
    return bytes;
}

/// What rabbitmq-c has decoded. Valid until the buffers of that channel are recycled.
inline std::string_view to_view(amqp_bytes_t bytes) {
    return {static_cast<const char*>(bytes.bytes), bytes.len};
}

}  // namespace outbox::amqp
