package pgserver

// Option changes how a private cluster is made. A server named by DATABASE_URL is taken as it is.
type Option func(*options)

type options struct {
	durable  bool
	settings [][2]string
	env      []string
	password string // empty: one of its own
	nodes    map[int][]Option
}

// Durable makes the server wait for the disk when a transaction commits, as in production. By
// default it does not; then what was committed outlives a crash of the server, but not one of the
// machine.
func Durable() Option { return func(o *options) { o.durable = true } }

// Setting sets a parameter of the server, over what it would be otherwise.
func Setting(name, value string) Option {
	return func(o *options) { o.settings = append(o.settings, [2]string{name, value}) }
}

// Env adds to the server's environment.
func Env(vars ...string) Option { return func(o *options) { o.env = append(o.env, vars...) } }

// Node is for one node of a cluster: 0 is the coordinator.
func Node(n int, opts ...Option) Option {
	return func(o *options) {
		if o.nodes == nil {
			o.nodes = map[int][]Option{}
		}
		o.nodes[n] = append(o.nodes[n], opts...)
	}
}

// args are the server's arguments, but for its folder and port. A later one overrides.
func (o *options) args() []string {
	settings := [][2]string{
		{"listen_addresses", "127.0.0.1"},
		{"unix_socket_directories", ""}, // a socket's path may have no more than about 100 bytes
		{"max_connections", "300"},
		{"shared_buffers", "128MB"}, // initdb settles for less where little is free at that moment
		{"max_pred_locks_per_transaction", "256"},
		{"logging_collector", "off"},
	}
	if !o.durable {
		settings = append(settings, [][2]string{{"fsync", "off"}, {"full_page_writes", "off"}}...)
	}
	var args []string
	for _, s := range append(settings, o.settings...) {
		args = append(args, "-c", s[0]+"="+s[1])
	}
	return args
}
