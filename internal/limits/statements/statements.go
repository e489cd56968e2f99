package statements

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Statements are the texts of all statements for one schema.
type Statements struct {
	Bucket, Window                     ForRule
	Many, InRange                      Many // InRange on Citus
	Charge, ChargeShard, Settle, Reset string
	Look, LookShards, LookSpread       string
	LookClosed                         string
	Lines, Head, Put                   string
	ClosedLine                         string
	PauseClosed, ResumeClosed          string
	ResetKey, ResetKeyHere             string
	TwoPhase, TwoPhaseIf               string
	Prune, PruneSlots, PruneSettled    string
	Ranges                             string // of hashes, on Citus
	Page, LockKey, CountKey            string // see prune_portable.go
	DeleteRows, PageSlots, DeleteSlot  string
	PageSettled, DeleteSettled         string

	names names
}

// ForRule are the statements that differ between buckets and windows.
type ForRule struct {
	Take, TakeWithin, TakeOrFail, TakeWithinOrFail string
	TakeOwn, TakeShard, TakeShardWithin, TakeParts string
	Give, GiveShard, Pause, Resume                 string
}

// New returns the statements for tables in schema, or where the search_path finds them if it is
// empty. Those for many rows are portable if asked for: see [Many].
func New(schema string, portable bool) Statements {
	n := namesIn(schema)
	return Statements{
		names:  n,
		Bucket: n.forRule(bucket), Window: n.forRule(window),
		Many: n.many(portable), InRange: n.inRange(),
		Charge: n.charge(), ChargeShard: n.chargeShard(), Settle: n.settle(), Reset: n.reset(),
		Look: n.look(), LookShards: n.lookShards(), LookSpread: n.lookSpread(),
		LookClosed: n.lookClosed(),
		Lines:      n.lines(), Head: n.head(), Put: n.put(),
		ClosedLine:  n.closedLine(),
		PauseClosed: n.pauseClosed(), ResumeClosed: n.resumeClosed(),
		ResetKey: n.resetKey(), ResetKeyHere: n.resetKeyHere(),
		TwoPhase: n.markTwoPhase(), TwoPhaseIf: n.markTwoPhaseIf(),
		Prune: n.prune(), PruneSlots: n.pruneSlots(), PruneSettled: n.pruneSettled(),
		Ranges: n.ranges(),
		Page:   n.page(), LockKey: n.lockKey(), CountKey: n.countKey(),
		DeleteRows: n.deleteRows(), PageSlots: n.pageSlots(), DeleteSlot: n.deleteSlot(),
		PageSettled: n.pageSettled(), DeleteSettled: n.deleteSettled(),
	}
}

func (n names) forRule(k kind) ForRule {
	r := asked(k)
	within, ofShards := inTime(`$12::float8`), inTime(`$17::float8`)
	return ForRule{
		Take: n.take(r, atOnce), TakeWithin: n.take(r, within),
		TakeOrFail: n.take(r, orFail(atOnce)), TakeWithinOrFail: n.take(r, orFail(within)),
		TakeOwn:   n.takeOwn(k),
		TakeShard: n.takeShard(k, atOnce), TakeShardWithin: n.takeShard(k, ofShards),
		TakeParts: n.takeParts(k),
		Give:      n.give(k), GiveShard: n.giveShard(k), Pause: n.pause(k), Resume: n.resume(k),
	}
}

// For returns the statements for buckets, or for windows.
func (s *Statements) For(windowed bool) *ForRule {
	if windowed {
		return &s.Window
	}
	return &s.Bucket
}

// Table returns the name of the table of balances, quoted for SQL.
func (s *Statements) Table() string { return s.names.balance }

// names are those of the tables, quoted for SQL.
type names struct {
	balance, settled, slot, twoPhase string
	oid                              string // the oid of the table of balances
}

func namesIn(schema string) names {
	prefix := ""
	if schema != "" {
		prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	return names{
		balance: prefix + "weir_balance", settled: prefix + "weir_settled",
		slot: prefix + "weir_slot", twoPhase: prefix + "weir_two_phase",
		oid: `'` + strings.ReplaceAll(prefix+"weir_balance", `'`, `''`) + `'::regclass::oid`,
	}
}
