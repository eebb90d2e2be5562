#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/channel.hpp"
#include "core/time.hpp"
#include "drain_seed.hpp"

namespace outbox::test {

/// What is wrong with a message, so that the broker cannot take it.
enum class Poison : std::uint8_t {
    none,
    content,  ///< the broker closes the channel, and its words explain nothing
    cut,      ///< the broker closes the whole connection
};

/// The exchanges that rows of a world go to; the first is the default exchange, the second what
/// relays use that name none.
inline constexpr std::array<std::string_view, 5> EXCHANGES = {"", "events", "orders", "bills",
                                                              "o'hara' in vhost"};

/// One broker of the list: its exchanges, and what it refuses.
struct SimBroker {
    enum class Access : std::uint8_t { open, missing, forbidden, internal };
    struct Exchange {
        Access access = Access::open;
        int changes = 0;  ///< of the access, and answers that told nothing
    };

    std::size_t index = 0;
    bool up = true;
    bool hears_nobody = false;  ///< attempts to connect have no end
    std::size_t limit = SIZE_MAX;
    double refusals = 0;
    std::optional<int> failing_key;
    std::array<Exchange, EXCHANGES.size()> exchanges;

    void set(std::size_t exchange, Access access) {
        if (exchanges[exchange].access != access) {
            exchanges[exchange].access = access;
            exchanges[exchange].changes++;
        }
    }
};

struct SimMessage {
    enum class Stage : std::uint8_t { on_its_way, routed, answered };
    std::uint64_t tag = 0;
    std::int64_t seq = 0;
    std::string token;
    std::optional<std::uint64_t> group;
    int key = -1;
    std::size_t exchange = 0;
    std::size_t bytes = 0;
    Poison poison = Poison::none;
    bool mandatory = false;
    Time sent_at{};
    // What the machine knows it by.
    Channel as_channel = Channel::main;
    std::uint64_t as_tag = 0;
    Stage stage = Stage::on_its_way;
    bool refused = false;   ///< it gets a nack
    bool returned = false;  ///< no queue wants it
    bool is_stored = false;
};

/// What the broker says, on its way to the client.
struct SimNews {
    enum class Kind : std::uint8_t {
        confirm,
        nonsense,  ///< a confirm of what is not open
        returned,
        closed,
        opened,
        answer,
        blocked,
        unblocked,
        gone,
    };
    Kind kind = Kind::confirm;
    Channel channel = Channel::main;
    std::uint64_t tag = 0;
    bool multiple = false;
    bool ack = true;
    std::uint16_t code = 0;
    std::string text = {};
    std::int64_t culprit = 0;  ///< the row because of which it was closed
    std::string cause = {};    ///< the same for every close that has this one cause
    std::size_t exchange = 0;
    std::optional<bool> exists = {};
};

/// A connection, as the broker has it and as the client does; between them messages and answers
/// are on their way, in order.
class SimLink {
  public:
    struct End {
        bool open = true;         ///< at the broker
        bool is_known = true;     ///< the client may publish
        bool wants_open = false;  ///< the client asked for it
        std::uint64_t next_tag = 1;
        std::vector<SimMessage> sent = {};  ///< those whose answer the client does not have
    };

    SimLink(Dice& dice, std::function<void(const SimMessage&)> store)
        : dice_(dice), store_(std::move(store)) {}

    void open(SimBroker& broker) {
        serial++;
        // What one broker refused, another may have taken meanwhile, so the first is trusted again.
        visit_ = broker_ == nullptr || broker_ == &broker
                     ? visit_
                     : ", connection " + std::to_string(serial);
        broker_ = &broker;
        ends_ = {};
        news_.clear();
        question_.reset();
        told_limit = SIZE_MAX;
        known = {};
        known[0] = true;
        blocked = gone_ = false;
    }
    SimBroker& broker() { return *broker_; }
    End& end(Channel channel) { return ends_[static_cast<std::size_t>(channel)]; }
    const End& end(Channel channel) const { return ends_[static_cast<std::size_t>(channel)]; }
    std::size_t unconfirmed() const { return ends_[0].sent.size() + ends_[1].sent.size(); }

