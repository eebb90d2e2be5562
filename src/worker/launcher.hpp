#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/time.hpp"
#include "postgres/database_list.hpp"
#include "postgres/drainer_handle.hpp"
#include "postgres/shared_state.hpp"

namespace outbox::worker {

/// Keeps the drainers running of each database that has the extension: the first one finds out
/// whether it has, the others follow and never take the first one's place. It works from what is
/// there (databases, slots, processes), not from events, so a missed wake delays it and never
/// leaves it stuck.
class Launcher {
  public:
    Launcher();

    /// Until the server stops.
    void run();

  private:
    std::vector<postgres::Database> wanted_databases();
    void match_slots(const std::vector<postgres::Database>& databases);
    bool is_wanted(const postgres::DrainerSlot& slot) const;
    void claim_slot(const postgres::Database& database, int worker);
    void claim_further_slots(const std::vector<postgres::Database>& databases, int worker);
    void release_slot(int index);
    void reap();
    void room_is_made();
    void note_end(postgres::DrainerSlot& slot);
    void start_due();
    void start_if_due(int index);
    bool may_start(int index, std::int64_t now) const;
    bool a_first_one_waits() const;
    void start(int index);
    void note_starved(int index);
    void report_starved(const postgres::DrainerSlot& slot);
    void make_room();
    int missing_drainers() const;
    bool has_ended(int index) const;
    int looking() const;
    Duration time_to_next() const;

    postgres::SharedState* state_;
    std::vector<postgres::DrainerHandle> handles_;  ///< by slot
    std::set<int> surplus_;           ///< slots to be given back when their drainer has ended
    std::set<std::string> unknown_;   ///< named in the settings, not there; logged once
    std::set<int> starved_;           ///< slots that found no free background worker
    std::optional<int> making_room_;  ///< the slot whose drainer has to end for a first one
    bool out_of_slots_ = false;
    std::string reported_error_;
};

}  // namespace outbox::worker
