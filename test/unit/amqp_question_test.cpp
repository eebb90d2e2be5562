#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "amqp_client.hpp"
#include "fake_broker.hpp"

namespace {

using namespace amqp_test;
using fake::Broker;
using fake::Frame;
using fake::Peer;
using fake::Writer;

constexpr std::uint16_t questions = 2;

void connected(const Broker::Script& script, const std::function<void(Client&)>& check) {
    Broker broker([&](Peer& peer) {
        ASSERT_TRUE(peer.handshake().has_value());
        script(peer);
        peer.wait_for_close();
    });
    Client client;
    ASSERT_EQ(client.connect(broker.port()), Progress::ready) << client.failure();
    check(client);
}

/// The client's next frame is this method on the channel for questions.
void expect_asked(Peer& peer, std::uint16_t class_id, std::uint16_t method_id,
                  const Writer& arguments) {
    const std::optional<Frame> frame = peer.read_frame();
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(frame->channel, questions);
    EXPECT_TRUE(frame->is_method(class_id, method_id));
    EXPECT_EQ(frame->arguments(), arguments.bytes());
}

void expect_ok(const std::optional<Answer>& answer) {
    ASSERT_TRUE(answer.has_value());
    EXPECT_TRUE(answer->ok);
    EXPECT_EQ(answer->code, 0);
    EXPECT_EQ(answer->text, "");
}

Question about(Question::Kind kind, std::string exchange, std::string queue = "") {
    Question question;
    question.kind = kind;
    question.exchange = std::move(exchange);
    question.queue = std::move(queue);
    return question;
}

Question exchange_exists(std::string exchange) {
    return about(Question::Kind::exchange_exists, std::move(exchange));
}

TEST(AmqpQuestion, WhetherSomethingExists) {
    connected(
        [](Peer& peer) {
            expect_asked(peer, 40, 10,
                         Writer().u16(0).short_string("events").short_string("").u8(1).u32(0));
            peer.send_method(questions, 40, 11);
            expect_asked(peer, 50, 10, Writer().u16(0).short_string("orders").u8(1).u32(0));
            peer.send_method(questions, 50, 11, Writer().short_string("orders").u32(70000).u32(3));
        },
        [](Client& client) {
            expect_ok(client.ask(exchange_exists("events")));
            const std::optional<Answer> answer =
                client.ask(about(Question::Kind::queue_exists, "", "orders"));
            expect_ok(answer);
            EXPECT_EQ(answer->messages, 70000U);
            EXPECT_EQ(answer->consumers, 3U);
        });
}

TEST(AmqpQuestion, DeclaresAndBinds) {
    const Writer arguments = Writer().short_string("x").u8('l').u64(7);
    connected(
        [&](Peer& peer) {
            expect_asked(peer, 40, 10,
                         Writer()
                             .u16(0)
                             .short_string("events")
                             .short_string("topic")
                             .u8(0b1010)  // durable, internal
                             .long_string(arguments.bytes()));
            peer.send_method(questions, 40, 11);
            expect_asked(peer, 40, 10,
                         Writer()
                             .u16(0)
                             .short_string("events")
                             .short_string("fanout")
                             .u8(0b0100)  // auto-delete
                             .u32(0));
            peer.send_method(questions, 40, 11);
            expect_asked(peer, 50, 10,
                         Writer()
                             .u16(0)
                             .short_string("orders")
                             .u8(0b01010)  // durable, auto-delete
                             .long_string(arguments.bytes()));
            peer.send_method(questions, 50, 11, Writer().short_string("orders").u32(0).u32(0));
            expect_asked(peer, 50, 20,
                         Writer()
                             .u16(0)
                             .short_string("orders")
                             .short_string("events")
                             .short_string("order.#")
                             .u8(0)
                             .long_string(arguments.bytes()));
            peer.send_method(questions, 50, 21);
        },
        [](Client& client) {
            Question question = about(Question::Kind::declare_exchange, "events");
            question.type = "topic";
            question.internal = true;
            question.arguments.emplace_back("x", outbox::FieldValue(std::int64_t{7}));
            expect_ok(client.ask(question));
            Question other = about(Question::Kind::declare_exchange, "events");
            other.type = "fanout";
            other.durable = false;
            other.auto_delete = true;
            expect_ok(client.ask(other));
            question.kind = Question::Kind::declare_queue;
            question.queue = "orders";
            question.auto_delete = true;
            expect_ok(client.ask(question));
            question.kind = Question::Kind::bind_queue;
            question.routing_key = "order.#";
            expect_ok(client.ask(question));
        });
}

TEST(AmqpQuestion, ARefusalDisturbsNothing) {
    connected(
        [](Peer& peer) {
            for (const std::uint16_t code : {404, 403, 405, 406}) {
                (void)peer.read_frame();
                ASSERT_TRUE(
                    peer.close_and_reopen(code, "REFUSED " + std::to_string(code), questions));
            }
            (void)peer.read_frame();
            peer.send_method(questions, 40, 11);
            EXPECT_TRUE(peer.read_message().has_value());
            peer.send_ack(1);
        },
        [](Client& client) {
            for (const std::uint16_t code : {404, 403, 405, 406}) {
                const std::optional<Answer> answer = client.ask(exchange_exists("x"));
                ASSERT_TRUE(answer.has_value());
                EXPECT_FALSE(answer->ok);
                EXPECT_EQ(answer->code, code);
                EXPECT_EQ(answer->text, "REFUSED " + std::to_string(code));
                EXPECT_TRUE(client.connection.is_open(Channel::main));
                EXPECT_TRUE(client.connection.is_open(Channel::trial));
            }
            expect_ok(client.ask(exchange_exists("x")));
            EXPECT_EQ(client.publish("beside"), 1U);
            EXPECT_TRUE(client.next_as<Confirm>().has_value());
        });
}

TEST(AmqpQuestion, TheNextOneNeedNotWaitForTheChannel) {
    connected(
        [](Peer& peer) {
            (void)peer.read_frame();
            peer.send_channel_close(404, "NOT_FOUND", questions);
            const std::optional<Frame> close_ok = peer.read_frame();
            EXPECT_TRUE(close_ok && close_ok->is_method(20, 41));
            EXPECT_TRUE(peer.read_open(questions));
            const std::optional<Frame> declare = peer.read_frame();
            EXPECT_TRUE(declare && declare->is_method(40, 10));
            peer.send_open_ok(questions);
            peer.send_method(questions, 40, 11);
        },
        [](Client& client) {
            const std::optional<Answer> refused = client.ask(exchange_exists("x"));
            ASSERT_TRUE(refused.has_value());
            EXPECT_FALSE(refused->ok);
            expect_ok(client.ask(exchange_exists("y")));
        });
}

TEST(AmqpQuestion, OneAtATime) {
    connected(
        [](Peer& peer) {
            (void)peer.read_frame();
            peer.send_method(questions, 40, 11);
        },
        [](Client& client) {
            ASSERT_TRUE(client.connection.ask(exchange_exists("x")));
            EXPECT_FALSE(client.connection.ask(exchange_exists("y")));
            EXPECT_GT(client.connection.unsent_bytes(), 0U);
            EXPECT_TRUE(client.connection.flush());
            EXPECT_EQ(client.connection.unsent_bytes(), 0U);
            expect_ok(client.next_as<Answer>());
        });
}

TEST(AmqpQuestion, AnotherAnswerThanTheOneWaitedForEndsTheConnection) {
    connected(
        [](Peer& peer) {
            (void)peer.read_frame();
            peer.send_method(questions, 50, 11, Writer().short_string("q").u32(0).u32(0));
        },
        [](Client& client) {
            ASSERT_TRUE(client.connection.ask(exchange_exists("x")));
            EXPECT_EQ(client.next_as<Closed>().value_or(Closed{}).failure.text,
                      "unexpected queue.declare-ok from the broker on channel 2");
        });
}

TEST(AmqpQuestion, ACloseWithoutAQuestionIsNoAnswer) {
    connected(
        [](Peer& peer) {
            ASSERT_TRUE(peer.close_and_reopen(541, "INTERNAL_ERROR", questions));
            (void)peer.read_frame();
            peer.send_method(questions, 40, 11);
        },
        [](Client& client) {
            EXPECT_FALSE(client.next(100ms).has_value());
            expect_ok(client.ask(exchange_exists("x")));
        });
}

TEST(AmqpQuestion, TheOneThatCostsTheConnectionIsAnsweredFirst) {
    connected(
        [](Peer& peer) {
            (void)peer.read_frame();
            peer.send_connection_close(503, "COMMAND_INVALID - unknown exchange type 'x'", 40, 10);
        },
        [](Client& client) {
            Question question = about(Question::Kind::declare_exchange, "events");
            question.type = "x";
            const std::optional<Answer> answer = client.ask(question);
            ASSERT_TRUE(answer.has_value());
            EXPECT_FALSE(answer->ok);
            EXPECT_EQ(answer->code, 503);
            EXPECT_EQ(answer->text, "COMMAND_INVALID - unknown exchange type 'x'");
            const std::optional<Closed> closed = client.next_as<Closed>();
            ASSERT_TRUE(closed.has_value());
            EXPECT_EQ(closed->failure.text, answer->text);
            EXPECT_FALSE(client.poll().has_value());
        });
    connected(
        [](Peer& peer) {
            (void)peer.read_frame();
            peer.send_connection_close(320, "CONNECTION_FORCED");
        },
        [](Client& client) {
            ASSERT_TRUE(client.connection.ask(exchange_exists("x")));
            EXPECT_TRUE(client.next_as<Closed>().has_value()) << "the question is not to blame";
        });
}

TEST(AmqpQuestion, NamesThatCannotBeSentAreAnsweredHere) {
    connected([](Peer&) {},
              [](Client& client) {
                  const std::optional<Answer> answer =
                      client.ask(exchange_exists(std::string(256, 'x')));
                  ASSERT_TRUE(answer.has_value());
                  EXPECT_FALSE(answer->ok);
                  EXPECT_EQ(answer->code, 0);
                  EXPECT_EQ(answer->text, "a name or the arguments are too long");
                  EXPECT_EQ(client.connection.unsent_bytes(), 0U);
              });
}

}  // namespace
