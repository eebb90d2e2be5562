#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "amqp/rabbitmq.hpp"

namespace outbox::amqp {

/// Largest frame that we ask for: what RabbitMQ uses by default.
constexpr std::size_t wanted_frame_max = 131072;
/// Bytes of a frame before its payload, and those that are not payload.
constexpr std::size_t frame_head_size = 7;
constexpr std::size_t frame_overhead = 8;

/// Our channels. The broker has no others with us.
constexpr amqp_channel_t main_channel = 1;
constexpr amqp_channel_t question_channel = 2;
constexpr amqp_channel_t trial_channel = 3;
constexpr amqp_channel_t channel_count = 3;

struct FrameHead {
    std::uint8_t type = 0;
    amqp_channel_t channel = 0;
    std::uint32_t size = 0;  ///< of the payload
};

/// `bytes` has frame_head_size of them at least.
FrameHead read_head(std::string_view bytes);
void write_head(const FrameHead& head, char* out);
void write_u16(std::uint16_t value, char* out);
void write_u32(std::uint32_t value, char* out);
void write_u64(std::uint64_t value, char* out);

// What is wrong with what the peer has sent, in words for a user; nullopt: nothing. All that comes
// is looked at before rabbitmq-c gets it: its decoder takes what the peer says of sizes and depths
// for granted in more than one of its versions, and it takes methods that no server sends.

/// The first bytes that a server sends, as many as have come.
std::optional<std::string> problem_of_greeting(std::string_view bytes);
/// Before the payload has come, so that a frame which cannot be is not waited for.
std::optional<std::string> problem_of_head(const FrameHead& head, std::size_t frame_max);
std::optional<std::string> problem_of_payload(const FrameHead& head, std::string_view payload);

}  // namespace outbox::amqp
