#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/backoff.hpp"
#include "core/time.hpp"

namespace outbox {

/// What is known of the exchanges of the broker that we are connected to. Each is asked for before
/// the first message goes to it, since a message to one that is missing would close the channel
/// under its neighbours; those that are missing are asked for again every few seconds.
class ExchangeBook {
  public:
    enum class State : std::uint8_t { unknown, exists, missing };

    /// The default exchange always exists.
    State state(std::string_view name) const;
    /// Messages wait for the answer.
    void want(std::string_view name);
    /// What to ask now, and notes that it is asked; nullopt: nothing, or an answer is under way.
    std::optional<std::string> next_question(Time now);
    /// True: it exists, and was missing before, so what is held for it can go. `exists` nullopt:
    /// the broker would not say, so it is to be tried.
    bool answered(Time now, std::string_view name, std::optional<bool> exists);
    /// What was answered is too old for what is at stake: it is asked for again.
    void doubt(std::string_view name);
    /// A message was refused because there is no such exchange, though there was. Where that
    /// happens again and again, each message goes alone.
    void vanished(Time now, std::string_view name);
    /// Another connection, perhaps to another broker: all is to be asked anew, at once where it was
    /// missing.
    void forget();

    /// A message to it was refused: until some have gone well, each goes alone.
    void distrust(Time now, std::string_view name);
    bool is_distrusted(std::string_view name) const;
    /// A message that went alone was taken. True: the exchange is trusted from now on.
    bool trial_passed(std::string_view name);

    /// How long what is sent there is put off: the longer the trouble lasts, the longer.
    Duration hold_for(Time now, std::string_view name, Random& random);

    /// Whether an answer is awaited, or a question about to be asked.
    bool is_asking() const { return asked_since_.has_value() || !wanted_.empty(); }
    /// Since when an answer is awaited.
    std::optional<Time> asked_since() const { return asked_since_; }
    /// When the next question is due by time alone; nullopt: there is none.
    std::optional<Time> next_look() const;

  private:
    struct Entry {
        State state = State::unknown;
        bool watched = false;  ///< missing, or was so on the connection before
        bool wanted = false;
        std::optional<Time> trouble_since;  ///< it is missing or refuses
        Time look_at{};
        Time held_at{};         ///< when something was last put off for it
        int passes_needed = 0;  ///< until it is trusted; 0: it is
        int passes = 0;
        int relapses = 0;
        int vanished = 0;
    };
    using Entries = std::map<std::string, Entry, std::less<>>;

    Entry& entry(std::string_view name);
    void set_missing(Time now, std::string_view name);
    void make_room();
    void want_watched(Time now);

    Entries entries_;
    std::deque<std::string> wanted_;
    std::size_t watched_ = 0;
    Time next_look_ = Time::max();  ///< no watched one is due before
    std::optional<Time> asked_since_;
    std::string asked_;
};

}  // namespace outbox
