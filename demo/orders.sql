-- A shop: placing an order writes the order and the event that tells of it, in one transaction.
CREATE EXTENSION outbox_drainer;

CREATE TABLE orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int NOT NULL,
    amount   numeric(10, 2) NOT NULL
);
