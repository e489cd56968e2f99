// Package ratelimit takes tokens from named limits inside the caller's own Postgres transaction: if that rolls back, so do
// the tokens.
package ratelimit
