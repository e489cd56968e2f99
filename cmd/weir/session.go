package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

// timeout bounds each statement that only reads.
const timeout = 10 * time.Second

// session is a database that the command is about.
type session struct {
	e      *env
	pool   *pgxpool.Pool
	schema string // that has the tables; "" if none was found
	citus  bool   // they are distributed
}

// open connects, and finds the tables. It is for commands that do without them; others use with.
func (e *env) open(ctx context.Context, fn func(ctx context.Context, s *session) error) error {
	text := e.database
	if text == "" {
		text = e.getenv("DATABASE_URL")
	}
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil || splitsPassword(text, cfg) {
		return errText()
	}
	cfg.MaxConns = 2
	// Nothing is prepared, so that a pooler in transaction mode will do.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "weir"
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	s := &session{e: e, pool: pool}
	if err := s.find(ctx); err != nil {
		return err
	}
	return explain(fn(ctx, s))
}

// errText says that the connection string is invalid. It shows no part of the text, nor of another
// error: a password may be anywhere in it.
func errText() error {
	return usagef("%s", "the connection string in --database or DATABASE_URL, or a setting in "+
		"a PG variable, is invalid: want a URL, or key=value pairs. In a URL, percent-encode "+
		"special characters of the password: %40 is @, %2F is /, %23 is #, %3F is ? and %25 is "+
		"%. In pairs, write 'quotes' around a password with spaces")
}

// splitsPassword reports whether a part of the password was probably read as something else, which
// errors may show: in a URL a bare /, ? or # ends the host, and in pairs a space ends a value.
func splitsPassword(text string, cfg *pgxpool.Config) bool {
	u, err := url.Parse(text)
	isURL := err == nil && u.Host != ""
	if isURL && strings.Contains(u.EscapedPath()+u.EscapedFragment(), "@") {
		return true
	}
	for name, value := range cfg.ConnConfig.RuntimeParams {
		if strings.ContainsAny(name, "@ \t\n") || // or after a bare ? and =
			isURL && (u.User == nil || u.Path == "") && strings.Contains(value, "@") {
			return true
		}
	}
	host := cfg.ConnConfig.Host
	return strings.LastIndexByte(host, '@') > 0 && !strings.HasPrefix(host, "/")
}

// with is open for commands that need the tables.
func (e *env) with(ctx context.Context, fn func(ctx context.Context, s *session) error) error {
	return e.open(ctx, func(ctx context.Context, s *session) error {
		if s.schema == "" {
			return s.notMigrated(ctx)
		}
		brief, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := schema.Check(brief, s.pool, schema.In(s.schema)); err != nil {
			return err
		}
		return fn(ctx, s)
	})
}

// find looks for the tables where programs would.
func (s *session) find(ctx context.Context) error {
	table := "weir_balance"
	if s.e.schema != "" {
		table = pgx.Identifier{s.e.schema, table}.Sanitize()
	}
	// schema.Migrate makes weir_two_phase where it distributes the tables.
	const sql = `SELECT n.nspname::text, EXISTS (SELECT FROM pg_catalog.pg_class t
			WHERE t.relnamespace = n.oid AND t.relname = 'weir_two_phase')
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = pg_catalog.to_regclass($1::text)::oid`
	err := s.read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, table).Scan(&s.schema, &s.citus)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	var unknown *pgconn.PgError
	if errors.As(err, &unknown) && (unknown.Code == "42704" || unknown.Code == "08P01") { // a setting, also of PgBouncer
		return errText()
	}
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) {
		return fmt.Errorf("%w\nSay which database by --database, DATABASE_URL or PGHOST and so on",
			err)
	}
	if err != nil {
		return fmt.Errorf("look for Weir's tables: %w", err)
	}
	return nil
}

func (s *session) notMigrated(ctx context.Context) error {
	where := fmt.Sprintf("schema %q", s.e.schema)
	if s.e.schema == "" {
		var path string
		if err := s.pool.QueryRow(ctx, `SELECT current_setting('search_path')`).
			Scan(&path); err != nil {
			return err
		}
		where = "the search_path " + path
	}
	return fmt.Errorf("there are no tables of Weir in %s of %s: run \"weir migrate\", or say by --schema where they are",
		where, s.name())
}

// read runs fn in a transaction that can change nothing, whatever the defaults of the connection.
func (s *session) read(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted,
		AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = `+
			strconv.FormatInt(timeout.Milliseconds(), 10)); err != nil {
			return err
		}
		return fn(tx)
	})
}

func (s *session) reader() (*inspect.Reader, error) {
	return inspect.New(s.pool, inspect.Config{Schema: s.schema})
}

func (s *session) limiter() (*ratelimit.Limiter, error) {
	return ratelimit.New(ratelimit.Config{Schema: s.schema, Citus: s.citus})
}

// name is the database for people, without anything secret.
func (s *session) name() string {
	c := s.pool.Config().ConnConfig
	return fmt.Sprintf("database %q at %s as %q", c.Database, c.Host, c.User)
}

// local says that the database is on this machine, as far as the address tells.
func local(c *pgx.ConnConfig) bool {
	hosts := []string{c.Host}
	for _, f := range c.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, host := range hosts {
		ip := net.ParseIP(host)
		if host != "localhost" && !strings.HasPrefix(host, "/") && !strings.HasPrefix(host, "@") &&
			(ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// confirm asks before anything is changed in a database that is not on this machine. The end of
// ctx, as Ctrl-C brings it about, is a no.
func (s *session) confirm(ctx context.Context, what string) error {
	if s.e.yes || s.e.local(s.pool.Config().ConnConfig) {
		return nil
	}
	if !s.e.inTerm {
		return usagef("this would %s in %s, which is not on this machine: say --yes to do it", what,
			s.name())
	}
	s.e.askf("This will %s in %s.\nGo on? [y/N] ", what, s.name())
	answers := make(chan string, 1)
	go func() { // nothing ends the read but an answer
		answer, _ := bufio.NewReader(s.e.in).ReadString('\n')
		answers <- answer
	}()
	answer := ""
	select {
	case answer = <-answers:
	case <-ctx.Done():
	}
	if yes := strings.ToLower(strings.TrimSpace(answer)); yes == "y" || yes == "yes" {
		return nil
	}
	if !strings.HasSuffix(answer, "\n") {
		s.e.askf("\n")
	}
	return errors.New("nothing was changed")
}

// explain says what fixes an error, in terms of this command.
func explain(err error) error {
	var e *pgconn.PgError
	switch {
	case errors.Is(err, schema.ErrNotMigrated):
		return fmt.Errorf("%w\nRun \"weir migrate\"", err)
	case errors.Is(err, schema.ErrIncompatible):
		return fmt.Errorf("%w\nInstall a later weir", err)
	case errors.As(err, &e) && e.Code == "42501":
		return fmt.Errorf("%w\n\"weir doctor\" says what the role lacks", err)
	}
	return err
}