    std::uint64_t publish(Channel channel, SimMessage message) {
        End& to = end(channel);
        message.tag = to.next_tag++;
        to.sent.push_back(std::move(message));
        return to.sent.back().tag;
    }
    void ask(std::size_t exchange) { question_ = exchange; }
    bool is_asked() const { return question_.has_value(); }

    void block(bool on) {
        if (blocked != on && !gone_) {
            blocked = on;
            say({.kind = on ? SimNews::Kind::blocked : SimNews::Kind::unblocked});
        }
    }
    /// Something that no broker should say.
    void talk_nonsense() { say({.kind = SimNews::Kind::nonsense, .channel = any_channel()}); }

    /// The broker does one thing or another.
    void work() {
        if (gone_) {
            return;
        }
        const std::uint64_t what = dice_.below(8);
        if (what < 3) {
            answer(any_channel());
        } else if (blocked) {
            return;
        } else if (what < 5) {
            route(any_channel(), static_cast<int>(dice_.between(1, 6)));
        } else if (what == 5) {
            answer_question();
        } else {
            reopen(any_channel());
        }
    }
    /// All that it can do.
    void work_off() {
        for (int i = 0; i < 2; i++) {
            for (Channel channel : {Channel::main, Channel::trial}) {
                if (!gone_) {
                    reopen(channel);
                    route(channel, 1000);
                }
                while (!gone_ && answer(channel)) {
                }
            }
            answer_question();
        }
    }

    /// What the client hears next; nullopt: nothing.
    std::optional<SimNews> hear() {
        if (news_.empty()) {
            return std::nullopt;
        }
        SimNews first = std::move(news_.front());
        news_.pop_front();
        return first;
    }
    bool has_news() const { return !news_.empty(); }

    /// The connection is over. The broker may have stored some of what nobody has an answer for;
    /// gives how many of these there are.
    std::size_t cut() {
        std::size_t stored = 0;
        for (Channel channel : {Channel::main, Channel::trial}) {
            if (!gone_) {
                route(channel, static_cast<int>(dice_.between(0, 12)));
            }
            stored += stored_on(channel);
            end(channel).sent.clear();
        }
        news_.clear();
        question_.reset();
        gone_ = true;
        return stored;
    }
    /// How many of those without an answer the broker has stored.
    std::size_t stored_on(Channel channel) const {
        const auto& sent = end(channel).sent;
        return static_cast<std::size_t>(std::count_if(
            sent.begin(), sent.end(), [](const SimMessage& message) { return message.is_stored; }));
    }

    std::uint64_t serial = 0;
    bool blocked = false;
    // What the client was told.
    std::size_t told_limit = SIZE_MAX;
    std::array<bool, EXCHANGES.size()> known{};  ///< exchanges that it may publish to

  private:
    using Access = SimBroker::Access;
    using Stage = SimMessage::Stage;

    Channel any_channel() { return dice_.chance(0.7) ? Channel::main : Channel::trial; }
    void say(SimNews news) { news_.push_back(std::move(news)); }

    // In the order they came, each is stored, unless it ends the channel.
    void route(Channel channel, int most) {
        for (SimMessage& message : end(channel).sent) {
            if (most == 0 || gone_ || !end(channel).open) {
                return;
            }
            if (message.stage != Stage::on_its_way) {
                continue;
            }
            most--;
            if (!takes(channel, message)) {
                return;
            }
            const bool fails = broker_->failing_key == message.key;
            message.stage = Stage::routed;
            message.refused = fails || dice_.chance(broker_->refusals);
            message.returned = message.mandatory && dice_.chance(broker_->refusals);
            // A nack may mean that one of several queues is full and the others have the message.
            if (!message.returned && (!message.refused || dice_.chance(0.2))) {
                message.is_stored = true;
                store_(message);
            }
            if (message.returned) {
                say({.kind = SimNews::Kind::returned, .channel = channel, .tag = message.tag});
            }
        }
    }

