package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/shard"
)

// distribute has Citus distribute the tables by key. Existing rows move to their nodes. If the
// tables are distributed already, they stay where they are. Then it is an error if they are not
// distributed together, and with the table that was asked for.
func (p place) distribute(ctx context.Context, tx pgx.Tx, with string) error {
	var citus bool
	const has = `SELECT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'citus')`
	if err := tx.QueryRow(ctx, has, oneShot).Scan(&citus); err != nil {
		return fmt.Errorf("look for Citus: %w", err)
	}
	if !citus {
		return fmt.Errorf("distribute the tables: database %q has no extension citus", p.database)
	}
	t := tenants{name: "none"}
	if with != "" {
		var err error
		if t, err = p.tenants(ctx, tx, with); err != nil {
			return err
		}
	}
	if err := p.enter(ctx, tx); err != nil {
		return err
	}
	var distributed, groups int
	var group *uint32 // the colocation group of those that are distributed
	const find = `SELECT count(*), count(DISTINCT colocationid), max(colocationid) FROM pg_dist_partition
		WHERE partmethod = 'h' AND logicalrelid IN
			('weir_balance'::regclass, 'weir_settled'::regclass, 'weir_slot'::regclass)`
	if err := tx.QueryRow(ctx, find, oneShot).Scan(&distributed, &groups, &group); err != nil {
		return fmt.Errorf("see whether the tables are distributed: %w", err)
	}
	wrong := ""
	switch {
	case group != nil && (distributed < 3 || groups > 1):
		wrong = "weir_balance, weir_settled and weir_slot are not distributed together"
	case group != nil && with != "" && *group != t.group:
		wrong = "they are distributed already, and not with " + with
	}
	if wrong != "" {
		return fmt.Errorf("distribute the tables of schema %q: %s; stop all programs, SELECT undistribute_table('weir_balance'), "+
			"likewise weir_settled and weir_slot, each that is distributed, then migrate again", p.schema, wrong)
	}
	homeless := group == nil
	if !homeless {
		// Ask first, because house locks the tables: all takes wait for it.
		const ask = `SELECT EXISTS (SELECT FROM weir_balance WHERE key = '' AND shard > 0)
			OR EXISTS (SELECT FROM weir_settled WHERE key = '')`
		if err := tx.QueryRow(ctx, ask, oneShot).Scan(&homeless); err != nil {
			return fmt.Errorf("look for shards of limits without keys: %w", p.grant(err,
				"SELECT ON "+quote(p.schema, "weir_balance")+", "+quote(p.schema, "weir_settled")))
		}
	}
	if homeless {
		if err := p.house(ctx, tx); err != nil {
			return fmt.Errorf("spread the shards of limits without keys: %w", err)
		}
	}
	if group == nil {
		return p.spread(ctx, tx, t)
	}
	return nil
}

// tenants is a table of the application that is distributed by its tenant.
type tenants struct {
	name      string // quoted, as colocate_with expects it
	group     uint32
	collation string // of its distribution column, quoted; if empty, keys keep their own
}

// tenants finds the table.
func (p place) tenants(ctx context.Context, tx pgx.Tx, table string) (tenants, error) {
	const find = `
		SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), d.colocationid, a.attname,
			format_type(a.atttypid, a.atttypmod), quote_ident(cn.nspname) || '.' || quote_ident(co.collname)
		FROM pg_dist_partition d
			JOIN pg_class c ON c.oid = d.logicalrelid
			JOIN pg_namespace n ON n.oid = c.relnamespace
			JOIN pg_attribute a ON a.attrelid = c.oid
				AND a.attname = column_to_column_name(d.logicalrelid, d.partkey)
			LEFT JOIN pg_collation co ON co.oid = a.attcollation
			LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
		WHERE d.logicalrelid = to_regclass($1) AND d.partmethod = 'h'`
	var t tenants
	var column, of string
	var collation *string
	err := tx.QueryRow(ctx, find, oneShot, table).Scan(&t.name, &t.group, &column, &of, &collation)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return tenants{},
			fmt.Errorf("distribute the tables with %s: there is no distributed table of that name; "+
				"name it with its schema, and run create_distributed_table on it first", table)
	case err != nil:
		return tenants{}, fmt.Errorf("look for table %s: %w", table, err)
	case of != "text":
		return tenants{},
			fmt.Errorf("distribute the tables with %s: its column %s is of type %s, and Weir's keys are text: "+
				"Citus keeps tables together only if both are of one type; see docs/distributed.md",
				table, column, of)
	}
	t.collation = *collation
	return t, nil
}

