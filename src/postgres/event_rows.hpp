#pragma once

#include "postgres/event_copy.hpp"
#include "postgres/producer_checks.hpp"

extern "C" {
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/itemptr.h"
#include "utils/snapshot.h"
}

namespace outbox::postgres {

/// A row's place as core carries it; core makes nothing of it. 0 is no place.
std::uint64_t pack_place(const ItemPointerData& place);
ItemPointerData unpack_place(std::uint64_t place);

/// Reads and updates rows of the outbox table at the places where they lie. That is what UPDATE
/// does once its plan has found the row; here the places are known from the walk and the claim, and
/// a batch costs less than half as much as by SQL. All functions raise PostgreSQL errors; after
/// one there is nothing to close. Plain data.
class EventRows {
  public:
    /// Opens the table for writing.
    explicit EventRows(Oid table);
    /// Gives back what it holds; the table stays locked to the end of the transaction. Not after an
    /// error.
    void close();

    /// Whether an UPDATE would do nothing else than this: nobody has triggers, rules, row security
    /// or generated columns on the table. Else statements have to be used.
    bool can_update() const { return can_update_; }

    /// Copies the row that `snapshot` sees at the place into the current memory context, if it has
    /// the number and has not ended. False: it is not there.
    bool read(std::uint64_t place, std::int64_t seq, Snapshot snapshot);
    /// Gives back the copy that the last read() made.
    void discard();
    /// Of the row that was read.
    bool is_claimed() const { return !nulls_[claimed_by_]; }
    bool is_claimed_by(std::string_view token) const;
    /// The event of the row that was read, with views into the copy.
    void event(Event& event) const;

    /// Gives the row that was read new values. False: somebody has changed or locked it, and it is
    /// as it was.
    bool claim(TimestampTz now, Datum token);
    bool mark_published(TimestampTz now);
    /// Where the row is after the update.
    std::uint64_t place() const;

  private:
    bool update();
    void add_index_entries(bool only_summarizing);

    Relation table_;
    EState* state_;
    ResultRelInfo* target_;
    TupleTableSlot* old_row_;
    TupleTableSlot* new_row_;
    bool can_update_;
    BlockNumber blocks_;  ///< of the table; it does not get smaller while it is open here
    HeapTuple copy_ = nullptr;
    EventColumns columns_;
    int seq_, id_, attempts_, next_attempt_at_, last_error_, claimed_at_, claimed_by_,
        published_at_, dead_at_;
    Datum* values_;
    bool* nulls_;
};

// It is used below the guard that catches ereport, where no destructor may be skipped.
static_assert(std::is_trivially_destructible_v<EventRows>);

}  // namespace outbox::postgres
