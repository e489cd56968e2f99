// Package engines knows which statements other engines that speak Postgres' protocol refuse, or
// understand otherwise: by their documents, or for Citus by experiment. See docs/distributed.md.
package engines

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// excluded matches what a portable statement must not have, by the reason.
var excluded = map[string]*regexp.Regexp{
	"advisory locks: CockroachDB's have done nothing and said that they did": regexp.MustCompile(
		`advisory`,
	),
	"system columns: YugabyteDB has none": regexp.MustCompile(
		`\b(ctid|xmin|xmax)\b`,
	),
	"recursive queries: Citus wants a filter by key in them": regexp.MustCompile(`RECURSIVE`),
	"the clock where a row is updated: Citus wants what is immutable there": regexp.MustCompile(
		`(?s)DO UPDATE.*((clock|statement|transaction)_timestamp\(|now\(|random\()`,
	),
	"settings of a server: each node has its own": regexp.MustCompile(
		`set_config|lock_timeout`,
	),
	"notifications: CockroachDB has none, YugabyteDB seldom": regexp.MustCompile(
		`pg_notify|\bLISTEN\b`,
	),
	"shared locks of rows: CockroachDB has none by default, Aurora DSQL has none": regexp.MustCompile(
		`FOR (KEY )?SHARE`,
	),
	"changes of the schema: Aurora DSQL has one in a transaction at the most": regexp.MustCompile(
		`\b(CREATE|ALTER|DROP) (TABLE|INDEX|SEQUENCE|FUNCTION|SCHEMA)`,
	),
	"ids of catalogs: each node has its own": regexp.MustCompile(`::regclass`),
	"what Aurora DSQL does not have": regexp.MustCompile(
		`(?i)\bDO \$|plpgsql|savepoint|nextval|truncate|\btemp|collate`,
	),
}

// locksOne matches a statement that locks rows of one key, and skips some.
var locksOne = regexp.MustCompile(`key = \$\d::text`)

// changes matches the start of each change to one of Weir's tables. ON CONFLICT DO UPDATE is a part
// of its INSERT.
var changes = regexp.MustCompile(
	`(?:INSERT INTO|UPDATE|DELETE FROM)\s+((?:"[^"]*"\.)?weir_\w+)`,
)

// divisor matches a division, and what it divides by.
var divisor = regexp.MustCompile(`/\s*([\w$.:]+)`)

// Problems returns what other engines refuse in a statement, in alphabetical order.
func Problems(sql string) (all []string) {
	for why, pattern := range excluded {
		if pattern.MatchString(sql) {
			all = append(all, why)
		}
	}
	if strings.Contains(sql, "SKIP LOCKED") && !locksOne.MatchString(sql) {
		all = append(all, "locks over several keys: Citus has none")
	}
	changed := map[string]int{}
	for _, m := range changes.FindAllStringSubmatch(sql, -1) {
		if changed[m[1]]++; changed[m[1]] == 2 {
			all = append(all, "two changes of "+m[1]+" in one statement: CockroachDB refuses them")
		}
	}
	for _, m := range divisor.FindAllStringSubmatch(sql, -1) {
		if !strings.HasSuffix(m[1], "::float8") {
			all = append(all, "a division by "+m[1]+", perhaps of integers: CockroachDB does not truncate it")
		}
	}
	for _, n := range Untyped(sql) {
		all = append(all, fmt.Sprintf("no type of $%d: Citus refuses it", n))
	}
	slices.Sort(all)
	return all
}

// parameter matches a parameter, and the type that it is cast to, if any.
var parameter = regexp.MustCompile(`\$(\d+)(::\w+)?`)

// Untyped returns the parameters of a statement that do not have a type of their own: those that
// are not cast where they come first, and those that are left out. Later uses have the type of the
// first one.
//
// Citus plans the parts of a statement by themselves. So a parameter that has its type only from
// its place, or from two places, ends there in one of the errors 42P18 (could not determine data
// type) and 42P08 (inconsistent types deduced).
func Untyped(sql string) (untyped []int) {
	seen, last := map[int]bool{}, 0
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		if !seen[n] && m[2] == "" {
			untyped = append(untyped, n)
		}
		seen[n], last = true, max(last, n)
	}
	for n := 1; n < last; n++ {
		if !seen[n] {
			untyped = append(untyped, n)
		}
	}
	slices.Sort(untyped)
	return untyped
}
