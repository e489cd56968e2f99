// Package bench measures the library as a whole on a real Postgres, most of it beside a control
// that does without: there is nothing here but benchmarks.
package bench