// spread distributes the tables. Settlements and slots are stored with the balances of their key.
func (p place) spread(ctx context.Context, tx pgx.Tx, t tenants) error {
	var statements []string
	if t.collation != "" {
		for _, table := range []string{"weir_balance", "weir_settled", "weir_slot"} {
			statements = append(statements,
				"ALTER TABLE "+table+" ALTER COLUMN key TYPE text COLLATE "+t.collation)
		}
	}
	balances := quote(p.schema, "weir_balance")
	for _, d := range [][2]string{{"weir_balance", t.name}, {"weir_settled", balances},
		{"weir_slot", balances}} {
		statements = append(statements,
			"SELECT create_distributed_table('"+d[0]+"', 'key', colocate_with => "+literal(
				d[1],
			)+")")
	}
	// weir_schema and weir_two_phase are there already if somebody has undistributed the others.
	const unlessIt = " WHERE NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = "
	statements = append(statements,
		"SELECT create_reference_table('weir_schema'::regclass)"+unlessIt+"'weir_schema'::regclass)",
		// A transaction that writes to weir_two_phase commits in two phases, even if no row is
		// changed: see ratelimit.Config.
		"CREATE TABLE IF NOT EXISTS weir_two_phase ()",
		"SELECT citus_add_local_table_to_metadata('weir_two_phase'::regclass)"+
			unlessIt+"'weir_two_phase'::regclass)")
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("distribute the tables of schema %q: %w", p.schema, err)
		}
	}
	return nil
}

// house moves the shards of limits without keys, and their settlements, to their homes: see package
// shard. On one node they are stored without a key. On Citus a program without Config.Citus may
// have written some without a key by mistake. If the home already has such a row, the one without a
// key is deleted.
func (p place) house(ctx context.Context, tx pgx.Tx) error {
	const (
		columns = `value, ts, capacity, rate, period, delay, moved, origin, paused_until, shard, name`
		find    = `SELECT name, shard FROM weir_balance WHERE key = '' AND shard > 0`
		move    = `INSERT INTO weir_balance (` + columns + `, key) SELECT ` + columns + `, $3::text
			FROM weir_balance WHERE name = $1::text AND key = '' AND shard = $2::integer
			ON CONFLICT (name, key, shard) DO NOTHING`
		moveSettled = `INSERT INTO weir_settled (id, until, key)
			SELECT id, until, ($1::text[])[1 + get_byte(uuid_send(id), 15) % cardinality($1::text[])]
			FROM weir_settled WHERE key = '' ON CONFLICT DO NOTHING`
	)
	if _, err := tx.Exec(ctx,
		`LOCK TABLE weir_balance, weir_settled IN EXCLUSIVE MODE`); err != nil {
		return err
	}
	type row struct {
		Name  string
		Shard int32
	}
	found, _ := tx.Query(ctx, find, oneShot) // CollectRows returns its error, too
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}
	for _, r := range rows {
		nr, _ := shard.HomeOf(r.Name, r.Shard)
		if _, err := tx.Exec(ctx, move, oneShot, r.Name, r.Shard, shard.Home(nr)); err != nil {
			return err
		}
	}
	homes := make([]string, shard.Homes)
	for nr := range homes {
		homes[nr] = shard.Home(nr)
	}
	if _, err := tx.Exec(ctx, moveSettled, oneShot, homes); err != nil {
		return err
	}
	for _, done := range []string{`DELETE FROM weir_balance WHERE key = '' AND shard > 0`,
		`DELETE FROM weir_settled WHERE key = ''`} {
		if _, err := tx.Exec(ctx, done); err != nil {
			return err
		}
	}
	return nil
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
