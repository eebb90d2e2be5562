#pragma once

#include "core/event.hpp"
#include "postgres/prelude.hpp"

extern "C" {
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
}

namespace outbox::postgres {

/// A list of tokens that grows in the current memory context.
class JsonTokens {
  public:
    void add(JsonToken::Kind kind, std::string_view text = {}) {
        if (count_ == capacity_) {
            const std::size_t wanted = capacity_ == 0 ? 16 : capacity_ * 2;
            const Size bytes = wanted * sizeof(JsonToken);
            tokens_ =
                static_cast<JsonToken*>(capacity_ == 0 ? palloc(bytes) : repalloc(tokens_, bytes));
            capacity_ = wanted;
        }
        tokens_[count_++] = {kind, text};
    }

    Json all() const { return {tokens_, count_}; }

  private:
    JsonToken* tokens_ = nullptr;
    std::size_t count_ = 0;
    std::size_t capacity_ = 0;
};

template <class Text>
void add_json_scalar(JsonTokens& tokens, const JsonbValue& value, const Text& text) {
    switch (value.type) {
        case jbvNull:
            tokens.add(JsonToken::Kind::null);
            break;
        case jbvString:
            tokens.add(JsonToken::Kind::string, text.of(value));
            break;
        case jbvNumeric:
            tokens.add(JsonToken::Kind::number,
                       DatumGetCString(
                           DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric))));
            break;
        case jbvBool:
            tokens.add(value.val.boolean ? JsonToken::Kind::boolean_true
                                         : JsonToken::Kind::boolean_false);
            break;
        default:
            elog(ERROR, "unexpected jsonb scalar type %d", static_cast<int>(value.type));
    }
}

/// The value as tokens in the current memory context; `text.of(value)` gives its strings, in UTF-8.
/// Raises PostgreSQL errors (out of memory).
template <class Text>
Json json_tokens(Jsonb* json, const Text& text) {
    const bool scalar = JB_ROOT_IS_SCALAR(json);
    JsonTokens tokens;
    JsonbValue value;
    JsonbIterator* iterator = JsonbIteratorInit(&json->root);
    for (;;) {
        switch (JsonbIteratorNext(&iterator, &value, false)) {
            case WJB_DONE:
                return tokens.all();
            case WJB_KEY:
                tokens.add(JsonToken::Kind::key, text.of(value));
                break;
            case WJB_VALUE:
            case WJB_ELEM:
                add_json_scalar(tokens, value, text);
                break;
            case WJB_BEGIN_OBJECT:
                tokens.add(JsonToken::Kind::begin_object);
                break;
            case WJB_END_OBJECT:
                tokens.add(JsonToken::Kind::end_object);
                break;
            // jsonb keeps a scalar as an array of one.
            case WJB_BEGIN_ARRAY:
                if (!scalar) {
                    tokens.add(JsonToken::Kind::begin_array);
                }
                break;
            case WJB_END_ARRAY:
                if (!scalar) {
                    tokens.add(JsonToken::Kind::end_array);
                }
                break;
        }
    }
}

}  // namespace outbox::postgres
