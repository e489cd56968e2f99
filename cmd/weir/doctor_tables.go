package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// tableNames are all of Weir's tables.
func tableNames() []string {
	return []string{"weir_balance", "weir_settled", "weir_slot", "weir_line", "weir_line_tenant",
		"weir_turn", "weir_schema"}
}

// lines are the rows of a query of one column of text.
func (p *patient) lines(ctx context.Context, sql string, args ...any) (found []string, err error) {
	err = p.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return found, err
}

// tables looks whether all are there, and nothing beside what the migrations made.
func (p *patient) tables(ctx context.Context) error {
	const there = `SELECT c.relname::text || ' ' || c.relpersistence::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1::text AND c.relname = ANY($2::text[]) AND c.relkind IN ('r', 'p')`
	found, err := p.lines(ctx, there, p.schema, tableNames())
	if err != nil {
		return err
	}
	var missing, unlogged []string
	for _, name := range tableNames() {
		switch {
		case slices.Contains(found, name+" u"):
			unlogged = append(unlogged, name)
		case !slices.Contains(found, name+" p"):
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		p.find(wrong, "Restore them from package schema's Files.", "there is no %s",
			strings.Join(missing, ", "))
	}
	if len(unlogged) > 0 {
		p.find(wrong, "ALTER TABLE ... SET LOGGED.",
			"%s is unlogged: a crash empties it, which makes all limits full",
			strings.Join(unlogged, ", "))
	}
	if slices.Contains(missing, "weir_balance") {
		return nil
	}
	balance := p.table("weir_balance")

	const keys = `SELECT pg_catalog.pg_get_constraintdef(con.oid) || CASE WHEN i.indisvalid THEN '' ELSE ' invalid' END
		FROM pg_catalog.pg_constraint con JOIN pg_catalog.pg_index i ON i.indexrelid = con.conindid
		WHERE con.contype = 'p' AND con.conrelid = $1::regclass::oid`
	if found, err = p.lines(ctx, keys, balance); err != nil {
		return err
	}
	if !slices.Equal(found, []string{"PRIMARY KEY (name, key, shard)"}) {
		p.find(wrong, fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (name, key, shard).", balance),
			"weir_balance lacks its primary key: no limit can be taken")
	}
	const indexes = `SELECT i.indexrelid::regclass::text FROM pg_catalog.pg_index i WHERE i.indrelid = $1::regclass::oid AND NOT i.indisprimary ORDER BY 1`
	if found, err = p.lines(ctx, indexes, balance); err != nil {
		return err
	}
	if len(found) > 0 {
		p.find(wrong, "DROP INDEX "+strings.Join(found, ", ")+".",
			"weir_balance has more indexes than its primary key: if they cover "+
				"what takes change, no take is a HOT update, and each makes the index grow")
	}
	const odd = `SELECT 'trigger ' || quote_ident(tgname::text) FROM pg_catalog.pg_trigger WHERE tgrelid = $1::regclass::oid AND NOT tgisinternal AND tgenabled <> 'D'
		UNION ALL SELECT 'row level security' FROM pg_catalog.pg_class WHERE oid = $1::regclass::oid AND relrowsecurity
		UNION ALL SELECT 'publication ' || quote_ident(pubname::text) FROM pg_catalog.pg_publication_tables WHERE schemaname = $2::text AND tablename = 'weir_balance'`
	if found, err = p.lines(ctx, odd, balance, p.schema); err != nil {
		return err
	}
	if len(found) > 0 {
		p.find(note, "Leave weir_balance out of it, unless that is intended.",
			"weir_balance has a %s: each take pays for it",
			strings.Join(found, ", a "))
	}
	const others = `SELECT quote_ident(s) FROM pg_catalog.unnest(pg_catalog.current_schemas(false)::text[]) AS s
		WHERE s <> $1::text AND pg_catalog.to_regclass(quote_ident(s) || '.weir_balance') IS NOT NULL`
	if found, err = p.lines(ctx, others, p.schema); err != nil {
		return err
	}
	if len(found) > 0 {
		p.find(wrong,
			"Set Config.Schema in each program, and drop the tables that no program uses.",
			"the search_path has tables of Weir in %s as well: programs with another search_path use other balances",
			strings.Join(found, ", "))
	}
	return nil
}

// stored are the storage parameters of weir_balance: the most that each should be. See its
// migration for why.
var stored = []struct {
	name string
	most float64
}{
	{"fillfactor", 85},
	{"autovacuum_vacuum_threshold", 1000},
	{"autovacuum_vacuum_scale_factor", 0.01},
	{"autovacuum_vacuum_cost_delay", 0},
}

// fewestPages is what is left at least of the fifty empty pages that the migration makes.
const fewestPages = 40

// storage looks at what keeps takes cheap.
func (p *patient) storage(ctx context.Context) error {
	balance := p.table("weir_balance")
	options, err := p.lines(ctx, `SELECT pg_catalog.unnest(reloptions) FROM pg_catalog.pg_class WHERE oid = $1::regclass::oid`, balance)
	if err != nil {
		return err
	}
	set := map[string]string{}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		set[name] = value
	}
	var bad, fix []string
	for _, s := range stored {
		if v, err := strconv.ParseFloat(set[s.name], 64); err != nil || v > s.most {
			bad, fix = append(bad, s.name), append(fix, fmt.Sprintf("%s = %v", s.name, s.most))
		}
	}
	isFalse := func(v string) bool {
		return slices.Contains([]string{"false", "off", "no", "0"}, strings.ToLower(v))
	}
	if !isFalse(set["vacuum_truncate"]) {
		bad, fix = append(bad, "vacuum_truncate"), append(fix, "vacuum_truncate = false")
	}
	if isFalse(set["autovacuum_enabled"]) {
		bad, fix = append(bad, "autovacuum_enabled"), append(fix, "autovacuum_enabled = true")
	}
	if len(bad) > 0 {
		p.find(wrong, fmt.Sprintf("ALTER TABLE %s SET (%s).", balance, strings.Join(fix, ", ")),
			"weir_balance is not stored as its migration says: %s", strings.Join(bad, ", "))
	}
	var pages int64
	var hot, updates int64
	if err := p.read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx,
			`SELECT pg_catalog.pg_relation_size($1::regclass) / current_setting('block_size')::bigint, coalesce(s.n_tup_hot_upd, 0), coalesce(s.n_tup_upd, 0)
			FROM (VALUES (1)) AS one LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = $1::regclass::oid`,
			balance).Scan(&pages, &hot, &updates)
	}); err != nil {
		return err
	}
	if pages < fewestPages && !p.citus { // there the rows are in the tables of other nodes
		p.find(wrong,
			fmt.Sprintf("BEGIN; INSERT INTO %s (name, key, value, ts, capacity, rate, period) SELECT '', repeat('-', 1000) "+
				"|| i::text, 0, now(), 0, 0, 1 FROM generate_series(1, 320) AS i; "+
				"DELETE FROM %[1]s WHERE name = ''; COMMIT.", balance),
			"weir_balance has %d pages, and not the fifty of its migration: it was restored, truncated or VACUUMed FULL. A table of "+
				"few pages may be read as a whole, "+
				"and then SERIALIZABLE transactions of unrelated keys abort each other", pages)
	}
	if share := float64(hot) / float64(max(1, updates)); updates >= 1000 && share < 0.9 {
		p.find(wrong, `See what else this says of indexes, of fillfactor and of long transactions; then SELECT pg_stat_reset_single_table_counters('`+balance+`'::regclass).`,
			"of %s updates of weir_balance only %.0f %% were HOT: the others made its index grow, and vacuum has to clean it",
			number(float64(updates)), share*100)
	}
	return nil
}

