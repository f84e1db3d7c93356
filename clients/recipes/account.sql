CREATE TABLE account (
    id      text   PRIMARY KEY,
    balance bigint NOT NULL,
    fence   bigint NOT NULL DEFAULT 0 -- the highest fence that was registered
);
