// Package pgserver gives tests, examples and benchmarks a Postgres server that leaves nothing
// behind, however they end.
//
//	s, err := pgserver.Start(ctx)
//	...
//	defer s.Stop()
//	pool, err := pgxpool.New(ctx, s.URL())
//
// # Which server
//
// The first of these that there is:
//
//  1. the server that DATABASE_URL names; Stop leaves it alone
//  2. server binaries of version 14 to 18 on this machine: in the folder PGBIN, and nowhere else if
//     that is set; on PATH; by pg_config; where Debian, Red Hat and Homebrew put them
//  3. binaries that github.com/fergusstrange/embedded-postgres downloads, once, from Maven Central
//     or from what WEIR_POSTGRES_REPOSITORY names, a mirror's URL or a folder
//
// # What becomes of it
//
// From binaries it makes a private cluster: a temporary folder, a free port on 127.0.0.1, a random
// password. The folder is in memory where there is plenty, unless the cluster is durable or TMPDIR
// says where it goes. A supervisor, a small shell script that outlives this process, ends the
// server and removes the folder as soon as a pipe that this process holds is closed. That happens
// on Stop, and by itself when the process ends in whatever way: by returning, by a panic, by
// Ctrl-C, by SIGKILL. As Postgres refuses to run as root, root runs it as the user postgres, or
// else nobody.
//
// # Faults
//
// Kill, Shutdown and Restart crash a private server and bring it back, with what it had committed.
// Standby starts a second server that replicates the first, and Promote lets it take over.
//
// It needs a Unix. Elsewhere, set DATABASE_URL.
package pgserver
