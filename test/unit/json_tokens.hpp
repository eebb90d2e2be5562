#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/event.hpp"

namespace outbox::test {

/// Well-formed JSON text as the tokens that the mapping reads, in document order and with numbers
/// as they are written. Strings may escape a character with a backslash; there are no \u escapes.
/// Owns all that its tokens point to.
class JsonTokens {
  public:
    explicit JsonTokens(std::string text) : text_(std::move(text)) {
        read_value();
        skip_blanks();
        complete_ = position_ == text_.size();
    }
    JsonTokens(const JsonTokens&) = delete;
    JsonTokens& operator=(const JsonTokens&) = delete;

    /// Whether the text was one JSON value and nothing else; to be asserted where the text is
    /// generated.
    bool complete() const { return complete_; }
    Json json() const { return tokens_; }

  private:
    using Kind = JsonToken::Kind;

    void skip_blanks() {
        while (position_ < text_.size() &&
               std::string_view(" \n\t,:").find(text_[position_]) != std::string_view::npos) {
            ++position_;
        }
    }

    bool accept(char c) {
        skip_blanks();
        if (position_ < text_.size() && text_[position_] == c) {
            ++position_;
            return true;
        }
        return false;
    }

    std::string_view read_string() {
        std::string& text = texts_.emplace_back();
        while (position_ < text_.size() && text_[position_] != '"') {
            position_ += text_[position_] == '\\' ? 1 : 0;
            text += text_.at(position_++);
        }
        ++position_;
        return text;
    }

    void read_object() {
        tokens_.push_back({Kind::begin_object, {}});
        while (accept('"')) {
            tokens_.push_back({Kind::key, read_string()});
            read_value();
        }
        tokens_.push_back({accept('}') ? Kind::end_object : Kind::null, {}});
    }

    void read_array() {
        tokens_.push_back({Kind::begin_array, {}});
        while (!accept(']') && position_ < text_.size()) {
            read_value();
        }
        tokens_.push_back({Kind::end_array, {}});
    }

    void read_word() {
        const std::size_t end = std::min(text_.find_first_of(" \n\t,:]}", position_), text_.size());
        const std::string_view word = texts_.emplace_back(text_.substr(position_, end - position_));
        position_ = end;
        if (word == "true" || word == "false") {
            tokens_.push_back({word == "true" ? Kind::boolean_true : Kind::boolean_false, {}});
        } else if (word == "null") {
            tokens_.push_back({Kind::null, {}});
        } else {
            tokens_.push_back({Kind::number, word});
        }
    }

    void read_value() {
        if (accept('{')) {
            read_object();
        } else if (accept('[')) {
            read_array();
        } else if (accept('"')) {
            tokens_.push_back({Kind::string, read_string()});
        } else {
            read_word();
        }
    }

    std::string text_;
    std::size_t position_ = 0;
    bool complete_ = false;
    std::deque<std::string> texts_;  // never moves what it holds
    std::vector<JsonToken> tokens_;
};

}  // namespace outbox::test
