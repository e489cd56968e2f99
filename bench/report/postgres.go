package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

func postgresWays() []contender {
	articleAt := func(level pgx.TxIsoLevel) func(context.Context, place, bucket) (limiter, error) {
		return func(_ context.Context, at place, b bucket) (limiter, error) {
			return newArticle(at, b, level), nil
		}
	}
	const table = "rate_limiting_token_bucket"
	return []contender{
		{
			name: "PL/pgSQL at SERIALIZABLE", family: postgres, shared: true, table: table,
			about: "The PL/pgSQL function of Franck Pachot's article \"Rate limiting with PostgreSQL / YugabyteDB (token " +
				"buckets function)\", rewritten from its description ([article.sql](../bench/report/article.sql)) and run on Postgres, at " +
				"SERIALIZABLE as the article requires. BEGIN, the call and COMMIT are one round trip; a call that cannot be serialized is " +
				"retried at once. It stores whole tokens, so the fraction of a token that comes in between two calls is lost.",
			open: articleAt(pgx.Serializable),
		},
		{
			name: "PL/pgSQL at READ COMMITTED", family: postgres, shared: true, table: table,
			about: "The same function at READ COMMITTED, where its callers queue for the row.",
			open:  articleAt(pgx.ReadCommitted),
		},
		{
			name: "SELECT FOR UPDATE", family: postgres, shared: true, joins: true,
			table: "for_update_bucket",
			about: "What you would write by hand: a READ COMMITTED transaction of `SELECT ... FOR UPDATE`, a decision in Go with the program's " +
				"clock, and an `UPDATE` if it grants. The first call of a key inserts its row. Four round trips.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				return &forUpdate{at.pool, b}, nil
			},
		},
	}
}
