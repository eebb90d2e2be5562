#include "worker/broker_link.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "postgres/inject_fault.hpp"
#include "postgres/log.hpp"
#include "postgres/password_file.hpp"
#include "postgres/wait.hpp"

namespace outbox::worker {

namespace {

// AMQP's reply code for a name that there is not.
constexpr std::uint16_t NOT_FOUND = 404;
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

// The URI with its password, which is read anew each time, so that a changed one needs no restart.
std::optional<BrokerUri> BrokerLink::read_uri(Time now, const DrainSettings& settings,
                                              std::size_t broker) {
    auto parsed = parse_broker_list(settings.broker_uri);
    if (const UriError* error = std::get_if<UriError>(&parsed)) {
        lost(now, {amqp::FailureClass::configuration, "broker_uri: " + error->reason});
        return std::nullopt;
    }
    const auto& list = std::get<std::vector<BrokerUri>>(parsed);
    BrokerUri uri = list[broker % list.size()];
    broker_ = display_name(uri);
    if (!settings.password_file.empty() && uri.auth == AuthMechanism::plain) {
        auto password = postgres::read_password_file(settings.password_file, uri);
        if (const auto* error = std::get_if<postgres::PasswordError>(&password)) {
            lost(now, {amqp::FailureClass::configuration,
                       "password file \"" + settings.password_file + "\" " + error->reason});
            return std::nullopt;
        }
        uri.password = std::get<std::string>(std::move(password));
    }
    return uri;
}

void BrokerLink::open(Time now, const DrainSettings& settings, std::size_t broker) {
    connecting_ = true;
    broken_ = false;
    const std::optional<BrokerUri> uri = read_uri(now, settings, broker);
    if (!uri.has_value()) {
        return;
    }
    slot_.set_broker(broker_, false);
    amqp::Options options;
    options.heartbeat = uri->heartbeat.value_or(settings.heartbeat);
    options.product = "outbox_drainer";
    options.version = OUTBOX_DRAINER_VERSION;
    options.connection_name = connection_name(slot_.database_name());
#ifdef OUTBOX_DRAINER_INJECT
    if (const char* servers = std::getenv("OUTBOX_DRAINER_NAME_SERVERS")) {
        options.name_servers = servers;
    }
#endif
    answer_timeout_ = settings.confirm_timeout;
    drain_.connecting_within(uri->connect_timeout.value_or(settings.connect_timeout));
    if (connection_.open(*uri, options) == amqp::Connection::Progress::failed) {
        lost(now, connection_.failure());
    }
}

void BrokerLink::pump(Time now) {
    if (broken_) {
        lost(now, connection_.failure());
        return;
    }
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
            break;
        }
        handle(now, *incoming);
    }
    if (answer_is_overdue(now)) {
        close(now,
              "no answer from the broker for " + std::to_string(answer_timeout_.count()) + " ms");
    }
}

void BrokerLink::handle(Time now, const amqp::Incoming& incoming) {
    if (const auto* confirm = std::get_if<amqp::Confirm>(&incoming)) {
        if (!drain_.confirmed(now, confirm->channel, confirm->tag, confirm->multiple,
                              confirm->ack)) {
            close(now, "the broker confirmed delivery tag " + std::to_string(confirm->tag) +
                           ", which is not open");
        }
    } else if (const auto* returned = std::get_if<amqp::Returned>(&incoming)) {
        note_returned(*returned);
    } else if (const auto* closed = std::get_if<amqp::ChannelClosed>(&incoming)) {
        note_closed_channel(now, *closed);
    } else if (const auto* opened = std::get_if<amqp::ChannelOpened>(&incoming)) {
        drain_.channel_opened(opened->channel);
    } else if (const auto* answer = std::get_if<amqp::Answer>(&incoming)) {
        note_answer(now, *answer);
    } else if (const auto* blocked = std::get_if<amqp::Blocked>(&incoming)) {
        drain_.blocked();
        blocked_ = true;
        slot_.set_error("blocked by the broker: " + blocked->reason);
        postgres::log_line("outbox_drainer: broker \"" + broker_ + "\" blocks publishing",
                           "Reason given: " + blocked->reason + ".");
    } else if (std::holds_alternative<amqp::Unblocked>(incoming)) {
        drain_.unblocked();
        blocked_ = false;
        asked_at_ = now;
        postgres::log_line("outbox_drainer: broker \"" + broker_ + "\" accepts messages again");
    } else if (const auto* gone = std::get_if<amqp::Closed>(&incoming)) {
        lost(now, gone->failure);
    }
}

