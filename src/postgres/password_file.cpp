#include "postgres/password_file.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/password_lines.hpp"

namespace outbox::postgres {

namespace {

constexpr std::size_t MAX_PASSWORD_FILE = 64 * 1024;

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

/// The text of the file; nothing of it stays in memory.
class Contents {
  public:
    Contents() : bytes_(std::make_unique<Bytes>()) {}
    ~Contents() { ::explicit_bzero(bytes_->data(), bytes_->size()); }
    Contents(const Contents&) = delete;
    Contents& operator=(const Contents&) = delete;

    std::optional<PasswordError> read(int fd);
    std::string_view text() const { return {bytes_->data(), length_}; }

  private:
    using Bytes = std::array<char, MAX_PASSWORD_FILE>;
    std::unique_ptr<Bytes> bytes_;
    std::size_t length_ = 0;
};

PasswordError system_failure() {
    char buffer[128];
    return {std::string("cannot be read: ") + ::strerror_r(errno, buffer, sizeof(buffer))};
}

std::optional<PasswordError> Contents::read(int fd) {
    while (length_ < bytes_->size()) {
        const ::ssize_t got = ::read(fd, bytes_->data() + length_, bytes_->size() - length_);
        if (got == 0) {
            return std::nullopt;
        }
        if (got > 0) {
            length_ += static_cast<std::size_t>(got);
        } else if (errno != EINTR) {
            return system_failure();
        }
    }
    return PasswordError{"is too long"};
}

std::optional<PasswordError> find_file_problem(int fd) {
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0) {
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

}  // namespace

std::variant<std::string, PasswordError> read_password_file(const std::string& path,
                                                            const BrokerUri& uri) {
    const File file(path);
    if (std::optional<PasswordError> problem = find_file_problem(file.fd())) {
        return std::move(*problem);
    }
    Contents contents;
    if (std::optional<PasswordError> problem = contents.read(file.fd())) {
        return std::move(*problem);
    }
    auto found = find_password(contents.text(), uri);
    if (auto* error = std::get_if<PasswordLineError>(&found)) {
        return PasswordError{std::move(error->reason)};
    }
    return std::get<std::string>(std::move(found));
}

}  // namespace outbox::postgres
