package schema

// An Option says which schema, or which version of it, a call is about.
type Option func(*options)

type options struct {
	schema    string
	hasSchema bool
	version   int
	toVersion bool

	distribute bool
	with       string // empty: with no other table
}

func collect(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// In names the schema that holds Weir's tables. Any name that Postgres accepts will do, and is
// taken literally: upper case, spaces and quotes included. [Migrate] creates the schema if it does
// not exist.
//
// Default: the connection's current schema, the first one of its search_path that exists.
func In(schema string) Option {
	return func(o *options) { o.schema, o.hasSchema = schema, true }
}

// To makes [Migrate] stop at a version. A version below the database's is an error, as there are no
// down migrations. [Version] and [Check] ignore it.
//
// Default: [Newest].
func To(version int) Option {
	return func(o *options) { o.version, o.toVersion = version, true }
}

// Distributed makes [Migrate] distribute the tables by key over the nodes of a Citus cluster, once
// they are at their version. Existing balances move with them. If the tables are distributed
// already, it does nothing, nor if a later release has migrated the schema further. If the database
// has no Citus, Migrate returns an error. Connect to the coordinator. The role must be allowed to
// create tables there and on the workers. Then set ratelimit.Config.Citus.
func Distributed() Option { return DistributedWith("") }

// DistributedWith is [Distributed] beside a table of yours that is distributed by its tenant:
// Weir's rows of a key are stored on the node that has your rows of the same key. Then one node
// commits a tenant's tokens and rows. Name the table as in SQL, with its schema if the search_path
// does not have it. Its distribution column must be of type text, with a deterministic collation,
// which the keys of Weir's tables then get.
func DistributedWith(table string) Option {
	return func(o *options) { o.distribute, o.with = true, table }
}
