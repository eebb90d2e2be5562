#include "worker/broker_link.hpp"

#include <unistd.h>

#include <utility>

#include "core/message.hpp"
#include "postgres/log.hpp"
#include "postgres/password_file.hpp"
#include "postgres/signals.hpp"
#include "postgres/wait.hpp"

namespace outbox::worker {

namespace {

// A send that takes longer than this, and than its size takes on a slow line, has met a peer that
// does not read.
constexpr Duration SEND_LIMIT{5000};
constexpr std::size_t SLOW_LINE_BYTES_PER_MS = 1000;
// How long the broker has to answer a goodbye.
constexpr Duration GOODBYE{200};
// What a message takes beside its body and headers: frames, routing and the other properties.
constexpr std::size_t MESSAGE_OVERHEAD = 256;

std::string connection_name(std::string_view database) {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return "outbox_drainer " + std::string(database) + "@" + host + " " +
           std::to_string(::getpid());
}

}  // namespace

BrokerLink::BrokerLink(Drain& drain, postgres::Slot& slot) : drain_(drain), slot_(slot) {}

void BrokerLink::open(Time now, const DrainSettings& settings) {
    connecting_ = true;
    auto parsed = parse_broker_uri(settings.broker_uri);
    if (const UriError* error = std::get_if<UriError>(&parsed)) {
        lost(now, {amqp::FailureClass::configuration, "broker_uri: " + error->reason});
        return;
    }
    BrokerUri uri = std::get<BrokerUri>(std::move(parsed));
    broker_ = display_name(uri);
    if (!settings.password_file.empty()) {
        auto password = postgres::read_password_file(settings.password_file, uri);
        if (const auto* error = std::get_if<postgres::PasswordError>(&password)) {
            lost(now, {amqp::FailureClass::configuration,
                       "password file \"" + settings.password_file + "\" " + error->reason});
            return;
        }
        uri.password = std::get<std::string>(std::move(password));
    }
    slot_.set_broker(broker_, false);
    amqp::Options options;
    options.heartbeat = settings.heartbeat;
    options.product = "outbox_drainer";
    options.version = OUTBOX_DRAINER_VERSION;
    options.connection_name = connection_name(slot_.database_name());
    if (connection_.open(uri, options) == amqp::Connection::Progress::failed) {
        lost(now, connection_.failure());
    }
}

void BrokerLink::pump(Time now) {
    if (connecting_) {
        switch (connection_.advance()) {
            case amqp::Connection::Progress::in_progress:
                return;
            case amqp::Connection::Progress::failed:
                lost(now, connection_.failure());
                return;
            case amqp::Connection::Progress::ready:
                became_ready(now);
                break;
        }
    }
    while (connection_.is_open()) {
        const std::optional<amqp::Incoming> incoming = connection_.poll();
        if (!incoming.has_value()) {
            return;
        }
        handle(now, *incoming);
    }
}

namespace {

std::string mandatory_key(std::string_view message_id, std::string_view app_id) {
    return std::string(app_id) + '\0' + std::string(message_id);
}

}  // namespace

void BrokerLink::handle(Time now, const amqp::Incoming& incoming) {
    if (const auto* confirm = std::get_if<amqp::Confirm>(&incoming)) {
        if (!drain_.confirmed(now, confirm->tag, confirm->multiple, confirm->ack)) {
            close(now, "the broker confirmed delivery tag " + std::to_string(confirm->tag) +
                           ", which is not open");
        }
    } else if (const auto* returned = std::get_if<amqp::Returned>(&incoming)) {
        note_returned(*returned);
    } else if (const auto* blocked = std::get_if<amqp::Blocked>(&incoming)) {
        drain_.blocked();
        slot_.set_error("blocked by the broker: " + blocked->reason);
        postgres::log_line("outbox_drainer: broker \"" + broker_ + "\" blocks publishing",
                           "Reason given: " + blocked->reason + ".");
    } else if (std::holds_alternative<amqp::Unblocked>(incoming)) {
        drain_.unblocked();
        postgres::log_line("outbox_drainer: broker \"" + broker_ + "\" accepts messages again");
    } else if (const auto* closed = std::get_if<amqp::Closed>(&incoming)) {
        lost(now, closed->failure);
    }
}

// The broker says which message came back by what the message itself said, not by its place among
// others.
void BrokerLink::note_returned(const amqp::Returned& returned) {
    const auto found = mandatory_.find(mandatory_key(returned.message_id, returned.app_id));
    if (found == mandatory_.end()) {
        postgres::log_warning("outbox_drainer: the broker returned a message that was not sent",
                              "Its message_id is \"" + returned.message_id + "\".");
        return;
    }
    drain_.returned(found->second, std::to_string(returned.reply_code) + " " + returned.reply_text +
                                       " (exchange \"" + returned.exchange + "\", routing key \"" +
                                       returned.routing_key + "\")");
}

void BrokerLink::remember_mandatory(std::uint64_t tag, const Message& message) {
    while (!mandatory_order_.empty() && !drain_.is_unconfirmed(mandatory_order_.front()->second)) {
        mandatory_.erase(mandatory_order_.front());
        mandatory_order_.pop_front();
    }
    mandatory_order_.push_back(mandatory_.emplace(
        mandatory_key(message.message_id, message.app_id.value_or(std::string_view())), tag));
}

void BrokerLink::publish(Time now, const Event& event, const DrainSettings& settings) {
    MessageRules rules;
    rules.default_exchange = settings.exchange;
    rules.max_message_bytes = static_cast<std::size_t>(settings.max_message_bytes);
    rules.max_properties_bytes = connection_.max_properties_bytes();
    Message message;
    if (const std::optional<Rejection> rejection = build_message(event, rules, message)) {
        drain_.rejected(now, rejection->code, rejection->detail);
        return;
    }
    // A replay is for whoever has just subscribed; for the others it went well the first time.
    const bool mandatory = settings.mandatory && event.replay_job == 0;
    postgres::begin_send(connection_.fd(),
                         SEND_LIMIT + Duration{message.body.size() / SLOW_LINE_BYTES_PER_MS});
    const std::optional<std::uint64_t> tag = connection_.publish(message, mandatory);
    postgres::end_send();
    if (!tag.has_value()) {
        lost(now, connection_.failure());
        return;
    }
    if (!drain_.sent(now, *tag,
                     message.body.size() + encoded_size(message.headers) + MESSAGE_OVERHEAD)) {
        close(now, "delivery tag " + std::to_string(*tag) + " is not the next one");
        return;
    }
    if (mandatory) {
        remember_mandatory(*tag, message);
    }
    postgres::add(slot_.counters().bytes, message.body.size());
}

void BrokerLink::close(Time now, std::string_view reason) {
    if (!reason.empty()) {
        lost(now, {amqp::FailureClass::infrastructure, std::string(reason)});
        return;
    }
    say_goodbye();
    connection_.close();
    forget_mandatory();
    connecting_ = false;
    was_connected_ = false;
    slot_.set_broker("", false);
    drain_.connection_closed(now);
}

// Gives the broker a moment to answer, so that it does not log a client that vanished. Confirms
// that still come are taken.
void BrokerLink::say_goodbye() {
    if (connecting_ || !connection_.is_open()) {
        return;
    }
    connection_.start_close();
    const Time until = postgres::monotonic_now() + GOODBYE;
    for (Time now = postgres::monotonic_now(); now < until; now = postgres::monotonic_now()) {
        while (const std::optional<amqp::Incoming> incoming = connection_.poll()) {
            if (std::holds_alternative<amqp::Closed>(*incoming)) {
                return;
            }
            handle(now, *incoming);
        }
        postgres::PgError error;
        if (connection_.fd() < 0 ||
            !postgres::wait_for(connection_.fd(), true, false, until - now, error)) {
            return;
        }
    }
}

void BrokerLink::forget_mandatory() {
    mandatory_order_.clear();
    mandatory_.clear();
}

void BrokerLink::became_ready(Time now) {
    connecting_ = false;
    drain_.connected(now, connection_.send_buffer_bytes());
    slot_.set_broker(broker_, true);
    if (was_connected_) {
        postgres::add(slot_.counters().reconnects, 1);
    }
    was_connected_ = true;
    const std::string attempts =
        failures_ > 0 ? "After " + std::to_string(failures_) + " failed attempts." : "";
    postgres::log_line("outbox_drainer: connected to broker \"" + broker_ + "\" (" +
                           connection_.broker_version() + ")",
                       attempts);
    failures_ = 0;
    reported_failure_.clear();
}

// By value: what the connection says of its failure goes with the connection.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void BrokerLink::lost(Time now, amqp::Failure failure) {
    // What the broker had confirmed before need not be sent again.
    while (const std::optional<amqp::Incoming> last = connection_.poll()) {
        if (const auto* confirm = std::get_if<amqp::Confirm>(&*last)) {
            drain_.confirmed(now, confirm->tag, confirm->multiple, confirm->ack);
        } else if (const auto* returned = std::get_if<amqp::Returned>(&*last)) {
            note_returned(*returned);
        }
    }
    connection_.close();
    forget_mandatory();
    const bool configuration = failure.failure_class == amqp::FailureClass::configuration;
    const char* what =
        connecting_ ? "could not connect to broker \"" : "lost connection to broker \"";
    connecting_ = false;
    failures_++;
    slot_.set_broker(broker_, false);
    slot_.set_error(failure.text);
    if (failure.text != reported_failure_) {
        reported_failure_ = failure.text;
        postgres::log_warning(
            "outbox_drainer: " + (what + broker_) + "\": " + failure.text, "",
            configuration
                ? "The drainer tries again every few seconds; nothing will change until the "
                  "broker or the settings do."
                : "The drainer tries again until the broker answers; no event is lost.");
    }
    drain_.connection_lost(now, configuration, failure.text);
}

}  // namespace outbox::worker
