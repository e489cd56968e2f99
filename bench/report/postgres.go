package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

func postgresWays() []contender {
	articleAt := func(level pgx.TxIsoLevel) func(context.Context, place, bucket) (limiter, error) {
		return func(_ context.Context, at place, b bucket) (limiter, error) { return newArticle(at, b, level), nil }
	}
	const table = "rate_limiting_token_bucket"
	return []contender{
		{
			name: "PL/pgSQL at SERIALIZABLE", family: postgres, shared: true, table: table,
			about: "The token bucket as a PL/pgSQL function of Franck Pachot's article \"Rate limiting with PostgreSQL / YugabyteDB (token " +
				"buckets function)\", written after its description ([article.sql](../bench/report/article.sql)) and run on Postgres. At " +
				"SERIALIZABLE, as the article demands. BEGIN, the call and COMMIT are one round trip; a call that cannot be serialized is " +
				"retried at once. It keeps whole tokens, and forgets the part of a token that came in between two calls.",
			open: articleAt(pgx.Serializable),
		},
		{
			name: "PL/pgSQL at READ COMMITTED", family: postgres, shared: true, table: table,
			about: "The same function at READ COMMITTED, at which its callers queue for the row.",
			open:  articleAt(pgx.ReadCommitted),
		},
		{
			name: "SELECT FOR UPDATE", family: postgres, shared: true, joins: true, table: "for_update_bucket",
			about: "What you would write by hand: a READ COMMITTED transaction of `SELECT ... FOR UPDATE`, a decision in Go with the program's " +
				"clock, and an `UPDATE` if it grants; the first call of a key inserts its row. Four round trips.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) { return &forUpdate{at.pool, b}, nil },
		},
	}
}
