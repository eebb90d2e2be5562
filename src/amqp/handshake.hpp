#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "amqp/connection.hpp"
#include "amqp/link.hpp"
#include "core/broker_uri.hpp"

namespace outbox::amqp {

/// The one channel of a connection.
constexpr amqp_channel_t publish_channel = 1;

/// Largest frame that we ask for: what rabbitmq-c and RabbitMQ use by default.
constexpr std::size_t wanted_frame_max = 131072;
/// Bytes of a frame that are not payload.
constexpr std::size_t frame_overhead = 8;

/// Takes a connected link to the point where messages can be published, one frame at a time:
///
///     protocol header -> Start, StartOk -> Tune, TuneOk + Open -> OpenOk, channel.open -> OpenOk,
///     confirm.select -> SelectOk
///
/// amqp_login does the same with a wait at each arrow, which is why it is not used.
class Handshake {
  public:
    enum class Progress : std::uint8_t { in_progress, done, failed };

    /// Starts with the protocol header. The link must stay where it is until the end.
    Progress start(Link& link, const BrokerUri& uri, const Options& options);
    /// Goes on as far as what has arrived allows.
    Progress advance(Link& link);

    const Failure& failure() const { return failure_; }
    /// Product and version of the broker, once it has introduced itself.
    const std::string& broker_version() const { return broker_version_; }
    /// Agreed size of a frame.
    std::size_t frame_max() const { return frame_max_; }
    /// Reason of a connection.blocked that came early.
    const std::optional<std::string>& blocked() const { return blocked_; }

  private:
    enum class Step : std::uint8_t { start, tune, open_ok, channel_open_ok, select_ok, done };

    Progress take(Link& link, const amqp_frame_t& frame);
    // nullopt: the method has no place at this step.
    std::optional<Progress> take_connection_method(Link& link, const amqp_method_t& method);
    std::optional<Progress> take_channel_method(Link& link, const amqp_method_t& method);
    Progress take_start(Link& link, const amqp_connection_start_t& start);
    Progress take_tune(Link& link, const amqp_connection_tune_t& tune);
    Progress send_start_ok(Link& link);
    Progress send(Link& link, amqp_channel_t channel, amqp_method_number_t id, void* method,
                  Step next);
    Progress fail(FailureClass failure_class, std::string text);
    Progress fail_read(const Link& link);
    bool looks_like_amqp(const Link& link);

    Step step_ = Step::start;
    bool greeted_ = false;  ///< the first byte from the peer has been looked at
    BrokerUri uri_;
    Options options_;
    std::size_t frame_max_ = wanted_frame_max;
    std::string broker_version_;
    std::optional<std::string> blocked_;
    Failure failure_;
};

}  // namespace outbox::amqp
