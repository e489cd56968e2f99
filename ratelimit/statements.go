package ratelimit

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements are the texts of all statements for one schema.
type statements struct {
	prefix string

	bucket, window              texts
	charge, settle, reset, look string
	lookShards, lookSpread      string
	head, put                   string
	pauseClosed, resumeClosed   string
	resetKey, resetKeyHere      string
	page, lockKey, countKey     string // see prune_portable.go
	deleteRows, pageSlots       string
	deleteSlot, pageSettled     string
	deleteSettled               string
	twoPhase, twoPhaseIf        string // see two_phase.go
	prune, pruneSlots, lines    string
	pruneSettled                string
}

// texts are the statements that differ between buckets and windows.
type texts struct {
	take, takeWithin, takeOrFail, takeWithinOrFail string
	takeOwn, takeShard, takeShardWithin            string
	give, pause, resume                            string
}

func newStatements(schema string) statements {
	s := statements{}
	if schema != "" {
		s.prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	// A replacement may contain placeholders that later pairs replace.
	replace := func(text string, pairs ...string) string {
		for i := 0; i < len(pairs); i += 2 {
			text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
		}
		return text
	}
	const now = "coalesce($8::timestamptz, statement_timestamp())" // the same in all places of a statement
	text := func(sql, refill, delay, unused string) string {
		for _, fresh := range []string{"$4::float8 - $7::float8", "$7::float8", "$10::float8"} {
			sql = replace(sql, "{absent "+fresh+"}", absent, "{new}", fresh)
		}
		between := func(from, to string) string { return strings.NewReplacer("{from}", from, "{to}", to).Replace(delay) }
		return strings.NewReplacer("{schema}", s.prefix, "{unless}", unpaused, "{refill}", refill, "{class}", strconv.Itoa(class),
			"{here}", "pg_catalog.hashoid("+s.table()+"::regclass::oid)",
			"{refilled}", refilled, "{unused}", unused, "{given}", strings.ReplaceAll(given, "{unused}", unused),
			"{added}", between("greatest(b.ts, b.paused_until, excluded.ts)", "excluded.paused_until"),
			"{fresh}", between(now, now+" + $10::bigint::float8 * interval '1 microsecond'"), "{now}", now,
			"{left}", between("greatest(b.ts, excluded.ts)", "b.paused_until")).Replace(sql)
	}
	of := func(refill, delay, unused, comes string) texts {
		same := func(sql string) string { return text(sql, refill, delay, unused) }
		ofShard := func(sql string) string {
			return strings.NewReplacer("$5::float8", "excluded.rate", "least($4", "least(excluded.capacity", "$12::float8", "$14::float8").Replace(sql)
		}
		shard := func(sql string) string { return text(sql, ofShard(refill), delay, unused) }
		within := func(sql, in string) string {
			return replace(sql, "{unless}", in, "{comes}", comes, "{paused}", paused)
		}
		return texts{
			take: same(takeSQL), takeWithin: same(within(takeSQL, inTime)),
			takeOrFail: orFail(same(takeSQL)), takeWithinOrFail: orFail(same(within(takeSQL, inTime))),
			takeOwn: same(takeOwnSQL), takeShard: shard(takeShardSQL),
			takeShardWithin: shard(replace(takeShardSQL, "{unless}", ofShard(within("{unless}", inTime)))),
			give:            same(giveSQL), pause: same(pauseSQL), resume: same(resumeSQL),
		}
	}
	s.bucket = of(bucketRefill, bucketDelay, bucketUnused, bucketComes)
	s.window = of(windowRefill, windowDelay, strings.ReplaceAll(windowUnused, "{later}", windowsLater), windowComes)
	one := func(sql string) string { return text(sql, "", "", "") }
	s.charge, s.settle, s.reset, s.head, s.put = one(chargeSQL), one(settleSQL), one(resetSQL), one(headSQL), one(putSQL)
	s.lines = one(linesSQL)
	rowDelay := "CASE WHEN b.origin IS NULL THEN " + bucketDelay + " ELSE " +
		strings.NewReplacer("$6::float8", "b.period::float8", "$6", "b.period", "$9::timestamptz", "b.origin").Replace(windowDelay) + " END"
	delay := func(from, to string) string { return strings.NewReplacer("{from}", from, "{to}", to).Replace(rowDelay) }
	s.pauseClosed = one(replace(pauseClosedSQL, "{added}", delay("greatest(b.ts, b.paused_until, c.now)", "c.until")))
	s.resumeClosed = one(replace(resumeClosedSQL, "{left}", delay("greatest(b.ts, c.now)", "b.paused_until")))
	s.look, s.lookShards, s.resetKey = one(lookSQL), one(lookShardsSQL), one(resetKeySQL)
	s.lookSpread = one(lookSpreadSQL)
	s.twoPhase, s.twoPhaseIf = one(twoPhaseSQL), one(twoPhaseIfSQL)
	s.resetKeyHere = one(resetKeyHereSQL)
	idle := func(sql, within string) string {
		return one(replace(sql, "{idle}", isIdle, "{full}", isFull, "{forgotten}", isForgotten, "$within", within))
	}
	s.prune, s.pruneSlots, s.pruneSettled = idle(pruneSQL, "$6"), idle(pruneSlotsSQL, ""), one(pruneSettledSQL)
	s.page, s.lockKey, s.countKey, s.deleteRows = idle(pageSQL, "$6"), idle(lockKeySQL, "$4"), one(countKeySQL), one(deleteRowsSQL)
	s.pageSlots, s.deleteSlot = idle(pageSlotsSQL, ""), one(deleteSlotSQL)
	s.pageSettled, s.deleteSettled = one(pageSettledSQL), one(deleteSettledSQL)
	return s
}

// orFail turns a take into one that fails its transaction if it does not grant. The message of the
// failure contains a column: Postgres would evaluate a constant expression while planning, and the
// statement would always fail.
func orFail(take string) string {
	set, rest, _ := strings.Cut(take, "\nWHERE ")
	where, returning, _ := strings.Cut(rest, "\nRETURNING ")
	return set + "\nWHERE CASE WHEN " + where +
		"\n\tTHEN true ELSE pg_catalog.textcat('weir: denied ', b.value::text)::boolean END" +
		"\nRETURNING " + returning
}

// of returns the texts for the rule of c.
func (s *statements) of(c *call) *texts {
	if c.Windowed {
		return &s.window
	}
	return &s.bucket
}

// table returns the name of the table of balances as an SQL string.
func (s *statements) table() string {
	return "'" + strings.ReplaceAll(s.prefix+"weir_balance", "'", "''") + "'"
}
