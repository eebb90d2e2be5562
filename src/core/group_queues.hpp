#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace outbox {

/// More of a group is wanted when fewer of its rows than this are in hand.
constexpr std::size_t wanted_in_hand(std::size_t rows_per_group) noexcept {
    return rows_per_group / 2 + 1;
}

/// The claimed rows that keep an order, by group. At most one row of a group is *out* (about to be
/// sent, or sent and unconfirmed); the others wait for it in the order of their numbers. Rows are
/// known by the caller's index.
class GroupQueues {
  public:
    /// Adds a row in hand. Gives the row that may go out now, if any: this one, when none of its
    /// group is out.
    std::optional<std::size_t> add(std::uint64_t group, std::int64_t seq, std::size_t row);
    /// The row that was out has reached its end: gives the next one, which is out from now on.
    std::optional<std::size_t> advance(std::uint64_t group);
    /// The row that was out did not reach its end and is not out any more.
    void take_back(std::uint64_t group);
    /// Takes the waiting rows out of their queue.
    std::vector<std::size_t> remove_waiting(std::uint64_t group);
    /// Takes out those that wait behind a row that holds the group.
    std::vector<std::size_t> remove_held(std::uint64_t group);
    std::vector<std::size_t> remove_all_waiting();

    /// The row failed or is given back, and until that is written no later one of its group may
    /// go: what is added meanwhile is not let out.
    void hold(std::uint64_t group, std::int64_t seq);
    void release(std::uint64_t group, std::int64_t seq);
    /// Whether an earlier row than this one holds the group.
    bool is_held(std::uint64_t group, std::int64_t seq) const;

    /// Rows of the group wait in the deferred lane for those in hand.
    void set_followed(std::uint64_t group);
    bool is_followed(std::uint64_t group) const;

    /// More rows of the group are to be had: they are wanted when fewer than this are unsettled.
    void set_more(std::uint64_t group, std::size_t wanted);
    /// Whether they are wanted by now; says so once.
    bool asks_for_more(std::uint64_t group);

    /// The row is in hand no more.
    void forget(std::uint64_t group);
    /// Rows of the group in hand, whatever their state.
    std::size_t in_hand(std::uint64_t group) const;
    /// Those of them that wait or are out.
    std::size_t unsettled(std::uint64_t group) const;

  private:
    struct Group {
        std::map<std::int64_t, std::size_t> waiting;  ///< by seq
        bool out = false;
        std::size_t in_hand = 0;
        std::multiset<std::int64_t> holders;  ///< by seq
        bool followed = false;
        std::size_t wanted = 0;  ///< 0: no more is to be had
    };

    const Group* find(std::uint64_t group) const;
    static bool is_held(const Group& group, std::int64_t seq);
    static std::size_t unsettled(const Group& group);
    static std::optional<std::size_t> let_out(Group& group);

    std::unordered_map<std::uint64_t, Group> groups_;
};

}  // namespace outbox
