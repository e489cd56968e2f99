package schema

// An Option says which schema, or which version of it, a call is about.
type Option func(*options)

type options struct {
	schema    string
	hasSchema bool
	version   int
	toVersion bool
}

func collect(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// In names the schema that holds Weir's tables. Any name that Postgres accepts will do, and is taken literally: upper
// case, spaces and quotes included. [Migrate] creates the schema if it does not exist.
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
