package statements

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// excluded is what engines that speak Postgres' protocol do not have, or have otherwise, by their
// documents, and what Citus was found to refuse: see docs/distributed.md.
var excluded = map[string]*regexp.Regexp{
	"advisory locks: CockroachDB's have done nothing and said that they did": regexp.MustCompile(`advisory`),
	"system columns: YugabyteDB has none": regexp.MustCompile(
		`\b(ctid|xmin|xmax)\b`,
	),
	"recursive queries: Citus wants a filter by key in them": regexp.MustCompile(`RECURSIVE`),
	"the clock where a row is updated: Citus wants what is immutable there": regexp.MustCompile(
		`(?s)DO UPDATE.*((clock|statement|transaction)_timestamp\(|now\(|random\()`,
	),
	"settings of a server: each node has its own":            regexp.MustCompile(`set_config|lock_timeout`),
	"notifications: CockroachDB has none, YugabyteDB seldom": regexp.MustCompile(`pg_notify`),
	"ids of catalogs: each node has its own":                 regexp.MustCompile(`::regclass`),
	"what Aurora DSQL does not have": regexp.MustCompile(
		`(?i)\bDO \$|plpgsql|savepoint|nextval|truncate|\btemp|collate`,
	),
}

// locksOne matches what locks rows of one key, and skips some.
var locksOne = regexp.MustCompile(`key = \$\d::text`)

func problemsOf(sql string) (all []string) {
	for why, pattern := range excluded {
		if pattern.MatchString(sql) {
			all = append(all, why)
		}
	}
	if strings.Contains(sql, "SKIP LOCKED") && !locksOne.MatchString(sql) {
		all = append(all, "locks over several keys: Citus has none")
	}
	slices.Sort(all)
	return all
}

// Nothing creeps into the statements of Config.Portable that other engines do not take.
func TestPortableStatementsKeepToWhatOtherEnginesTake(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	textsOf(texts, "", reflect.ValueOf(New("", true)))
	other := map[string]bool{ // that Portable does not send, and why the list would refuse them
		"bucket.takeOwn": true, "bucket.takeShard": true, "bucket.takeShardWithin": true,
		"window.takeOwn": true, "window.takeShard": true, "window.takeShardWithin": true,
		"bucket.giveShard": true, "window.giveShard": true,
		"prune": true, "pruneSlots": true, "resetKey": true,
		"twoPhaseIf": true, "ranges": true, // for Citus
		"inRange.take": true, "inRange.lock": true,
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		problems := problemsOf(texts[name])
		switch {
		case other[name] && len(problems) == 0:
			t.Errorf("%s is not for Portable, and the list finds nothing in it: it does not bite", name)
		case !other[name] && len(problems) > 0:
			t.Errorf("%s has %s", name, strings.Join(problems, "; "))
		}
	}
	for name := range other {
		if texts[name] == "" {
			t.Errorf("there is no statement %s any more", name)
		}
	}
}
