// The marks: outcomes written to their rows under the claim that they belong to.
#include "worker/marks.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "core/uuid.hpp"
#include "postgres/inject_fault.hpp"
#include "postgres/log.hpp"
#include "postgres/relay_store.hpp"
#include "postgres/wait.hpp"
#include "worker/claim.hpp"

namespace outbox::worker {

namespace {

// Which of `wanted` were not hit; both need no order.
std::vector<std::int64_t> missing_from(std::vector<std::int64_t> wanted,
                                       std::span<const std::int64_t> hit_rows) {
    std::vector<std::int64_t> hit(hit_rows.begin(), hit_rows.end());
    std::sort(wanted.begin(), wanted.end());
    std::sort(hit.begin(), hit.end());
    std::vector<std::int64_t> missing;
    std::set_difference(wanted.begin(), wanted.end(), hit.begin(), hit.end(),
                        std::back_inserter(missing));
    return missing;
}

// In a transaction of its own a row is looked for by its number.
std::vector<postgres::PlacedRow> placed(const BatchMarks& marks) {
    std::vector<postgres::PlacedRow> rows;
    rows.reserve(marks.published.size());
    for (std::size_t i = 0; i < marks.published.size(); i++) {
        rows.push_back({marks.published[i], marks.places.empty() ? 0 : marks.places[i]});
    }
    return rows;
}

template <class Mark>
std::vector<std::int64_t> seqs_of(const std::vector<Mark>& marks) {
    std::vector<std::int64_t> seqs;
    seqs.reserve(marks.size());
    for (const Mark& mark : marks) {
        seqs.push_back(mark.seq);
    }
    return seqs;
}

}  // namespace

std::size_t Drainer::Marked::note(std::vector<std::int64_t> wanted,
                                  std::span<const std::int64_t> hit) {
    const std::vector<std::int64_t> missing = missing_from(std::move(wanted), hit);
    lost.insert(lost.end(), missing.begin(), missing.end());
    return hit.size();
}

void Drainer::Marked::note_put_off(const std::vector<FailedMark>& marks,
                                   std::span<const std::int64_t> hit) {
    note(seqs_of(marks), hit);
    const std::set<std::int64_t> written(hit.begin(), hit.end());
    for (const FailedMark& mark : marks) {
        if (written.contains(mark.seq)) {
            (mark.charged ? failed : held)++;
        }
    }
}

bool Drainer::write_marks(postgres::Transaction& transaction, const BatchMarks& marks,
                          Marked& marked) {
    const char* token = marks.token.c_str();
    if (!marks.published.empty()) {
        const auto hit = postgres::mark_published(transaction, table_.event, placed(marks), token);
        if (!hit.has_value()) {
            return false;
        }
        marked.published += marked.note(marks.published, *hit);
        postgres::inject(postgres::Phase::inside_mark);
    }
    if (!marks.failed.empty()) {
        const auto hit = postgres::mark_failed(transaction, marks.failed, token);
        if (!hit.has_value()) {
            return false;
        }
        marked.note_put_off(marks.failed, *hit);
        postgres::inject(postgres::Phase::inside_failed_mark);
    }
    if (!write_ended(transaction, marks, marked)) {
        return false;
    }
    if (!marks.deferred.empty()) {
        const auto hit = postgres::put_behind(transaction, marks.deferred, token);
        if (!hit.has_value()) {
            return false;
        }
        marked.deferred += marked.note(marks.deferred, *hit);
    }
    if (!marks.released.empty()) {
        const auto hit = postgres::release_rows(transaction, marks.released, token);
        if (!hit.has_value()) {
            return false;
        }
        marked.released += marked.note(marks.released, *hit);
        marked.given_back.insert(marked.given_back.end(), hit->begin(), hit->end());
        postgres::inject(postgres::Phase::inside_release);
    }
    if (!marks.renewed.empty()) {
        const auto hit = postgres::renew_rows(transaction, marks.renewed, token);
        if (!hit.has_value()) {
            return false;
        }
        marked.note(marks.renewed, *hit);
    }
    return true;
}

bool Drainer::write_ended(postgres::Transaction& transaction, const BatchMarks& marks,
                          Marked& marked) {
    if (marks.ended.empty()) {
        return true;
    }
    const auto hit = postgres::mark_ended(transaction, marks.ended, marks.token.c_str());
    if (!hit.has_value()) {
        return false;
    }
    marked.note(seqs_of(marks.ended), *hit);
    for (const EndedMark& mark : marks.ended) {
        if (std::find(hit->begin(), hit->end(), mark.seq) != hit->end()) {
            marked.ended.push_back(mark);
        }
    }
    return relay_.on_dead.empty() || postgres::call_on_dead(transaction, *hit);
}

// What follows from rows that came to their end: others of their groups are due, the line stops.
bool Drainer::follow_up(postgres::Transaction& transaction, const std::vector<std::int64_t>& ended,
                        const std::string& pause) {
    if (!ended.empty() &&
        !postgres::release_followers(transaction, ordering(), ended).has_value()) {
        return false;
    }
    return pause.empty() || postgres::pause_relay(transaction, pause.c_str());
}

// A step of the way through the deferred lane, before the claim, which then sees what is due.
bool Drainer::wake_held(postgres::Transaction& transaction, const TransactionPlan& plan,
                        Claim& claim) {
    if (!plan.wake_held.has_value()) {
        return true;
    }
    const auto step =
        postgres::wake_held(transaction, plan.wake_held->error, plan.wake_held->after);
    if (!step.has_value()) {
        return false;
    }
    claim.woken_to = step->reached;
    return true;
}

void Drainer::count(const Marked& marked) {
    postgres::DrainerCounters& counters = slot_.counters();
    std::size_t dead = 0;
    for (const EndedMark& mark : marked.ended) {
        dead += mark.outcome == EndedMark::Outcome::dead ? 1 : 0;
    }
    postgres::add(counters.published, marked.published);
    postgres::add(counters.failed, marked.failed + dead);
    postgres::add(counters.dead, dead);
    postgres::add(counters.rejected, marked.ended.size() - dead);
    postgres::add(counters.deferred, marked.deferred);
    postgres::add(counters.held, marked.held);
    postgres::add(counters.released, marked.released);
    postgres::add(counters.stale_marks, marked.lost.size());
    if (!marked.lost.empty()) {
        postgres::log_warning(
            "outbox_drainer: " + std::to_string(marked.lost.size()) +
                " marks hit no row under the claim that they were made for",
            "The first row is seq " + std::to_string(marked.lost.front()) +
                "; it was deleted, changed or claimed by somebody else meanwhile.");
    }
}

// Each end is told once; a flood of them is summed up.
void Drainer::announce(const Marked& marked) {
    const Time now = postgres::monotonic_now();
    for (const EndedMark& mark : marked.ended) {
        const bool dead = mark.outcome == EndedMark::Outcome::dead;
        const std::optional<std::uint64_t> unsaid = announcements_.may_say(now);
        if (!unsaid.has_value()) {
            continue;
        }
        if (*unsaid > 0) {
            postgres::log_warning("outbox_drainer: " + std::to_string(*unsaid) +
                                      " more events have ended dead or rejected",
                                  "", "They are listed in outbox.dead.");
        }
        postgres::log_warning("outbox_drainer: event " + to_string(mark.id) + " (seq " +
                                  std::to_string(mark.seq) +
                                  (dead ? ") is dead, its attempts are used up" : ") is rejected"),
                              mark.error,
                              dead ? "When the cause is gone, outbox.requeue sends it again."
                                   : "Correct the event, then outbox.requeue sends it.",
                              dead ? ERRCODE_EXTERNAL_ROUTINE_EXCEPTION : ERRCODE_DATA_EXCEPTION);
    }
}

}  // namespace outbox::worker
