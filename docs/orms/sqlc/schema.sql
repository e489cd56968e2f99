CREATE TABLE upload (
  id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  owner text NOT NULL,
  name  text NOT NULL,
  UNIQUE (owner, name)
);