    bool takes(Channel channel, const SimMessage& message) {
        const std::string name(EXCHANGES[message.exchange]);
        const SimBroker::Exchange& exchange = broker_->exchanges[message.exchange];
        const std::string cause = "exchange " + name + " of broker " +
                                  std::to_string(broker_->index) + ", change " +
                                  std::to_string(exchange.changes) + visit_;
        const std::string row = "row " + std::to_string(message.seq);
        if (exchange.access == Access::missing) {
            close(channel, message, 404, "NOT_FOUND - no exchange '" + name + "' in vhost '/'",
                  cause);
        } else if (exchange.access == Access::internal) {
            close(
                channel, message, 403,
                "ACCESS_REFUSED - cannot publish to internal exchange '" + name + "' in vhost '/'",
                cause);
        } else if (exchange.access == Access::forbidden) {
            close(channel, message, 403,
                  "ACCESS_REFUSED - access to exchange '" + (name.empty() ? "amq.default" : name) +
                      "' in vhost '/' refused for user 'limited'",
                  cause);
        } else if (message.bytes > broker_->limit) {
            close(channel, message, 406,
                  "PRECONDITION_FAILED - message size " + std::to_string(message.bytes) +
                      " is larger than configured max size " + std::to_string(broker_->limit),
                  "limit, connection " + std::to_string(serial));
        } else if (message.poison == Poison::content) {
            close(channel, message, 406, "PRECONDITION_FAILED - fast reply consumer does not exist",
                  row);
        } else if (message.poison == Poison::cut) {
            gone_ = true;
            say({.kind = SimNews::Kind::gone,
                 .code = 541,
                 .text = "541 INTERNAL_ERROR",
                 .culprit = message.seq,
                 .cause = row + ", connection"});
        } else {
            return true;
        }
        return false;
    }

    void close(Channel channel, const SimMessage& message, std::uint16_t code, std::string text,
               std::string cause) {
        end(channel).open = false;
        say({.kind = SimNews::Kind::closed,
             .channel = channel,
             .code = code,
             .text = std::move(text),
             .culprit = message.seq,
             .cause = std::move(cause),
             .exchange = message.exchange});
    }

    // About one message, or about all up to it that have the same answer. False: there is none.
    bool answer(Channel channel) {
        std::vector<SimMessage*> open;
        for (SimMessage& message : end(channel).sent) {
            if (message.stage == Stage::routed) {
                open.push_back(&message);
            }
        }
        if (open.empty() || !end(channel).open) {
            return false;
        }
        const std::size_t at = dice_.below(open.size());
        const bool ack = !open[at]->refused;
        const bool multiple =
            dice_.chance(0.3) &&
            std::all_of(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(at),
                        [ack](const SimMessage* other) { return other->refused != ack; });
        for (std::size_t i = multiple ? 0 : at; i <= at; i++) {
            open[i]->stage = Stage::answered;
        }
        say({.kind = SimNews::Kind::confirm,
             .channel = channel,
             .tag = open[at]->tag,
             .multiple = multiple,
             .ack = ack});
        return true;
    }

    void answer_question() {
        if (gone_ || blocked || !question_.has_value()) {
            return;
        }
        SimBroker::Exchange& exchange = broker_->exchanges[*question_];
        std::optional<bool> exists = exchange.access != Access::missing;
        if (dice_.chance(broker_->refusals / 4)) {
            exists.reset();
            exchange.changes++;
        }
        say({.kind = SimNews::Kind::answer, .exchange = *question_, .exists = exists});
        question_.reset();
    }

    void reopen(Channel channel) {
        End& closed = end(channel);
        if (closed.wants_open && !gone_ && !blocked) {
            closed = End{.is_known = false};
            say({.kind = SimNews::Kind::opened, .channel = channel});
        }
    }

    Dice& dice_;
    std::function<void(const SimMessage&)> store_;
    SimBroker* broker_ = nullptr;
    std::array<End, 2> ends_;
    std::deque<SimNews> news_;
    std::optional<std::size_t> question_;
    bool gone_ = true;
    std::string visit_;
};

}  // namespace outbox::test
