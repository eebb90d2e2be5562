#include "amqp/questions.hpp"

#include "amqp/replies.hpp"

namespace outbox::amqp {

bool Questions::ask(Link& link, const Question& question) {
    switch (question.kind) {
        case Question::Kind::exchange_exists:
            declare_exchange(link, question, true);
            break;
        case Question::Kind::declare_exchange:
            declare_exchange(link, question, false);
            break;
        case Question::Kind::queue_exists:
            declare_queue(link, question, true);
            break;
        case Question::Kind::declare_queue:
            declare_queue(link, question, false);
            break;
        case Question::Kind::bind_queue:
            bind_queue(link, question);
            break;
    }
    return open();
}

void Questions::send(Link& link, amqp_method_number_t id, void* method,
                     amqp_method_number_t expected) {
    if (link.send_method(question_channel, id, method)) {
        asked_ = id;
        expected_ = expected;
    }
}

void Questions::declare_exchange(Link& link, const Question& question, bool passive) {
    amqp_exchange_declare_t method{};
    method.exchange = to_bytes(question.exchange);
    method.type = to_bytes(question.type);
    method.passive = passive ? 1 : 0;
    if (!passive) {
        method.durable = question.durable ? 1 : 0;
        method.auto_delete = question.auto_delete ? 1 : 0;
        method.internal = question.internal ? 1 : 0;
        method.arguments = arguments_.encode(question.arguments);
    }
    send(link, AMQP_EXCHANGE_DECLARE_METHOD, &method, AMQP_EXCHANGE_DECLARE_OK_METHOD);
}

void Questions::declare_queue(Link& link, const Question& question, bool passive) {
    amqp_queue_declare_t method{};
    method.queue = to_bytes(question.queue);
    method.passive = passive ? 1 : 0;
    if (!passive) {
        method.durable = question.durable ? 1 : 0;
        method.auto_delete = question.auto_delete ? 1 : 0;
        method.arguments = arguments_.encode(question.arguments);
    }
    send(link, AMQP_QUEUE_DECLARE_METHOD, &method, AMQP_QUEUE_DECLARE_OK_METHOD);
}

void Questions::bind_queue(Link& link, const Question& question) {
    amqp_queue_bind_t method{};
    method.queue = to_bytes(question.queue);
    method.exchange = to_bytes(question.exchange);
    method.routing_key = to_bytes(question.routing_key);
    method.arguments = arguments_.encode(question.arguments);
    send(link, AMQP_QUEUE_BIND_METHOD, &method, AMQP_QUEUE_BIND_OK_METHOD);
}

std::optional<Answer> Questions::take(const amqp_method_t& method) {
    if (!open() || method.id != expected_) {
        return std::nullopt;
    }
    forget();
    Answer answer;
    answer.ok = true;
    if (method.id == AMQP_QUEUE_DECLARE_OK_METHOD) {
        const auto& declared = *static_cast<const amqp_queue_declare_ok_t*>(method.decoded);
        answer.messages = declared.message_count;
        answer.consumers = declared.consumer_count;
    }
    return answer;
}

Answer Questions::refuse(std::uint16_t code, amqp_bytes_t text) {
    forget();
    Answer answer;
    answer.code = code;
    answer.text = reply_text(code, text);
    return answer;
}

bool Questions::is_about(std::uint16_t class_id, std::uint16_t method_id) const {
    return open() && asked_ == (std::uint32_t{class_id} << 16U | method_id);
}

}  // namespace outbox::amqp
