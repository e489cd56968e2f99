// Package integration proves the library as a whole on a real Postgres: there is nothing here but
// tests.
package integration
