// Package pgserver gives tests, examples and benchmarks a Postgres server that leaves nothing behind.
//
// It uses, in this order: the server that DATABASE_URL names; server binaries of version 14 to 18 found on the machine (in
// PGBIN, on PATH, by pg_config, and where Debian, Red Hat and Homebrew put them); binaries that
// github.com/fergusstrange/embedded-postgres downloads, from Maven Central or from the mirror that WEIR_POSTGRES_REPOSITORY
// names.
//
// From binaries it makes a private cluster: a temporary folder, a free port on 127.0.0.1, a random password. A supervisor,
// a small shell script that outlives this process, ends the server and removes the folder as soon as a pipe that this
// process holds is closed. That happens on Stop, and by itself when the process ends in whatever way: by returning, by a
// panic, by Ctrl-C, by SIGKILL. As Postgres refuses to run as root, root runs it as the user postgres, or else nobody.
//
// It needs a Unix. Elsewhere, set DATABASE_URL.
package pgserver
