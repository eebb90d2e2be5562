#include "amqp/stream.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace outbox::amqp {

namespace {

constexpr std::size_t chunk_size = 64 * 1024;
// What is encrypted at a time, so that a large message is not there twice.
constexpr std::size_t encrypt_size = 64 * 1024;
// A send is worth it.
constexpr std::size_t burst = 64 * 1024;
// Memory that the buffer of what has arrived keeps when it is empty.
constexpr std::size_t kept_capacity = 256 * 1024;

}  // namespace

void Stream::attach(int fd) {
    drop();
    fd_ = fd;
    chunk_ = std::make_unique_for_overwrite<char[]>(chunk_size);
    last_sent_ = last_received_ = Clock::now();
}

bool Stream::start_tls(const TlsOptions& options, const std::string& host) {
    tls_ = std::make_unique<TlsSession>();
    if (tls_->start(options, host) == TlsSession::Progress::failed) {
        failure_ = tls_->failure();
        return false;
    }
    return true;
}

Stream::Progress Stream::secure() {
    for (;;) {
        const TlsSession::Progress progress = tls_->handshake();
        tls_->take_outgoing(cipher_);
        const bool sent = send_cipher();
        if (progress == TlsSession::Progress::failed) {
            failure_ = tls_->failure();
            return Progress::failed;
        }
        if (!sent) {
            return Progress::failed;
        }
        if (progress == TlsSession::Progress::done) {
            secured_ = true;
            return decrypt({}) ? Progress::done : Progress::failed;
        }
        switch (receive()) {
            case Read::nothing:
                return Progress::in_progress;
            case Read::failed:
                return Progress::failed;
            case Read::some:
                break;
        }
    }
}

void Stream::shut_down() {
    if (secured_ && flush() && unsent() == 0) {
        tls_->shut_down();
        tls_->take_outgoing(cipher_);
        (void)send_cipher();
    }
}

void Stream::drop() {
    if (fd_ >= 0) {
        (void)::close(fd_);
    }
    fd_ = -1;
    tls_.reset();
    secured_ = false;
    chunk_.reset();
    in_ = std::string();
    in_begin_ = 0;
    ended_ = false;
    out_.clear();
    left_over_ = 0;
    cipher_ = std::string();
    cipher_sent_ = 0;
    deaf_ = false;
}

Stream::Read Stream::receive() {
    if (ended_) {
        return Read::failed;
    }
    if (fd_ < 0) {
        return Read::nothing;
    }
    ssize_t got = 0;
    do {
        got = ::recv(fd_, chunk_.get(), chunk_size, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return Read::nothing;
    }
    if (got <= 0) {
        note_loss(got == 0 ? "broker closed the connection"
                           : std::string("connection lost: ") + std::strerror(errno));
        ended_ = true;
        return Read::failed;
    }
    // Any byte is a sign of life, so that a long frame on a slow link does not look like silence.
    last_received_ = Clock::now();
    const std::string_view bytes(chunk_.get(), static_cast<std::size_t>(got));
    if (tls_ == nullptr) {
        in_ += bytes;
        return Read::some;
    }
    const std::size_t before = in_.size();
    if (!decrypt(bytes)) {
        ended_ = true;
        return in_.size() > before ? Read::some : Read::failed;
    }
    return Read::some;
}

bool Stream::decrypt(std::string_view bytes) {
    const bool good = tls_->feed(bytes) && (!secured_ || tls_->decrypt(in_));
    // TLS has words of its own to say, an alert for instance.
    tls_->take_outgoing(cipher_);
    if (!good) {
        failure_ = tls_->failure();
    }
    return good;
}

void Stream::consume(std::size_t bytes) {
    in_begin_ += bytes;
    if (in_begin_ == in_.size()) {
        if (in_.capacity() > kept_capacity) {
            in_ = std::string();
        }
        in_.clear();
        in_begin_ = 0;
    } else if (in_begin_ >= chunk_size) {
        in_.erase(0, in_begin_);
        in_begin_ = 0;
    }
}

bool Stream::flush() {
    if (deaf_) {
        return false;
    }
    const bool good = tls_ == nullptr ? send_plain() : send_cipher() && encrypt();
    left_over_ = unsent();
    return good;
}

bool Stream::flush_burst() {
    return unsent() < left_over_ + burst || flush();
}

bool Stream::send_plain() {
    while (!out_.empty()) {
        const std::ptrdiff_t sent = send(out_.front());
        if (sent <= 0) {
            return sent == 0;
        }
        out_.pop(static_cast<std::size_t>(sent));
    }
    return true;
}

bool Stream::encrypt() {
    while (secured_ && !out_.empty() && cipher_.empty()) {
        const std::string_view part = out_.front().substr(0, encrypt_size);
        if (!tls_->encrypt(part)) {
            failure_ = tls_->failure();
            give_up_sending();
            return false;
        }
        out_.pop(part.size());
        tls_->take_outgoing(cipher_);
        if (!send_cipher()) {
            return false;
        }
    }
    return true;
}

bool Stream::send_cipher() {
    while (cipher_sent_ < cipher_.size()) {
        const std::ptrdiff_t sent = send(std::string_view(cipher_).substr(cipher_sent_));
        if (sent <= 0) {
            return sent == 0;
        }
        cipher_sent_ += static_cast<std::size_t>(sent);
    }
    cipher_.clear();
    cipher_sent_ = 0;
    return true;
}

std::ptrdiff_t Stream::send(std::string_view bytes) {
    if (fd_ < 0) {
        return static_cast<std::ptrdiff_t>(bytes.size());
    }
    ssize_t sent = 0;
    do {
        sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        last_sent_ = Clock::now();
        return sent;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return 0;
    }
    note_loss(std::string("connection lost: ") + std::strerror(errno));
    give_up_sending();
    return -1;
}

void Stream::note_loss(std::string text) {
    if (tls_ != nullptr && !secured_) {
        text += " in the TLS handshake";
    }
    failure_ = {FailureClass::infrastructure, std::move(text)};
}

// What was being sent can never be completed, so nothing may follow it.
void Stream::give_up_sending() {
    deaf_ = true;
    out_.clear();
    cipher_.clear();
    cipher_sent_ = 0;
}

}  // namespace outbox::amqp
