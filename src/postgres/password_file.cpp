#include "postgres/password_file.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace outbox::postgres {

namespace {

constexpr std::size_t MAX_PASSWORD_FILE = 4096;

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

}  // namespace

std::variant<std::string, PasswordError> read_password_file(const std::string& path) {
    const File file(path);
    if (file.fd() < 0) {
        return system_failure();
    }
    struct stat status {};
    if (::fstat(file.fd(), &status) != 0) {
        return system_failure();
    }
    if (!S_ISREG(status.st_mode)) {
        return PasswordError{"is not a regular file"};
    }
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return PasswordError{"may be accessed by group or others: chmod 0600"};
    }
    char buffer[MAX_PASSWORD_FILE];
    std::size_t length = 0;
    for (;;) {
        const ::ssize_t got = ::read(file.fd(), buffer + length, sizeof(buffer) - length);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return system_failure();
        }
        if (got == 0) {
            break;
        }
        length += static_cast<std::size_t>(got);
        if (length == sizeof(buffer)) {
            return PasswordError{"is too long"};
        }
    }
    std::string_view line(buffer, length);
    line = line.substr(0, line.find('\n'));
    if (!line.empty() && line.back() == '\r') {
        line.remove_suffix(1);
    }
    std::variant<std::string, PasswordError> result = std::string(line);
    if (line.empty()) {
        result = PasswordError{"has no password in its first line"};
    } else if (line.find('\0') != std::string_view::npos) {
        result = PasswordError{"has a NUL byte in its first line"};
    }
    ::explicit_bzero(buffer, sizeof(buffer));
    return result;
}

}  // namespace outbox::postgres
