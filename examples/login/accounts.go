package main

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// accounts are those who may sign in.
type accounts struct {
	pool       *pgxpool.Pool
	iterations int // of the hash: as many as make a guess cost
}

const accountTables = `
CREATE TABLE account (name text PRIMARY KEY, salt bytea NOT NULL, hash bytea NOT NULL);
CREATE TABLE session (token text PRIMARY KEY, account text NOT NULL REFERENCES account);
`

func (a *accounts) add(ctx context.Context, name, password string) error {
	salt := []byte(rand.Text())
	hash, err := a.hash(password, salt)
	if err != nil {
		return err
	}
	_, err = a.pool.Exec(ctx, `INSERT INTO account (name, salt, hash) VALUES ($1, $2, $3)`, name,
		salt, hash)
	return err
}

// check takes its time, which is the point of it, and holds no connection while it does. An account
// that does not exist takes as long as one that does: how long it takes must not tell.
func (a *accounts) check(ctx context.Context, name, password string) (bool, error) {
	salt, want := []byte("nobody"), make([]byte, sha256.Size)
	err := a.pool.QueryRow(ctx, `SELECT salt, hash FROM account WHERE name = $1`, name).Scan(&salt,
		&want)
	exists := err == nil
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, err
	}
	got, err := a.hash(password, salt)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1 && exists, nil
}

func (a *accounts) hash(password string, salt []byte) ([]byte, error) {
	return pbkdf2.Key(sha256.New, password, salt, a.iterations, sha256.Size)
}