// privileges looks for what package schema's documentation lists.
func (p *patient) privileges(ctx context.Context) error {
	role := p.role
	if role == "" {
		found, err := p.lines(ctx, `SELECT current_user::text`)
		if err != nil {
			return err
		}
		role = found[0]
	} else if found,
		err := p.lines(ctx, `SELECT 1::text FROM pg_catalog.pg_roles WHERE rolname = $1::text`,
		role); err != nil || len(found) == 0 {
		if err == nil {
			err = usagef("--role: there is no role %q", role)
		}
		return err
	}
	to, in := pgx.Identifier{role}.Sanitize(), pgx.Identifier{p.schema}.Sanitize()
	var grants, hold, line, prune []string
	lacks := func(into *[]string, privilege, on string, tables ...string) error {
		// What is not there lacks nothing.
		has := `coalesce(pg_catalog.has_table_privilege($1::text, pg_catalog.to_regclass($2::text)::oid, $3::text), true)`
		if on == "SCHEMA " {
			has, tables = `pg_catalog.has_schema_privilege($1::text, $2::text, $3::text)`,
				[]string{p.schema}
		}
		var lacking []string
		for _, t := range tables {
			name := t
			if on != "SCHEMA " {
				name = p.table(t)
			}
			found, err := p.lines(ctx, `SELECT (`+has+`)::text`, role, name, privilege)
			if err != nil {
				return err
			}
			if found[0] != "true" {
				lacking = append(lacking, name)
			}
		}
		if len(lacking) > 0 {
			if on == "SCHEMA " {
				lacking = []string{in}
			}
			*into = append(*into, fmt.Sprintf("GRANT %s ON %s%s TO %s", privilege, on,
				strings.Join(lacking, ", "), to))
		}
		return nil
	}
	ofLines := []string{"weir_line", "weir_line_tenant", "weir_turn"}
	for _, want := range []struct {
		into      *[]string
		privilege string
		on        string
		tables    []string
	}{
		{&grants, "USAGE", "SCHEMA ", nil},
		{&grants, "SELECT", "", []string{"weir_balance", "weir_settled", "weir_schema"}},
		{&grants, "INSERT", "", []string{"weir_balance", "weir_settled"}},
		{&grants, "UPDATE", "", []string{"weir_balance"}},
		{&grants, "DELETE", "", []string{"weir_two_phase"}}, // which is there on Citus
		{&hold, "SELECT", "", []string{"weir_slot"}},
		{&hold, "INSERT", "", []string{"weir_slot"}},
		{&hold, "UPDATE", "", []string{"weir_slot"}},
		{&line, "SELECT", "", ofLines},
		{&line, "INSERT", "", ofLines},
		{&line, "UPDATE", "", ofLines},
		{&line, "DELETE", "", ofLines},
		{&prune, "SELECT", "", []string{"weir_slot"}},
		{&prune, "UPDATE", "", []string{"weir_slot"}},
		{&prune, "DELETE", "", []string{"weir_balance", "weir_settled", "weir_slot"}},
	} {
		if err := lacks(want.into, want.privilege, want.on, want.tables...); err != nil {
			return err
		}
	}
	if len(grants) > 0 {
		p.find(wrong, strings.Join(grants, "; ")+".",
			"role %q lacks privileges that a program needs", role)
	}
	if len(hold) > 0 {
		p.find(note, strings.Join(hold, "; ")+".",
			"role %q may not hold slots, as programs with package slots do", role)
	}
	if len(line) > 0 {
		p.find(note, strings.Join(line, "; ")+".",
			"role %q may not use fair lines or AtOnce, as programs with package scheduler do", role)
	}
	if len(prune) > 0 {
		p.find(note, strings.Join(prune, "; ")+".", "role %q may not prune", role)
	}
	return nil
}
