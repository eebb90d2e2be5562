#include "core/exchange_book.hpp"

#include <algorithm>
#include <iterator>

namespace outbox {

namespace {

// How often a missing exchange is asked for. Each such answer closes the channel for questions, so
// many of them are asked for less often, and beyond a number only when their rows come due.
constexpr Duration LOOK_INTERVAL{3000};
constexpr Duration LOOK_INTERVAL_EACH{30};
constexpr std::size_t MOST_WATCHED = 1000;
// Names are producers' input: what is known of them must not grow without bound.
constexpr std::size_t MOST_ENTRIES = 10000;

constexpr Duration SHORTEST_HOLD{5000};
constexpr Duration LONGEST_HOLD{300000};

// Messages that must go well alone until an exchange is trusted again, doubled by each relapse.
constexpr int PASSES_NEEDED = 8;
constexpr int MOST_RELAPSES = 7;

}  // namespace

ExchangeBook::State ExchangeBook::state(std::string_view name) const {
    if (name.empty()) {
        return State::exists;
    }
    const auto found = entries_.find(name);
    return found == entries_.end() ? State::unknown : found->second.state;
}

ExchangeBook::Entry& ExchangeBook::entry(std::string_view name) {
    const auto found = entries_.find(name);
    if (found != entries_.end()) {
        return found->second;
    }
    make_room();
    return entries_[std::string(name)];
}

// What is forgotten is asked for again.
void ExchangeBook::make_room() {
    if (entries_.size() >= MOST_ENTRIES) {
        std::erase_if(entries_, [](const auto& named) {
            return !named.second.watched && !named.second.wanted && named.second.passes_needed == 0;
        });
    }
    if (entries_.size() >= MOST_ENTRIES) {
        entries_.clear();
        wanted_.clear();
        watched_ = 0;
    }
}

void ExchangeBook::want(std::string_view name) {
    Entry& wanted = entry(name);
    const bool under_way = asked_since_.has_value() && asked_ == name;
    if (!wanted.wanted && !under_way) {
        wanted.wanted = true;
        wanted_.emplace_back(name);
    }
}

std::optional<std::string> ExchangeBook::next_question(Time now) {
    if (asked_since_.has_value()) {
        return std::nullopt;
    }
    if (wanted_.empty() && watched_ > 0 && now >= next_look_) {
        want_watched(now);
    }
    if (wanted_.empty()) {
        return std::nullopt;
    }
    asked_ = wanted_.front();
    wanted_.pop_front();
    entry(asked_).wanted = false;
    asked_since_ = now;
    return asked_;
}

// One that is due. Where nothing has been put off for longer than that lasts, nobody waits any
// more.
void ExchangeBook::want_watched(Time now) {
    Time next = Time::max();
    for (auto entry = entries_.begin(); entry != entries_.end();) {
        const bool is_due = entry->second.watched && now >= entry->second.look_at;
        if (is_due && now < entry->second.held_at + 2 * LONGEST_HOLD) {
            want(entry->first);
            return;
        }
        if (entry->second.watched && !is_due) {
            next = std::min(next, entry->second.look_at);
        }
        watched_ -= is_due ? 1 : 0;
        entry = is_due ? entries_.erase(entry) : std::next(entry);
    }
    next_look_ = next;
}

bool ExchangeBook::answered(Time now, std::string_view name, std::optional<bool> exists) {
    if (asked_ == name) {
        asked_since_.reset();
    }
    if (!exists.value_or(true)) {
        set_missing(now, name);
        return false;
    }
    Entry& known = entry(name);
    const bool was_missing = known.watched || known.state == State::missing;
    if (was_missing) {
        watched_ -= known.watched ? 1 : 0;
        known.watched = false;
        known.trouble_since.reset();
    }
    known.state = State::exists;
    return was_missing;
}

void ExchangeBook::doubt(std::string_view name) {
    entry(name).state = State::unknown;
    want(name);
}

void ExchangeBook::vanished(Time now, std::string_view name) {
    set_missing(now, name);
    if (++entry(name).vanished > 1) {
        distrust(now, name);
    }
}

void ExchangeBook::set_missing(Time now, std::string_view name) {
    Entry& missing = entry(name);
    missing.state = State::missing;
    missing.trouble_since = missing.trouble_since.value_or(now);
    if (!missing.watched) {
        missing.held_at = now;
    }
    if (!missing.watched && watched_ < MOST_WATCHED) {
        missing.watched = true;
        watched_++;
    }
    missing.look_at =
        now + std::max(LOOK_INTERVAL, LOOK_INTERVAL_EACH * static_cast<Duration::rep>(watched_));
    next_look_ = std::min(next_look_, missing.look_at);
}

void ExchangeBook::forget() {
    asked_since_.reset();
    asked_.clear();
    wanted_.clear();
    std::erase_if(entries_, [](const auto& named) {
        return !named.second.watched && named.second.passes_needed == 0;
    });
    for (auto& [name, entry] : entries_) {
        entry.state = State::unknown;
        entry.wanted = false;
        entry.look_at = Time{};
    }
    next_look_ = Time{};
}

void ExchangeBook::distrust(Time now, std::string_view name) {
    Entry& refusing = entry(name);
    refusing.trouble_since = refusing.trouble_since.value_or(now);
    refusing.passes = 0;
    if (refusing.passes_needed == 0) {
        refusing.passes_needed = PASSES_NEEDED << std::min(refusing.relapses, MOST_RELAPSES);
        refusing.relapses++;
    }
}

bool ExchangeBook::is_distrusted(std::string_view name) const {
    const auto found = entries_.find(name);
    return found != entries_.end() && found->second.passes_needed > 0;
}

bool ExchangeBook::trial_passed(std::string_view name) {
    const auto found = entries_.find(name);
    if (found == entries_.end() || found->second.passes_needed == 0) {
        return false;
    }
    Entry& tried = found->second;
    if (++tried.passes < tried.passes_needed) {
        return false;
    }
    tried.passes_needed = 0;
    if (!tried.watched) {
        tried.trouble_since.reset();
    }
    return true;
}

Duration ExchangeBook::hold_for(Time now, std::string_view name, Random& random) {
    Time since = now;
    if (const auto found = entries_.find(name); found != entries_.end()) {
        found->second.held_at = now;
        since = found->second.trouble_since.value_or(now);
        // One of too many to be watched is asked for when what waits for it comes due.
        if (found->second.state == State::missing && !found->second.watched &&
            now >= found->second.look_at) {
            want(name);
        }
    }
    const Duration hold = std::clamp<Duration>(now - since, SHORTEST_HOLD, LONGEST_HOLD);
    const auto part = static_cast<double>(hold.count()) * (0.5 + random.unit() / 2);
    return Duration{static_cast<Duration::rep>(part)};
}

std::optional<Time> ExchangeBook::next_look() const {
    return asked_since_.has_value() || watched_ == 0 ? std::nullopt : std::optional(next_look_);
}

}  // namespace outbox