// The same words again are not logged: a thousand events for one exchange are one piece of news.
void BrokerLink::note_closed_channel(Time now, const amqp::ChannelClosed& closed) {
    forget_mandatory(closed.channel);
    const std::string text = std::to_string(closed.code) + " " + closed.text;
    slot_.set_error("channel closed by the broker: " + text);
    if (!drain_.channel_closed(now, closed.channel, closed.code, closed.text)) {
        close(now, "channel closed by the broker: " + text);
        return;
    }
    if (text != reported_close_) {
        report_closed_channel(now, text);
    }
}

// Words that name a size or a routing key are news each time; a flood of them is summed up.
void BrokerLink::report_closed_channel(Time now, const std::string& text) {
    const std::optional<std::uint64_t> unsaid = closes_.may_say(now);
    if (!unsaid.has_value()) {
        return;
    }
    reported_close_ = text;
    const std::string before =
        *unsaid > 0 ? " It closed channels " + std::to_string(*unsaid) + " times more before." : "";
    postgres::log_warning("outbox_drainer: broker \"" + broker_ +
                              "\" could not take a message and closed its channel",
                          "It said: " + text + "." + before,
                          "The event is looked for, and charged if it is found; the others are "
                          "sent again.");
}

void BrokerLink::publish(Time now, const Event& event, Channel channel,
                         const DrainSettings& settings) {
    MessageRules rules;
    rules.default_exchange = settings.exchange;
    rules.max_message_bytes = drain_.max_message_bytes();
    rules.limit_is_the_brokers = drain_.limit_is_the_brokers();
    rules.max_properties_bytes = connection_.max_properties_bytes();
    Message message;
    if (const std::optional<Rejection> rejection = build_message(event, rules, message)) {
        drain_.rejected(now, rejection->code, rejection->detail);
        return;
    }
    // A replay is for whoever has just subscribed; for the others it went well the first time.
    const bool mandatory = settings.mandatory && event.replay_job == 0;
    const std::optional<std::uint64_t> tag = connection_.publish(channel, message, mandatory);
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
        remember_mandatory(channel, *tag, message);
    }
    postgres::add(slot_.counters().bytes, message.body.size());
}

void BrokerLink::flush() {
    broken_ = broken_ || (connection_.is_open() && !connection_.flush());
}

// ---- Questions ----

void BrokerLink::ask_for_exchange(const std::string& exchange) {
    Asked asked;
    asked.question.kind = amqp::Question::Kind::exchange_exists;
    asked.question.exchange = exchange;
    questions_.push_back(std::move(asked));
    ask_next();
}

bool BrokerLink::may_ask() const {
    return connection_.is_open() && !answer_.has_value() &&
           std::all_of(questions_.begin(), questions_.end(),
                       [](const Asked& asked) { return asked.by_machine; });
}

bool BrokerLink::ask(const amqp::Question& question) {
    if (!may_ask()) {
        return false;
    }
    questions_.push_back({question, false});
    ask_next();
    return true;
}

void BrokerLink::ask_next() {
    if (!asking_ && !questions_.empty()) {
        asking_ = connection_.ask(questions_.front().question);
        asked_at_ = postgres::monotonic_now();
    }
}

// The machine looks after its own questions. A broker that blocks does not answer any.
bool BrokerLink::answer_is_overdue(Time now) const {
    return asking_ && !blocked_ && !questions_.front().by_machine &&
           now >= asked_at_ + answer_timeout_;
}

std::optional<amqp::Answer> BrokerLink::take_answer() {
    return std::exchange(answer_, std::nullopt);
}

void BrokerLink::note_answer(Time now, const amqp::Answer& answer) {
    if (!asking_) {
        return;
    }
    const Asked asked = std::move(questions_.front());
    questions_.pop_front();
    asking_ = false;
    if (!asked.by_machine) {
        answer_ = answer;
    } else if (answer.ok || answer.code == NOT_FOUND) {
        drain_.answered(now, asked.question.exchange, answer.ok);
    } else {
        drain_.answered(now, asked.question.exchange, std::nullopt);
    }
    ask_next();
}

