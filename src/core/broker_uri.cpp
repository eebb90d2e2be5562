#include "core/broker_uri.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

#include "core/broker_query.hpp"
#include "core/percent_encoding.hpp"
#include "core/text_limits.hpp"

namespace outbox {

namespace {

// Why a text is refused; nullopt when it is not. A reason is shown in views and logs, so it never
// quotes the text: what stands where a port should be may be half of a password.
using Problem = std::optional<std::string>;

constexpr std::string_view SCHEME_END = "://";
constexpr std::string_view HIDDEN = "****";
constexpr std::uint16_t TLS_PORT = 5671;
constexpr std::size_t MOST_BROKERS = 16;

/// The raw, still encoded pieces of a URI. A piece that is absent is nullopt, unlike an empty one.
struct Pieces {
    std::optional<std::string_view> user;
    std::optional<std::string_view> password;
    std::string_view host;
    std::optional<std::string_view> port;
    std::optional<std::string_view> vhost;
    std::optional<std::string_view> query;
};

std::string lower_case(std::string_view text) {
    std::string lower(text);
    for (char& c : lower) {
        if (c >= 'A' && c <= 'Z') {
            c = static_cast<char>(c - 'A' + 'a');
        }
    }
    return lower;
}

Problem read_scheme(std::string_view text, std::size_t scheme_end, BrokerUri& out) {
    const std::string scheme =
        scheme_end == std::string_view::npos ? "" : lower_case(text.substr(0, scheme_end));
    if (scheme == "amqps") {
        out.tls.emplace();
        out.port = TLS_PORT;
    } else if (scheme != "amqp") {
        return "it does not begin with amqp:// or amqps://";
    }
    return std::nullopt;
}

/// Characters that have no place in an AMQP URI as they are.
Problem find_character_problem(std::string_view rest) {
    if (std::any_of(rest.begin(), rest.end(), is_control_or_space)) {
        return "it contains a space or a control character, which must be percent-encoded";
    }
    if (rest.find(',') != std::string_view::npos) {
        return "it contains a comma, which must be written %2C";
    }
    if (rest.find('#') != std::string_view::npos) {
        return "it contains a #, which must be written %23";
    }
    return std::nullopt;
}

Problem split_host(std::string_view text, Pieces& pieces) {
    std::size_t host_end = 0;
    if (text.starts_with('[')) {
        const std::size_t bracket = text.find(']');
        if (bracket == std::string_view::npos) {
            return "the [ before an IPv6 address has no ]";
        }
        host_end = bracket + 1;
        if (host_end < text.size() && text[host_end] != ':') {
            return "only a port may follow an IPv6 address in brackets";
        }
    } else {
        host_end = std::min(text.find(':'), text.size());
        if (text.find(':', std::min(host_end + 1, text.size())) != std::string_view::npos) {
            return "the host contains more than one colon (an IPv6 address is written in brackets)";
        }
    }
    pieces.host = text.substr(0, host_end);
    if (host_end < text.size()) {
        pieces.port = text.substr(host_end + 1);
    }
    return std::nullopt;
}

Problem split_authority(std::string_view text, Pieces& pieces) {
    const std::size_t at = text.find('@');
    if (at == std::string_view::npos) {
        return split_host(text, pieces);
    }
    if (text.find('@', at + 1) != std::string_view::npos) {
        return "it contains more than one @ (in a user name or password it is written %40)";
    }
    const std::string_view login = text.substr(0, at);
    const std::size_t colon = login.find(':');
    pieces.user = login.substr(0, colon);
    if (colon != std::string_view::npos) {
        pieces.password = login.substr(colon + 1);
    }
    return split_host(text.substr(at + 1), pieces);
}

/// Cuts what follows "amqp://" into its pieces.
Problem split(std::string_view rest, Pieces& pieces) {
    const std::size_t question = rest.find('?');
    if (question != std::string_view::npos) {
        pieces.query = rest.substr(question + 1);
        if (pieces.query->find('@') != std::string_view::npos) {
            return "it contains a ? before the @ (in a user name or password it is written %3F), "
                   "or an @ among its parameters (written %40)";
        }
        rest = rest.substr(0, question);
    }
    const std::size_t slash = rest.find('/');
    if (slash != std::string_view::npos) {
        const std::string_view path = rest.substr(slash + 1);
        // An unencoded / in a password moves the rest of it, @ and all, into the path.
        if (path.find('@') != std::string_view::npos) {
            return "it contains a / before the @ (in a user name or password it is written %2F), "
                   "or an @ in the vhost (written %40)";
        }
        if (path.find('/') != std::string_view::npos) {
            return "the vhost contains a /, which is written %2F";
        }
        pieces.vhost = path;
    }
    return split_authority(rest.substr(0, slash), pieces);
}

bool is_ipv6_address(std::string_view text) {
    return text.find(':') != std::string_view::npos &&
           text.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
}

Problem read_host(std::string_view text, std::string& out) {
    if (text.empty()) {
        return std::nullopt;
    }
    const bool in_brackets = text.front() == '[';
    const std::string_view name = in_brackets ? text.substr(1, text.size() - 2) : text;
    if (Problem problem = percent_decode("host", name, out)) {
        return problem;
    }
    // A zone may follow the address, [fe80::1%25eth0].
    if (in_brackets && !is_ipv6_address(std::string_view(out).substr(0, out.find('%')))) {
        return "there is no IPv6 address in the brackets";
    }
    if (out.find_first_of("[]") != std::string::npos ||
        std::any_of(out.begin(), out.end(), is_control_or_space)) {
        return "the host contains a bracket, a space or a control character";
    }
    return std::nullopt;
}

Problem read_port(std::string_view text, std::uint16_t& out) {
    if (text.empty()) {
        return std::nullopt;
    }
    std::uint16_t port = 0;
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, port);
    if (result.ec != std::errc{} || result.ptr != end || port == 0) {
        return "the port is not a number from 1 to 65535";
    }
    out = port;
    return std::nullopt;
}

Problem read_login(const Pieces& pieces, BrokerUri& out) {
    if (pieces.user) {
        out.has_user = true;
        if (Problem problem = percent_decode("user name", *pieces.user, out.user)) {
            return problem;
        }
    }
    if (pieces.password) {
        out.has_password = true;
        return percent_decode("password", *pieces.password, out.password);
    }
    return std::nullopt;
}

Problem read_vhost(std::string_view text, std::string& out) {
    if (Problem problem = percent_decode("vhost", text, out)) {
        return problem;
    }
    if (out.size() > MAX_SHORT_STRING) {
        return "the vhost is " + std::to_string(out.size()) + " bytes long, the limit is " +
               std::to_string(MAX_SHORT_STRING);
    }
    return std::nullopt;
}

Problem read(std::string_view text, Pieces& pieces, BrokerUri& out) {
    const std::size_t scheme_end = text.find(SCHEME_END);
    if (Problem problem = read_scheme(text, scheme_end, out)) {
        return problem;
    }
    const std::string_view rest = text.substr(scheme_end + SCHEME_END.size());
    if (Problem problem = find_character_problem(rest)) {
        return problem;
    }
    if (Problem problem = split(rest, pieces)) {
        return problem;
    }
    if (Problem problem = read_login(pieces, out)) {
        return problem;
    }
    if (Problem problem = read_host(pieces.host, out.host)) {
        return problem;
    }
    if (Problem problem = read_port(pieces.port.value_or(""), out.port)) {
        return problem;
    }
    if (pieces.vhost) {
        if (Problem problem = read_vhost(*pieces.vhost, out.vhost)) {
            return problem;
        }
    }
    return read_broker_query(pieces.query.value_or(""), out);
}

std::vector<std::string_view> split_list(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n";
    std::vector<std::string_view> elements;
    for (bool more = true; more;) {
        const std::size_t comma = text.find(',');
        more = comma != std::string_view::npos;
        std::string_view element = text.substr(0, comma);
        const std::size_t first = element.find_first_not_of(blanks);
        element = first == std::string_view::npos
                      ? std::string_view()
                      : element.substr(first, element.find_last_not_of(blanks) - first + 1);
        elements.push_back(element);
        text.remove_prefix(more ? comma + 1 : 0);
    }
    return elements;
}

std::string ordinal(std::size_t number) {
    const bool is_teen = number % 100 / 10 == 1;
    const char* const endings[] = {"th", "st", "nd", "rd"};
    return std::to_string(number) + endings[!is_teen && number % 10 <= 3 ? number % 10 : 0];
}

/// What is wrong with the list as such. Looked for before anything else: a comma that was not
/// encoded cuts a password in two, and the first half may be misread, and quoted, as something that
/// is no secret.
Problem find_list_problem(const std::vector<std::string_view>& elements) {
    if (elements.size() > MOST_BROKERS) {
        return "it names " + std::to_string(elements.size()) + " brokers, the limit is " +
               std::to_string(MOST_BROKERS);
    }
    for (std::size_t i = 1; i < elements.size(); i++) {
        if (!elements[i].empty() && elements[i].find(SCHEME_END) == std::string_view::npos) {
            return "what follows the " + ordinal(i) +
                   " comma does not begin with amqp:// or amqps:// (a comma in a name or password "
                   "is written %2C)";
        }
    }
    return std::nullopt;
}

/// Where the scheme of an AMQP URI ends, "://" included; 0 when the text does not begin with one.
std::size_t scheme_length(std::string_view text) {
    const std::string start = lower_case(text.substr(0, 8));
    for (const std::string_view scheme : {"amqp://", "amqps://"}) {
        if (start.starts_with(scheme)) {
            return scheme.size();
        }
    }
    return 0;
}

/// Redacts what parse_broker_uri refuses. Only what reads as host, port and vhost by itself is
/// shown: a mistyped URI may have its secret anywhere.
std::string redact_garbage(std::string_view text) {
    const std::size_t start = scheme_length(text);
    std::string redacted(text.substr(0, start));
    std::string_view place = text.substr(start);
    const std::size_t at = place.rfind('@');
    if (at != std::string_view::npos) {
        redacted += HIDDEN;
        redacted += '@';
        place.remove_prefix(at + 1);
    } else if (start == 0 && !text.empty()) {
        return std::string(HIDDEN);
    }
    const std::string_view plain = place.substr(0, place.find('?'));
    if (!std::holds_alternative<BrokerUri>(parse_broker_uri("amqp://" + std::string(plain)))) {
        return redacted.append(HIDDEN);
    }
    redacted += plain;
    if (plain.size() < place.size()) {
        redacted += '?';
        redacted += HIDDEN;
    }
    return redacted;
}

}  // namespace

