package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// Whatever goes wrong, no part of the password is written.
func TestPasswordsAreNotWritten(t *testing.T) {
	t.Parallel()
	for _, database := range []string{
		"postgres://u:s3cret@127.0.0.1:1/d", "postgres://u:s3cret@127.0.0.1:1/d?sslmode=nonsense",
		"postgres://u:s3cret@127.0.0.1:x/d",
		"postgres://u:s3cret@[::1/d",
		"postgres://u:s3cret/w0rd@127.0.0.1:1/d", "postgres://u:s3cret#w0rd@127.0.0.1:1/d",
		"postgres://u:s3cret?w0rd@127.0.0.1:1/d", "postgres://u:s3cret@w0rd%@127.0.0.1:1/d",
		"postgres://u:s3cret w0rd@127.0.0.1:1/d",
		"postgres://u:7531/w0rd@127.0.0.1:1/d", "postgres://u:7531#w0rd@127.0.0.1:1/d",
		"postgres://u:7531?w0rd@127.0.0.1:1/d", "postgres://u:s3cret@7531/w0rd@127.0.0.1:1/d",
		"host=127.0.0.1 port=1 password=s3cret", "host=127.0.0.1 port=x password='s3cret'",
		"postgres://127.0.0.1:1/d?password=s3cret",
		"password = s3cret =",
		"host=127.0.0.1 port=1 password=s3cret sslmode=nonsense",
		`host=127.0.0.1 port=x password='s3cret\'s w0rd'`,
		`host=127.0.0.1 port=x password=s3cret\ w0rd`,
		"host=127.0.0.1 port=1 password=s3cret w0rd dbname=d",
	} {
		for _, args := range [][]string{{"limits", "--database", database}, {"limits", database},
			{"explain", database}, {"show", "l", "--most", database}} {
			r := weir(t, nil, args...)
			for _, part := range []string{"s3cret", "w0rd", "7531"} {
				if r.code == 0 || r.err == "" || strings.Contains(r.out+r.err, part) {
					t.Errorf("%q: %+v", args, r)
				}
			}
		}
	}
}

// Nor is what follows a space in it, and looks like a setting.
func TestAnUnknownSettingIsNotWritten(t *testing.T) {
	t.Parallel()
	c := pgtest.Pool(t).Config().ConnConfig
	database := fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable password=%s w0rd=s3cret", c.Host,
		c.Port, c.User, c.Database, c.Password)
	r := weir(t, nil, "limits", "--database", database)
	r.fails(t, exitUsage, "quotes")
	if strings.Contains(r.err, "w0rd") {
		t.Errorf("%+v", r)
	}
}

// A table that somebody has locked holds up no command that only reads for long.
func TestReadingEnds(t *testing.T) {
	t.Parallel()
	for table, args := range map[string][]string{"river_job": {"explain", "1"}, "weir_schema": {"limits"}} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			withRiver(t, pool)
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := tx.Exec(t.Context(), "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			done := make(chan ran, 1)
			go func() { done <- weir(t, pool, args...) }()
			select {
			case r := <-done:
				r.fails(t, exitFailed, "")
			case <-time.After(time.Minute):
				t.Error("it hangs")
			}
		})
	}
}

// A URL whose password has ended the host too early is not connected to.
func TestAPasswordThatIsNotPercentEncodedIsRefused(t *testing.T) {
	t.Parallel()
	for _, database := range []string{
		"postgres://u:12/w0rd@db/d", "postgres://u:12#w0rd@db/d", "postgres://u:12?w0rd@db/d", "postgres://u:12?w0=rd@db/d",
		"postgres://u:p@ss/w0rd@db/d", "postgres://u:w0rd/x@db/d",
		"host=127.0.0.1 port=1 password=s3cret w0rd dbname=d",
		"postgres://u:12@w0rd?x=y@127.0.0.1:1/d", "postgres://u:12?host=w0rd@127.0.0.1/d",
	} {
		weir(t, nil, "limits", "--database", database).fails(t, exitUsage, "percent-encode", "--database",
			"DATABASE_URL")
	}
	for _, database := range []string{"postgres://u:p%40%2F%23%3F@127.0.0.1:1/d%40e?application_name=a@b",
		"postgres://127.0.0.1:1/d%40e?user=u@server&password=p", "host=127.0.0.1 port=1 user=u password='p@/#?' dbname=d@e"} {
		weir(t, nil, "limits", "--database", database).fails(t, exitFailed, "refused", "d@e")
	}
}
