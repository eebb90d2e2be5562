#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace outbox {

/// Which events of a relay keep their order. Events that do belong to one group: one message of a
/// group is unconfirmed at a time, and one that failed holds the group.
enum class Ordering : std::uint8_t {
    best_effort,    ///< no groups: all are published as they come
    per_key,        ///< a group is (source, key); events without a key belong to none
    per_source,     ///< a group is a source
    stop_the_line,  ///< all events are one group, and one that failed is retried while all else
                    ///< waits
};

constexpr std::string_view to_string(Ordering ordering) {
    switch (ordering) {
        case Ordering::best_effort:
            return "best_effort";
        case Ordering::per_key:
            return "per_key";
        case Ordering::per_source:
            return "per_source";
        case Ordering::stop_the_line:
            return "stop_the_line";
    }
    return "";
}

constexpr std::optional<Ordering> parse_ordering(std::string_view text) {
    for (const Ordering ordering : {Ordering::best_effort, Ordering::per_key, Ordering::per_source,
                                    Ordering::stop_the_line}) {
        if (text == to_string(ordering)) {
            return ordering;
        }
    }
    return std::nullopt;
}

}  // namespace outbox
