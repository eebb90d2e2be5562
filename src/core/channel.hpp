#pragma once

#include <cstdint>

namespace outbox {

/// The channels of a connection on which messages are published. A broker that cannot take a
/// message closes the channel it came on, and with it all that is unconfirmed there has no answer:
/// so a message that may be such a one goes on a channel of its own, with no other beside it.
enum class Channel : std::uint8_t {
    main,   ///< all that is not under suspicion, pipelined
    trial,  ///< one message at a time that may close its channel
};

}  // namespace outbox
