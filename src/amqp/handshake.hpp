#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "amqp/channels.hpp"
#include "amqp/connection.hpp"
#include "amqp/link.hpp"
#include "amqp/wipe.hpp"
#include "core/broker_uri.hpp"

namespace outbox::amqp {

/// Takes a connected link to the point where messages can be published, one frame at a time:
///
///     protocol header -> Start, StartOk -> Tune, TuneOk + Open -> OpenOk, the channels -> open
class Handshake {
  public:
    enum class Progress : std::uint8_t { in_progress, done, failed };

    /// Starts with the protocol header.
    void start(Link& link, const BrokerUri& uri, const Options& options);
    /// Goes on as far as what has arrived allows.
    Progress advance(Link& link, Channels& channels);
    /// Given up before its end: forgets the password.
    void drop() { uri_.forget(); }
    /// What it is at.
    std::string stage() const;
    /// The heartbeat that is asked for: the URI's, or that of the options.
    static Duration wanted_heartbeat(const BrokerUri& uri, const Options& options);

    const Failure& failure() const { return failure_; }
    /// Product and version of the broker, once it has introduced itself.
    const std::string& broker_version() const { return broker_version_; }
    /// Agreed size of a frame.
    std::size_t frame_max() const { return frame_max_; }
    /// Reason of a connection.blocked that came early.
    const std::optional<std::string>& blocked() const { return blocked_; }

  private:
    enum class Step : std::uint8_t { start, tune, open_ok, channels, done };

    Progress take(Link& link, Channels& channels, const amqp_frame_t& frame);
    // nullopt: the method has no place at this step.
    std::optional<Progress> take_connection_method(Link& link, Channels& channels,
                                                   const amqp_method_t& method);
    Progress take_channel_frame(Link& link, Channels& channels, const amqp_frame_t& frame);
    Progress take_start(Link& link, const amqp_connection_start_t& start);
    Progress take_tune(Link& link, const amqp_connection_tune_t& tune);
    Progress send_start_ok(Link& link);
    Progress send(Link& link, amqp_method_number_t id, void* method, Step next);
    Progress fail(FailureClass failure_class, std::string text);
    Progress fail_read(const Link& link);
    Progress fail_unexpected(const amqp_frame_t& frame);

    Step step_ = Step::start;
    SecretUri uri_;
    Options options_;
    std::size_t frame_max_ = wanted_frame_max;
    std::string broker_version_;
    std::optional<std::string> blocked_;
    Failure failure_;
};

}  // namespace outbox::amqp
