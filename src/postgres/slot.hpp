#pragma once

#include <string_view>

#include "core/claim_token.hpp"
#include "core/time.hpp"
#include "postgres/shared_state.hpp"

namespace outbox::postgres {

/// A drainer's own slot in shared memory: what it tells the launcher and the views, and what others
/// ask of it. One per process.
class Slot {
  public:
    /// Takes the slot over for this process and gives it back at exit. False when the launcher has
    /// given it to somebody else meanwhile.
    bool attach(int index, uint64 generation);

    Incarnation incarnation() const;
    std::string_view database_name() const;
    Oid database() const { return slot_->database; }
    /// Which of the database's drainers this one is, from 0.
    int worker() const { return slot_->worker; }
    /// How the drainers of the database share its relay.
    SharedBuckets& buckets() const { return *buckets_; }

    void set_state(DrainerState state);
    void set_in_flight(std::size_t count);
    /// Connected to `broker` ("host:port/vhost"), or to nobody when it is empty.
    void set_broker(std::string_view broker, bool connected);
    /// What went wrong last; it stays visible until the next error.
    void set_error(std::string_view error);
    DrainerCounters& counters() const { return slot_->counters; }

    /// Counts a batch in the histogram.
    void count_batch_size(std::size_t rows);

    /// Whether somebody asked to look for rows since the last call. Nobody sets the drainer's latch
    /// for rows until the next call.
    bool take_wake();
    /// Whether another drainer changed the shares of the relay since the last call.
    bool take_shares_changed();
    /// Whether somebody asked to look for the extension since the last call.
    bool take_recheck();

    /// Whether a relay was altered since the last call.
    bool take_relay_changed();

    /// Whether a session has put a question to the broker since the last call.
    bool take_asked();

    void set_halted_on(std::int64_t seq);

    void set_present();
    void set_absent();
    /// Asks the launcher to start the drainer again that long after it has exited.
    void ask_restart(Duration delay);

    /// Whether the drainer of another slot of this server, named by a claim token, still runs on
    /// this database.
    bool is_alive(const Incarnation& other) const;

  private:
    DrainerSlot* slot_ = nullptr;
    SharedBuckets* buckets_ = nullptr;
    int index_ = 0;
    DrainerState state_ = DrainerState::starting;
};

/// The number by which SetLatch finds this process.
uint32 own_procno();

inline void add(pg_atomic_uint64& counter, std::size_t amount) {
    if (amount > 0) {
        pg_atomic_fetch_add_u64(&counter, static_cast<int64>(amount));
    }
}

}  // namespace outbox::postgres
