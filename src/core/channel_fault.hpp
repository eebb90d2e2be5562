#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

/// Why a broker closed a channel on which messages were published, as far as its words tell.
struct ChannelFault {
    enum class Kind : std::uint8_t {
        missing_exchange,  ///< there is none of that name
        refused,           ///< this user may not write there, or nobody may
        too_large,         ///< a body is over the broker's limit
        content,           ///< something else in a message
        other,             ///< no matter of a message
    };
    Kind kind = Kind::other;
    std::optional<std::string> exchange;    ///< the one that is named; '' is the default exchange
    std::optional<std::size_t> size_limit;  ///< too_large: the largest body it takes, in bytes
};

/// Reads AMQP's reply code and RabbitMQ's text. What the text does not tell stays open: the text is
/// cut at 255 bytes, and other versions may put it in other words.
ChannelFault read_channel_fault(std::uint16_t code, std::string_view text);

}  // namespace outbox