void BrokerLink::end_questions(const std::string& why) {
    for (const Asked& asked : questions_) {
        if (!asked.by_machine) {
            answer_ = amqp::Answer{};
            answer_->text = why;
        }
    }
    questions_.clear();
    asking_ = false;
}

// ---- Returned messages ----

namespace {

std::string mandatory_key(std::string_view message_id, std::string_view app_id) {
    return std::string(app_id) + '\0' + std::string(message_id);
}

}  // namespace

// The broker says which message came back by what the message itself said, not by its place among
// others.
void BrokerLink::note_returned(const amqp::Returned& returned) {
    const Mandatory& mandatory = mandatory_of(returned.channel);
    // An earlier attempt of the same event may still stand there, long confirmed.
    const auto [first, last] =
        mandatory.tags.equal_range(mandatory_key(returned.message_id, returned.app_id));
    const auto found = std::find_if(first, last, [&](const auto& sent) {
        return drain_.is_unconfirmed(returned.channel, sent.second);
    });
    if (found == last) {
        postgres::log_warning("outbox_drainer: the broker returned a message that was not sent",
                              "Its message_id is \"" + returned.message_id + "\".");
        return;
    }
    drain_.returned(returned.channel, found->second,
                    std::to_string(returned.reply_code) + " " + returned.reply_text +
                        " (exchange \"" + returned.exchange + "\", routing key \"" +
                        returned.routing_key + "\")");
}

void BrokerLink::remember_mandatory(Channel channel, std::uint64_t tag, const Message& message) {
    Mandatory& mandatory = mandatory_of(channel);
    while (!mandatory.order.empty() &&
           !drain_.is_unconfirmed(channel, mandatory.order.front()->second)) {
        mandatory.tags.erase(mandatory.order.front());
        mandatory.order.pop_front();
    }
    mandatory.order.push_back(mandatory.tags.emplace(
        mandatory_key(message.message_id, message.app_id.value_or(std::string_view())), tag));
}

// Tags begin anew when a channel is opened again.
void BrokerLink::forget_mandatory(Channel channel) {
    Mandatory& mandatory = mandatory_of(channel);
    mandatory.order.clear();
    mandatory.tags.clear();
}

// ---- The end of a connection ----

void BrokerLink::close(Time now, std::string_view reason) {
    if (!reason.empty()) {
        const std::string stage = connecting_ ? connection_.stage() : std::string();
        lost(now, {amqp::FailureClass::infrastructure,
                   std::string(reason) + (stage.empty() ? "" : " while " + stage)});
        return;
    }
    say_goodbye();
    connection_.close();
    forget_mandatory(Channel::main);
    forget_mandatory(Channel::trial);
    end_questions("the connection was closed");
    connecting_ = broken_ = false;
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

void BrokerLink::became_ready(Time now) {
    connecting_ = false;
    blocked_ = false;
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
    reported_close_.clear();
    postgres::inject(postgres::Phase::connected);
}

// By value: what the connection says of its failure goes with the connection.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void BrokerLink::lost(Time now, amqp::Failure failure) {
    take_last_words(now);
    connection_.close();
    forget_mandatory(Channel::main);
    forget_mandatory(Channel::trial);
    end_questions("connection lost: " + failure.text);
    const bool configuration = failure.failure_class == amqp::FailureClass::configuration;
    const char* what =
        connecting_ ? "could not connect to broker \"" : "lost connection to broker \"";
    connecting_ = broken_ = false;
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
    drain_.connection_lost(now, configuration, failure.text, failure.by_publish);
}

// What the broker had confirmed before need not be sent again, and what it said of a message still
// counts.
void BrokerLink::take_last_words(Time now) {
    while (const std::optional<amqp::Incoming> last = connection_.poll()) {
        if (const auto* confirm = std::get_if<amqp::Confirm>(&*last)) {
            drain_.confirmed(now, confirm->channel, confirm->tag, confirm->multiple, confirm->ack);
        } else if (const auto* returned = std::get_if<amqp::Returned>(&*last)) {
            note_returned(*returned);
        } else if (const auto* closed = std::get_if<amqp::ChannelClosed>(&*last)) {
            drain_.channel_closed(now, closed->channel, closed->code, closed->text);
        } else if (const auto* answer = std::get_if<amqp::Answer>(&*last)) {
            note_answer(now, *answer);
        }
    }
}

}  // namespace outbox::worker
