#include "core/retention.hpp"

#include <algorithm>
#include <iterator>

namespace outbox {

namespace {

// How many chunks without anything to be removed become stretches before the cursor waits.
constexpr std::ptrdiff_t LEAD = 32;
// How many rows a peek reads, and how soon the next one follows, a quarter further away.
constexpr std::size_t PEEK = 16;
constexpr Duration PEEK_PAUSE{1000};
// With more stretches than this, neighbours are joined: more is read again, nothing is forgotten.
constexpr std::size_t MOST_STRETCHES = 1024;
constexpr std::size_t MOST_REFUSED = 10000;

// At work it rests three times as long as it worked.
constexpr int REST_FACTOR = 3;
constexpr Duration REST_LEAST{10};
constexpr Duration REST_AFTER_FAILURE{50};
constexpr int MOST_FAILURES_ALONE = 3;

constexpr Duration REFUSAL_LEAST{60000};
constexpr Duration REFUSAL_MOST{3600000};

// How often one looks when there is little to be done.
Duration patience(Duration kept) {
    return std::clamp<Duration>(kept / 4, Duration{1000}, Duration{60000});
}

// How long one waits for a time that is known.
constexpr Duration WAIT_MOST{600000};

Duration between_rounds(Duration kept) {
    return std::clamp<Duration>(kept / 8, Duration{10000}, Duration{3600000});
}

Time later_than(Time now, Duration wait) {
    return wait < Time::max() - now ? now + wait : Time::max();
}

}  // namespace

Retention::Retention(std::int64_t position) noexcept
    : cursor_(position), removed_up_to_(position) {}

void Retention::configure(Time now, Duration published, Duration dead) {
    if (published == published_ && dead == dead_) {
        return;
    }
    published_ = published;
    dead_ = dead;
    for (auto& [lo, stretch] : stretches_) {
        stretch.due = now;
    }
    ahead_at_ = peek_at_ = behind_at_ = dead_at_ = now;
    dead_from_ = INT64_MIN;
    plan();
}

// What comes first is done first, so that no kind of work waits for another.
void Retention::plan() {
    Time first = Time::max();
    const auto consider = [&](Where where, Time at) {
        if (at < first) {
            first = at;
            next_.where = where;
        }
    };
    if (dead_ > Duration{0}) {
        consider(Where::dead, dead_at_);
    }
    if (published_ > Duration{0}) {
        for (const auto& [lo, stretch] : stretches_) {
            if (stretch.due < first) {
                consider(Where::again, stretch.due);
                next_.after = lo - 1;
                next_.last = stretch.hi;
            }
        }
        consider(Where::behind, behind_at_);
        if (may_go_ahead()) {
            consider(Where::ahead, ahead_at_);
        } else {
            consider(Where::peek, peek_at_);
        }
    }
    next_look_ = first == Time::max() ? first : std::max(first, rest_until_);
}

bool Retention::may_go_ahead() const {
    if (cursor_ < over_at_) {
        return true;
    }
    const auto above = stretches_.upper_bound(removed_up_to_);
    return std::distance(above, stretches_.end()) < LEAD;
}

bool Retention::begin(Time now, std::int64_t floor) {
    floor_ = floor;
    while (now >= next_look_) {
        if (prepare_turn(now)) {
            return true;
        }
        plan();
    }
    return false;
}

// False when nothing can be there; the look is put off then.
bool Retention::prepare_turn(Time now) {
    turn_ = next_;
    turn_.limit = limit_;
    turn_.dead_from = dead_from_;
    read_ = 0;
    chosen_.clear();
    later_ = Later{};
    if (turn_.where == Where::ahead) {
        turn_.after = cursor_;
        turn_.last = floor_;
        if (cursor_ >= floor_) {
            ahead_at_ = now + patience(published_);
            return false;
        }
    }
    if (turn_.where == Where::peek) {
        turn_.after = cursor_ + peek_distance_;
        turn_.last = floor_;
        turn_.limit = PEEK;
        if (turn_.after >= floor_) {
            peek_distance_ = CHUNK;
            peek_at_ = now + WAIT_MOST;
            return false;
        }
    }
    if (turn_.where == Where::behind) {
        turn_.after = behind_;
        turn_.last = cursor_;
        if (turn_.after >= turn_.last) {
            behind_ = 0;
            behind_at_ = now + between_rounds(published_);
            return false;
        }
    }
    return true;
}

std::vector<std::int64_t> Retention::refused(Time now) const {
    std::vector<std::int64_t> result;
    for (const auto& [seq, refusal] : refused_) {
        if (refusal.dead && now < refusal.retry_at) {
            result.push_back(seq);
        }
    }
    return result;
}

// A row that failed before is tried alone, when there is nothing else to be removed in the chunk.
std::span<const std::int64_t> Retention::choose(Time now, std::span<const RetainedRow> rows) {
    if (turn_.where == Where::peek) {
        take_peek(rows);
        return chosen_;
    }
    std::int64_t suspect = 0;
    read_ = rows.size();
    for (const RetainedRow& row : rows) {
        last_read_ = row.seq;
        last_end_ = row.end;
        if (!row.counts) {
            continue;
        }
        const auto refusal = refused_.find(row.seq);
        if (row.left > Duration{0}) {
            // A stretch that the slow round meets has its own time.
            if (turn_.where == Where::behind && is_in_stretch(row.seq)) {
                continue;
            }
            later_.add(row.seq, later_than(now, row.left));
        } else if (refusal == refused_.end()) {
            chosen_.push_back(row.seq);
        } else {
            later_.add(row.seq, refusal->second.retry_at);
            suspect = now >= refusal->second.retry_at ? row.seq : suspect;
        }
    }
    if (chosen_.empty() && suspect != 0) {
        chosen_.push_back(suspect);
    }
    return chosen_;
}

// A single row may have been given any time by hand.
void Retention::take_peek(std::span<const RetainedRow> rows) {
    const auto over = std::count_if(rows.begin(), rows.end(), [this](const RetainedRow& row) {
        return row.counts && row.left <= Duration{0} && !refused_.contains(row.seq);
    });
    if (over * 2 > static_cast<std::ptrdiff_t>(rows.size())) {
        over_at_ = rows.back().seq;
    }
}

void Retention::Later::add(std::int64_t seq, Time when) {
    lo = any ? std::min(lo, seq) : seq;
    hi = any ? std::max(hi, seq) : seq;
    due = any ? std::min(due, when) : when;
    any = true;
}

void Retention::finish(Time now, Duration took, std::span<const std::int64_t> removed) {
    for (std::int64_t seq : removed) {
        refused_.erase(seq);
    }
    switch (turn_.where) {
        case Where::ahead:
            leave_missed(now, removed);
            finish_ahead(now, !removed.empty());
            break;
        case Where::peek:
            peek_distance_ += peek_distance_ / 4;
            peek_at_ = now + PEEK_PAUSE;
            break;
        case Where::again:
            leave_missed(now, removed);
            finish_again(now);
            break;
        case Where::behind:
            leave_missed(now, removed);
            finish_behind(now, !removed.empty());
            break;
        case Where::dead:
            finish_dead(now, !removed.empty());
            break;
    }
    limit_ = std::min(limit_ * 2, CHUNK);
    failures_alone_ = removed.empty() ? failures_alone_ : 0;
    rest_until_ = now + std::max(REST_LEAST, took * REST_FACTOR);
    plan();
}

// What was chosen and not removed is locked by somebody, or was changed in this moment. Only what
// is really gone lets the cursor go further ahead.
void Retention::leave_missed(Time now, std::span<const std::int64_t> removed) {
    std::vector<std::int64_t> gone(removed.begin(), removed.end());
    std::sort(gone.begin(), gone.end());
    for (std::int64_t seq : chosen_) {
        if (!std::binary_search(gone.begin(), gone.end(), seq)) {
            later_.add(seq, now);
        }
    }
    if (!gone.empty()) {
        removed_up_to_ = std::max(removed_up_to_, gone.back());
    }
}

// Few rows with nothing to be removed are the edge: they are left until there are more of them or
// the first is due.
void Retention::finish_ahead(Time now, bool removed_some) {
    if (!was_full() && !removed_some && later_.any) {
        cursor_ = later_.lo - 1;
        ahead_at_ = now + std::clamp(later_.due - now, patience(published_), WAIT_MOST);
        return;
    }
    // Numbers without a row stay so, up to the floor.
    cursor_ = was_full() ? last_read_ : turn_.last;
    ahead_at_ = was_full() ? now : now + patience(published_);
    keep_later(now);
}

void Retention::finish_again(Time now) {
    stretches_.erase(turn_.after + 1);
    keep_later(now);
    if (was_full() && last_read_ < turn_.last) {
        keep_stretch(last_read_ + 1, turn_.last, now);
    }
}

void Retention::finish_behind(Time now, bool removed_some) {
    keep_later(now);
    behind_ = was_full() ? last_read_ : 0;
    const Duration wait = was_full() ? patience(published_) : between_rounds(published_);
    behind_at_ = was_full() && removed_some ? now : now + wait;
}

// A full read goes on where it ended, past the index entries of what it removed.
void Retention::finish_dead(Time now, bool removed_some) {
    const bool more = was_full() && removed_some;
    dead_from_ = more ? last_end_ : INT64_MIN;
    dead_at_ = more ? now : now + patience(dead_);
}

bool Retention::fail(Time now) {
    const bool alone = chosen_.size() == 1;
    rest_until_ = now + REST_AFTER_FAILURE;
    if (alone) {
        refuse(now, chosen_.front());
        failures_alone_++;
    } else {
        limit_ = std::max<std::size_t>(std::min(limit_, read_) / 2, 1);
    }
    // Not a matter of single rows, or not of the rows at all.
    if (chosen_.empty() || failures_alone_ >= MOST_FAILURES_ALONE) {
        rest_until_ = now + REFUSAL_LEAST;
        failures_alone_ = 0;
    }
    plan();
    return alone;
}

void Retention::refuse(Time now, std::int64_t seq) {
    if (refused_.size() >= MOST_REFUSED && !refused_.contains(seq)) {
        refused_.erase(refused_.begin());
    }
    Refusal& refusal = refused_[seq];
    refusal.dead = turn_.where == Where::dead;
    refusal.pause = std::clamp(refusal.pause * 2, REFUSAL_LEAST, REFUSAL_MOST);
    refusal.retry_at = now + refusal.pause;
}

std::int64_t Retention::position() const {
    return stretches_.empty() ? cursor_ : std::min(cursor_, stretches_.begin()->first - 1);
}

void Retention::note_published(Time now, std::span<const std::int64_t> seqs) {
    bool any = false;
    for (std::int64_t seq : seqs) {
        if (seq > cursor_) {
            continue;
        }
        if (!is_in_stretch(seq)) {
            keep_stretch(seq, seq, later_than(now, published_));
            any = true;
        }
    }
    if (any) {
        plan();
    }
}

bool Retention::is_in_stretch(std::int64_t seq) const {
    const auto next = stretches_.upper_bound(seq);
    return next != stretches_.begin() && std::prev(next)->second.hi >= seq;
}

// Not looked at again at once, however soon its first row is over: more will be over then.
void Retention::keep_later(Time now) {
    if (later_.any) {
        keep_stretch(later_.lo, later_.hi, std::max(later_.due, now + patience(published_)));
    }
}

void Retention::keep_stretch(std::int64_t lo, std::int64_t hi, Time due) {
    auto first = stretches_.upper_bound(lo);
    if (first != stretches_.begin() && std::prev(first)->second.hi >= lo) {
        --first;
    }
    while (first != stretches_.end() && first->first <= hi) {
        lo = std::min(lo, first->first);
        hi = std::max(hi, first->second.hi);
        due = std::min(due, first->second.due);
        first = stretches_.erase(first);
    }
    stretches_[lo] = {hi, due};
    if (stretches_.size() > MOST_STRETCHES) {
        join_neighbours();
    }
}

// Each two become one, with all that lies between them.
void Retention::join_neighbours() {
    for (auto left = stretches_.begin(); left != stretches_.end(); ++left) {
        const auto right = std::next(left);
        if (right == stretches_.end()) {
            break;
        }
        left->second.hi = right->second.hi;
        left->second.due = std::min(left->second.due, right->second.due);
        stretches_.erase(right);
    }
}

}  // namespace outbox