std::variant<BrokerUri, UriError> parse_broker_uri(std::string_view text) {
    Pieces pieces;
    BrokerUri uri;
    if (Problem problem = read(text, pieces, uri)) {
        return UriError{std::move(*problem)};
    }
    return uri;
}

std::variant<std::vector<BrokerUri>, UriError> parse_broker_list(std::string_view text) {
    const std::vector<std::string_view> elements = split_list(text);
    if (Problem problem = find_list_problem(elements)) {
        return UriError{std::move(*problem)};
    }
    std::vector<BrokerUri> brokers;
    for (const std::string_view element : elements) {
        std::variant<BrokerUri, UriError> parsed = parse_broker_uri(element);
        if (auto* error = std::get_if<UriError>(&parsed)) {
            if (elements.size() == 1) {
                return std::move(*error);
            }
            return UriError{"in the " + ordinal(brokers.size() + 1) + " of " +
                            std::to_string(elements.size()) + " URIs, " +
                            (element.empty() ? "nothing is written" : error->reason)};
        }
        brokers.push_back(std::get<BrokerUri>(std::move(parsed)));
    }
    return brokers;
}

std::size_t count_brokers(std::string_view text) {
    const auto parsed = parse_broker_list(text);
    const auto* brokers = std::get_if<std::vector<BrokerUri>>(&parsed);
    return brokers == nullptr ? 1 : brokers->size();
}

std::string redact_uri(std::string_view text) {
    if (std::holds_alternative<UriError>(parse_broker_list(text))) {
        return redact_garbage(text);
    }
    std::string redacted;
    std::size_t copied = 0;
    for (const std::string_view element : split_list(text)) {
        Pieces pieces;
        BrokerUri uri;
        if (!read(element, pieces, uri) && pieces.password) {
            const auto position = static_cast<std::size_t>(pieces.password->data() - text.data());
            redacted += text.substr(copied, position - copied);
            redacted += HIDDEN;
            copied = position + pieces.password->size();
        }
    }
    return redacted.append(text.substr(copied));
}

std::string display_name(const BrokerUri& uri) {
    const bool is_ipv6 = uri.host.find(':') != std::string::npos;
    const std::string host = is_ipv6 ? "[" + uri.host + "]" : uri.host;
    return encode_unprintable(host + ":" + std::to_string(uri.port) + "/" + uri.vhost);
}

}  // namespace outbox
