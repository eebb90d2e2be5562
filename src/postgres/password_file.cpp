#include "postgres/password_file.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/password_lines.hpp"

namespace outbox::postgres {

namespace {

constexpr std::size_t MAX_PASSWORD_FILE = 65536;

class File {
  public:
    explicit File(const std::string& path)
        : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    ~File() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int fd() const { return fd_; }

  private:
    int fd_;
};

PasswordError system_failure() {
    char buffer[128];
    return {std::string("cannot be read: ") + ::strerror_r(errno, buffer, sizeof(buffer))};
}

/// Holds what is read and wipes it.
class Secret {
  public:
    Secret() : bytes_(MAX_PASSWORD_FILE, '\0') {}
    ~Secret() { ::explicit_bzero(bytes_.data(), bytes_.size()); }
    Secret(const Secret&) = delete;
    Secret& operator=(const Secret&) = delete;
    std::string& bytes() { return bytes_; }

  private:
    std::string bytes_;
};

std::optional<PasswordError> find_file_problem(const File& file) {
    struct stat status {};
    if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) {
        return system_failure();
    }
    if (!S_ISREG(status.st_mode)) {
        return PasswordError{"is not a regular file"};
    }
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return PasswordError{"may be accessed by group or others: chmod 0600"};
    }
    return std::nullopt;
}

// Gives how much was read.
std::variant<std::size_t, PasswordError> read_all(const File& file, std::string& bytes) {
    std::size_t length = 0;
    for (;;) {
        const ::ssize_t got = ::read(file.fd(), bytes.data() + length, bytes.size() - length);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return system_failure();
        }
        if (got == 0) {
            return length;
        }
        length += static_cast<std::size_t>(got);
        if (length == bytes.size()) {
            return PasswordError{"is too long"};
        }
    }
}

}  // namespace

std::variant<std::string, PasswordError> read_password_file(const std::string& path,
                                                            const BrokerUri& uri) {
    const File file(path);
    if (std::optional<PasswordError> problem = find_file_problem(file)) {
        return *std::move(problem);
    }
    Secret secret;
    const auto read = read_all(file, secret.bytes());
    if (const auto* error = std::get_if<PasswordError>(&read)) {
        return *error;
    }
    const std::string_view text(secret.bytes().data(), std::get<std::size_t>(read));
    auto found = find_password(text, uri);
    if (auto* none = std::get_if<NoPassword>(&found)) {
        return PasswordError{std::move(none->reason)};
    }
    return std::get<std::string>(std::move(found));
}

}  // namespace outbox::postgres
