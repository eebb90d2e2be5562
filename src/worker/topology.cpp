#include "worker/topology.hpp"

#include <algorithm>

#include "postgres/broker_arguments.hpp"

namespace outbox::worker {

namespace {

using postgres::BrokerAction;
using postgres::BrokerOutcome;
using postgres::BrokerQuestion;
using postgres::BrokerReply;

amqp::Question::Kind kind_of(BrokerAction action) {
    switch (action) {
        case BrokerAction::exchange_exists:
            return amqp::Question::Kind::exchange_exists;
        case BrokerAction::queue_exists:
            return amqp::Question::Kind::queue_exists;
        case BrokerAction::declare_exchange:
            return amqp::Question::Kind::declare_exchange;
        case BrokerAction::declare_queue:
            return amqp::Question::Kind::declare_queue;
        case BrokerAction::bind_queue:
            return amqp::Question::Kind::bind_queue;
    }
    return amqp::Question::Kind::exchange_exists;
}

BrokerReply reply_of(BrokerOutcome outcome, std::string_view text) {
    BrokerReply reply{};
    reply.outcome = outcome;
    text.copy(reply.text, sizeof(reply.text) - 1);
    return reply;
}

// A lost connection answers with code 0.
BrokerReply reply_of(const amqp::Answer& answer) {
    const bool lost = !answer.ok && answer.code == 0;
    BrokerReply reply =
        reply_of(lost ? BrokerOutcome::connection_lost : BrokerOutcome::answered, answer.text);
    reply.ok = answer.ok;
    reply.code = answer.code;
    reply.messages = answer.messages;
    reply.consumers = answer.consumers;
    return reply;
}

}  // namespace

Topology::Topology(BrokerLink& link, postgres::Slot& slot) : link_(link), slot_(slot) {}

void Topology::look() {
    asked_ = slot_.take_asked() || asked_;
    while (answer_taken() && asked_) {
        BrokerQuestion question;
        taken_ = postgres::take_broker_request(slot_.incarnation().slot, question);
        asked_ = taken_.has_value();
        if (asked_) {
            ask(question);
        }
    }
}

// True: no answer is awaited any more.
bool Topology::answer_taken() {
    if (taken_.has_value()) {
        if (const std::optional<amqp::Answer> received = link_.take_answer()) {
            answer(reply_of(*received));
        }
    }
    return !taken_.has_value();
}

void Topology::ask(const BrokerQuestion& question) {
    amqp::Question asked;
    asked.kind = kind_of(question.action);
    asked.exchange = question.exchange;
    asked.queue = question.queue;
    asked.routing_key = question.routing_key;
    asked.type = question.type;
    asked.durable = question.durable;
    asked.auto_delete = question.auto_delete;
    asked.internal = question.internal;
    const bool ok = postgres::read_arguments(question, asked.arguments);
    if (!ok || !link_.ask(asked)) {
        answer(reply_of(BrokerOutcome::not_asked, ""));
    }
}

void Topology::answer(const BrokerReply& reply) {
    postgres::answer_broker_request(*taken_, reply);
    taken_.reset();
}

}  // namespace outbox::worker
