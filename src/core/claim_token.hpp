#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

/// One life of one drainer: which cluster, which start of its server, which slot of shared memory
/// and which process in that slot. No two processes share one, also across restore, promotion and
/// restart.
struct Incarnation {
    std::uint64_t system_identifier = 0;  ///< of the cluster, from its control file
    std::uint32_t timeline = 0;
    std::uint64_t server_start = 0;  ///< microseconds; SharedState::server_start
    int slot = 0;                    ///< index in shared memory, not negative
    std::uint64_t generation = 0;    ///< DrainerSlot::generation, counts the drainers of this slot

    bool operator==(const Incarnation&) const = default;
};

/// Longest token that make_token makes, in bytes.
inline constexpr std::size_t MAX_TOKEN_LENGTH = 96;

/// The claim token, as it stands in `claimed_by`: "obd1:" and then, in hexadecimal and separated by
/// colons, the fields of the incarnation and the counter. ASCII without spaces. `counter` numbers
/// the claims of one incarnation, so that every claim is fenced from every other. A claim made
/// while a row is looked for that kills drainers says at the end how many rows it was allowed to
/// take (at most MAX_SUSPICION): if its drainer dies as well, the search goes on from there.
std::string make_token(const Incarnation& incarnation, std::uint64_t counter,
                       std::uint64_t suspicion = 0);

inline constexpr std::uint64_t MAX_SUSPICION = 0xffff;

struct TokenParts {
    Incarnation incarnation;
    std::uint64_t counter = 0;
    std::uint64_t suspicion = 0;  ///< 0: an ordinary claim

    bool operator==(const TokenParts&) const = default;
};

/// The parts of a token; nullopt for any text that make_token does not make.
std::optional<TokenParts> parse_token(std::string_view token);

/// Who holds a claim, as far as its token tells.
enum class TokenOwner : std::uint8_t {
    mine,  ///< this very incarnation
    dead,  ///< an incarnation that is gone for certain: its claims may be taken over at once
    live_other_slot,  ///< another slot of this server: shared memory knows whether that one still
                      ///< runs
    foreign,          ///< not our form, so nothing is known: only the end of the lease frees it
};

/// Whose claim it is, seen from `self`. A token of another cluster (the one this was restored
/// from), timeline or server start is dead: whoever wrote it cannot be running in this server.
TokenOwner classify_token(std::string_view token, const Incarnation& self);

}  // namespace outbox
